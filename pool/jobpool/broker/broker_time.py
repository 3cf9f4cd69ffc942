"""The time by the broker's clock, so that machines whose clocks are wrong agree on it.

The broker is asked now and then. In between, this machine's CLOCK_BOOTTIME counts on from its answer: nobody can set
that clock, and it continues while the machine sleeps. A broker without a clock of its own uses this machine's.
"""

from __future__ import annotations

from collections.abc import Callable

from jobpool.clock import Clock
from jobpool.errors import AccessRefused, BackendUnavailable

ASK_EVERY = 60.0
"""Seconds after which the broker is asked anew: quartz drifts by some milliseconds in that."""

JUMP = 1.0
"""Seconds by which this machine's wall clock jumps before the broker is asked at once."""


class BrokerTime:
    """The broker's clock. Any thread may ask: two that ask at once may both ask the broker, and are both right.

    Args:
        ask: `QueueBackend.broker_time`.
        clock: This machine's.
    """

    def __init__(self, ask: Callable[[], float | None], clock: Clock) -> None:
        self._ask_broker = ask
        self._clock = clock
        self._ahead = 0.0
        self._asked_at = 0.0
        self._wall_ahead = 0.0
        self.of_broker: bool | None = None
        """True if the broker has a clock of its own; None = it has not answered yet."""

    def now(self) -> float:
        """Return Unix time in seconds.

        Raises:
            BackendUnavailable, AccessRefused: The broker has never answered. Later silences and refusals are bridged.

        Blocks for a round trip when the broker is to be asked.
        """
        if self._is_due():
            self._ask()
        return self._clock.boot() + self._ahead if self.of_broker else self._clock.wall()

    def guess(self) -> float:
        """Return the time as `now`, but by this machine's clock as long as the broker has never answered."""
        try:
            return self.now()
        except (BackendUnavailable, AccessRefused):
            return self._clock.wall()

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
            told = self._ask_broker()
        except (BackendUnavailable, AccessRefused):
            if self.of_broker is None:
                raise
            return
        after = self._clock.boot()
        self._asked_at = after
        self._wall_ahead = self._clock.wall() - after
        if told is not None:
            self._ahead = told - (before + after) / 2
        self.of_broker = told is not None
