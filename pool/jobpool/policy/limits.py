"""The needs of a message from the key store before it may run: its own wishes and its queue's limits. Pure.

A message that asks for nothing, on a queue without limits, costs two looks at its envelope.

A queue with a limit also has a gate in each pool (`LocalLimit`). Without it, messages would be leased and given back
again and again, and other queues would wait. The gate lets through as many as this pool may still run, and shuts while
the key store refuses for the whole queue. The key store alone decides what starts; a wrong local limit costs a round
trip.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from jobpool.errors import ConfigurationError, InvalidJob, MalformedEnvelope
from jobpool.message.envelope import JobEnvelope
from jobpool.message.guards import IDEMPOTENCY_TTL, MOST_PLACES, Begin, Begun, Guards, Hold, Rate, check_keep, keyless
from jobpool.message.names import LONGEST_NAME, check_queue, is_name, quoted

QUEUE = "queue"  # the name under which a queue's own places and starts are counted
JOB = "job:"  # before the name of a single-instance job
SHARED = "concurrency:"  # before a concurrency key

FIRST_CONTENTION_DELAY_S = 1.0
MAX_CONTENTION_DELAY_S = 30.0  # seconds: the upper edges of the first delay and of every later one (SEMANTICS §6)
MAX_SHUT_S = 5.0  # seconds after which a limit is tried though nobody here gave a place back: another pool may have
MIN_SHUT_S = 0.02  # seconds: a quick rate is asked for in batches, not start by start
MAX_WINDOW = 1 << 16


class QueueLimits(Struct, frozen=True):
    """The limits of one queue."""

    keep: float = IDEMPOTENCY_TTL  # seconds for which a done idempotency key is remembered
    holds: tuple[Hold, ...] = ()  # the queue's own places: none, or one `Hold`
    rates: tuple[Rate, ...] = ()  # the queue's own starts: none, or one `Rate`
    per_key: int = 0  # places for each concurrency key; 0 = no limit
    rate_per_key: int = 0  # starts a minute for each concurrency key; 0 = no limit


class Limits(Struct, frozen=True):
    """The limits that all pools of one broker have agreed on. Each mapping is queue → n, from 1 to 1,000,000.

    Attributes:
        idempotency_ttl: Seconds, above 0 and at most a year, for which a done idempotency key is remembered.
        concurrency: At most n jobs of the queue run at a time.
        concurrency_per_key: At most n of those that share a concurrency key.
        rates: At most n jobs of the queue are started in any minute.
        rates_per_key: At most n of those that share a concurrency key.

    Raises `ConfigurationError`: a value is out of its bounds; the text names it.
    """

    idempotency_ttl: float = IDEMPOTENCY_TTL
    concurrency: Mapping[str, int] = field(default_factory=dict)
    concurrency_per_key: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, int] = field(default_factory=dict)
    rates_per_key: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_keep(self.idempotency_ttl)
        for queue, most in self._all():
            try:
                check_queue(queue)
            except InvalidJob as error:
                raise ConfigurationError(str(error)) from None
            if type(most) is not int or not 1 <= most <= MOST_PLACES:
                raise ConfigurationError(
                    f"the limit of queue {queue!r} is a whole number from 1 to {MOST_PLACES}, not {most!r};"
                    " leave the queue out for no limit"
                )

    def __bool__(self) -> bool:
        """Return whether any limit is set: then the broker must have a key store."""
        return bool(self._all())

    def of(self, queue: str) -> QueueLimits:
        most, rate = self.concurrency.get(queue), self.rates.get(queue)
        return QueueLimits(
            self.idempotency_ttl,
            holds=(Hold(QUEUE, most),) if most else (),
            rates=(Rate(QUEUE, rate),) if rate else (),
            per_key=self.concurrency_per_key.get(queue, 0),
            rate_per_key=self.rates_per_key.get(queue, 0),
        )

    def _all(self) -> list[tuple[str, int]]:
        parts = (self.concurrency, self.concurrency_per_key, self.rates, self.rates_per_key)
        return [limit for part in parts for limit in part.items()]


def guards_of(envelope: JobEnvelope, limits: QueueLimits) -> Guards | None:
    """Return all that a delivery must be granted to run; None = nothing. Raises `MalformedEnvelope` for a bad key."""
    key, shared = _key(envelope), _shared_key(envelope)
    if key is None and shared is None and not (envelope.single_instance or limits.holds or limits.rates):
        return None
    holds, rates = list(limits.holds), list(limits.rates)
    if envelope.single_instance:
        holds.append(Hold(JOB + (envelope.name or envelope.job)))
    if shared is not None and limits.per_key:
        holds.append(Hold(SHARED + shared, limits.per_key))
    if shared is not None and limits.rate_per_key:
        rates.append(Rate(SHARED + shared, limits.rate_per_key))
    keep = limits.keep if key else IDEMPOTENCY_TTL  # without a key of its own: of a cron firing, see `pack_once`
    return Guards(key, keep, tuple(holds), tuple(rates)) if key or holds or rates else None


def refusal(envelope: JobEnvelope, scheme: str) -> str | None:
    """Say why a broker without a key store cannot run this message; None: it can. Raises as `guards_of`."""
    if envelope.idempotency_key is None and not envelope.meta:
        return None
    asked = {
        "single_instance": envelope.single_instance,
        "concurrency_key": _shared_key(envelope),
        "idempotency_key": _key(envelope),
    }
    return keyless(scheme, envelope.job, asked)


def _key(envelope: JobEnvelope) -> str | None:
    key = envelope.idempotency_key
    key = key.strip() if key is not None else None
    if not key:
        return None
    if not is_name(key):
        raise MalformedEnvelope(f"idempotencyKey must be 1 to {LONGEST_NAME} printable characters, not {quoted(key)}")
    return key


def _shared_key(envelope: JobEnvelope) -> str | None:
    key = envelope.concurrency_key
    return key.strip() or None if key is not None else None


def contention_delay(times: int, longest: float = MAX_CONTENTION_DELAY_S) -> float:
    """Draw the seconds after the `times`-th contention in a row: from 0 to the doubled edge, `longest` at most."""
    return random.uniform(0.0, min(longest, FIRST_CONTENTION_DELAY_S * 2.0 ** min(times - 1, 60)))


class LocalLimit:
    """One queue's. `most`: places that all pools share; None = no such limit."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._mine = 0
        self._until = 0.0
        self._by_rate = False
        self._refusals = 0
        self._window = MAX_WINDOW

    def room(self, now: float) -> int:
        """Return how many may be fetched now."""
        if now < self._until:
            return 0
        return self._window if self._most is None else max(0, min(self._window, self._most - self._mine))

    def wait(self, now: float) -> float:
        """Return the seconds until it opens by itself; 0.0 = it is open. Places of this pool's own open it earlier."""
        if now < self._until:
            return self._until - now
        return 0.0 if self.room(now) else MAX_SHUT_S

    def may_open_early(self, now: float) -> bool:
        """Return whether it is shut, and a settlement of this pool's own could open it."""
        refused = now < self._until and not self._by_rate
        full = self._most is not None and self._mine >= self._most
        return self._mine > 0 and (refused or full)

    def hold(self, mine: int, had_unused: bool) -> None:
        """Note how many places are this pool's now; with fewer than before there may be room."""
        if had_unused or (mine < self._mine and not self._by_rate):
            self._until = 0.0
        self._mine = mine

    def begun(self, granted: int, refused: Begun | None, now: float) -> None:
        """Note what one fetch came to: how many may start, and the first refusal of the queue's own limits, if any."""
        if refused is None:
            self._refusals = 0
            self._window = min(MAX_WINDOW, 2 * self._window)
            return
        self._refusals = 0 if granted else self._refusals + 1
        self._window = max(1, granted)
        self._by_rate = refused.answer is Begin.LIMITED
        if self._by_rate:
            self._until = now + max(MIN_SHUT_S, refused.after)
        else:
            self._until = now + contention_delay(max(1, self._refusals), MAX_SHUT_S)


