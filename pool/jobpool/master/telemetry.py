"""All that shows one pool to others: scoreboard, log, served pages, rollups and history; their start and end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec.structs import asdict

from jobpool.broker.backend import QueueBackend
from jobpool.broker.key_store import KeyStore
from jobpool.broker.tracking import RUNNING_SPACE
from jobpool.errors import BackendUnavailable, ConfigurationError, JobpoolError
from jobpool.ipc.board_layout import HEADER, STOPS, HeaderView, QueueDepth
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master import events as ev
from jobpool.master.inbox import Inbox
from jobpool.master.observer import Observer, Recorded, attempt_of
from jobpool.master.slots import Slot
from jobpool.master.spawning import reload_under_way
from jobpool.master.state import GIVEN_BACK, Pool
from jobpool.message.masking import Masker
from jobpool.settings import Settings
from jobpool.telemetry.history.places import HistoryFile, HistoryTable, Place, check_place
from jobpool.telemetry.history.row import AttemptRow
from jobpool.telemetry.history.writer import Feed, Writer
from jobpool.telemetry.logs import JOB_LOG
from jobpool.telemetry.metrics import pages
from jobpool.telemetry.metrics.rollup import RollupThread, SeriesByPlace

if TYPE_CHECKING:
    from jobpool.telemetry.metrics.server import Server

FLUSH_LIMIT_S = 2.0  # seconds for the last rollups, and for the last rows of history, to be written at a stop

NO_ANSWER = "the pool's loop does not answer"
PUBLISH_EVERY_S = 0.25  # seconds between two writes: a person reads it, and each costs some microseconds a slot

SLOT_FIELDS = ("pid", "rss", "cpu", "since", "last_death")
"""Published as they are; `state` and `restarts` in another form."""

MASKED_FIELDS = {"error", "output", "said", "trace"}
"""Fields of the log that user code has written."""

STACK = "stack of a child"
"""A line of the log that is not thinned: a person has asked for it."""

PUBLISH_RUNNING_EVERY_S = 1.0  # seconds between two looks at what runs, and the age from which on it is told
RUNNING_TTL_S = 60.0  # seconds for which that is kept
HOST = socket.gethostname()
RELOAD_SHOWN_S = 1.0  # seconds for which a reload is shown at least: who tells the service manager looks twice a second

CALL_TIMEOUT_S = 2.0  # seconds that a thread waits: a loop that takes longer is in trouble, and says so elsewhere

log = logging.getLogger("jobpool.metrics")
pool_log = logging.getLogger("jobpool.pool")
job_log = logging.getLogger(JOB_LOG)

Made = TypeVar("Made")


@dataclass(slots=True)
class Telemetry:
    """The parts that show a pool to others. The loop's thread owns `observer`, and calls `start` and `end`."""

    observer: Observer
    calls: LoopCalls
    server: Server | None
    rollups: RollupThread | None
    history: Writer | None
    running: RunningThread | None = None

    def start(self, pool: Pool) -> None:
        self.observer.attend(pool)
        for part in (self.server, self.rollups, self.history, self.running):
            if part is not None:
                part.start()

    def end(self, pool: Pool) -> None:
        """Write what is left, then serve no more. Blocks for some seconds at most, and only if it cannot be written."""
        self.calls.close()
        if self.rollups is not None:
            self.rollups.finish(self.observer.snapshot(pool).ended, FLUSH_LIMIT_S)
        if self.history is not None and self.observer.feed is not None:
            self.history.finish([attempt_of(one) for one in self.observer.feed.take()], FLUSH_LIMIT_S)
        self.close()

    def close(self) -> None:
        """Serve no more, let the port go, and write nothing more than `end` asks for. Safe to call twice."""
        self.calls.close()
        if self.server is not None:
            self.server.close()
        for part in (self.rollups, self.history, self.running):
            if part is not None:
                part.stop()


