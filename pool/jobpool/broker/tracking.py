"""The state of jobs and their results, as their producer asks for them. Times are seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from jobpool.broker.key_store import read_record
from jobpool.broker.values import MAX_PAGE, Message, MessageFilter, State, check_wait
from jobpool.errors import JobFailed, ResultNotKept, ResultPending, ResultTooLarge, UnknownJob, Unsupported
from jobpool.message.printable import headline
from jobpool.message.results import JobHandle, JobState, JobStatus, Record
from jobpool.message.units import format_duration

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend

RUNNING_SPACE = "running"
"""The space of the key store in which pools say what runs: by the id of the job, fields of `JobStatus` as JSON."""

BATCH_LOOK_S = 0.1  # seconds between two looks at batches that somebody waits for
WHY_UNKNOWN = "it never was, was removed, or has ended and its result is not kept (result_ttl, by default 0)"
BATCH = "(batch)"  # in the place of a handler's name

_STATES = {State.WAITING: JobState.WAITING, State.DELAYED: JobState.DELAYED, State.LEASED: JobState.RUNNING}
_REASONS = {"expired": JobState.EXPIRED, "cancelled": JobState.CANCELLED}


def statuses(backend: QueueBackend, idents: Sequence[str]) -> dict[str, JobStatus]:
    """Return the state of each job, by its id.

    A done job is known while its result is kept, else it is `unknown`. So is one that the broker cannot find
    (`Capabilities.finds_all`), though it may wait or run.
    """
    return _look(backend, idents)[0]


def _look(backend: QueueBackend, idents: Sequence[str]) -> tuple[dict[str, JobStatus], dict[str, bytes]]:
    """Return the states, and the results that are kept of jobs that are done."""
    known = _messages(backend, idents)
    gone = [ident for ident in idents if ident not in known]
    kept = backend.kept(gone)
    known |= _messages(backend, [ident for ident in gone if ident not in kept])  # some may have moved while we looked
    running = [ident for ident, message in known.items() if message.state is State.LEASED]
    said = backend.keys.get_records(RUNNING_SPACE, running) if backend.capabilities.key_store else {}
    found = {ident: _of_message(message, said.get(ident)) for ident, message in known.items()}
    for ident in gone:
        if ident not in known:
            found[ident] = _of_record(ident, kept[ident]) if ident in kept else _of_batch(ident, backend)
    return found, kept


def _messages(backend: QueueBackend, idents: Sequence[str]) -> dict[str, Message]:
    found = {}
    for first in range(0, len(idents), MAX_PAGE):
        where = MessageFilter(ids=tuple(idents[first : first + MAX_PAGE]))
        found.update({message.id: message for message in backend.list_messages(where, limit=MAX_PAGE, largest=0)})
    return found


def _of_message(message: Message, said: bytes | None) -> JobStatus:
    state = _STATES.get(message.state) or _REASONS.get(message.reason or "", JobState.DEAD)
    return JobStatus(
        message.id,
        state,
        message.queue,
        message.handler,
        message.attempts,
        crashes=message.crashes,
        due=message.available_at if state is JobState.DELAYED else None,
        ended_at=message.died_at,
        reason=message.reason,
        error=message.last_error,
        **(_of_run(message, said) if state is JobState.RUNNING else {}),
    )


def _of_run(message: Message, record: bytes | None) -> dict[str, Any]:
    """Return what the pool that runs it says, if its record is of this delivery."""
    if message.claim is not None:
        return {"where": f"claim {message.claim}"}
    said = read_record(record, dict[str, Any]) or {}
    return said if said.pop("fence", None) == message.deliveries else {}


def _of_batch(ident: str, backend: QueueBackend) -> JobStatus:
    """Return the state of a batch as if it were a job: running until it has ended, then done or cancelled."""
    batch = backend.find_batch(ident)
    if batch is None:
        return JobStatus(ident, JobState.UNKNOWN)
    told = [f"{batch.total - batch.left} of {batch.total} jobs have ended"]
    told += [f"{batch.failed} failed"] * bool(batch.failed) + [f"{batch.cancelled} cancelled"] * bool(batch.cancelled)
    ended = JobState.CANCELLED if batch.stopped else JobState.DONE
    return JobStatus(
        ident,
        ended if batch.has_ended else JobState.RUNNING,
        handler=BATCH,
        since=batch.created_at,
        progress=batch.progress,
        note=", ".join(told + ["more may come"] * batch.open),
        ended_at=batch.ended_at,
    )


def _of_record(ident: str, record: bytes) -> JobStatus:
    try:
        read = Record.read(record)
    except ValueError:  # changed in the broker: see `_value`
        return JobStatus(ident, JobState.DONE)
    return JobStatus(ident, JobState.DONE, read.queue, read.handler, read.attempts, ended_at=read.ended_at)


def wait(
    backend: QueueBackend, idents: Sequence[str], timeout: float | None, *, first: bool = False
) -> list[JobStatus]:
    """Return the states of jobs, in order, when all have ended, or `timeout` seconds are over; None = however long.

    `first`: when one of them has. A job that keeps no result is noticed half a second late at most: its ack wakes
    no waiter.

    Raises `Unsupported` for a job of which this broker cannot tell whether it has ended.
    """
    give_up = give_up_at(timeout)
    found = statuses(backend, list(dict.fromkeys(idents)))
    for ident, status in found.items():
        _check_told(backend, ident, status)
    while left := [ident for ident, status in found.items() if not status.has_ended]:
        remaining = give_up - time.monotonic()
        if remaining <= 0 or (first and len(left) < len(found)):
            break
        if any(found[ident].handler == BATCH for ident in left):  # whose end wakes nobody
            time.sleep(min(remaining, BATCH_LOOK_S))
        else:
            backend.wait_ended(left, remaining)
        found |= statuses(backend, left)
    return [found[ident] for ident in idents]


def result(backend: QueueBackend, ident: str, timeout: float | None) -> Any:
    """Return what a job's handler returned, and raise as `Jobs.result`. A handle says that there was such a job."""
    give_up, was_seen = give_up_at(timeout), False
    while True:
        found, kept = _look(backend, [ident])
        status = found[ident]
        if ident in kept:
            return _value(ident, kept[ident])
        if status.handler == BATCH:
            raise ResultNotKept(f"{ident} is a batch, which has counts and no result: ask for its status")
        if not was_seen:
            _check_told(backend, ident, status)
        if status.state is JobState.UNKNOWN:
            raise _missing(ident, was_seen or isinstance(ident, JobHandle))
        if status.has_ended:
            raise JobFailed(_failed(status, backend.time.guess()), status)
        was_seen = True
        remaining = give_up - time.monotonic()
        if remaining <= 0:
            raise ResultPending(f"job {ident} has not ended: it is {status.state}")
        backend.wait_ended([ident], remaining)


