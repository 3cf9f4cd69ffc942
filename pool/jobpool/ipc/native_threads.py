"""Native threads that the app's import left running: those of OpenMP and BLAS, of a library in Rust or C++.

A child has none of them. Libraries that know of forks end or renew theirs: OpenBLAS, Intel's and LLVM's OpenMP, Arrow.
GNU's OpenMP does not: it would wait forever for its threads in the child. It can be told to end them, and begins anew
when it is used, but Numba refuses to go on in a child. So what is left after that, and after a fork that nobody needed,
is worth a word.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from pathlib import Path

_PAUSE_HARD = 2  # omp_pause_hard of <omp.h>: end the threads, forget the rest
_RTLD_NOLOAD = 4  # of <dlfcn.h>: only a library that is loaded already

_LIBRARY = re.compile(r"/[^\n]*/(?:lib|_)?(gomp|omppool|polars|cygrpc|arrow|iomp5|omp)[-._][^/\n]*")
_NUMBA = "omppool"  # ends a child that uses it, also when OpenMP has begun anew: it compares the pid
_NOT_FORKABLE = {"gomp": "OpenMP (libgomp)", _NUMBA: "Numba (OpenMP)", "polars": "Polars", "cygrpc": "gRPC"}
_FORKABLE = {"arrow", "iomp5", "omp"}


def judge(left: int, libraries: set[str], paused: bool) -> tuple[str, int]:
    """Decide what `left` native threads mean, given the libraries in memory; `paused`: GNU's OpenMP has none left.

    Returns:
        Which of them no fork survives, "" = none, and how many threads of unknown libraries are left.
    """
    if left <= 0 and _NUMBA not in libraries:
        return "", 0
    guilty = [_NOT_FORKABLE[name] for name in sorted(libraries & set(_NOT_FORKABLE)) if name != "gomp" or not paused]
    if guilty:
        return f"native threads of {' and '.join(guilty)}", 0
    return "", 0 if libraries & _FORKABLE else left


def settle() -> tuple[str, int]:
    """End the native threads that can be ended before a fork, and `judge` the rest. Forks once if there are any."""
    found = libraries_in(Path("/proc/self/maps").read_text())
    openmp = []
    if _count():
        _fork_for_nothing()
        # A numpy wheel may bring its own.
        openmp = [_end_openmp(path) for path, name in found.items() if name == "gomp"]
    return judge(_count(), set(found.values()), all(openmp))


def libraries_in(maps: str) -> dict[str, str]:
    """Return path → short name of those libraries in the text of /proc/self/maps that decide something here."""
    return {match[0]: match[1] for match in _LIBRARY.finditer(maps)}


def _count() -> int:
    """Return the number of threads of this process that Python does not know."""
    return len(os.listdir("/proc/self/task")) - len(sys._current_frames())


def _fork_for_nothing() -> None:
    """Have libraries prepare for a fork: OpenBLAS ends its threads. The hooks of Python code are not called."""
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        os._exit(0)
    if pid > 0:
        with contextlib.suppress(ChildProcessError):  # the app ignores SIGCHLD
            os.waitpid(pid, 0)


def _end_openmp(path: str) -> bool:
    """Return whether this libgomp has ended its threads; those before GCC 9 cannot."""
    try:
        return bool(ctypes.CDLL(path, mode=_RTLD_NOLOAD).omp_pause_resource_all(_PAUSE_HARD) == 0)
    except (OSError, AttributeError):
        return False
