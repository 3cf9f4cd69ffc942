"""How a run moves through its phases: at every turn it looks at the nemesis; it waits with limits, and says how far."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from jobpool_torture.ledger import Ledger
from jobpool_torture.nemesis import Nemesis
from jobpool_torture.result import Result

TURN_S = 0.05
REPORT_EVERY_S = 0.5
SHOWN_SENTENCES = 5
"""Last sentences of the nemesis that are shown."""


class Phases:
    """The phases of one run, in one thread; what `tell` is told of now and then."""

    def __init__(self, nemesis: Nemesis, ledger: Ledger, result: Result, tell: Callable[[Phases], None]) -> None:
        self._nemesis = nemesis
        self._ledger = ledger
        self._tell = tell
        self._until: float | None = None
        self._told = 0.0
        self.result = result
        self.phase = ""
        self.last: deque[str] = deque(maxlen=SHOWN_SENTENCES)  # faults struck or undone last, as sentences
        self.pending: int | None = None
        """Jobs that are not done yet, when the caller last asked; None = not asked yet, or not answered."""

    @property
    def left(self) -> float | None:
        """Seconds until the phase ends; None = not known."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    @contextmanager
    def enter(self, name: str, seconds: float | None) -> Iterator[None]:
        """Run the block as this phase; its seconds go into the result. `seconds`: its limit, None = not known."""
        begun = time.monotonic()
        self.phase, self._until = name, None if seconds is None else begun + seconds
        self._say()
        yield
        self.result.seconds[name] = time.monotonic() - begun

    def note(self, said: Iterable[str]) -> None:
        """Show these sentences."""
        self.last.extend(said)

    def turn(self) -> None:
        """Undo expired faults, record ended pools, report progress; block for `TURN_S` seconds."""
        self.note(self._nemesis.due())
        if time.monotonic() - self._told >= REPORT_EVERY_S:
            self._say()
        time.sleep(TURN_S)

    def wait(self, is_so: Callable[[], bool], limit: float | None = None) -> bool:
        """Turn until it is so; False: it was not within `limit` seconds."""
        give_up = None if limit is None else time.monotonic() + limit
        while not is_so():
            if give_up is not None and time.monotonic() > give_up:
                return False
            self.turn()
        return True

    def rest(self, seconds: float) -> None:
        """Turn for so long."""
        self.wait(lambda: False, seconds)

    def _say(self) -> None:
        self._told = time.monotonic()
        self.result.tally.follow(self._ledger)
        self._tell(self)
