"""When a drain is given up: not for how long it takes, but for how long nothing has become less. Pure."""

from __future__ import annotations

from jobpool.broker.values import QueueStats


class DrainStall:
    """The patience with one drain, in which no job arrives but follow-ups.

    Progress means that fewer jobs are left than ever before. So a drain of any length is waited for, and jobs that
    circle forever are found out.

    Args:
        seconds: For which nothing may get less, > 0.
        now: When the drain begins, in seconds of any clock.
    """

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._moved = now
        self._least: int | None = None
        self._lines = 0

    def is_over(self, now: float, stats: QueueStats | None, lines: int) -> bool:
        """Return whether it is to be given up.

        Args:
            now: Of the same clock.
            stats: The broker's counts; None = it did not answer, which does not count as progress.
            lines: Of the ledger: progress while the queue is so long that the broker does not count it to its end.
        """
        if stats is not None and self._is_progress(stats, lines):
            self._moved = now
        self._lines = lines
        return now - self._moved > self._seconds

    def _is_progress(self, stats: QueueStats, lines: int) -> bool:
        if stats.cap is not None and stats.pending >= stats.cap:
            return lines > self._lines
        if self._least is not None and stats.pending >= self._least:
            return False
        self._least = stats.pending
        return True
