"""`python constants.py MODULE:NAME=NUMBER python -m PROGRAM …`: PROGRAM with another constant.

For limits that no setting can shorten, and for which a test cannot wait.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib import import_module


def with_constant(assignment: str) -> tuple[str, ...]:
    """Return the words through which a program is started with it; see `Rig.start_pool`."""
    return (sys.executable, __file__, assignment)


def main() -> None:
    """Set the constant, and be the program."""
    place, _, number = sys.argv[1].partition("=")
    module, _, name = place.partition(":")
    sys.path[0] = os.getcwd()  # in place of this folder, as `-m` has it
    assert hasattr(import_module(module), name)
    setattr(import_module(module), name, float(number))
    program = sys.argv[4]
    sys.argv = [program, *sys.argv[5:]]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
