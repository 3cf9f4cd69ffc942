"""All that shows one pool to others: scoreboard, log, served pages, rollups and history; their start and end."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from jobpool.broker.backend import QueueBackend
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.ipc.board_layout import HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master import events as ev
from jobpool.master.compatibility import no_table
from jobpool.master.inbox import Inbox
from jobpool.master.observer import Observer, Recorded, attempt_of
from jobpool.master.slots import Slot, SlotState
from jobpool.master.spawning import reload_under_way
from jobpool.master.state import Pool
from jobpool.settings import Settings
from jobpool.telemetry.history.feed import Feed
from jobpool.telemetry.history.places import InFile, InTable, Place, check_place
from jobpool.telemetry.history.row import Attempt
from jobpool.telemetry.history.writer import Writer
from jobpool.telemetry.masking import Masker
from jobpool.telemetry.metrics.collector import MetricsCollector
from jobpool.telemetry.metrics.exposition import MEND, expose, require_client
from jobpool.telemetry.metrics.pages import Page, View, text_page
from jobpool.telemetry.metrics.probes import Probe, live, ready
from jobpool.telemetry.metrics.rollup_thread import Counts, RollupThread

if TYPE_CHECKING:
    from jobpool.telemetry.metrics.server import Server

END_LIMIT_S = 2.0
"""Seconds for the last rollups, and for the last rows of history, to be written at a stop."""

NO_ANSWER = "the pool's loop does not answer"

log = logging.getLogger("jobpool.metrics")

PUBLISH_EVERY_S = 0.25
"""Seconds between two writes: a person reads it, and each costs some microseconds a slot."""

pool_log = logging.getLogger("jobpool.pool")

T = TypeVar("T")

CALL_TIMEOUT_S = 2.0
"""Seconds for which a thread waits: a loop that takes longer is in trouble, and says so elsewhere."""


class Telemetry:
    """See the module. `observer` belongs to the loop's thread; `start` and `end` are called on it too."""

    def __init__(
        self,
        observer: Observer,
        calls: LoopCalls,
        server: Server | None = None,
        rollups: RollupThread | None = None,
        history: Writer | None = None,
    ) -> None:
        self.observer = observer
        self._calls = calls
        self._server = server
        self._rollups = rollups
        self._history = history

    def start(self) -> None:
        """Begin to serve and to write."""
        for part in (self._server, self._rollups, self._history):
            if part is not None:
                part.start()

    def end(self, pool: Pool) -> None:
        """Write what is left, then serve no more. Blocks for some seconds at most, and only if it cannot be written."""
        self._calls.close()
        if self._rollups is not None:
            self._rollups.finish(self.observer.snapshot(pool).ended, END_LIMIT_S)
        if self._history is not None and self.observer.feed is not None:
            self._history.finish([attempt_of(one) for one in self.observer.feed.take()], END_LIMIT_S)
        self.close()

    def close(self) -> None:
        """Serve no more, let the port go, and write nothing more than `end` asks for. Safe to call twice."""
        self._calls.close()
        if self._server is not None:
            self._server.close()
        for writer in (self._rollups, self._history):
            if writer is not None:
                writer.stop()


def make_telemetry(
    settings: Settings,
    backend: QueueBackend,
    board: Scoreboard,
    inbox: Inbox,
    version: str,
    also: MetricsCollector | None = None,
) -> Telemetry | None:
    """Make what the settings ask for; None: nothing, and then nothing of it costs anything.

    Raises:
        ConfigurationError: The port is taken, or history has no place.
    """
    place = _place(settings, backend)
    rolls = settings.rollups > 0 and backend.capabilities.key_store
    if settings.metrics is None and place is None and not rolls and also is None:
        return None
    calls = LoopCalls(inbox)
    feed: Feed[Recorded] | None = None if place is None else Feed(settings.history.keep)
    writer = None if place is None or feed is None else _writer(settings, place, calls, feed)
    unwritten = (lambda: writer.dropped) if writer else (lambda: 0)
    observer = Observer(backend.clock, version, feed=feed, unwritten=unwritten)
    return Telemetry(
        observer,
        calls,
        _server(settings, board, calls, observer),
        _rollups(settings, backend, calls, observer) if rolls else None,
        writer,
    )


def _place(settings: Settings, backend: QueueBackend) -> Place | None:
    history = settings.history
    if not history.is_on:
        return None
    if history.path is not None:
        check_place(history)
        return InFile(history.path, history.keep)
    if not backend.capabilities.key_store:
        raise ConfigurationError(no_table(backend.scheme))
    return InTable(backend.keys, history.keep)


def _writer(settings: Settings, place: Place, calls: LoopCalls, feed: Feed[Recorded]) -> Writer:
    def take() -> list[Attempt] | None:
        found = calls.call_in_loop(lambda _: feed.take())
        return None if found is None else [attempt_of(one) for one in found]

    return Writer(place, Masker(settings.history.mask), lambda: feed.items > 0, take)


def _rollups(settings: Settings, backend: QueueBackend, calls: LoopCalls, observer: Observer) -> RollupThread:
    def counts() -> Counts | None:
        snapshot = calls.call_in_loop(observer.snapshot)
        return None if snapshot is None else snapshot.ended

    return RollupThread(backend.keys, secrets.token_hex(8), settings.rollups, counts, backend.clock.wall)


# --- pages ------------------------------------------------------------------------------------------------------------


