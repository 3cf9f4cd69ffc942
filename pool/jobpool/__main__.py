"""`python -m jobpool`: the command line."""

from jobpool.cli.main import main

main()
