"""The context of a handler: facts about its job, and calls that it can make while it runs."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any, Protocol, SupportsFloat

from jobpool.errors import InvalidJob, Unrecoverable, Unsupported
from jobpool.message.builder import JobBuilder, definition_of, named_job
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES, TRACEPARENT, JobEnvelope, encode, too_large
from jobpool.message.names import DEFAULT_QUEUE
from jobpool.message.signing import SIGNATURE_LENGTH, EnvelopeSigner

_UNSIGNED = EnvelopeSigner()
NO_RESULT = object()  # of a handler that acks itself


class Reporter(Protocol):
    """The receiver of a handler's reports from its context: the child's attempt, or a test. `progress` must not block;
    `follow_up` keeps a job, its identifier set, to be sent with the ack.
    """

    def progress(self, fraction: float, text: str, /) -> None: ...
    def follow_up(self, definition: JobDefinition, /) -> None: ...
    def ack(self, connection: object, /) -> None: ...


class BatchMembership:
    """A batch, seen from a job that is a member of it."""

    def __init__(self, ident: str, enqueue: Callable[[JobDefinition], str]) -> None:
        self.id = ident
        self._enqueue = enqueue

    def add(self, job: JobDefinition | JobBuilder) -> str:
        """Enqueue another member together with this job's ack, as `JobContext.enqueue`; return its id.

        It joins a closed batch too. If this job was raised after the batch's end, it is enqueued without it.
        """
        return self._enqueue(definition_of(job).with_batch(self.id))


class JobContext:
    """One attempt, seen from its handler. Made once a job, so it only holds on to the envelope.

    Attributes:
        max_retries: Runs after the first that fails: the job's, else its handler's; None = the pool's policy decides.
        fence: The message's deliveries: strictly increasing, a fencing token for what the handler writes elsewhere.
        crashes: Deliveries so far that ended with no verdict.
        deadline: CLOCK_MONOTONIC seconds at which the alarm fires; None = unlimited.
    """

    __slots__ = ("_envelope", "_reporter", "_went_on", "crashes", "deadline", "fence", "max_retries")

    def __init__(
        self,
        envelope: JobEnvelope,
        reporter: Reporter,
        *,
        fence: int = 1,
        crashes: int = 0,
        max_retries: int | None = None,
        deadline: float | None = None,
    ) -> None:
        self._envelope = envelope
        self._reporter = reporter
        self._went_on = False
        self.max_retries = max_retries
        self.fence = fence
        self.crashes = crashes
        self.deadline = deadline

    @property
    def id(self) -> str:
        """The message's id, the same in every attempt."""
        return self._envelope.identifier

    @property
    def name(self) -> str:
        """The job's name; its handler's, when it has none."""
        return self._envelope.name or self._envelope.job

    @property
    def handler(self) -> str:
        return self._envelope.job

    @property
    def payload(self) -> Any:
        """The value that the producer gave. For the callback of a batch it has the end of that too, as `batch`."""
        envelope = self._envelope
        return envelope.payload if envelope.ended is None else envelope.full_payload

    @property
    def queue(self) -> str:
        return self._envelope.queue

    @property
    def attempt(self) -> int:
        """1 in the first run; crashes and releases do not raise it."""
        return self._envelope.attempts + 1

    @property
    def meta(self) -> dict[str, Any]:
        """A new dict of what the producer sent along."""
        return self._envelope.user_meta

    @property
    def previous(self) -> Any:
        """The result of the job before it in a chain, if it was asked for (`JobBuilder.then`); else None."""
        previous = self._envelope.previous
        return previous[0] if previous else None

    @property
    def batch(self) -> BatchMembership | None:
        """The batch of which the job is a member; None = of none."""
        return None if self._envelope.batch is None else BatchMembership(self._envelope.batch, self.enqueue)

    def progress(self, fraction: SupportsFloat, text: str = "") -> None:
        """Show how far the job is, in `jobpool top`, with one short line of text (`str` of it). Never blocks.

        A `fraction` outside 0..1 is taken as the nearer bound. Raises `ValueError`: it is not a number.
        """
        try:
            share = math.nan if isinstance(fraction, str | bytes) else float(fraction)
        except (TypeError, ValueError, ArithmeticError):
            share = math.nan
        if math.isnan(share):
            raise ValueError(f"progress is a number from 0 to 1, not {fraction!r}")
        self._reporter.progress(min(1.0, max(0.0, share)), str(text))

    def enqueue(self, job: JobDefinition | JobBuilder | str, payload: Any = None) -> str:
        """Enqueue a follow-up job together with this job's ack, and return its id at once. Never blocks.

        It is sent only if this attempt succeeds, so one that fails or crashes, and runs again, leaves none behind. The
        id is minted here, before the ack, so a repeated ack sends the same message and makes no duplicate. If a broker
        cannot ack and enqueue in one step (`Capabilities.atomic_across_queues`), a run after a lost ack may send it
        again under another id. Give an `identifier` of your own if that matters.

        Args:
            job: A definition, a builder, or the name of a handler.
            payload: With a name: any JSON value; None = an empty object.

        Raises:
            InvalidJob: It is out of bounds, or its body above 1 MiB, or the follow-ups of this attempt above 8 MiB
                together. It is not enqueued then.
            Unsupported: In a process that the handler forked.
        """
        definition = _with_trace(named_job(job, payload), self._envelope)
        identifier = definition.identifier or secrets.token_hex(8)
        definition = definition.with_identifier(identifier)
        # The master could refuse a body that is too large only after the handler's work.
        queue = definition.queue or DEFAULT_QUEUE
        body = encode(definition, identifier=identifier, queue=queue, signer=_UNSIGNED, now=0.0)
        if len(body) > MAX_BODY_BYTES - 2 * SIGNATURE_LENGTH:
            raise too_large(definition.handler, len(body))
        self._reporter.follow_up(definition)
        return identifier

    def ack(self, connection: object) -> None:
        """End the message within the transaction that is open on a database connection of the handler's own.

        When that transaction commits, the job is done, and its other writes were made exactly once; when it rolls back,
        neither is so. Jobs that `enqueue` has collected so far are enqueued in it too. Call this last, just before the
        commit: until then the message is locked, and a handler that fails after the commit is not run again.
        From here to the commit the job's batch is locked: acks of its other members wait.

        For handlers declared with `ack_in_transaction=True`, on backends that can (`Capabilities.transactions`). The
        connection is to the database that holds the queue, of the kind that the backend documents.

        Raises:
            LeaseLost: The lease has ended: let the error roll the transaction back.
            Unsupported: The handler is not declared so, or in a process that it forked.
            ConfigurationError: It is not a connection of that kind.

        Errors of the database are raised as its driver raises them. Blocks for one or two round trips.
        """
        go_on(self, NO_RESULT)
        self._reporter.ack(connection)

    def __repr__(self) -> str:
        return f"<JobContext {self.id} {self.handler!r} attempt {self.attempt}>"