def make_telemetry(settings: Settings, backend: QueueBackend, board: Scoreboard, inbox: Inbox) -> Telemetry | None:
    """Make what the settings ask for, if anything. Raises `JobpoolError`: a taken port, no such directory."""
    place: Place | None = None
    history = settings.history
    if history.path is not None:
        check_place(history)
        place = HistoryFile(history.path, history.keep)
    elif history.table:
        place = HistoryTable(backend.keys, history.keep)
    keeps = backend.capabilities.key_store  # then what runs is told there, too
    if settings.metrics is None and place is None and not keeps:
        return None
    calls = LoopCalls(inbox)
    if place is None:
        writer, observer = None, Observer()
    else:
        feed: Feed[Recorded] = Feed(history.keep)
        writer = _writer(settings, place, calls, feed)
        observer = Observer(feed, lambda: writer.dropped)
    server = _server(settings, board, calls, observer)
    running = RunningThread(backend.keys, calls, board) if keeps else None
    rollups = _rollups(settings, backend, calls, observer) if keeps and settings.rollups else None
    return Telemetry(observer, calls, server, rollups, writer, running)


def _writer(settings: Settings, place: Place, calls: LoopCalls, feed: Feed[Recorded]) -> Writer:
    def take() -> list[AttemptRow] | None:
        found = calls.call_in_loop(lambda _: feed.take())
        return None if found is None else [attempt_of(one) for one in found]

    return Writer(place, Masker(settings.history.mask), lambda: feed.items > 0, take)


def _rollups(settings: Settings, backend: QueueBackend, calls: LoopCalls, observer: Observer) -> RollupThread:
    def counts() -> SeriesByPlace | None:
        snapshot = calls.call_in_loop(observer.snapshot)
        return None if snapshot is None else snapshot.ended

    return RollupThread(backend.keys, secrets.token_hex(8), settings.rollups, counts, backend.time.guess)


def _server(settings: Settings, board: Scoreboard, calls: LoopCalls, observer: Observer) -> Server | None:
    if settings.metrics is None:
        return None
    from jobpool.telemetry.metrics.server import Server  # brings http.server, and that much more: only where it is used

    served = "metrics are served"
    try:
        pages.require_client()
    except ConfigurationError:
        served = "probes are served"
        log.warning("/metrics will not be served", extra={"mend": pages.MEND})
    views: dict[str, pages.View] = {
        "/metrics": lambda accept: metrics_page(calls, observer, accept),
        "/livez": lambda _: probe_page(board, pages.live),
        "/readyz": lambda _: probe_page(board, pages.ready),
    }
    server = Server(*settings.metrics, views)
    log.info(served, extra={"host": settings.metrics.host, "port": server.port})
    return server


def metrics_page(calls: LoopCalls, observer: Observer, accept: str) -> pages.Page:
    """Return the metrics of this moment: 501 without prometheus-client, 503 when the loop does not answer."""
    try:
        pages.require_client()
    except ConfigurationError as error:
        return pages.text_page(501, str(error))
    snapshot = calls.call_in_loop(observer.snapshot)
    if snapshot is None:
        return pages.text_page(503, NO_ANSWER)
    body, content_type = pages.expose(snapshot, accept)
    return pages.Page(200, body, content_type)


def probe_page(board: Scoreboard, judge: Callable[[HeaderView, float], pages.Probe]) -> pages.Page:
    """Return 200 or 503, and the sentence."""
    probe = judge(board.header.read(), time.monotonic())
    return pages.text_page(200 if probe.ok else 503, probe.text)


