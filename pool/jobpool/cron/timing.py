"""The time for schedules: the broker's clock if it has one, so that machines with wrong clocks agree."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jobpool.broker.backend import QueueBackend
from jobpool.broker.broker_time import ASK_EVERY, BrokerTime
from jobpool.clock import Clock

LOOK_EVERY = 1.0
"""Seconds for which a scheduler sleeps at most while this machine's wall clock counts: somebody may set it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CronTime:
    """The time on a broker's clock.

    Args:
        backend: The broker with the clock.
        clock: This machine's.
    """

    def __init__(self, backend: QueueBackend, clock: Clock | None = None) -> None:
        self._time = BrokerTime(backend.broker_time, clock or backend.clock)

    def now(self) -> datetime:
        """Return the time, in UTC. Raises and blocks as `BrokerTime.now`."""
        return moment(self._time.now())

    @property
    def of_broker(self) -> bool | None:
        """True if the broker has a clock of its own; None = it was not asked yet."""
        return self._time.of_broker

    @property
    def patience(self) -> float:
        """Seconds after which a sleeper has to look at the time again, whatever it waits for."""
        return ASK_EVERY if self.of_broker else LOOK_EVERY


def moment(unix: float) -> datetime:
    """Return Unix time as an aware moment in UTC, to the microsecond."""
    return _EPOCH + timedelta(microseconds=round(unix * 1e6))
