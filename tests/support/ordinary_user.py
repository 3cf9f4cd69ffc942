"""Executes a program as a user who may have so many processes: `python ordinary_user.py USER MOST PROGRAM …`.

The kernel counts processes by the real user, and never bounds root. So root takes another real user, and goes on with
the rights of root to files; it gives up the two capabilities that lift the bound.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

_PR_CAPBSET_DROP = 24
_CAP_SYS_ADMIN = 21
_CAP_SYS_RESOURCE = 24


def become(user: int, most: int) -> None:
    """Raises OSError where even root may not: in a container without the right to change its user."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (_CAP_SYS_ADMIN, _CAP_SYS_RESOURCE):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the bounding set of capabilities")
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    os.setresuid(user, 0, 0)


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]))
    os.execv(sys.argv[3], sys.argv[3:])
