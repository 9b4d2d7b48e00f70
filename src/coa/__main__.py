"""`python -m coa`: the command line."""

from coa.cli import main

main()
