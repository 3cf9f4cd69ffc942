"""Results of jobs that the broker keeps, the state of a job, and the handle that asks for both."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self

import orjson
from msgspec import json

from jobpool.errors import JobpoolError, Unsupported

if TYPE_CHECKING:
    from jobpool.message.lease import JobLease


@dataclass(frozen=True, slots=True)
class Kept:
    """A result on its way to the broker. `record`: see `write_record`."""

    record: bytes
    ttl: float  # seconds, > 0


TOO_LARGE = "!"  # stands before the size of a result above the cap, in the place of its JSON


def capped(text: bytes, cap: int) -> str:
    """Return the JSON of a result as a child sends it; of one above `cap` bytes only the size."""
    return text.decode() if len(text) <= cap else f"{TOO_LARGE}{len(text)}"


def keep(text: str, ttl: float, lease: JobLease, now: float) -> Kept:
    """Return the result of this delivery for the broker: a line of facts, then what `capped` returned."""
    head = orjson.dumps((lease.envelope.job, lease.queue, lease.attempts, now))
    return Kept(b"%b\n%b" % (head, text.encode("utf-8", "replace")), ttl)


class JobState(StrEnum):
    """The state of a job, as its producer sees it."""

    WAITING = "waiting"
    DELAYED = "delayed"
    RUNNING = "running"  # a pool or a claim holds it
    DONE = "done"
    DEAD = "dead"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"  # never was, was removed, or ended and left no result


NO_LOOK = (
    "a job cannot look into the broker, as its process holds no connection; it can enqueue, and fill batches."
    " For what follows other jobs, or needs their results, use a chain (then) or the callback of a batch"
)
LIVE = frozenset({JobState.WAITING, JobState.DELAYED, JobState.RUNNING})


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of one job, and what is known beside it. Times are Unix seconds on the broker's clock."""

    id: str
    state: JobState
    queue: str | None = None
    handler: str | None = None
    attempts: int = 0  # that failed
    crashes: int = 0
    due: float | None = None  # when a delayed one may run
    where: str | None = None  # host and process of a running one, once it has run for a second
    since: float | None = None  # when that run began
    progress: float | None = None  # of that run, 0 to 1, as the handler said
    note: str | None = None  # the text that it said with that
    ended_at: float | None = None
    reason: str | None = None  # of a dead letter, a word
    error: str | None = None  # of the last attempt that failed

    @property
    def has_ended(self) -> bool:
        """True if nothing more happens to it by itself; an unknown one has ended too."""
        return self.state not in LIVE

    def to_dict(self) -> dict[str, Any]:
        """Return the values that are known, of JSON alone."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Record:
    """A kept result, read."""

    handler: str
    queue: str
    attempts: int
    ended_at: float
    text: bytes  # JSON, or `TOO_LARGE` and the size

    @classmethod
    def read(cls, record: bytes) -> Self:
        head, _, text = record.partition(b"\n")
        return cls(*json.decode(head, type=tuple[str, str, int, float]), text)

    @property
    def size_too_large(self) -> int:
        """The bytes of a result above the cap; 0 = it is here."""
        return int(self.text[1:]) if self.text.startswith(TOO_LARGE.encode()) else 0


class Tracks(Protocol):
    """A teller of what became of jobs: `Jobs`, or a `QueueBackend`."""

    def status(self, ident: str, /) -> JobStatus: ...

    def result(self, ident: str, /, timeout: float | None = None) -> Any: ...

    def cancel(self, ident: str, /) -> str: ...


class JobHandle(str):
    """The id of a job, with its status and its result, and a way to cancel it."""

    __slots__ = ("_producer",)
    _producer: object

    def __new__(cls, ident: str, producer: object) -> Self:
        handle = super().__new__(cls, ident)
        handle._producer = producer
        return handle

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # elsewhere it is the id alone

    def is_of(self, backend: object) -> bool:
        """Return whether its producer uses this backend, as an object."""
        with suppress(JobpoolError):  # closed, say
            return getattr(self._producer, "backend", None) is backend
        return False

    def status(self) -> JobStatus:
        """Return the job's state. Raises and blocks as `Jobs.status`."""
        return self._tracks().status(self)

    def result(self, timeout: float | None = None) -> Any:
        """Return what the handler returned, as soon as it did. Raises and blocks as `Jobs.result`."""
        return self._tracks().result(self, timeout=timeout)

    def cancel(self) -> str:
        """Cancel the job; return a word that says what became of it. Raises and blocks as `Jobs.cancel`."""
        return self._tracks().cancel(self)

    def _tracks(self) -> Tracks:
        if not hasattr(self._producer, "status"):
            raise Unsupported(NO_LOOK)
        return self._producer  # type: ignore[return-value]
