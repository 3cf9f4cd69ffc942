"""`python -m jobpool_torture.pool_process …`: the command `jobpool`, whose pool runs under a torture's witness.

JOBPOOL_LEDGER names the file that the witness writes. Every other word and variable is as for `jobpool`. One that a
fleet has started is killed when the fleet's process ends: so none stays behind, stopped or not.
"""

from __future__ import annotations

import os

from jobpool.cli.main import cli
from jobpool.ipc import linux
from jobpool_torture.fleet import MARK
from jobpool_torture.witness import watched


def main() -> None:
    if mark := os.environ.get(MARK):
        linux.die_with_parent(int(mark.partition("-")[0]))
    cli(obj=lambda backend: watched(backend, os.environ))


if __name__ == "__main__":
    main()
