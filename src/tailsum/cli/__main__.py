"""`python -m tailsum.cli`, as `torchrun -m tailsum.cli` starts it: the command line."""

from tailsum.cli import main

main()
