"""Enqueues the workload while faults strike: every job is repeated until the broker has answered.

The ledger gets `try` before each call, with the requested id, and `enq` once it is answered, with the id of the answer.
If a run is interrupted between the two, it is not known whether that job exists; it then counts neither as lost nor as
out of nowhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jobpool.broker.backend import QueueBackend
from jobpool.errors import BackendUnavailable, InvalidJob
from jobpool.message.definition import JobDefinition
from jobpool_torture.ledger import Line, append
from jobpool_torture.workload import Item, smaller

MAX_BATCH_JOBS = 50
"""Jobs in one call, at most, where one call is all or none and may be repeated."""

RETRY_PAUSE_S = 0.2
"""Seconds between two tries."""


class Producer:
    """A producer of items at their moments, in a thread of its own. `close` when it is done.

    Args:
        connect: Opens the broker by the producer's own way; called in the thread.
        queue: Where they go.
        prefix: Of all ids, which no other run on the broker may have.
        ledger: The file.
    """

    def __init__(self, connect: Callable[[], QueueBackend], queue: str, prefix: str, ledger: Path) -> None:
        self._connect = connect
        self._queue = queue
        self._prefix = prefix
        self._ledger = ledger
        self._backend: QueueBackend | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._give_up = float("inf")
        self.items: dict[str, Item] = {}
        """Every id that was tried → what it was for."""
        self.enqueued = 0
        """Calls answered, by jobs."""
        self.error: Exception | None = None
        """The error that ended the thread before it was told to."""

    # --- called by the run ------------------------------------------------------------------------

    def start(self, items: Sequence[Item]) -> None:
        """Begin: the items' times count from now. Not while another start is under way."""
        self._stop.clear()
        self._give_up = float("inf")
        self._thread = threading.Thread(target=self._run, args=(items,), name="torture-producer", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def finish(self, limit: float) -> bool:
        """Enqueue nothing more except jobs tried already; return whether those were answered within `limit` seconds.

        Blocks for at most about `limit` seconds and one call's time-out. An error that ended the thread before is in
        `error`.
        """
        self._give_up = time.monotonic() + limit
        self._stop.set()
        if self._thread is not None:
            self._thread.join(limit + 60.0)
        return not self.is_busy and self.error is None

    def abort(self) -> None:
        """Let the thread end after the call that it is in, if it is in one. Safe at any time; blocks for nothing."""
        self._give_up = 0.0
        self._stop.set()

    def close(self) -> None:
        """Close its connection. Call `finish`, or `abort`, first."""
        if self._backend is not None:
            self._backend.close()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self, items: Sequence[Item]) -> None:
        begun, place = time.monotonic(), 0
        try:
            while place < len(items) and not self._stop.is_set():
                passed = time.monotonic() - begun
                due = [item for item in items[place : place + MAX_BATCH_JOBS] if item.at <= passed]
                if due:
                    place += self._send(due)
                else:
                    self._stop.wait(items[place].at - passed)
        except Exception as error:  # noqa: BLE001 -- it belongs to the run, which looks for it
            self.error = error

    def _send(self, due: list[Item]) -> int:
        """Enqueue what fits in one call, until it is answered; how many those are. Refused, what is big is halved."""
        tried = 0
        while time.monotonic() < self._give_up:
            tried += 1
            try:
                backend = self._backend = self._backend or self._connect()
                return self._call(backend, due, tried)
            except BackendUnavailable:
                time.sleep(RETRY_PAUSE_S)
            except InvalidJob:
                if (fitting := list(map(smaller, due))) == due:
                    raise
                due = fitting
        return 0

    def _call(self, backend: QueueBackend, due: list[Item], tried: int) -> int:
        """Make one call. If a known id may not be tried again, each try has another one: it may be a second message."""
        can = backend.capabilities
        chosen = due if can.known_ids and can.atomic_enqueue else due[:1]
        again = "" if tried == 1 or can.known_ids else f"r{tried}"
        idents = [f"{self._prefix}-{_number(item)}{again}" for item in chosen]
        self.items.update(zip(idents, chosen, strict=True))
        jobs = [item.definition(self._queue, ident) for item, ident in zip(chosen, idents, strict=True)]
        self._note("try", idents, jobs)
        answers = backend.enqueue_many(jobs)
        self._note("enq", answers, jobs)
        self.enqueued += len(chosen)
        return len(chosen)

    def _note(self, event: str, idents: Sequence[str], jobs: Sequence[JobDefinition]) -> None:
        at, wall = time.monotonic(), time.time()
        lines = [
            Line(event, ident, at=at, wall=wall, tag=str(job.identifier))
            for ident, job in zip(idents, jobs, strict=True)
        ]
        append(self._ledger, lines)


def _number(item: Item) -> str:
    """Return `000123`; `w003` of a warm-up."""
    return f"{item.number:06d}" if item.number >= 0 else f"w{-item.number:03d}"