def _server(settings: Settings, board: Scoreboard, calls: LoopCalls, observer: Observer) -> Server | None:
    if settings.metrics is None:
        return None
    from jobpool.telemetry.metrics.server import Server  # brings http.server, and that much more: only where it is used

    try:
        require_client()
    except ConfigurationError:
        log.warning("/metrics will not be served", extra={"mend": MEND})
    views: dict[str, View] = {
        "/metrics": lambda accept: metrics_page(calls, observer, accept),
        "/livez": lambda _: probe_page(board, live),
        "/readyz": lambda _: probe_page(board, ready),
    }
    server = Server(*settings.metrics, views)
    log.info("metrics are served", extra={"host": settings.metrics.host, "port": server.port})
    return server


def metrics_page(calls: LoopCalls, observer: Observer, accept: str) -> Page:
    """The metrics of this moment: 501 without prometheus-client, 503 when the loop does not answer."""
    try:
        require_client()
    except ConfigurationError as error:
        return text_page(501, str(error))
    snapshot = calls.call_in_loop(observer.snapshot)
    if snapshot is None:
        return text_page(503, NO_ANSWER)
    body, content_type = expose(snapshot, accept)
    return Page(200, body, content_type)


def probe_page(board: Scoreboard, judge: Callable[[HeaderView, float], Probe]) -> Page:
    """200 or 503, and the sentence."""
    probe = judge(board.header.read(), time.monotonic())
    return text_page(200 if probe.ok else 503, probe.text)


class Publisher:
    """The writer of the pool's state to the scoreboard, and of its notes to the log. It changes nothing of the state.

    It keeps what was last written of each slot, so that only changes are.
    """

    def __init__(self, board: Scoreboard, **constants: str | int | float) -> None:
        self._board = board
        self._last: dict[int, tuple[object, ...]] = {}
        board.header.write(pid=os.getpid(), started=time.monotonic(), started_wall=time.time(), **constants)

    def publish(self, pool: Pool, now: float, broker_ok_at: float, reaped_at: float) -> None:
        """Write what has changed. The caller keeps to `PUBLISH_EVERY_S`."""
        ready = sum(slot.is_ready for slot in pool.slots)
        self._board.header.write(
            workers=pool.target,
            ready=ready,
            boot_failures=pool.boot.failures,
            draining=int(pool.is_stopping),
            generation=pool.generation,
            loop_at=now,
            broker_ok_at=broker_ok_at,
            reaped_at=reaped_at,
            problem=_problem(pool),
            **asdict(pool.counters),
        )
        for slot in pool.slots:
            self._publish_slot(slot)

    def _publish_slot(self, slot: Slot) -> None:
        state = (slot.state, slot.pid, slot.child, slot.generation, slot.rss, slot.peak_rss, slot.restarts, slot.cpu)
        if self._last.get(slot.index) == state or (slot.state is SlotState.EMPTY and slot.restarts < 0):
            return
        self._last[slot.index] = state
        self._board.slot(slot.index).master.write(
            state=slot.state.value,
            pid=slot.pid,
            child=slot.child,
            generation=slot.generation,
            rss=slot.rss,
            peak_rss=slot.peak_rss,
            restarts=max(0, slot.restarts),
            crashes=slot.crashes,
            timeouts=slot.timeouts,
            cpu=slot.cpu,
            since=slot.since,
            last_death=slot.last_death,
        )

    def log_notes(self, pool: Pool) -> None:
        """Write the notes to the log and drop them."""
        notes, pool.notes = pool.notes, []
        for note in notes:
            pool_log.log(note.level, note.event, extra={"fields": note.fields, "limit": note.event})


def _problem(pool: Pool) -> str:
    if pool.outages:
        refusal = next((error for kind, error in pool.outages.values() if kind is not BackendUnavailable), None)
        return refusal or "the broker does not answer"
    if pool.boot.failures:
        return f"children do not come up: {pool.boot.last_error}"
    return pool.schedulers.problem or reload_under_way(pool)


class LoopCalls:
    """Calls by other threads that see the pool's state: the loop's thread makes them, between two of its turns.

    Safe from any thread.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: set[SimpleQueue[Any]] = set()

    def call_in_loop(self, make: Callable[[Pool], T], timeout: float = CALL_TIMEOUT_S) -> T | None:
        """Return what `make` returns on the loop's thread; None: the loop ends, or did not get to it in time.

        With None, `make` was not called and never will be: so it may take something away, as history's does.
        """
        answer: SimpleQueue[Any] = SimpleQueue()
        with self._lock:
            if self._closed:
                return None
            self._waiting.add(answer)
            self._inbox.put(ev.Asked(lambda pool: self._make(make, pool, answer)))
        try:
            return answer.get(timeout=timeout)  # type: ignore[no-any-return]
        except Empty:
            return answer.get() if self._is_taken_up(answer) else None

    def _make(self, make: Callable[[Pool], T], pool: Pool, answer: SimpleQueue[Any]) -> None:
        if self._is_taken_up(answer):
            return
        made: T | None = None
        try:
            made = make(pool)
        finally:
            answer.put(made)  # also when that failed: nobody is to wait for ever

    def _is_taken_up(self, answer: SimpleQueue[Any]) -> bool:
        """Return whether the other side was first; else the caller takes the call up, or gives it up, by this."""
        with self._lock:
            if answer not in self._waiting:
                return True
            self._waiting.discard(answer)
            return False

    def close(self) -> None:
        """Answer None to all calls that wait, and to those that come from now on."""
        with self._lock:
            self._closed = True
            for answer in self._waiting:
                answer.put(None)
            self._waiting.clear()
