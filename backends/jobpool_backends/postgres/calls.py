"""Memory that makes a repeated request harmless: what the answers of calls look like, and when they are forgotten.

They are remembered within the functions `fetch` and `settle`, one row a call.
"""

from __future__ import annotations

import time

from jobpool.errors import AccessRefused, BackendUnavailable
from jobpool.message.settlement import Settled
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.literals import fill

_SWEEP_BATCH_ROWS = 2000
_SWEEP_INTERVAL_S = 5.0
_SWEEP = "SELECT {schema}.sweep(%(most)b)"

_ANSWERS = {
    "o": Settled.OK,
    "a": Settled.ALREADY,
    "n": Settled.NOT_IN_FLIGHT,
    "e": Settled.EXPIRED,
    "w": Settled.NOT_OWNER,
}


def read_answers(letters: str) -> list[Settled]:
    """Parse the answer of the function `settle`."""
    return [_ANSWERS[letter] for letter in letters]


class Sweeper:
    """A sweeper of outdated rows, a bounded piece at a time, between the calls that add to it.

    Shared by threads without a lock: all that a race can do is sweep once too often.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sweep = fill(_SWEEP, database.schema)
        self._next = 0.0

    def sweep(self) -> None:
        """Delete a piece, when five seconds have passed since the last or that one was full."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _SWEEP_INTERVAL_S
        try:
            [(swept,)] = self._database.run(self._sweep, {"most": _SWEEP_BATCH_ROWS})
        except (BackendUnavailable, AccessRefused):
            return  # the call that brought us here was answered; the next one will meet the error
        if swept >= _SWEEP_BATCH_ROWS:
            self._next = now
