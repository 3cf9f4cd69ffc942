"""The needs of a message from the key store before it may run: its own wishes and its queue's limits. Pure.

The master and `QueueWorker` ask the same functions. A message that asks for nothing, on a queue without limits, costs
two looks at its envelope.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobpool.errors import ConfigurationError, InvalidJob, MalformedEnvelope
from jobpool.message.envelope import JobEnvelope
from jobpool.message.guards import IDEMPOTENCY_TTL, MOST_PLACES, Guards, Hold, Rate, check_keep
from jobpool.message.names import LONGEST_NAME, check_queue, is_name
from jobpool.policy.retry import remember

QUEUE = "queue"
"""Under this name a queue's own places and starts are counted."""

JOB = "job:"
"""Before the name of a single-instance job."""

SHARED = "concurrency:"
"""Before a concurrency key."""

FIRST_CONTENTION_DELAY_S = 1.0

MAX_CONTENTION_DELAY_S = 30.0
"""Seconds: the upper edges of the first delay and of every later one (SEMANTICS §6)."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of one queue.

    Attributes:
        keep: Seconds for which a done idempotency key is remembered.
        holds: The queue's own places: none, or one `Hold`.
        rates: The queue's own starts: none, or one `Rate`.
        per_key: Places for each concurrency key; 0 = no limit.
        rate_per_key: Starts a minute for each concurrency key; 0 = no limit.
    """

    keep: float = IDEMPOTENCY_TTL
    holds: tuple[Hold, ...] = ()
    rates: tuple[Rate, ...] = ()
    per_key: int = 0
    rate_per_key: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that all pools of one broker have agreed on. Each mapping is queue → n, from 1 to 1,000,000.

    Attributes:
        idempotency_ttl: Seconds, above 0 and at most a year, for which a done idempotency key is remembered.
        concurrency: At most n jobs of the queue run at a time.
        concurrency_per_key: At most n of those that share a concurrency key.
        rates: At most n jobs of the queue are started in any minute.
        rates_per_key: At most n of those that share a concurrency key.

    Raises:
        ConfigurationError: A value is out of its bounds; the text names it.
    """

    idempotency_ttl: float = IDEMPOTENCY_TTL
    concurrency: Mapping[str, int] = field(default_factory=dict)
    concurrency_per_key: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, int] = field(default_factory=dict)
    rates_per_key: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_keep(self.idempotency_ttl)
        for queue, most in self._all():
            _check_limit(queue, most)

    def __bool__(self) -> bool:
        """Return whether any limit is set: then the broker must have a key store."""
        return bool(self._all())

    def of(self, queue: str) -> QueueLimits:
        """Return those of one queue."""
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
    """All that this delivery must be granted before its handler may run; None = nothing.

    Raises:
        MalformedEnvelope: Its idempotency key can be none. Keys are trimmed, and what is empty then is not a key.
    """
    if envelope.idempotency_key is None and not envelope.meta and not limits.holds and not limits.rates:
        return None  # nearly all messages
    key, shared = _key(envelope), _shared_key(envelope)
    if key is None and shared is None and not (envelope.single_instance or limits.holds or limits.rates):
        return None
    holds, rates = _holds(envelope, limits, shared), _rates(limits, shared)
    return Guards(key, limits.keep, holds, rates) if key or holds or rates else None


def wishes(envelope: JobEnvelope) -> list[str]:
    """Name what the message asks for that needs a key store, as the fields of a definition are called."""
    asked = {
        "single_instance": envelope.single_instance,
        "concurrency_key": _shared_key(envelope),
        "idempotency_key": _key(envelope),
    }
    return [name for name, value in asked.items() if value]


def refusal(envelope: JobEnvelope, scheme: str) -> str | None:
    """Why a broker without a key store cannot run this message; None: it can. Says what its enqueue would have said.

    Raises as `guards_of`.
    """
    if envelope.idempotency_key is None and not envelope.meta:
        return None
    names = " and ".join(wishes(envelope))
    if not names:
        return None
    return (
        f"{scheme}:// keeps no keys (Capabilities.key_store), which job {envelope.job!r} needs for {names}:"
        f" leave {names} out, or choose a backend with a key store"
    )


def _holds(envelope: JobEnvelope, limits: QueueLimits, shared: str | None) -> tuple[Hold, ...]:
    holds = list(limits.holds)
    if envelope.single_instance:
        holds.append(Hold(JOB + (envelope.name or envelope.job)))
    if shared is not None and limits.per_key:
        holds.append(Hold(SHARED + shared, limits.per_key))
    return tuple(holds)


def _rates(limits: QueueLimits, shared: str | None) -> tuple[Rate, ...]:
    if shared is None or not limits.rate_per_key:
        return limits.rates
    return (*limits.rates, Rate(SHARED + shared, limits.rate_per_key))


def _key(envelope: JobEnvelope) -> str | None:
    key = envelope.idempotency_key
    key = key.strip() if key is not None else None
    if not key:
        return None
    if not is_name(key):
        shown = f"of {len(key)} characters" if len(key) > LONGEST_NAME else repr(key)
        raise MalformedEnvelope(f"idempotencyKey must be 1 to {LONGEST_NAME} printable characters, not {shown}")
    return key


def _shared_key(envelope: JobEnvelope) -> str | None:
    key = envelope.concurrency_key
    return key.strip() or None if key is not None else None


def _check_limit(queue: str, most: int) -> None:
    try:
        check_queue(queue)
    except InvalidJob as error:
        raise ConfigurationError(str(error)) from None
    if type(most) is not int or not 1 <= most <= MOST_PLACES:
        raise ConfigurationError(
            f"the limit of queue {queue!r} is a whole number from 1 to {MOST_PLACES}, not {most!r};"
            " leave the queue out for no limit"
        )


def contention_delay(times: int, longest: float = MAX_CONTENTION_DELAY_S) -> float:
    """Seconds to wait after the `times`-th contention in a row (1-based): uniform from 0 to the doubled edge.

    Args:
        times: 1 or more; no overflow however many.
        longest: Seconds, > 0: the edge is never above it.
    """
    return random.uniform(0.0, min(longest, FIRST_CONTENTION_DELAY_S * 2.0 ** min(times - 1, 60)))


class Contentions:
    """How often messages were met contended since they last got what they asked for. For one thread."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def met(self, ident: str) -> int:
        """Count one more; how many that makes."""
        return remember(self._times, ident, self._times.get(ident, 0) + 1)

    def forget(self, ident: str) -> None:
        """The message got what it asked for, or is done."""
        self._times.pop(ident, None)
