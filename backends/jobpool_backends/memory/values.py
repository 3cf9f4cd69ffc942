"""A message, a queue and a claim as memory keeps them, the turn in which they change, and things that end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from threading import Condition, RLock
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from jobpool.broker.values import Message, MessageFilter, State
from jobpool.clock import Clock
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool_backends.shared import MICRO, matches, micros, unix_time

K = TypeVar("K")
V = TypeVar("V")
Key = Any  # strings, or tuples of them: they can be ordered among their like

SPARE_HEAP_ENTRIES = 64  # ends that were put off since, kept beyond as many as there are keys


class Turn:
    """The lock of one backend, and the time at which its holder got it.

    `now` is Unix time, `boot` CLOCK_BOOTTIME, both in microseconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = RLock()  # one that belongs to a thread: after an interrupt in `wait` nobody else's is released
        self._changed = Condition(self._lock)
        self.at_end: Callable[[], object] = lambda: None  # called at the end of each step
        self.now = self.boot = 0
        self.closings = 0

    @contextmanager
    def step(self, *, looks: bool = False) -> Iterator[None]:
        """Make the block one atomic step. All that it reads of time was read when it began.

        One that only looks wakes nobody: those who wait look too, and would keep each other awake.
        """
        with self._lock:  # not `_changed`, whose methods are Python: an interrupt in them would leave it locked
            self._read_clock()
            try:
                yield
            finally:
                self.at_end()
                if not looks:
                    self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Let others have a turn; return when one had it, or the time is over."""
        self._changed.wait(seconds)
        self._read_clock()

    def _read_clock(self) -> None:
        self.now, self.boot = micros(self._clock.wall()), micros(self._clock.boot())


class Expiries(Generic[K]):
    """The end of each key, in microseconds."""

    def __init__(self) -> None:
        self._until: dict[K, int] = {}
        self._heap: list[tuple[int, K]] = []

    def put(self, key: K, until: int) -> None:
        self._until[key] = until
        heappush(self._heap, (until, key))
        if len(self._heap) > 2 * len(self._until) + SPARE_HEAP_ENTRIES:
            self._heap = [(end, known) for known, end in self._until.items()]
            heapify(self._heap)

    def forget(self, key: K) -> None:
        self._until.pop(key, None)

    def due(self, now: int) -> Iterator[tuple[K, int]]:
        """Yield each key that has ended, and when; told once."""
        while self._heap and self._heap[0][0] <= now:
            until, key = heappop(self._heap)
            if self._until.get(key) == until:
                del self._until[key]
                yield key, until


class Expiring(Generic[V]):
    """Values by key, times in microseconds. At its end a value is gone."""

    def __init__(self) -> None:
        self._values: dict[Key, V] = {}
        self._ends: Expiries[Key] = Expiries()

    def put(self, key: Key, value: V, until: int) -> None:
        self._values[key] = value
        self._ends.put(key, until)

    def get(self, key: Key, now: int) -> V | None:
        self._drop(now)
        return self._values.get(key)

    def pop(self, key: Key, now: int) -> V | None:
        """Remove it; return what it was, None when there was none."""
        self._drop(now)
        self._ends.forget(key)
        return self._values.pop(key, None)

    def items(self, now: int) -> Iterable[tuple[Key, V]]:
        self._drop(now)
        return self._values.items()

    def _drop(self, now: int) -> None:
        for key, _ in self._ends.due(now):
            del self._values[key]


class Entry(Struct):
    """One message. Times are microseconds; `deadline` and `held_since` on the boot clock, the others on the wall's."""

    seq: int
    id: str
    given: bool
    queue: str
    handler: str
    priority: int
    body: bytes
    enqueued_at: int
    available_at: int
    state: State = State.WAITING
    attempts: int = 0
    crashes: int = 0
    deliveries: int = 0
    begun: bool = False
    owner: str = ""
    fetched_by: str = ""
    deadline: int = 0
    deadline_wall: int = 0
    held_since: int = 0
    forfeited: str = ""
    cause: str | None = None
    reason: str | None = None
    last_error: str | None = None
    died_at: int | None = None
    last_crash: int | None = None
    unique_key: str | None = None
    places: set[str] = field(default_factory=set)  # names under which its current lease holds places
    posted: bool = False  # no job: no pool fetches it
    ends_at: int | None = None  # when the life of a posted message ends
    claims: int = 0
    claim: Claim | None = None  # that holds it
    batch: str | None = None  # of which it is a member

    def tell(self, error: str | None, cause: str | None) -> None:
        """Keep another last error and cause; None = the one it has."""
        self.last_error = self.last_error if error is None else error
        self.cause = self.cause if cause is None else cause

    def hold(self, length: int, turn: Turn) -> None:
        self.held_since = turn.boot
        self.deadline, self.deadline_wall = turn.boot + length, turn.now + length


