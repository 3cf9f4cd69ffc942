"""Sleep until a queue may have something, or a job has ended: a look, and then a blocking pop of a wake list.

The list `bell` of a queue holds one element or none. A script that makes a message fetchable puts the element there; a
waiter takes it, with a command that blocks. It carries no message, so nothing is lost with a waiter that dies. An
element that nobody waits for stays, so one that comes between the look and the sleep is found. It wakes one waiter. A
fetch that leaves messages puts it there again; one that leaves none takes it away.

The fetch follows when the pop has come back. Sent in one packet with it, it would save a fifth of the time from idle to
start. But then a pool that the network has cut off leases the message, and holds it up for a whole ttl. A hint that is
lost delays nobody.

A fetch that leaves nothing is as good as a look, so the wait after it begins with the pop.

A message that falls due wakes nobody: a look says when the next one does, and a waiter sleeps no longer than that. It
looks again each `LOOK_INTERVAL_S`, for a waiter that was woken and died. A message may come that falls due before that
look, and before all others. Its script puts an empty element on the list, which wakes one waiter to look.

A kept result is a key of its own, which expires by itself. A waiter for one leaves a token beside the ids of the jobs.
It blocks on a list of its own, to which the script pushes that ends such a job.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from jobpool.broker.values import LOOK_INTERVAL_S
from jobpool.errors import BackendUnavailable
from jobpool.message.results import Record
from jobpool_backends.redis.inspect import Inspector
from jobpool_backends.redis.keyspace import AWAIT_ENDED, FIRST_READY, Keyspace
from jobpool_backends.redis.records import places_by
from jobpool_backends.shared import MICRO, pieces

IDS_PER_SCRIPT = 500
MAX_NOTED_QUEUES = 1000  # at most, for programs that fetch from ever more queues and never wait


class Waiter:
    """The wait for messages; any number of threads at once."""

    def __init__(self, keys: Keyspace) -> None:
        self._keys = keys
        self._look_at: dict[str, float] = {}  # by queue that a fetch has left empty: CLOCK_MONOTONIC seconds
        self._closed = threading.Event()
        self.close = self._closed.set  # ends all waits; the link's own `close` wakes them at once

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        """Return a queue that may have something, None after `timeout` seconds, or when this is closed."""
        give_up = time.monotonic() + timeout
        try:
            return self._wait(queues, give_up, self._quiet_for(queues) if timeout > 0 else 0.0)
        except BackendUnavailable:
            if self._closed.is_set():  # here, and with it the link: before a look, or while we slept
                return None
            raise

    def saw(self, queue: str, more: int) -> None:
        """Note what a fetch has left: 0 = there may be more, -1 = nothing, else the µs until a message falls due.

        It is as good as a look: what comes after it rings the bell. The next wait begins without one.
        """
        self._look_at.pop(queue, None)
        if more and len(self._look_at) < MAX_NOTED_QUEUES:
            seconds = min(more / MICRO, LOOK_INTERVAL_S) if more > 0 else LOOK_INTERVAL_S
            self._look_at[queue] = time.monotonic() + seconds

    def _quiet_for(self, queues: Sequence[str]) -> float:
        """Return the seconds until a look is due."""
        return max(0.0, min([self._look_at.pop(queue, 0.0) for queue in queues]) - time.monotonic())

    def _wait(self, queues: Sequence[str], give_up: float, quiet: float) -> str | None:
        wakes = {self._keys.one(queue, "bell"): queue for queue in queues}
        while not self._closed.is_set():
            ready, until_due = (None, quiet) if quiet else self._look(queues)
            quiet = 0.0
            if ready is not None:
                return ready
            remaining = give_up - time.monotonic()
            if remaining <= 0:
                return None
            woken = self._keys.link.wait_pop(list(wakes), min(remaining, until_due, LOOK_INTERVAL_S))
            if woken:
                return wakes[woken]
            if time.monotonic() >= give_up and until_due > remaining:
                return None  # a look here would be the next call's first, once more
        return None

    def _look(self, queues: Sequence[str]) -> tuple[str | None, float]:
        """Return a queue that has something now, or None and the seconds until a message falls due."""
        soonest = LOOK_INTERVAL_S
        for group in [[queue] for queue in queues] if self._keys.spread else [queues]:
            places = [self._keys.one(queue, name) for queue in group for name in ("ready", "delayed")]
            if not self._keys.link.call("EXISTS", *places):
                continue  # every idle pool asks often; the script would be two commands
            number, until_due = self._keys.run(FIRST_READY, group, ())
            if number:
                return group[number - 1], 0.0
            if until_due >= 0:
                soonest = min(soonest, until_due / MICRO)
        return None, soonest


class Results:
    """The results of one prefix; any number of threads at once."""

    def __init__(self, keys: Keyspace, inspector: Inspector) -> None:
        self._keys = keys
        self._inspector = inspector
        self._tokens: list[str] = []  # of waits that are over: used again, so that few lists are left behind

    def get(self, idents: Sequence[str]) -> dict[str, bytes]:
        queues = self._inspector.names() if self._keys.spread else [""]
        asked = [(ident, ("GET", self._keys.shared(queue, f"result:{ident}"))) for ident in idents for queue in queues]
        answers = self._keys.link.call_many([command for _, command in asked])
        found = [(ident, record) for (ident, _), record in zip(asked, answers, strict=True) if record is not None]
        if self._keys.spread:
            found.sort(key=lambda one: _ended_at(one[1]))  # of two jobs in two queues, the later is kept below
        return dict(found)

    def wait(self, idents: Sequence[str], timeout: float) -> None:
        found = self._inspector.places(idents)
        if len(found) < len(idents):
            return
        queues = places_by(place.queue for _, place in found)
        token = self._tokens.pop() if self._tokens else secrets.token_hex(8)
        try:
            for queue, some in queues.items():
                for piece in pieces([found[at][0] for at in some], IDS_PER_SCRIPT):
                    if self._keys.run(AWAIT_ENDED, [queue], [token, *piece]):
                        return
            self._keys.link.wait_pop([self._keys.one(queue, f"told:{token}") for queue in queues], timeout)
        finally:
            self._tokens.append(token)


def _ended_at(record: bytes) -> float:
    with suppress(ValueError):  # changed by hand
        return Record.read(record).ended_at
    return 0.0
