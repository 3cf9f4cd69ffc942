"""Edits of jobs that wait or are delayed: when they run, their priority, and their queue.

A job is looked at, and signed anew where its priority or queue changes. It is changed in one step of its broker if it
still is as it was seen (`QueueBackend.edit_many`). If not, it is looked at again.

Each function blocks for two round trips a job, or a page of them for a filter, and may raise `BackendUnavailable`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from jobpool.broker.filters import pages
from jobpool.broker.values import UNHELD, Edit, Edited, Message, MessageFilter, State
from jobpool.errors import LONGEST_WAIT_S, BadSignature, InvalidJob, MalformedEnvelope
from jobpool.message.envelope import MAX_BODY_BYTES, WIRE_VERSION, decode, sign_again, verify
from jobpool.message.names import check_queue
from jobpool.message.signing import EnvelopeSigner
from jobpool.message.units import check_number

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend

GIVE_UP_S = 10.0  # seconds for which a job is looked at again that is not as it was seen
EDIT_LOOK_S = 0.05
SAME_TIME_S = 1e-6  # two times of one message that differ by less are the same


class Changes(Struct, frozen=True):
    """The changes that a person asks for; None = it stays."""

    due: float | None = None  # Unix time on the broker's clock; in the past = now
    priority: int | None = None
    queue: str | None = None


def edit(backend: QueueBackend, changes: Changes, idents: Iterable[str]) -> dict[str, Edited]:
    """Edit jobs that wait or are delayed; return an answer each. Others are left alone. Safe to call again."""
    return {ident: _edit_one(backend, changes, ident) for ident in dict.fromkeys(idents)}


def edit_matching(backend: QueueBackend, changes: Changes, where: MessageFilter) -> Counter[Edited]:
    """Edit all jobs that match and wait or are delayed; count them by their answers."""
    states = tuple(state for state in UNHELD if not where.states or state in where.states)
    count: Counter[Edited] = Counter()
    largest, last = 0 if changes == Changes(changes.due) else MAX_BODY_BYTES, ""
    for page in pages(backend, replace(where, states=states), largest=largest) if states else ():
        jobs = [message for message in page if message.handler and message.id != last]
        for message, answer in zip(jobs, _edit_page(backend, changes, jobs), strict=True):
            count[_edit_one(backend, changes, message.id) if answer is Edited.CHANGED else answer] += 1
        last = page[-1].id if page else ""  # it may have moved to a place after its old one
    return count


def _edit_one(backend: QueueBackend, changes: Changes, ident: str) -> Edited:
    give_up = time.monotonic() + GIVE_UP_S
    while True:
        message = backend.inspect(ident)
        if message is None:
            return Edited.ENDED if backend.kept([ident]) else Edited.UNKNOWN
        [answer] = _edit_page(backend, changes, [message])
        if answer is not Edited.CHANGED or time.monotonic() >= give_up:
            return answer
        time.sleep(EDIT_LOOK_S)


def _edit_page(backend: QueueBackend, changes: Changes, messages: Sequence[Message]) -> list[Edited]:
    planned = [plan(message, changes, backend.signer, backend.time.now()) for message in messages]
    answers = iter(backend.edit_many([each for each in planned if isinstance(each, Edit)]))
    return [next(answers) if isinstance(each, Edit) else each for each in planned]


def plan(message: Message, changes: Changes, signer: EnvelopeSigner, now: float) -> Edit | Edited:
    """Return the edit of one message as it was seen, or the answer if there is none to make."""
    if message.state is State.DEAD:
        return Edited.DEAD
    if message.claim is not None or not message.handler:
        return Edited.CLAIMED
    if message.state not in UNHELD:
        return Edited.RUNNING
    queue = message.queue if changes.queue is None else changes.queue
    priority = message.priority if changes.priority is None else changes.priority
    due = None if changes.due is None or _is_due_then(message, changes.due, now) else changes.due
    if (queue, priority) == (message.queue, message.priority):
        return Edited.UNCHANGED if due is None else Edit(message, queue, priority, due)
    body = _signed_for(message, queue, priority, signer)
    return Edited.NOT_SIGNED if body is None else Edit(message, queue, priority, due, body)


def _is_due_then(message: Message, due: float, now: float) -> bool:
    if message.state is State.WAITING:
        return due <= now
    return abs(message.available_at - due) < SAME_TIME_S


def _signed_for(message: Message, queue: str, priority: int, signer: EnvelopeSigner) -> bytes | None:
    """Return the body, signed for this queue and priority; None if what it says cannot be believed or kept."""
    try:
        envelope = decode(message.body, attempts=message.attempts)
        verify(envelope, signer, message.queue)
    except (MalformedEnvelope, BadSignature):
        return None
    if envelope.version > WIRE_VERSION or (envelope.sig and not signer.active):
        return None
    body = sign_again(envelope, queue, signer, priority)
    return body if len(body) <= MAX_BODY_BYTES else None


def read_changes(
    backend: QueueBackend,
    at: datetime | float | None = None,
    priority: int | None = None,
    queue: str | None = None,
) -> Changes:
    """Return what a person asks for. `at`: an aware time, or seconds from now; 0 = run now.

    Raises `InvalidJob`: it is out of bounds; `Unsupported`: the broker cannot do it.
    """
    if at is None and priority is None and queue is None:
        raise InvalidJob("an edit changes something: say when the job runs, its priority or its queue")
    if priority is not None and (type(priority) is not int or not 0 <= priority <= 255):
        raise InvalidJob(f"a priority is a whole number from 0 to 255, not {priority!r}")
    if queue is not None:
        check_queue(queue)
    backend.check_edits(moves=queue is not None)
    return Changes(None if at is None else _moment(at, backend), priority, queue)


def _moment(at: datetime | float, backend: QueueBackend) -> float:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidJob("the time of a job needs a time zone: write 2026-07-01T08:00+02:00")
        return at.timestamp()
    seconds = min(check_number(at, "at"), LONGEST_WAIT_S)
    return backend.time.now() + seconds if seconds > 0 else 0.0  # long ago by any clock