def go_on(ctx: JobContext, returned: object, plain: Callable[[object], Any] = lambda returned: returned) -> None:
    """Enqueue the next job of a chain together with this job's ack. The pool calls this when the handler has returned.

    `plain`: makes JSON values of what it returned. Raises `InvalidJob`: the next job is too large. Where it asks for
    the result: `Unrecoverable` if that is too large, `Unsupported` if the handler has acked before there is one.
    """
    envelope = ctx._envelope
    if not (envelope.meta and envelope.then) or ctx._went_on:
        return
    ctx._went_on = True
    [job] = next_of(envelope)
    if job.previous is None:
        ctx.enqueue(job)
        return
    if returned is NO_RESULT:
        raise Unsupported("the next job of the chain asks for the result, and ctx.ack comes before there is one")
    result = plain(returned)
    try:
        ctx.enqueue(job.with_previous([result]))
    except InvalidJob as error:
        raise Unrecoverable(f"the result cannot be handed on by previous=True: {error}") from None


def next_of(envelope: JobEnvelope) -> tuple[JobDefinition, ...]:
    """Return the next job of its chain, alone; () = none comes after it. If it asks for a result, it gets None.

    Raises `InvalidJob`: the message does not describe a job there.
    """
    if not (envelope.meta and envelope.then):
        return ()
    first, *rest = (JobDefinition.from_dict(job) for job in envelope.then)
    # The same id after a lost ack, so that the repeat makes no duplicate. Older versions gave it none at the enqueue.
    identifier = first.identifier or sha256(f"{envelope.identifier} then {len(rest)}".encode()).hexdigest()[:16]
    previous = None if first.previous is None else [None]
    batch = first.batch or envelope.batch
    job = replace(first, then=tuple(rest), previous=previous, identifier=identifier, batch=batch)
    return (_with_trace(job, envelope),)


def _with_trace(job: JobDefinition, envelope: JobEnvelope) -> JobDefinition:
    trace = envelope.meta.get(TRACEPARENT)
    return job if trace is None or TRACEPARENT in job.meta else job.with_meta({**job.meta, TRACEPARENT: trace})
