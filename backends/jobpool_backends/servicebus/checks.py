"""Checks of what a queue's settings can lose or slow down, in plain sentences.

The service tells a queue's settings over https, to those who may manage it; no emulator does. The decisions are
functions of these facts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError, ResourceNotFoundError
from msgspec import Struct

from jobpool.broker.finding import Finding, Level
from jobpool.errors import ConfigurationError
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.errors import missing_queue
from jobpool_backends.servicebus.inspect import peek
from jobpool_backends.servicebus.leases import CLOCK_TOLERANCE_S
from jobpool_backends.servicebus.namespace import Namespace

if TYPE_CHECKING:
    from azure.servicebus.management import QueueProperties, ServiceBusAdministrationClient

SHORT_LOCK_S = 10.0  # below, a renewal that fails once may come too late
FEW_DELIVERIES = 100  # below, messages released or crashed for reasons not their own can become dead letters
FOREVER_S = 10 * 365 * 86400.0  # the service says some ten million days for "never"
SETTINGS_TIMEOUT_S = 5.0


class Facts(Struct, frozen=True):
    """Settings of one queue, by default the service's own. Times are seconds."""

    lock: float = 60.0  # LockDuration
    deliveries: int = 10  # MaxDeliveryCount
    duplicates: float = 0.0  # window of duplicate detection; 0 = off
    ttl: float = float("inf")  # DefaultMessageTimeToLive; infinite when nothing expires
    keeps_expired: bool = False  # True if an expired message becomes a dead letter
    sessions: bool = False  # True if it takes only messages with a session
    status: str = "Active"  # when it works


def ping(namespace: Namespace) -> None:
    """Ask for a sign of life: a missing queue is one too. Raises BackendUnavailable, ConfigurationError."""
    named = namespace.named_queues()
    queue = named[0] if named else "default"
    try:
        _look(namespace, queue)
    except ConfigurationError as error:
        if error.__context__ is None or missing_queue(error.__context__, namespace.address, queue) is None:
            raise
    finally:
        if not named:
            namespace.probed.add(queue)


def diagnose(namespace: Namespace, noticed: Mapping[str, float]) -> list[Finding]:
    """Check each queue that this client was told of; `noticed`: the shortest lock of each, if it was short.

    Raises BackendUnavailable. Blocks for a round trip a queue, and some more where its settings are told.
    """
    queues = namespace.named_queues()
    found = [finding for queue in queues for finding in _diagnose(namespace, queue, noticed.get(queue))]
    return found or [Finding("servicebus.queue", Level.NOTE, "no queue has been named yet, so none was looked at")]


def _diagnose(namespace: Namespace, queue: str, shortest: float | None) -> Iterator[Finding]:
    name = f"queue {queue!r}"
    try:
        _look(namespace, queue)
    except ConfigurationError as error:
        found, _, mend = str(error).partition(": ")
        yield Finding("servicebus.queue", Level.PROBLEM, found, "nothing can be enqueued or fetched", mend)
        return
    yield Finding("servicebus.queue", Level.OK, f"{name} is there")
    facts = ask(namespace.address, queue)
    if isinstance(facts, str):
        yield Finding("servicebus.settings", Level.NOTE, f"the settings of {name} could not be looked at: {facts}")
        if shortest is not None:
            yield judge_lock(name, namespace.address.lock, round(shortest, 1), blur=CLOCK_TOLERANCE_S)
    else:
        yield from judge(queue, namespace.address.lock, facts)


def _look(namespace: Namespace, queue: str) -> None:
    next(peek(namespace, queue, dead=False, page=1), None)


def judge(queue: str, declared: float, facts: Facts) -> Iterator[Finding]:
    """Judge the settings of a queue; `declared`: seconds, the option `lock`."""
    name = f"queue {queue!r}"
    if facts.status != Facts().status:
        found, why = f"{name} is {facts.status}", "messages are not taken, or not given out"
        yield Finding("servicebus.queue", Level.PROBLEM, found, why, "set its status to Active")
    if facts.sessions:
        found, why = f"{name} requires sessions", "it takes no message without a session, and jobpool's have none"
        yield Finding("servicebus.queue", Level.PROBLEM, found, why, "make a queue without")
    yield judge_lock(name, declared, facts.lock)
    yield _judge_deliveries(name, facts)
    yield _judge_expiry(name, facts)
    if facts.duplicates:
        yield Finding(
            "servicebus.duplicates", Level.OK, f"{name}: an id is taken once within {facts.duplicates:,.0f} s"
        )
    else:
        why = "an enqueue that is repeated because its answer was lost may add its job twice"
        yield Finding("servicebus.duplicates", Level.NOTE, f"{name}: duplicates are not detected", why)


