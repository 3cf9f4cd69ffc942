"""A wall clock of a pool's own, which is set while the pool runs: by libfaketime, which its processes are started with.

The number in a file is added to Unix time, and every reading of the clock reads the file. So all processes of the pool
see a jump at the same moment, as on a machine whose clock is set. The monotonic clocks (and CLOCK_BOOTTIME), time-outs
and the kernel's times of files stay as they are.

Facts about libfaketime 0.9.10 that this stands on: `FAKETIME_*` and LD_PRELOAD are inherited by forks and through exec.
The first process makes a piece of shared memory and a semaphore, named by its pid, and leaves them behind when it is
killed. A later process with that pid and a libfaketime would refuse to start: hence `clear`. Reading a shift that is
written "+SECONDS" needs no lock. But each program takes the semaphore while it starts. If it is killed at that moment,
no other program of the pool starts: hence `PoolClock.mend`. Nor do those that wait end with their master.
Its clock_nanosleep answers EINVAL to every sleep until a monotonic time, which is how Python sleeps since 3.11: hence
`SLEEP`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Mapping
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
LIBRARY = "libfaketime.so.1"
LOCK_LIMIT_S = 2.0  # for which a program that lives may hold the semaphore; it takes microseconds
SLEEP = '''"""With this machine's libfaketime, time.sleep fails; select waits as long, and is left alone by it."""

import select
import time


def sleep(seconds):
    select.select((), (), (), seconds)


time.sleep = sleep
'''
"""A `sitecustomize`, which every Python program imports first."""

_ELSEWHERE = tuple(map(Path, ("/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime")))


def find_library() -> Path | None:
    """Return where libfaketime is installed; None = it is not."""
    folders = [*sorted(Path("/usr/lib").glob("*-linux-gnu*/faketime")), *_ELSEWHERE]
    return next((folder / LIBRARY for folder in folders if (folder / LIBRARY).exists()), None)


def missing() -> str:
    """Return why no clock can be moved here, as half a sentence; "" = it can."""
    return "" if find_library() else "libfaketime is not installed (Debian's package libfaketime)"


def clear(pid: int) -> None:
    """Remove what libfaketime has left in shared memory of a process that has ended."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        with contextlib.suppress(OSError):
            (SHARED_MEMORY / name).unlink()


class PoolClock:
    """The wall clock of one pool's processes, ahead of the machine's by `shifted` seconds; < 0: behind."""

    def __init__(self, file: Path) -> None:
        """Make `file` and `file`.site, which belong to this clock. Raises FileNotFoundError without libfaketime."""
        library = find_library()
        if library is None:
            raise FileNotFoundError(missing())
        self._library = library
        self._file = file
        self._site = file.with_suffix(".site")
        self._site.mkdir(exist_ok=True)
        (self._site / "sitecustomize.py").write_text(SLEEP)
        self.shifted = 0.0
        self._locked_since: float | None = None
        self.shift(0.0)

    def shift(self, seconds: float) -> None:
        """Show the machine's time plus `seconds`, to the millisecond; < 0 = less. In force when this returns."""
        self.shifted = round(seconds, 3)
        new = self._file.with_suffix(".new")
        new.write_text(f"{self.shifted:+.3f}\n")
        os.replace(new, self._file)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return `base`, extended so that a program started with it, and its children, go by this clock."""
        kept = {name: value for name, value in base.items() if not name.startswith("FAKETIME")}
        return kept | {
            "LD_PRELOAD": " ".join(filter(None, (str(self._library), base.get("LD_PRELOAD", "")))),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self._site), base.get("PYTHONPATH", "")))),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def mend(self, pid: int) -> None:
        """Let go of the semaphore of the pool with this master, if it was taken at every call of `LOCK_LIMIT_S`."""
        if not (SHARED_MEMORY / f"sem.faketime_sem_{pid}").exists():
            return
        semaphore, value = ctypes.c_void_p(_LIBC.sem_open(f"/faketime_sem_{pid}".encode(), 0)), ctypes.c_int()
        if not semaphore:
            return
        _LIBC.sem_getvalue(semaphore, ctypes.byref(value))
        if value.value:
            self._locked_since = None
        elif self._locked_since is None:
            self._locked_since = time.monotonic()
        elif time.monotonic() - self._locked_since > LOCK_LIMIT_S:
            _LIBC.sem_post(semaphore)
            self._locked_since = None
        _LIBC.sem_close(semaphore)


_LIBC = ctypes.CDLL(None)
_LIBC.sem_open.restype = ctypes.c_void_p