class Claim(Struct):
    """Messages that somebody holds. Lengths are microseconds, and times on the boot clock, as a lease's are."""

    id: str
    ttl: int = 0
    grace: int = 0
    since: int = 0
    end: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)  # by sequence number, in the order of the claim


class Line(Struct):
    """The order of the jobs of a queue, or of its posted messages, and their counts.

    The heaps are cleaned lazily: an entry whose message has moved on is skipped when it comes up.
    """

    ready: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    delayed: list[tuple[int, int]] = field(default_factory=list)
    counts: dict[State, int] = field(default_factory=lambda: dict.fromkeys(State, 0))


class Queue(Struct):
    jobs: Line = field(default_factory=Line)
    posts: Line = field(default_factory=Line)
    leased: dict[int, Entry] = field(default_factory=dict)  # messages that pools hold, by sequence number
    dead: dict[int, Entry] = field(default_factory=dict)  # the same of dead letters
    claims: dict[str, Claim] = field(default_factory=dict)
    claim_ends: Expiries[str] = field(default_factory=Expiries)
    life_ends: Expiries[int] = field(default_factory=Expiries)  # of posted messages, by sequence number
    evicted: int = 0
    expired: int = 0

    def line(self, entry: Entry) -> Line:
        return self.posts if entry.posted else self.jobs

    def count(self, *states: State) -> int:
        """Count the jobs and posted messages in any of these states."""
        return sum(line.counts[state] for line in (self.jobs, self.posts) for state in states)


def judge(entry: Entry | None, lease: JobLease, boot: int) -> Settled:
    """Return whether this lease may settle, by the contract's order of refusals."""
    if entry is None or entry.state is not State.LEASED:
        return Settled.NOT_IN_FLIGHT
    if boot >= entry.deadline:
        return Settled.EXPIRED
    return Settled.OK if entry.owner == lease.owner_token else Settled.NOT_OWNER


def is_meant(entry: Entry, where: MessageFilter, now: int) -> bool:
    age = now - (entry.died_at if entry.died_at is not None else entry.enqueued_at)
    return matches(shown(entry, boot=0), where, age, entry.last_error, entry.cause, entry.forfeited)


def shown(entry: Entry, boot: int) -> Message:
    return Message(
        *(entry.id, entry.queue, entry.state, entry.handler, entry.priority),
        *(entry.attempts, entry.crashes, entry.deliveries),
        *(entry.enqueued_at / MICRO, entry.available_at / MICRO, entry.body),
        reason=entry.reason,
        last_error=entry.last_error,
        cause=entry.forfeited or entry.cause,
        died_at=unix_time(entry.died_at),
        expires_at=entry.deadline_wall / MICRO if entry.state is State.LEASED else None,
        claim=entry.claim.id if entry.claim and boot < entry.claim.end else None,
        claims=entry.claims,
        ends_at=unix_time(entry.ends_at),
        cursor=str(entry.seq),
    )