def judge_lock(name: str, declared: float, real: float, *, blur: float = 0.0) -> Finding:
    """Judge a lock: `declared` and `real` seconds, of which `real` may be wrong by `blur`."""
    level, why, mend = Level.OK, "", ""
    found = f"{name}: locks last {real:g} s"
    if real + blur < declared:
        level, found = Level.PROBLEM, f"{found}, and option lock says {declared:g} s"
        why = "messages are given to others while they still run here"
        mend = f"set lock={real:g}, or LockDuration to {declared:g} s"
    elif real + blur < SHORT_LOCK_S:
        level, mend = Level.WARNING, "set LockDuration to 30 s or more"
        why = "a renewal that fails once may come too late, so that a job runs twice"
    return Finding("servicebus.lock", level, found, why, mend)


def _judge_deliveries(name: str, facts: Facts) -> Finding:
    found = f"{name}: MaxDeliveryCount {facts.deliveries}"
    if facts.deliveries >= FEW_DELIVERIES:
        return Finding("servicebus.deliveries", Level.OK, found)
    why = "each release and each lost lease counts, so that a job can become a dead letter without a failure of its own"
    return Finding("servicebus.deliveries", Level.WARNING, found, why, f"set it to {FEW_DELIVERIES} or more")


def _judge_expiry(name: str, facts: Facts) -> Finding:
    found = f"{name}: messages expire after {facts.ttl:,.0f} s"
    if facts.ttl == float("inf"):
        return Finding("servicebus.expiry", Level.OK, f"{name}: no message expires")
    if facts.keeps_expired:
        return Finding("servicebus.expiry", Level.OK, f"{found}, and become dead letters")
    mend = "let expired messages be dead-lettered, or set DefaultMessageTimeToLive to its maximum"
    return Finding("servicebus.expiry", Level.PROBLEM, found, "they vanish unseen, run or not", mend)


def ask(address: Address, queue: str) -> Facts | str:
    """Return the settings of a queue; or, in a few words, why they are not told. Blocks for some seconds at most."""
    if address.emulated:
        return "the emulator tells nobody; they stand in its Config.json"
    try:
        with _client(address) as client:
            return read(client.get_queue(queue))
    except ResourceNotFoundError:
        return "there is no such queue"
    except (AzureError, ValueError, ImportError) as error:
        return f"that needs the right Manage ({' '.join(str(error).split())[:200]})"


def read(properties: QueueProperties) -> Facts:
    """Return the settings that jobpool needs; missing ones have the service's default."""
    usual = Facts()
    ttl = _seconds(properties.default_message_time_to_live, FOREVER_S)
    window = _seconds(properties.duplicate_detection_history_time_window, 600.0)
    return Facts(
        lock=_seconds(properties.lock_duration, usual.lock),
        deliveries=properties.max_delivery_count or usual.deliveries,
        duplicates=window if properties.requires_duplicate_detection else 0.0,
        ttl=ttl if ttl < FOREVER_S else usual.ttl,
        keeps_expired=bool(properties.dead_lettering_on_message_expiration),
        sessions=bool(properties.requires_session),
        status=str(getattr(properties.status, "value", properties.status) or usual.status),
    )


def _client(address: Address) -> ServiceBusAdministrationClient:
    from azure.servicebus.management import ServiceBusAdministrationClient  # slow to import, and seldom asked

    limits = {"connection_timeout": SETTINGS_TIMEOUT_S, "read_timeout": SETTINGS_TIMEOUT_S}
    options: dict[str, Any] = {"retry_total": 0, **limits}
    if address.connection_string is not None:
        return ServiceBusAdministrationClient.from_connection_string(address.connection_string, **options)
    from azure.identity import DefaultAzureCredential

    return ServiceBusAdministrationClient(address.host, DefaultAzureCredential(), **options)


def _seconds(duration: timedelta | str | None, default: float) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else default