class Publisher:
    """The writer of the pool's state to the scoreboard, changes only, and of its notes to the log."""

    def __init__(self, board: Scoreboard, mask: Callable[[str], str] = str, **constants: str | int | float) -> None:
        self._board = board
        self._mask = mask
        self._last: dict[int, tuple[object, ...]] = {}
        self._files: list[str] = []
        board.header.write(pid=os.getpid(), started=time.monotonic(), started_wall=time.time(), **constants)

    def publish(self, pool: Pool, now: float, broker_ok_at: float, reaped_at: float) -> None:
        """Write what has changed. The caller keeps to `PUBLISH_EVERY_S`."""
        counted = sum(stats.waiting for stats in pool.stats.values())
        self._board.header.write(
            workers=pool.target,
            ready=sum([slot.is_ready for slot in pool.slots.live]),
            boot_failures=pool.boot.failures,
            draining=STOPS if pool.is_stopping else int(pool.drained),
            reloading=int(now < pool.reloaded_at + RELOAD_SHOWN_S or bool(reload_under_way(pool))),
            generation=pool.generation,
            waiting=max(0, counted - max(0, pool.leased_total - pool.leased_at_count)),
            loop_at=now,
            broker_ok_at=broker_ok_at,
            reaped_at=reaped_at,
            problem=self._mask(_problem(pool)),
            paused=" ".join(queue for queue in pool.queues if queue in pool.paused),
            depths=_depths(pool),
            **asdict(pool.counters),
        )
        for slot in pool.slots.all:
            if slot.restarts >= 0:  # it has had a child
                self._publish_slot(slot)

    def _publish_slot(self, slot: Slot) -> None:
        state = (slot.state, slot.pid, slot.rss, slot.restarts, slot.cpu)
        if self._last.get(slot.index) == state:
            return
        self._last[slot.index] = state
        same = {name: getattr(slot, name) for name in SLOT_FIELDS}
        self._board.slot(slot.index).master.write(state=slot.state.value, restarts=slot.restarts, **same)

    def look_for_files(self, pool: Pool) -> None:
        """Say once if a file has gone by which others on this machine find this pool; a first look notes what there is.

        No other pool makes files of these names. A board that was removed cannot be put back in its place.
        """
        path = pool.settings.board_path
        names = [path, *(os.path.splitext(path)[0] + end for end in (".json", ".sock"))] if path else []
        there = [name for name in names if os.path.exists(name)]
        if gone := [name for name in self._files if name not in there]:
            what = "`top` and `health` cannot see this pool any more, for its files were removed"
            mend = "keep cleaners of temporary files out of the runtime directory, and restart this pool"
            pool.note("warning", what, files=" ".join(gone), mend=mend)
        self._files = there

    def write_log(self, pool: Pool) -> None:
        """Log what handlers have said, then what has happened to them: in the order in which it came."""
        lines, pool.lines = pool.lines, []
        for number, text, about in lines:
            # A child masks its own.
            job_log.log(number, self._mask(text) if "app" in about else text, extra={"fields": about})
        notes, pool.notes = pool.notes, []
        for level, event, fields in notes:
            for key in MASKED_FIELDS & fields.keys():
                fields[key] = self._mask(fields[key])
            getattr(pool_log, level)(event, extra={"fields": fields, "limit": _limit(pool, level, event, fields)})


def _limit(pool: Pool, level: str, event: str, fields: dict[str, Any]) -> str | None:
    """Return the kind of a line that may come in floods; None: each is written."""
    if pool.tells_each or event in (STACK, *GIVEN_BACK.values()):
        return None
    handler = fields.get("handler")
    # The jobs of one handler must not hide those of another. Unknown ones share a kind: anyone can enqueue any name.
    return f"{event}: {handler}" if level == "critical" and handler in pool.handlers else event


def _depths(pool: Pool) -> str:
    """Return the depths of the pool's queues, the deepest first, as far as the scoreboard has room for whole lines."""
    room, lines = HEADER.fields["depths"].room, []
    for queue, stats in sorted(pool.stats.items(), key=lambda item: -item[1].waiting):
        oldest = None if stats.oldest is None else pool.counted_at - stats.oldest
        depth = QueueDepth(queue, stats.waiting, stats.delayed, stats.dead, oldest, pool.metrics.ran(queue))
        line = depth.line()
        room -= len(line.encode())
        if room < 0:
            break
        lines.append(line)
    return "".join(lines)


