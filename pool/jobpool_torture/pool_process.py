"""`python -m jobpool_torture.pool_process …`: the command `jobpool`, whose pool runs under a torture's witness.

JOBPOOL_LEDGER names the file that the witness writes. Every other word and variable is as for `jobpool`. One that a
fleet has started is killed when the fleet's process ends: so none stays behind, stopped or not.
"""

from __future__ import annotations

import os

from jobpool.ipc import linux
from jobpool_torture.processes import MARK


def main() -> None:
    if mark := os.environ.get(MARK):
        linux.die_with_parent(int(mark.partition("-")[0]))
    # After that, for they take most of its start: a process that is stopped before it does not end with its parent.
    from jobpool.cli.main import cli
    from jobpool_torture.witness import watched

    cli(obj=lambda backend: watched(backend, os.environ))


if __name__ == "__main__":
    main()
