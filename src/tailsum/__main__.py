"""`python -m tailsum`: the command line."""

from tailsum.cli import main

main()
