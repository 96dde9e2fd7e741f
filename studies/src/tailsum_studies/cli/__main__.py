"""`python -m tailsum_studies.cli`, as `torchrun -m tailsum_studies.cli` starts it: the command line."""

from tailsum_studies.cli import main

main()