class LocalLimits:
    """The local limits of all limited queues, for the loop and the fetch thread. Times: CLOCK_MONOTONIC seconds."""

    def __init__(self, limits: Limits) -> None:
        queues = {*limits.concurrency, *limits.rates}
        self._of = {queue: LocalLimit(limits.concurrency.get(queue)) for queue in queues}
        self._lock = threading.Lock()

    def room(self, queue: str, count: int, now: float) -> int:
        """Return how many of `count` messages may be fetched."""
        limit = self._of.get(queue)
        if limit is None:
            return count
        with self._lock:
            return min(count, limit.room(now))

    def wait(self, queue: str, now: float) -> float:
        """Return the seconds until the queue may be fetched from; 0.0 = now."""
        limit = self._of.get(queue)
        if limit is None:
            return 0.0
        with self._lock:
            return limit.wait(now)

    def may_open_early(self, now: float) -> bool:
        """Return whether some queue waits for a settlement of this pool's own."""
        with self._lock:
            return any(limit.may_open_early(now) for limit in self._of.values())

    def begun(self, queue: str, granted: int, refused: Begun | None, now: float) -> None:
        """Note what a fetch from `queue` came to, as `LocalLimit.begun`."""
        limit = self._of.get(queue)
        if limit is not None:
            with self._lock:
                limit.begun(granted, refused, now)

    def hold(self, mine: Mapping[str, int], unused_starts: Iterable[str], now: float) -> bool:
        """Note how many guarded deliveries of each queue this pool holds, and where starts were given back.

        A start that was given back is not counted any more. Returns whether a limit that was shut is open now.
        """
        opened = False
        with self._lock:
            for queue, limit in self._of.items():
                shut = not limit.room(now)
                limit.hold(mine.get(queue, 0), queue in unused_starts)
                opened = opened or (shut and limit.room(now) > 0)
        return opened
