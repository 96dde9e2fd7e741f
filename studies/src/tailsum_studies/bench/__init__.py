"""What `tailsum bench` runs: time and memory on this machine, exact beside sketch, and beside other libraries."""
