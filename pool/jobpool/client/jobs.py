"""`Jobs`: how a program enqueues work and looks at its queues.

It opens its backend at the first use, and again in a forked process. A `Jobs()` at the top of a module is made before
the pool's children are forked, and they must not share a broker's connection. In a child of a pool it opens none at
all; there everything goes to the master, which holds the broker.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson

from jobpool.broker import control, editing, opening, tracking
from jobpool.broker.backend import QueueBackend
from jobpool.broker.config_file import find_config
from jobpool.broker.control import Cancel, Pause, PoolRecord
from jobpool.broker.filters import parse_filter
from jobpool.broker.packing import in_batches
from jobpool.broker.values import Edited, MessageFilter, QueueStats
from jobpool.client.batch import Batch, open_batch
from jobpool.client.claims import BATCH_BYTES, Queue
from jobpool.errors import BackendUnavailable, ConfigurationError, ResultPending, Unsupported
from jobpool.message import producer
from jobpool.message.builder import JobBuilder, definition_of, named_job
from jobpool.message.definition import JobDefinition
from jobpool.message.names import check_queue, check_text
from jobpool.message.results import NO_LOOK, JobHandle, JobState, JobStatus
from jobpool.message.signing import Key

if TYPE_CHECKING:
    import asyncio

    from jobpool.client.awaited import Waits
    from jobpool.client.batch import Callback

BATCH = 1000  # jobs in one round trip of `enqueue_many`, of up to `BATCH_BYTES`

_OUR_OWN: object = object()  # not None: a connection that Django has not opened yet is None
logger = logging.getLogger("jobpool.client")

_all: weakref.WeakSet[Jobs] = weakref.WeakSet()
_inherited: list[QueueBackend] = []  # from a parent; kept, because even to close them writes to its connections


class Jobs:
    """A producer. Safe to share between threads, and usable after a fork when it was made from a URL.

    In a pool's child it sends to the pool's broker, whatever the URL.

    Args:
        url: Of the backend. None = JOBPOOL_BACKEND, else the configuration file's, else SQLite in `jobpool.db` beside
            that file (or in the working directory), which is logged once.
        signing_key: One key or several, of which the first signs. None = the configuration's, else
            JOBPOOL_SIGNING_KEY, else JOBS_SIGNING_KEY, else unsigned.
        backend: An open backend in place of a URL. It stays its owner's: `close` leaves it open.
        runner: The runner of `sync://`; None = the handlers of this process, one attempt each.
        options: The backend's own, by keyword.

    Raises `ConfigurationError`: the URL's scheme is unknown, or both a URL and a backend are given.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        signing_key: Key | Sequence[Key] | None = None,
        backend: QueueBackend | None = None,
        runner: opening.Runner | None = None,
        **options: Any,
    ) -> None:
        if backend is not None and (url is not None or signing_key is not None or runner is not None or options):
            raise ConfigurationError("an open backend has its URL, keys and options already: give it alone")
        self._url = None if url is None else opening.check_url(url)
        self._signing_key = signing_key
        self._runner = runner
        self._options = options
        self._given = backend
        self._opened: QueueBackend | None = None
        self._failure: BackendUnavailable | None = None
        self._closed = False
        self._waits_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Waits] = weakref.WeakKeyDictionary()
        _all.add(self)

    def define(self, handler: str, payload: Any = None) -> JobBuilder:
        """Describe a job step by step; end with `dispatch()`, which sends it here. Raises as `JobBuilder`."""
        return JobBuilder(handler, payload, producer=self)

    def enqueue(
        self, job: JobDefinition | JobBuilder | str, /, payload: Any = None, *, connection: object = _OUR_OWN
    ) -> JobHandle:
        """Enqueue one job and return its id, as a handle that can be asked for its status and result.

        Args:
            job: A definition, a builder, or the name of a handler.
            payload: With a name: any JSON value; None = an empty object.
            connection: Your own connection to the broker's database. The job is enqueued within its open transaction:
                it is there if that commits, and never was if it rolls back. None is refused: leave it out.

        Raises `InvalidJob`, `Unsupported`, `ConfigurationError`: it was not enqueued. `BackendUnavailable`: nothing is
        known; retry with an identifier of your own to be sure of no duplicate.

        With a connection, the database driver's own errors are raised as they are: the transaction is yours. Blocks for
        one round trip; the first call also opens the backend.
        """
        definition = named_job(job, payload)
        if connection is not _OUR_OWN:
            return JobHandle(self.enqueue_many([definition], connection=connection)[0], self)
        return JobHandle(self._target.enqueue(definition), self)

    def enqueue_many(
        self, jobs: Iterable[JobDefinition | JobBuilder], /, *, connection: object = _OUR_OWN
    ) -> list[str]:
        """Enqueue any number of jobs, 1,000 or 4 MiB in a round trip; their ids, in order.

        Each of these is enqueued whole or not at all. When it raises, those before are in the queue, and a note of the
        exception counts them. `jobs` may be a generator: it is read as the batches are sent. With a `connection` all
        are part of its transaction.

        Raises as `enqueue`. Blocks for a round trip a batch.
        """
        send: Callable[[list[JobDefinition]], list[str]]
        if connection is None:
            raise ConfigurationError(
                "the connection is None, so it is not open yet: open it first (in Django:"
                " connection.ensure_connection()), or leave connection= out to enqueue outside your transaction"
            )
        if connection is _OUR_OWN:
            send = self._target.enqueue_many
        elif producer.process.of_child is not None:
            raise Unsupported(
                "a job's process holds no signing keys, so in its own transaction a handler enqueues with ctx.enqueue"
                " and ctx.ack(connection), declared with ack_in_transaction=True"
            )
        else:
            send = partial(self.backend.enqueue_in, connection)
        with _counting() as ids:
            for batch in job_batches(jobs):
                ids += [JobHandle(ident, self) for ident in send(batch)]
        return ids

    async def aenqueue(self, job: JobDefinition | JobBuilder | str, /, payload: Any = None) -> JobHandle:
        """Enqueue one job and leave the event loop free meanwhile; return its id.

        The blocking call runs on a thread of the loop's own executor, in the caller's context. Four go at a time for
        each loop, and the others wait in their order. So however many there are, the broker has four connections.

        Raises as `enqueue`. After a cancellation nothing is known, as after `BackendUnavailable`: a call that waited
        for its turn was not sent, and one under way goes on.
        """
        return JobHandle((await self.aenqueue_many([named_job(job, payload)]))[0], self)

    async def aenqueue_many(self, jobs: Iterable[JobDefinition | JobBuilder], /) -> list[str]:
        """Enqueue any number of jobs, a batch in a round trip; their ids, in order. See `enqueue_many` and `aenqueue`.

        `jobs` is read in the event loop's thread, a batch at a time. A cancellation leaves out the batches to come.
        """
        with _counting() as ids:
            for batch in job_batches(jobs):
                ids += await producer.on_thread(partial(self.enqueue_many, batch))
        return ids

    def status(self, ident: str) -> JobStatus:
        """Return the state of one job; O(1) however many there are. Raises as `backend`, `InvalidJob`: no id.

        A done job is known while its result is kept (`result_ttl`); without one it is `unknown`. A running one says
        where, since when and how far, once it has run for a second.
        """
        check_text(ident, "id")
        return self.backend.status(ident)

    def result(self, ident: str, timeout: float | None = None) -> Any:
        """Return what a job's handler returned, as soon as it did: JSON values, with secrets masked.

        `timeout`: seconds to wait for its end; None = however long, 0 = not at all.

        Raises:
            ResultPending: It has not ended in this time.
            JobFailed: It is dead, expired or cancelled.
            ResultNotKept: It is done, and no result is kept: without a `result_ttl`, or after it.
            ResultTooLarge: It is done, and its result was above the cap (`output_cap`).
            UnknownJob: No such job is known. One that ended before the call, and kept nothing, is not known either.
            Unsupported: The broker cannot tell whether it has ended (`Capabilities.finds_all`).
            InvalidJob: The id is not a `str`.
            BackendUnavailable: The broker did not answer.
        """
        check_text(ident, "id")
        return self.backend.result(ident, timeout)

    def wait(self, idents: Iterable[str], timeout: float | None = None) -> list[JobStatus]:
        """Return the states of jobs, in order, when all have ended or `timeout` seconds are over.

        `idents` may be one id alone. `has_ended` of each says which it was. The end of a job that keeps no result is
        noticed half a second late at most.

        Raises as `backend`, `InvalidJob` for an id that is not a `str`, and `Unsupported` where the broker cannot tell
        whether a job has ended.
        """
        wanted = _ids(idents)
        return self.backend.wait(wanted, timeout)

    async def astatus(self, ident: str) -> JobStatus:
        """Return the state of one job and leave the event loop free meanwhile. Raises as `status`."""
        return await producer.on_thread(partial(self.status, ident))

    async def aresult(self, ident: str, timeout: float | None = None) -> Any:
        """Return a job's result and leave the event loop free meanwhile. Raises as `result`; may be cancelled."""
        waits, give_up = self._waits(), tracking.give_up_at(timeout)
        while True:
            try:
                return await waits.look(partial(self.result, ident, 0))
            except ResultPending:
                if time.monotonic() >= give_up:
                    raise
            ident = JobHandle(ident, self)  # it is known now
            await waits.until_ended([ident], give_up)

    async def await_all(self, idents: Iterable[str], timeout: float | None = None) -> list[JobStatus]:
        """Wait for jobs as `wait` does, and leave the event loop free meanwhile; may be cancelled."""
        wanted, waits, give_up = _ids(idents), self._waits(), tracking.give_up_at(timeout)
        while True:
            found = await waits.look(partial(self.wait, wanted, 0))
            left = [status.id for status in found if not status.has_ended]
            if not left or time.monotonic() >= give_up:
                return found
            wanted = [one.id if one.state is JobState.UNKNOWN else JobHandle(one.id, self) for one in found]  # is known
            await waits.until_ended(left, give_up)

    def batch(
        self,
        on_success: Callback | None = None,
        on_done: Callback | None = None,
        *,
        parent: Batch | str | None = None,
        identifier: str | None = None,
    ) -> Batch:
        """Open a batch: `with jobs.batch(on_done=finish) as batch: batch.add(…)`. The block's end closes it.

        When all members have ended, the callbacks are enqueued, exactly once, in the step that ends the last of them.
        They find `batch` in their payload: its `id`, the counts `total`, `succeeded`, `failed` and `cancelled`, and
        up to 100 `failed_ids`.

        Args:
            on_success: A job for when all members succeeded: a handler, a builder or a definition.
            on_done: A job for its end in any case.
            parent: A batch of which this one is a member.
            identifier: An id of your own; a batch that is known by it is taken up again, with its callbacks. A block
                that raises leaves such a batch open.

        Raises as `enqueue`, `Unsupported` where batches cannot be counted, and `InvalidJob` for a callback that cannot
        be enqueued, or a parent that is not open. Blocks for one round trip.
        """
        return open_batch(self, on_success, on_done, parent, identifier)

    def stats(self, queue: str = "default") -> QueueStats:
        """Return counts of one queue. Raises as `backend`, and `InvalidJob` for what cannot be a queue's name."""
        return self.backend.stats(check_queue(queue))

    def queues(self) -> list[str]:
        """Return the names of all queues that hold a message, sorted. Raises as `backend`."""
        return self.backend.queues()

    def pause(self, queue: str, reason: str = "", until: datetime | float | None = None) -> Pause:
        """Keep all pools from fetching from a queue, within a second; running jobs go on. A second pause replaces it.

        Args:
            queue: Its name; it may be empty, or not be there yet.
            reason: For people, who see it in `jobpool stats`.
            until: An aware time, or seconds from now; None = until `resume`, a year at most.

        Raises as `backend`, `InvalidJob` for a wrong argument, `Unsupported` without a key store (docs/control.md).
        """
        check_queue(queue)
        check_text(reason, "reason")
        return control.pause(self.backend, queue, reason, until)

    def resume(self, queue: str) -> bool:
        """Let pools fetch from a queue again; return whether it was paused. Raises as `pause`."""
        check_queue(queue)
        return control.resume(self.backend, queue)

    def cancel(self, ident: str, *, purge: bool = False, wait: float = control.CANCEL_WAIT_S) -> Cancel:
        """Cancel a job that waits, is delayed or runs; return the answer, which says what won (docs/control.md).

        Args:
            purge: Remove it, in place of a dead letter with the reason `cancelled`.
            wait: Seconds to wait for the pool that runs it; after them the answer is `asked`.

        Raises as `pause`. Blocks until the job's end is known.
        """
        check_text(ident, "id")
        return control.cancel(self.backend, [ident], purge=purge, wait=wait)[ident]

    def cancel_matching(
        self, where: str | MessageFilter, *, purge: bool = False, wait: float = control.CANCEL_WAIT_S
    ) -> dict[Cancel, int]:
        """Cancel all jobs that match a filter, such as `queue:reports age:>1h`; count them by their answers.

        Raises as `cancel`, and `ValueError` for a filter that says nothing clear.
        """
        asked = parse_filter(where) if isinstance(where, str) else where
        return dict(control.cancel_matching(self.backend, asked, purge=purge, wait=wait))

    def edit(
        self,
        ident: str,
        *,
        at: datetime | float | None = None,
        priority: int | None = None,
        queue: str | None = None,
    ) -> Edited:
        """Change when a job runs that waits or is delayed, its priority or its queue; return the answer.

        Args:
            at: An aware time, or seconds from now; 0 = run now. One that expires before then dies `expired`.
            priority: 0 to 255; a smaller number runs sooner.
            queue: The queue to move to.

        Its id, counters, age, expiry and unique key stay (docs/control.md). A change of priority or queue needs the
        key that the job was signed with.

        Raises as `backend`, `InvalidJob` for changes out of bounds, and `Unsupported` where the broker cannot do it.
        """
        check_text(ident, "id")
        changes = editing.read_changes(self.backend, at, priority, queue)
        return editing.edit(self.backend, changes, [ident])[ident]

    def edit_matching(
        self,
        where: str | MessageFilter,
        *,
        at: datetime | float | None = None,
        priority: int | None = None,
        queue: str | None = None,
    ) -> dict[Edited, int]:
        """Edit all jobs that match a filter, such as `queue:reports age:>1h`; count them by their answers.

        Raises as `edit`, and `ValueError` for a filter that says nothing clear.
        """
        asked = parse_filter(where) if isinstance(where, str) else where
        changes = editing.read_changes(self.backend, at, priority, queue)
        return dict(editing.edit_matching(self.backend, changes, asked))

    def pools(self) -> list[PoolRecord]:
        """Return the pools of the broker on all hosts, the oldest first. Raises as `pause`."""
        return control.pools(self.backend)

    def queue(self, name: str, *, max_claims: int = 0) -> Queue:
        """Return one queue, to post messages to it and to claim its messages by hand. Raises as `Queue`.

        A message that was claimed `max_claims` times becomes a dead letter when the next claim meets it; 0 = never.
        """
        return Queue(lambda: self.backend, name, max_claims)

    @property
    def _target(self) -> producer.Target:
        """Where jobs go: in a child of a pool, its channel to the master. Else raises as `backend`."""
        producer.process.was_used = True
        of_child = producer.process.of_child
        return self.backend if of_child is None else of_child

    @property
    def backend(self) -> QueueBackend:
        """The backend, opened when it is not yet.

        Raises `Unsupported`: in a child of a pool, which holds no broker. `ConfigurationError`: it cannot be opened as
        configured, or this `Jobs` is closed. `BackendUnavailable`: the broker does not answer.
        """
        if producer.process.of_child is not None:
            raise Unsupported(NO_LOOK)
        if self._given is not None:
            return self._given
        if self._url is None and isinstance(chosen := producer.process.chosen, Jobs) and chosen is not self:
            return chosen.backend  # in a test: not the real broker
        known_failure = self._failure
        with self._lock:
            if self._closed:
                raise ConfigurationError("this Jobs is closed: make a new one")
            if self._opened is None:
                if self._failure is not None and self._failure is not known_failure:
                    raise BackendUnavailable(str(self._failure))  # of the attempt that this thread has waited for
                try:
                    self._opened = self._open()
                except BackendUnavailable as error:
                    self._failure = BackendUnavailable(str(error))  # without its traceback
                    raise
            return self._opened

    @property
    def _lock(self) -> threading.Lock:
        """Held to open the backend. Made at its first use: gevent may have patched `threading` since the import."""
        return self.__dict__.setdefault("_lock", threading.Lock())  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the backend, unless it was given open; safe to call twice."""
        with self._lock:
            self._closed = True
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._given is not None:
            return f"<Jobs on a {self._given.scheme} backend>"
        return f"<Jobs {opening.redact(self._url) if self._url else 'on the default backend'}>"

    def _waits(self) -> Waits:
        import asyncio  # a program without an event loop never pays for it

        from jobpool.client.awaited import Waits

        if producer.process.of_child is not None:
            raise Unsupported(NO_LOOK)  # not by a thread: it would stay after the attempt, and cost the child
        loop = asyncio.get_running_loop()
        if loop not in self._waits_by_loop:
            self._waits_by_loop[loop] = Waits(lambda: self.backend)
        return self._waits_by_loop[loop]

    def _open(self) -> QueueBackend:
        config = find_config()
        url = self._url or opening.default_url(config)
        if self._url is None and "backend" not in config.values and not os.environ.get("JOBPOOL_BACKEND"):
            is_odd = _is_elsewhere(config.directory) and opening.missing_database(url)
            text = "no backend is configured: using %s (set JOBPOOL_BACKEND, or backend in a file)"
            logger.log(logging.WARNING if is_odd else logging.INFO, text, opening.redact(url))
        runner = self._runner
        if runner is None and opening.scheme_of(url) == "sync":
            from jobpool.client.worker import inline_runner  # a producer needs the runner of handlers only for sync://

            runner = inline_runner()
        signer = opening.default_signer(self._signing_key, config)
        return opening.open_backend(url, signer=signer, runner=runner, **self._options)


def _is_elsewhere(folder: Path) -> bool:
    """Return whether the program's file lies in another folder: an IDE may start it where no pool looks for jobs."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return main is not None and Path(main).resolve().parent != folder.resolve()


