"""`Batch`: jobs that belong together, and what follows when all of them have ended."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from jobpool.broker.control import Cancel
from jobpool.broker.values import NewBatch, NewMessage
from jobpool.errors import InvalidJob, JobpoolError, UnknownJob
from jobpool.message.batches import BatchStatus
from jobpool.message.builder import JobBuilder, definition_of
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.message.names import check_identifier
from jobpool.message.results import JobHandle

if TYPE_CHECKING:
    from jobpool.client.jobs import Jobs
    from jobpool.handlers.handler import AnyHandler

    Callback = JobDefinition | JobBuilder | AnyHandler

MAX_CALLBACK_BYTES = MAX_BODY_BYTES // 2  # the ids of failed jobs have to go in too


class Batch:
    """Jobs that have one end. Made by `Jobs.batch`, and closed at the end of its `with` block.

    Attributes:
        id: Also an id for `Jobs.status`, `Jobs.wait` and `Jobs.cancel`, and on the command line.
    """

    def __init__(self, jobs: Jobs, ident: str) -> None:
        self._jobs = jobs
        self.id = ident

    def add(self, job: JobDefinition | JobBuilder) -> JobHandle:
        """Enqueue one job as a member. Raises and blocks as `Jobs.enqueue`, and `InvalidJob`: it is not open."""
        return self._jobs.enqueue(definition_of(job).with_batch(self.id))

    def add_many(self, jobs: Iterable[JobDefinition | JobBuilder]) -> list[str]:
        """Enqueue any number of members, 1,000 in a round trip; their ids, in order. Raises as `add`."""
        return self._jobs.enqueue_many(definition_of(job).with_batch(self.id) for job in jobs)

    def close(self) -> None:
        """Let it end when the last member has; at once if all have. Again, nothing. Raises as `Jobs.backend`."""
        self._jobs.backend.batches.close(self.id)

    def cancel(self) -> Cancel:
        """Close it and cancel the members that have not ended; raises and blocks as `Jobs.cancel`."""
        return self._jobs.cancel(self.id)

    def status(self) -> BatchStatus:
        """Return its counts. Raises `UnknownJob`: it ended more than a week ago, or never was."""
        found = self._jobs.backend.find_batch(self.id)
        if found is None:
            raise UnknownJob(f"no batch {self.id} is known: it never was, or ended more than a week ago")
        return found

    def wait(self, timeout: float | None = None) -> BatchStatus:
        """Wait for its end, `timeout` seconds at most (None = however long); return its counts. Raises as `status`."""
        self._jobs.wait([self.id], timeout)
        return self.status()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Close it; after an error cancel it, so that no half of it runs and its callback tells."""
        if error is None:
            self.close()
        else:
            with suppress(JobpoolError):
                self.cancel()

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"


def open_batch(
    jobs: Jobs, on_success: Callback | None, on_done: Callback | None, parent: Batch | str | None, ident: str | None
) -> Batch:
    """Open a batch at the broker of `jobs`. See `Jobs.batch`."""
    backend = jobs.backend
    batch = Batch(jobs, secrets.token_hex(8) if ident is None else check_identifier(ident))

    def packed(callback: Callback | None, name: str) -> NewMessage | None:
        if callback is None:
            return None
        definition, handler = _callback_of(callback)
        if not isinstance(definition.payload, dict):
            raise InvalidJob(f"the payload of {name} is an object, to which the end of the batch is added as 'batch'")
        end = {**BatchStatus(batch.id, False, 1, 1, 0, 0, (), 0.0).end(), "failed_ids": []}
        try:
            if handler is not None:
                handler.check({**definition.payload, "batch": end})
        except InvalidJob as error:
            raise InvalidJob(
                f"{name}: {error}. It gets the end of the batch as 'batch': give it a parameter"
                " batch: dict | None = None, and what else it takes by handler.define(…)"
            ) from None
        new = backend.pack(definition.with_identifier(definition.identifier or f"{batch.id}:{name}"))
        if len(new.body) > MAX_CALLBACK_BYTES:
            raise InvalidJob(f"the body of {name} has {len(new.body)} bytes; at most {MAX_CALLBACK_BYTES}")
        return new

    parent_id = parent.id if isinstance(parent, Batch) else parent
    backend.batches.open(NewBatch(batch.id, parent_id, packed(on_success, "on_success"), packed(on_done, "on_done")))
    return batch


def _callback_of(callback: Callback) -> tuple[JobDefinition, AnyHandler | None]:
    """Return the job of a callback, and its handler, if this process knows it. Raises `InvalidJob`: it is neither."""
    from jobpool.handlers.handler import Handler  # only here: a producer that gives none has no use for handlers
    from jobpool.handlers.registry import DEFAULT

    if isinstance(callback, Handler):
        return JobDefinition(callback.name, queue=callback.queues[0] if callback.queues else None), callback
    if not isinstance(callback, JobDefinition | JobBuilder):
        raise InvalidJob(f"a callback is a handler, handler.define(…) or a definition, not {type(callback).__name__}")
    definition = definition_of(callback)
    return definition, DEFAULT.find(definition.handler)
