"""`python -m jobpool`: the command `jobpool`."""

from jobpool.cli.main import main

if __name__ == "__main__":
    main()
