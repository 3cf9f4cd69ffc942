"""One thread's view of a broker's outage: when to try again, and what to tell the loop, once each way."""

from __future__ import annotations

import time
from threading import Event as Flag

from jobpool.errors import BackendUnavailable
from jobpool.master.events import BrokerAnswered, BrokerSilent
from jobpool.master.inbox import Inbox

FIRST = 0.05
LONGEST = 1.0
"""Seconds. With a call that gives up after 3 s, work goes on less than 5 s after the broker is back."""


class Outage:
    """Back-off from 50 ms, doubling to 1 s; reset by the first good answer."""

    def __init__(self, inbox: Inbox, stop: Flag) -> None:
        self._inbox = inbox
        self._stop = stop
        self._delay = 0.0

    def failed(self, error: BackendUnavailable) -> None:
        """Note the failure and wait before the next try; a stop cuts the wait short."""
        if not self._delay:
            self._inbox.put(BrokerSilent(str(error)))
        self._delay = min(LONGEST, 2 * self._delay or FIRST)
        if self._stop.wait(self._delay):
            time.sleep(FIRST)  # what is still tried at a stop is tried at leisure

    def over(self) -> None:
        """The broker has answered."""
        if self._delay:
            self._delay = 0.0
            self._inbox.put(BrokerAnswered())