def _problem(pool: Pool) -> str:
    if pool.outages:
        refusal = next((error for kind, error in pool.outages.values() if kind is not BackendUnavailable), None)
        return pages.BROKER_SILENT if refusal is None else f"{pages.BROKER_REFUSES}{refusal}"
    if pool.boot.failures:
        return f"children do not come up: {pool.boot.last_error}"
    failed = f"the last reload failed, the old code goes on: {pool.reload_error}" if pool.reload_error else ""
    return "; ".join(filter(None, (pool.schedulers.problem, reload_under_way(pool), failed)))


class LoopCalls:
    """Calls by any threads that see the pool's state: the loop's thread makes them, between two of its turns."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: set[Future[Any]] = set()

    def call_in_loop(self, make: Callable[[Pool], Made], timeout: float = CALL_TIMEOUT_S) -> Made | None:
        """Return what `make` returns on the loop's thread; None: the loop ends, or did not get to it in time.

        With None, `make` was not called and never will be: so it may take something away, as history's does.
        """
        answer: Future[Made | None] = Future()
        with self._lock:
            if self._closed:
                return None
            self._waiting.add(answer)
            self._inbox.put(ev.LoopCall(lambda pool: _make(make, pool, answer)))
        try:
            return answer.result(timeout)
        except TimeoutError:
            return None if answer.cancel() else answer.result()
        except CancelledError:
            return None
        finally:
            with self._lock:
                self._waiting.discard(answer)

    def close(self) -> None:
        """Answer None to all calls that wait, and to those that come from now on."""
        with self._lock:
            self._closed = True
            for answer in self._waiting:
                answer.cancel()


class RunningThread(threading.Thread):
    """The thread that tells through the broker which jobs run, where, since when and how far (`Jobs.status`).

    Only those that have run for a second: short ones cost nothing. Written when it changes, and now and then.
    """

    def __init__(self, keys: KeyStore, calls: LoopCalls, board: Scoreboard) -> None:
        super().__init__(name="running", daemon=True)
        self._keys, self._calls, self._board = keys, calls, board
        self._end = threading.Event()
        self._published: dict[str, tuple[bytes, float]] = {}  # by id: what was written, and when

    def stop(self) -> None:
        """End soon. Returns at once."""
        self._end.set()

    def run(self) -> None:
        while not self._end.wait(PUBLISH_RUNNING_EVERY_S):
            with contextlib.suppress(JobpoolError):  # the next round is another try
                self._publish(self._calls.call_in_loop(_long_running) or [])

    def _publish(self, running: list[Running]) -> None:
        now, records = time.monotonic(), dict[str, bytes]()
        for one in running:
            view = self._board.slot(one.slot).child.read()
            said = {"fence": one.fence, "where": f"{HOST}:{view.pid}", "since": one.since}
            if view.nonce == one.nonce and (view.progress or view.progress_text):
                said |= {"progress": view.progress, "note": view.progress_text or None}
            record = json.dumps(said).encode()
            before, at = self._published.get(one.ident, (b"", 0.0))
            if record != before or now - at >= RUNNING_TTL_S / 3:
                records[one.ident] = record
        self._keys.put_records(RUNNING_SPACE, records, RUNNING_TTL_S)
        self._published = {one.ident: self._published.get(one.ident, (b"", 0.0)) for one in running}
        self._published |= {ident: (record, now) for ident, record in records.items()}


class Running(NamedTuple):
    ident: str
    fence: int
    nonce: int
    slot: int
    since: float  # Unix time


def _long_running(pool: Pool) -> list[Running]:
    """Return the attempts that have run for a while."""
    offset = pool.wall() - pool.now
    return [
        Running(head.lease.id, head.lease.deliveries, head.nonce, slot.index, round(slot.head_since + offset, 1))
        for slot in pool.slots.live
        if slot.deliveries and pool.now - slot.head_since >= PUBLISH_RUNNING_EVERY_S and (head := slot.deliveries[0])
    ]


def _make(make: Callable[[Pool], Made], pool: Pool, answer: Future[Made | None]) -> None:
    if answer.set_running_or_notify_cancel():
        made: Made | None = None
        try:
            made = make(pool)
        finally:
            answer.set_result(made)  # also after a failure: the caller waits for it
