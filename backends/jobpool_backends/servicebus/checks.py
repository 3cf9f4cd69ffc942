"""Checks of what a queue's settings can lose or slow down, in plain sentences.

The queue itself is asked if it is there and lets us in; the service, for the queue's settings, if it tells them. The
decisions are functions of these facts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from jobpool.broker.finding import Finding, Level
from jobpool.errors import ConfigurationError
from jobpool_backends.servicebus import settings
from jobpool_backends.servicebus.locks import CLOCK_TOLERANCE_S, ShortLock
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.peeking import peek
from jobpool_backends.servicebus.settings import ACTIVE, Facts
from jobpool_backends.servicebus.trouble import missing_queue

SHORT_LOCK_S = 10.0
"""Seconds; below, a renewal that fails once may come too late."""

FEW_DELIVERIES = 100
"""Deliveries below which what is released or crashes for other reasons than its own can become a dead letter."""

_QUEUE, _SETTINGS = "servicebus.queue", "servicebus.settings"
_LOCK, _DELIVERIES, _EXPIRY = "servicebus.lock", "servicebus.deliveries", "servicebus.expiry"
_DUPLICATES = "servicebus.duplicates"


def ping(namespace: Namespace) -> None:
    """Ask the service for a sign of life. To be told that a queue is not there is one.

    Raises BackendUnavailable, or ConfigurationError when it does not let us in.
    """
    queue = namespace.address.only or next(iter(namespace.named_queues()), "default")
    try:
        _look(namespace, queue)
    except ConfigurationError as error:
        if error.__cause__ is None or missing_queue(error.__cause__, namespace.address, queue) is None:
            raise


def diagnose(namespace: Namespace, noticed: Mapping[str, ShortLock] = MappingProxyType({})) -> list[Finding]:
    """Check each queue that this client was told of; `noticed`: its locks, if they were short.

    Raises BackendUnavailable. Blocks for a round trip a queue, and some more where its settings are told.
    """
    found = [
        finding for queue in namespace.named_queues() for finding in _diagnose(namespace, queue, noticed.get(queue))
    ]
    return found or [Finding(_QUEUE, Level.NOTE, "no queue has been named yet, so none was looked at")]


def _diagnose(namespace: Namespace, queue: str, noticed: ShortLock | None) -> Iterator[Finding]:
    name = f"queue {queue!r}"
    try:
        _look(namespace, queue)
    except ConfigurationError as error:
        found, _, mend = str(error).partition(": ")
        yield Finding(_QUEUE, Level.PROBLEM, found, "nothing can be enqueued or fetched", mend)
        return
    yield Finding(_QUEUE, Level.OK, f"{name} is there")
    facts = settings.ask(namespace.address, queue)
    if isinstance(facts, str):
        yield Finding(_SETTINGS, Level.NOTE, f"the settings of {name} could not be looked at: {facts}")
        if noticed:
            yield judge_lock(name, namespace.address.lock, round(noticed.shortest, 1), blur=CLOCK_TOLERANCE_S)
    else:
        yield from judge(queue, namespace.address.lock, facts)


def _look(namespace: Namespace, queue: str) -> None:
    next(peek(namespace, queue, dead=False, piece=1), None)


def judge(queue: str, declared: float, facts: Facts) -> Iterator[Finding]:
    """Judge the settings of a queue; `declared`: seconds, the option `lock`."""
    name = f"queue {queue!r}"
    if facts.status != ACTIVE:
        why = "messages are not taken, or not given out"
        yield Finding(_QUEUE, Level.PROBLEM, f"{name} is {facts.status}", why, "set its status to Active")
    if facts.sessions:
        why = "it takes no message without a session, and jobpool's have none"
        yield Finding(_QUEUE, Level.PROBLEM, f"{name} requires sessions", why, "make a queue without")
    yield judge_lock(name, declared, facts.lock)
    yield _deliveries(name, facts)
    yield _expiry(name, facts)
    yield _duplicates(name, facts)


def judge_lock(name: str, declared: float, real: float, *, blur: float = 0.0) -> Finding:
    """Judge a lock: `declared` and `real` seconds, of which `real` may be wrong by `blur`."""
    found = f"{name}: locks last {real:g} s"
    if real + blur < declared:
        found = f"{found}, and option lock says {declared:g} s"
        why = "messages are given to others while they still run here"
        return Finding(_LOCK, Level.PROBLEM, found, why, f"set lock={real:g}, or LockDuration to {declared:g} s")
    if real + blur < SHORT_LOCK_S:
        why = "a renewal that fails once may come too late, so that a job runs twice"
        return Finding(_LOCK, Level.WARNING, found, why, "set LockDuration to 30 s or more")
    return Finding(_LOCK, Level.OK, found)


def _deliveries(name: str, facts: Facts) -> Finding:
    found = f"{name}: MaxDeliveryCount {facts.deliveries}"
    if facts.deliveries >= FEW_DELIVERIES:
        return Finding(_DELIVERIES, Level.OK, found)
    why = "each release and each lost lease counts, so that a job can become a dead letter without a failure of its own"
    return Finding(_DELIVERIES, Level.WARNING, found, why, f"set it to {FEW_DELIVERIES} or more")


def _expiry(name: str, facts: Facts) -> Finding:
    if facts.ttl == float("inf"):
        return Finding(_EXPIRY, Level.OK, f"{name}: no message expires")
    found = f"{name}: messages expire after {facts.ttl:,.0f} s"
    if facts.keeps_expired:
        return Finding(_EXPIRY, Level.OK, f"{found}, and become dead letters")
    mend = "let expired messages be dead-lettered, or set DefaultMessageTimeToLive to its maximum"
    return Finding(_EXPIRY, Level.PROBLEM, found, "they vanish unseen, run or not", mend)


def _duplicates(name: str, facts: Facts) -> Finding:
    if facts.duplicates:
        return Finding(_DUPLICATES, Level.OK, f"{name}: an id is taken once within {facts.duplicates:,.0f} s")
    why = "an enqueue that is repeated because its answer was lost may add its job twice"
    return Finding(_DUPLICATES, Level.NOTE, f"{name}: duplicates are not detected", why)
