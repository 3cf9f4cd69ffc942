"""What time it is for schedules: the broker's clock where it has one, so that machines with wrong clocks agree.

The broker is asked now and then. In between, this machine's CLOCK_BOOTTIME counts on from its answer: nobody can set
that clock, and it goes on while the machine sleeps.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jobpool.backend import QueueBackend
from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable

ASK_EVERY = 60.0
"""Seconds after which the broker is asked anew: quartz drifts by some milliseconds in that."""

JUMP = 1.0
"""Seconds by which this machine's wall clock jumps before the broker is asked at once."""

LOOK_EVERY = 1.0
"""Seconds for which a scheduler sleeps at most while this machine's wall clock counts: somebody may set it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CronTime:
    """Tells the time on a broker's clock.

    Args:
        backend: Whose clock.
        clock: This machine's.
    """

    def __init__(self, backend: QueueBackend, clock: Clock | None = None) -> None:
        self._backend = backend
        self._clock = clock or backend.clock
        self._ahead: float | None = None
        self._asked_at = 0.0
        self._wall_ahead = 0.0
        self.of_broker: bool | None = None
        """Whether the broker has a clock of its own; None = it was not asked yet."""

    def now(self) -> datetime:
        """The time, in UTC.

        Raises:
            BackendUnavailable: The broker has never answered. Later silences are bridged.

        Blocks for a round trip when the broker is to be asked.
        """
        if self._is_due():
            self._ask()
        if not self.of_broker or self._ahead is None:
            return moment(self._clock.wall())
        return moment(self._clock.boot() + self._ahead)

    @property
    def patience(self) -> float:
        """Seconds after which a sleeper has to look at the time again, whatever it waits for."""
        return ASK_EVERY if self.of_broker else LOOK_EVERY

    def _is_due(self) -> bool:
        if self.of_broker is None:
            return True
        if not self.of_broker:
            return False
        jumped = abs(self._clock.wall() - self._clock.boot() - self._wall_ahead) > JUMP
        return jumped or self._clock.boot() - self._asked_at >= ASK_EVERY

    def _ask(self) -> None:
        before = self._clock.boot()
        try:
            told = self._backend.broker_time()
        except BackendUnavailable:
            if self.of_broker is None:
                raise
            return
        after = self._clock.boot()
        self.of_broker = told is not None
        self._asked_at = after
        self._wall_ahead = self._clock.wall() - after
        if told is not None:
            self._ahead = told - (before + after) / 2


def moment(unix: float) -> datetime:
    """Unix time as an aware moment in UTC, to the microsecond."""
    return _EPOCH + timedelta(microseconds=round(unix * 1e6))
