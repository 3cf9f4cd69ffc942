"""One thread's view of a broker's outage: when to try again, and what to tell the loop, once each way."""

from __future__ import annotations

import time
from threading import Event as Flag

from jobpool.errors import AccessRefused, BackendUnavailable
from jobpool.master.events import BrokerAnswered, BrokerSilent
from jobpool.master.inbox import Inbox

OUTAGES = (BackendUnavailable, AccessRefused)
"""Errors of the broker that a pool waits out once it has worked."""

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0
"""With a call that gives up after 3 s, work goes on less than 5 s after the broker is back."""

MAX_REFUSED_PAUSE_S = 3.0
"""After a refused password: servers count those, and lock accounts."""


class BrokerRetry:
    """Back-off of one thread: from 50 ms, doubling, for each kind of call by itself; reset by a good answer to it.

    The outage lasts until every kind of call that has failed was answered. So a call that always fails and one that
    always succeeds do not take turns in the log.

    Args:
        inbox: Of the loop.
        stop: Set when the thread is to end.
        thread: Its name.
    """

    def __init__(self, inbox: Inbox, stop: Flag, thread: str = "") -> None:
        self._inbox = inbox
        self._stop = stop
        self._thread = thread
        self._pauses: dict[str, float] = {}
        self._told: type[Exception] | None = None
        self._let_in: set[str] = set()

    def failed(self, error: BackendUnavailable | AccessRefused, call: str = "", *, holding: bool = False) -> None:
        """Note the failure of this kind of call, and wait before the next try; a stop cuts the wait short.

        `holding`: Leases are held, so the broker has let this pool in before.

        Raises `error` if it is a refusal, and no such call was ever answered: the settings are wrong.
        """
        if isinstance(error, AccessRefused) and not holding and call not in self._let_in:
            raise error
        self.tell(error, call)
        longest = MAX_REFUSED_PAUSE_S if isinstance(error, AccessRefused) else MAX_PAUSE_S
        pause = self._pauses[call] = min(longest, 2 * self._pauses[call] or FIRST_PAUSE_S)
        if self._stop.wait(pause):
            time.sleep(FIRST_PAUSE_S)  # what is still tried at a stop is tried at leisure

    def tell(self, error: BackendUnavailable | AccessRefused, call: str) -> None:
        """Note the failure, without a wait."""
        if type(error) is not self._told:
            self._told = type(error)
            self._inbox.put(BrokerSilent(str(error), self._thread, type(error)))
        self._pauses.setdefault(call, 0.0)

    def over(self, *calls: str) -> None:
        """Note that the broker has answered these kinds of calls."""
        calls = calls or ("",)
        self._let_in.update(calls)
        if self._told is None:
            return
        for call in calls:
            self._pauses.pop(call, None)
        if not self._pauses:
            self._told = None
            self._inbox.put(BrokerAnswered(self._thread))
