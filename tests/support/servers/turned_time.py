"""A clock for a server that knows nothing of it: libfaketime shows it a time that stands still until it is turned.

The time is a file, which libfaketime reads at every reading of the clock. Only Unix time is faked: the monotonic
clock goes on, so a server's own timers run as ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from jobpool_torture import clocks
from support.servers.process import Server, ServerFailed


class TurnedTime:
    """A Unix time, in whole microseconds, and the file that tells it.

    Args:
        file: Made here; its folder exists.
        start: Unix time in seconds.
    """

    def __init__(self, file: Path, start: float) -> None:
        self._file = file
        self.turn_to(start)

    def now(self) -> float:
        """Unix time in seconds."""
        return self._micros / 1e6

    def turn_to(self, moment: float) -> None:
        """Show this Unix time, in seconds, from now on; rounded to the microsecond."""
        self._show(round(moment * 1e6))

    def advance(self, seconds: float) -> None:
        """Move `seconds` (>= 0) forward, rounded to the microsecond."""
        if seconds < 0:
            raise ValueError(f"a clock does not run backwards: {seconds!r}")
        self._show(self._micros + round(seconds * 1e6))

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base`, so that a program started with it sees this time."""
        return {
            **base,
            # The C library's own malloc goes before jemalloc, which Debian's Redis is linked with: jemalloc reads the
            # clock while it sets itself up, libfaketime allocates while it does, and both wait for ever.
            "LD_PRELOAD": f"{library()} libc.so.6",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "TZ": "UTC0",
        }

    def clear(self, pid: int) -> None:
        """Remove what libfaketime leaves in shared memory when its process is killed."""
        clocks.clear(pid)

    def _show(self, micros: int) -> None:
        self._micros = micros
        seconds, fraction = divmod(micros, 1_000_000)
        # libfaketime reads the fraction as a double and cuts it off to whole nanoseconds: half a microsecond more
        # keeps it from showing the microsecond before.
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))}.{fraction:06d}5\n"
        new = self._file.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self._file)


class TurnedServer(Server):
    """A server whose clock stands still, where it was made so, until `advance` or `turn_to` moves it."""

    def __init__(self, folder: Path, turned: bool) -> None:
        super().__init__(folder)
        self._time = TurnedTime(self.folder / "time", 1_800_000_000.0) if turned else None

    def now(self) -> float:
        """Unix time on a turned server's clock, in seconds."""
        return self._turned.now()

    def advance(self, seconds: float) -> None:
        """Let time pass on a turned server; its next command sees it, to the microsecond."""
        with self._looking():
            self._turned.advance(seconds)

    def turn_to(self, moment: float) -> None:
        """Set a turned server's clock to this Unix time in seconds, forward or back.

        What runs then is so much longer, or over. So flush a Redis before it is turned back; the tubes that earlier
        tests left at a beanstalkd are other tubes, whose jobs' times matter to nobody.
        """
        with self._looking():
            self._turned.turn_to(moment)

    def _looking(self) -> AbstractContextManager[None]:
        """Have it see what the block does to its clock."""
        return nullcontext()

    @property
    def _turned(self) -> TurnedTime:
        if self._time is None:
            raise ValueError("only a server made with turned=True has a clock that can be turned")
        return self._time

    def _environment(self) -> Mapping[str, str]:
        return self._time.environment(os.environ) if self._time else os.environ

    def _gone(self, pid: int) -> None:
        if self._time:
            self._time.clear(pid)


def library() -> Path:
    """Where libfaketime is. Raises `ServerFailed` when it is not installed."""
    if found := clocks.find_library():
        return found
    raise ServerFailed("libfaketime is not installed; scripts/services up installs what tests need")