def _ids(idents: Iterable[str]) -> list[str]:
    """Return these ids; a `str` is one id, and not its letters."""
    is_one = isinstance(idents, str) or not isinstance(idents, Iterable)
    return [check_text(ident, "id") for ident in ([idents] if is_one else idents)]


@contextmanager
def _counting() -> Iterator[list[str]]:
    """Yield a list for the ids of jobs. Note on what is raised meanwhile how many there are."""
    ids: list[str] = []
    try:
        yield ids
    except BaseException as error:
        if ids:
            error.add_note(f"{len(ids)} jobs were enqueued before it")
        raise


def job_batches(jobs: Iterable[JobDefinition | JobBuilder]) -> Iterator[list[JobDefinition]]:
    """Yield the jobs in the parts that go in one round trip each: up to `BATCH` of them, and to `BATCH_BYTES`."""
    return in_batches(map(definition_of, jobs), BATCH, BATCH_BYTES, _size)


def _size(definition: JobDefinition) -> int:
    try:
        return len(orjson.dumps((definition.payload, definition.meta, definition.then)))
    except TypeError:  # changed since it was checked: the backend says what is wrong
        return 0


def _after_fork() -> None:
    """Forget, in a forked process, the parent's backends, and locks that its threads may have held."""
    for jobs in _all:
        jobs.__dict__.pop("_lock", None)
        if jobs._opened is not None:
            _inherited.append(jobs._opened)
            jobs._opened = None


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_after_fork)
