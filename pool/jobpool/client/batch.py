"""`Batch`: jobs that belong together, and what follows when all of them have ended."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from jobpool.broker.control import CANCEL_LOOK_S, CANCEL_WAIT_S, Cancel
from jobpool.errors import InvalidJob, JobpoolError, UnknownJob
from jobpool.message.batches import NOT_OPEN, BatchCall, BatchStatus
from jobpool.message.builder import JobBuilder, check_distinct, definition_of
from jobpool.message.definition import JobDefinition
from jobpool.message.names import check_identifier
from jobpool.message.results import JobHandle

if TYPE_CHECKING:
    from jobpool.client.jobs import Jobs
    from jobpool.handlers.handler import AnyHandler

    Callback = JobDefinition | JobBuilder | AnyHandler

_UNKNOWN = "no batch {} is known: it never was, or ended more than a week ago"


class Batch:
    """Jobs that have one end. Made by `Jobs.batch`, and closed at the end of its `with` block.

    In a handler it can be filled, closed and looked at; `cancel` and `wait` are for other programs. Its `id` is also
    one for `Jobs.status`, `Jobs.wait` and `Jobs.cancel`, and on the command line.
    """

    def __init__(self, jobs: Jobs, ident: str, callbacks: Collection[str] = (), *, may_cancel: bool = False) -> None:
        self._jobs = jobs
        self._callbacks = callbacks
        self._may_cancel = may_cancel
        self.id = ident

    def add(self, job: JobDefinition | JobBuilder) -> JobHandle:
        """Enqueue one job as a member. Raises and blocks as `Jobs.enqueue`, and `InvalidJob`: it is not open."""
        with _telling_why(self._jobs, self.id):
            return self._jobs.enqueue(self._member(job))

    def add_many(self, jobs: Iterable[JobDefinition | JobBuilder]) -> list[str]:
        """Enqueue any number of members, a batch in a round trip; their ids, in order. Raises as `add`."""
        with _telling_why(self._jobs, self.id):
            return self._jobs.enqueue_many(map(self._member, jobs))

    def _member(self, job: JobDefinition | JobBuilder) -> JobDefinition:
        definition = definition_of(job)
        for one in (definition, *definition.then):
            if one.identifier in self._callbacks:
                raise InvalidJob(f"{one.identifier!r} is the id of a callback of its batch, which would never run")
        return definition.with_batch(self.id)

    def close(self) -> None:
        """Let it end when the last member has; at once if all have. Again, nothing. Raises as `Jobs.enqueue`."""
        self._jobs._target.call_batch(BatchCall("close", self.id))
        self._may_cancel = False

    def cancel(self) -> Cancel:
        """Close it and cancel the members that have not ended; raises and blocks as `Jobs.cancel`."""
        return self._jobs.cancel(self.id)

    def status(self) -> BatchStatus:
        """Return its counts. Raises `UnknownJob`: it ended more than a week ago, or never was."""
        found = self._jobs._target.call_batch(BatchCall("get", self.id))
        if found is None:
            raise UnknownJob(_UNKNOWN.format(self.id))
        return found

    def wait(self, timeout: float | None = None) -> BatchStatus:
        """Return its counts at its end, or once `timeout` seconds are over (None = never): `has_ended` says which.

        Raises as `status`.
        """
        self._jobs.wait([self.id], timeout)
        return self.status()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Close it. After an error cancel it, so that no half of it runs and its callback tells.

        One with an identifier stays as it is then: it may be another run's, and the next run may take it up.
        """
        if error is None:
            self.close()
        elif self._may_cancel:
            with suppress(JobpoolError):
                self._stop(CANCEL_WAIT_S if issubclass(error, Exception) else 0.0)

    def _stop(self, wait: float) -> None:
        """Cancel it, and again until it has ended or `wait` seconds are over: its chains may go on in the meantime.

        In a handler one call cancels what runs now, and does not wait for the job that this may enqueue with its ack.
        """
        give_up = time.monotonic() + wait
        while True:
            self._jobs._target.call_batch(BatchCall("cancel", self.id))
            if self.status().has_ended or time.monotonic() >= give_up:
                return
            time.sleep(CANCEL_LOOK_S)

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"


def open_batch(
    jobs: Jobs, on_success: Callback | None, on_done: Callback | None, parent: Batch | str | None, ident: str | None
) -> Batch:
    """Open a batch at the broker of `jobs`. See `Jobs.batch`."""
    new = secrets.token_hex(8) if ident is None else check_identifier(ident)
    given = {"on_success": on_success, "on_done": on_done}
    callbacks = {name: _callback(callback, name, new) for name, callback in given.items() if callback is not None}
    check_distinct(callbacks.values(), "as a callback")
    parent_id = parent.id if isinstance(parent, Batch) else parent
    if parent_id is not None:
        check_identifier(parent_id)
    with _telling_why(jobs, parent_id):
        jobs._target.call_batch(BatchCall("open", new, parent_id, (*callbacks,)), [*callbacks.values()])
    own_ids = [job.identifier for job in callbacks.values() if job.identifier is not None]
    return Batch(jobs, new, own_ids, may_cancel=ident is None)


def _callback(callback: Callback, name: str, batch: str) -> JobDefinition:
    """Return the job of a callback. Raises `InvalidJob`: it is not one, or cannot be told the end of the batch."""
    from jobpool.handlers.handler import Handler  # only here: a producer that gives none has no use for handlers
    from jobpool.handlers.registry import DEFAULT

    if isinstance(callback, Handler):
        handler: AnyHandler | None = callback
        definition = JobDefinition(callback.name, queue=callback.queues[0] if callback.queues else None)
    elif isinstance(callback, JobDefinition | JobBuilder):
        definition = definition_of(callback, later=True)
        handler = DEFAULT.find(definition.handler)
    else:
        raise InvalidJob(f"a callback is a handler, handler.define(…) or a definition, not {type(callback).__name__}")
    if definition.expires_in is not None or (isinstance(callback, JobBuilder) and callback.is_delayed):
        raise InvalidJob(f"{name}: expires_in and delay would count from the opening of the batch: leave them out")
    if not isinstance(definition.payload, dict):
        raise InvalidJob(f"the payload of {name} is an object, to which the end of the batch is added as 'batch'")
    end = {**BatchStatus(batch, False, 1, 1, 0, 0, (), 0.0).end(), "failed_ids": []}
    try:
        if handler is not None:
            handler.check({**definition.payload, "batch": end})
    except InvalidJob as error:
        raise InvalidJob(
            f"{name}: {error}. It gets the end of the batch as 'batch': give it a parameter"
            " batch: dict | None = None, and what else it takes by handler.define(…)"
        ) from None
    return definition


@contextmanager
def _telling_why(jobs: Jobs, ident: str | None) -> Iterator[None]:
    """Add to a refusal of the block's that this batch is not open why it is not, and what to do."""
    try:
        yield
    except InvalidJob as error:
        if ident is None or str(error) != NOT_OPEN.format(ident):
            raise
        found = jobs._target.call_batch(BatchCall("get", ident))
        if found is None:
            why = _UNKNOWN.format(ident)
        elif found.stopped:
            why = "it was cancelled. Make one with another identifier"
        else:
            why = (
                f"it {'has ended' if found.has_ended else 'was closed'}, and stays as it is. A producer that runs again"
                " looks at batch.status().open before it adds. Other jobs need a batch with another identifier, or are"
                " added by one of its members (ctx.batch.add)"
            )
        error.args = (f"batch {ident} is not open: {why}",)  # and its note stays
        raise