def _check_told(backend: QueueBackend, ident: str, status: JobStatus) -> None:
    """Raise `Unsupported` where an unknown job may just as well wait or run."""
    can = backend.capabilities
    is_own = isinstance(ident, JobHandle) and ident.is_of(backend)  # this client has seen it, and looks in its queue
    if status.state is not JobState.UNKNOWN or can.finds_all or (can.lists_live and is_own):
        return
    cannot = "looks only in the queues that this client has used" if can.lists_live else "shows dead letters alone"
    cannot += f", so nobody can tell whether a job has ended, and {status.id} is not there"
    mend = "let its handler write what you wait for to a store of yours, or choose another backend"
    raise Unsupported(f"{backend.scheme}:// {cannot}: {mend}")


def give_up_at(timeout: float | None) -> float:
    """Return when a wait of `timeout` seconds ends, on CLOCK_MONOTONIC; None = never."""
    return float("inf") if timeout is None else time.monotonic() + check_wait(timeout, "timeout")


def _value(ident: str, record: bytes) -> Any:
    try:
        read = Record.read(record)
        size = read.size_too_large
        value = None if size else orjson.loads(read.text)
    except ValueError:
        why = "its handler has forged it, or somebody has changed it in the broker"
        raise ResultNotKept(f"the result that was kept of job {ident} is not JSON: {why}") from None
    if size:
        mend = "return less and say where the rest is, or raise output_cap"
        raise ResultTooLarge(f"the result of job {ident} has {size} bytes, more than are kept: {mend}")
    return value


def _missing(ident: str, was_there: bool) -> Exception:
    if was_there:
        why = "none ever was, or its result_ttl is over"
        mend = "give the job or its handler a result_ttl, in seconds, or a longer one"
        return ResultNotKept(f"job {ident} has ended, and no result of it is kept ({why}): {mend}")
    return UnknownJob(f"no job {ident or repr('')} is known: {WHY_UNKNOWN}")


def _failed(status: JobStatus, now: float) -> str:
    ago = "" if status.ended_at is None else f" {format_duration(max(0.0, now - status.ended_at))} ago"
    said = headline(status.error)
    why = f": {said}" if said else ""
    ends = {JobState.CANCELLED: f"was cancelled{ago}", JobState.EXPIRED: f"expired{ago}"}
    end = ends.get(status.state, f"failed for good{ago} ({status.reason or status.state})")
    return f"job {status.id} {end}{why}"
