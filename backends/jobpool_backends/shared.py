"""Shared parts of several backends: idle connections, microseconds, filters, guards, and caps on dead letters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from jobpool.broker.values import Edited, Message, MessageFilter, NewMessage
from jobpool.errors import LONGEST_WAIT_S, BackendUnavailable, ConfigurationError, MalformedEnvelope
from jobpool.message.envelope import OVERSIZED
from jobpool.message.guards import Guards, Rate
from jobpool.message.lease import JobLease
from jobpool.message.names import storable
from jobpool.message.settlement import Release, Settled

MICRO = 1_000_000
Item = TypeVar("Item")
K = TypeVar("K")
R = TypeVar("R", bound=Struct)

MAX_LISTED_LOGS = 10_000

KEY_PLACE = "key:"  # an idempotency key is held as the only place under this and the key (`KeyStore.holders`)

_CUT = " … "
SETTLED = {"o": Settled.OK, "n": Settled.NOT_IN_FLIGHT, "e": Settled.EXPIRED, "w": Settled.NOT_OWNER}
REPEATED = SETTLED | {"o": Settled.ALREADY}
EDITED = {"e": Edited.EDITED, "c": Edited.CHANGED, "d": Edited.DUPLICATE}
"""The answers of a call, a letter each, as the brokers keep them for its repeat."""


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class OneProcess:
    """The connections of one process; none crosses a fork. `place` names the server or file in errors."""

    def __init__(self, place: str) -> None:
        self.closed = False
        self._place = place
        self._pid = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Return whether a fork has copied this: the connections are the parent's."""
        return os.getpid() != self._pid

    def check_usable(self) -> None:
        if self.closed:
            raise self.was_closed()
        self.check_fork()

    def check_fork(self) -> None:
        if self.is_inherited:
            raise ConfigurationError(
                f"{self._place} was opened by process {self._pid}, before a fork, and connections do not survive"
                " that: open the backend after the fork, in the process that uses it"
            )

    def was_closed(self) -> BackendUnavailable:
        return BackendUnavailable(f"{self._place} was closed here: open the backend again")


class IdleConnections(OneProcess, Generic[C]):
    """The connections that wait for their next use, by whatever thread."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self._idle: list[C] = []

    def close(self) -> None:
        """Close the connections; one that is in use is closed when its user is done with it. Safe to call twice."""
        self.closed = True
        if not self.is_inherited:
            self.drop_idle()

    def take(self, is_closed: Callable[[C], bool] | None = None) -> C | None:
        """Return the one that was used last, or None; those that are seen to be closed are dropped, if asked for."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if is_closed is None or not is_closed(connection):
                    return connection
                connection.close()
        return None

    def give_back(self, connection: C) -> None:
        self._idle.append(connection)
        if self.closed:
            self.drop_idle()

    def drop_idle(self) -> None:
        """Close the connections that nobody uses just now."""
        with suppress(IndexError):  # several threads may close: each pops its own
            while True:
                self._idle.pop().close()


class DeadCaps(Struct, frozen=True):
    """Bounds on the dead letters of a queue: how many, and how old in microseconds; 0 = none. Falsy without bounds."""

    most: int = 0
    age: int = 0

    def __bool__(self) -> bool:
        return bool(self.most or self.age)

    def are_over(self, count: int, age: int) -> bool:
        """Return whether the oldest of `count` letters, dead for `age`, is to go."""
        return 0 < self.most < count or 0 < self.age <= age


def micros(seconds: float) -> int:
    """Convert seconds, or a Unix time, to whole microseconds: they are stored and compared, so deadlines are exact."""
    return round(seconds * MICRO)


def unix_time(time: int | None) -> float | None:
    return None if time is None else time / MICRO


def more_than(seconds: float) -> int:
    """Return the least whole number of microseconds that is more than these seconds."""
    return micros(seconds) + 1


def delay_micros(delay: float) -> int:
    """Return a delay in seconds as microseconds: 0 for anything that is not above 0, a hundred years at most."""
    return round(min(delay, LONGEST_WAIT_S) * MICRO) if delay > 0 else 0


def body_or_oversized(body: bytes | int | None) -> bytes:
    """Return the body of what a broker delivers. An int, its length, tells of one that is too large and was not
    brought; None of one that somebody's hand has taken away.
    """
    return body if isinstance(body, bytes) else b"" if body is None else OVERSIZED


def cut(text: str | None, longest: int) -> str | None:
    """Return the text, without its middle when it has more characters than that; None for an empty one."""
    if not text or len(text) <= longest:
        return text or None
    half = max(0, longest - len(_CUT)) // 2
    return text[:half] + _CUT + text[len(text) - half :] if half else None


def contains(needle: str, body: bytes, *texts: str | None) -> bool:
    """Return whether `needle` is in the body or one of `texts`, whatever the case of its letters."""
    folded = needle.casefold()
    return folded in body.decode("utf-8", "replace").casefold() or any(
        folded in text.casefold() for text in texts if text
    )


def matches(message: Message, where: MessageFilter, age: int, *texts: str | None) -> bool:
    """Return whether a filter means a message of this age in microseconds. `texts` are searched beside its body."""
    return (
        (where.queue is None or message.queue == where.queue)
        and (where.handler is None or message.handler == where.handler)
        and (not where.states or message.state in where.states)
        and (where.reason is None or message.reason == where.reason)
        and (where.older_than is None or age >= micros(where.older_than))
        and (where.newer_than is None or age <= micros(where.newer_than))
        and (not where.ids or message.id in where.ids)
        and (where.text is None or contains(where.text, message.body, *texts))
    )


def is_meant(message: Message, where: MessageFilter, now: float) -> bool:
    """Return whether a filter means this message at a Unix time. The age of a dead letter counts from its death."""
    since = message.enqueued_at if message.died_at is None else message.died_at
    return matches(message, where, micros(now) - micros(since), message.last_error, message.cause)


def grouped(items: Iterable[Item], key: Callable[[Item], K]) -> dict[K, list[Item]]:
    """Return the items by key, both in their order."""
    groups: dict[K, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def pieces(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield the items in order, at most `size` at a time."""
    return (items[first : first + size] for first in range(0, len(items), size))


def with_past(message: NewMessage, past: Sequence[str | None]) -> NewMessage:
    """Return a message that moves with the last error and cause that it has, unless it brings newer ones."""
    error, cause = past
    error = error if message.last_error is None else message.last_error
    return replace(message, last_error=error, cause=cause if message.cause is None else message.cause)


def with_texts(record: R, error: str | None, cause: str | None) -> R:
    """Return the record of a message with another last error and cause; None = the one it has."""
    texts = {"last_error": error, "cause": cause}
    return replace(record, **{name: text for name, text in texts.items() if text is not None})


def lifts_expiry(lease: JobLease, release: Release) -> bool:
    """Return whether a release is the first that tells of a run of a message with an expiry, which is to be noted."""
    try:
        return release.begun and lease.expires is not None
    except MalformedEnvelope:
        return False


def all_holds(guards: Guards) -> Iterator[tuple[str, int, str]]:
    """Yield the name of each place, how many there are under it, and the word for its refusal."""
    if guards.key is not None:
        yield KEY_PLACE + storable(guards.key), 1, guards.key
    for hold in guards.holds:
        yield hold.name, hold.most, hold.name


def longest_windows(rates: Sequence[Rate]) -> dict[str, float]:
    """Return by name the longest window, in seconds: all rates that share a name count the same start."""
    return {rate.name: rate.window for rate in sorted(rates, key=lambda rate: rate.window)}
