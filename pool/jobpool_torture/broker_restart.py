"""The user's command that restarts the broker: run by the shell, one at a time, and waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

END_LIMIT_S = 10.0
"""Seconds that a command has which still runs when the torture is over: a broker shall not be left half-way."""

TERM_LIMIT_S = 2.0
"""Seconds from the TERM that it gets then to the KILL."""


class BrokerRestart:
    """A command, and what became of it.

    Attributes:
        command: For the shell; "" = there is none.
        moments: When it was begun, and over, each time (CLOCK_MONOTONIC).
    """

    def __init__(self, command: str, log: Path) -> None:
        """Keep the command. `log`: a file to which its output is appended."""
        self.command = command
        self.moments: list[tuple[float, float]] = []
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = 0.0

    @property
    def is_under_way(self) -> bool:
        return self._process is not None

    def begin(self) -> int:
        """Run it; its pid. It must not be under way. Raises OSError."""
        self._begun = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, shell=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )
        return self._process.pid

    def look(self) -> int | None:
        """Return its exit status, once, when it has ended since the last look; else None."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        self._process = None
        self.moments.append((self._begun, time.monotonic()))
        return status

    def was_since(self, moment: float) -> bool:
        """Return whether it is under way, or was at or after `moment` (CLOCK_MONOTONIC)."""
        return self.is_under_way or bool(self.moments and self.moments[-1][1] >= moment)

    def close(self) -> None:
        """Wait for it; end it, and what it has started in its process group, if that takes too long."""
        if self._process is None:
            return
        for limit, number in ((END_LIMIT_S, signal.SIGTERM), (TERM_LIMIT_S, signal.SIGKILL)):
            try:
                self._process.wait(limit)
                break
            except subprocess.TimeoutExpired:  # it is not collected: the group is still its own
                os.killpg(self._process.pid, number)
        self._process.wait()
        self.look()
