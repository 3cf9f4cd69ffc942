"""The time by the broker's clock, so that machines whose clocks are wrong agree on it.

The broker is asked now and then. In between, this machine's CLOCK_BOOTTIME counts on from its answer: nobody can set
that clock, and it continues while the machine sleeps. A broker without a clock of its own uses this machine's.
"""

from __future__ import annotations

from collections.abc import Callable

from jobpool.clock import Clock
from jobpool.errors import OUTAGES

ASK_EVERY = 60.0  # seconds after which the broker is asked anew: quartz drifts by some milliseconds in that
JUMP = 1.0  # seconds by which this machine's wall clock jumps before the broker is asked at once


class BrokerTime:
    """The clock of the broker that `ask` reads. Threads that ask at once may all ask the broker, and are all right."""

    def __init__(self, ask: Callable[[], float | None], clock: Clock) -> None:
        self._ask_broker = ask
        self._clock = clock
        self._ahead = self._asked_at = self._wall_ahead = 0.0
        self.of_broker: bool | None = None  # True if the broker has a clock of its own; None = it has not answered yet

    def now(self) -> float:
        """Return Unix time in seconds. Blocks for a round trip when the broker is to be asked.

        Raises `BackendUnavailable` or `AccessRefused` if the broker has never answered; later ones are bridged.
        """
        if self._is_due():
            try:
                self._ask()
            except OUTAGES:
                if self.of_broker is None:
                    raise
        return self.last()

    def last(self) -> float:
        """Return the time by the broker's last answer, and if there is none by this machine's clock. No I/O."""
        return self._clock.boot() + self._ahead if self.of_broker else self._clock.wall()

    def guess(self) -> float:
        """Return the time as `now`, but by this machine's clock as long as the broker has never answered."""
        try:
            return self.now()
        except OUTAGES:
            return self.last()

    def _is_due(self) -> bool:
        if not self.of_broker:
            return self.of_broker is None
        boot = self._clock.boot()
        return abs(self._clock.wall() - boot - self._wall_ahead) > JUMP or boot - self._asked_at >= ASK_EVERY

    def _ask(self) -> None:
        before = self._clock.boot()
        try:
            told = self._ask_broker()
        finally:  # each call that is made in vain takes as long as a call may
            after = self._asked_at = self._clock.boot()
            self._wall_ahead = self._clock.wall() - after
        if told is not None:
            self._ahead = told - (before + after) / 2
        self.of_broker = told is not None
