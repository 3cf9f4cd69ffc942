"""The settings of queues, as the service tells them: over https, to those who may manage it. No emulator does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError, ResourceNotFoundError

from jobpool_backends.servicebus.address import Address

if TYPE_CHECKING:
    from azure.servicebus.management import QueueProperties, ServiceBusAdministrationClient

FOREVER = 10 * 365 * 86400.0
"""Seconds; the service says some ten million days for "never"."""

USUAL_LOCK = 60.0
USUAL_DELIVERIES = 10
USUAL_WINDOW = 600.0
WORKS = "Active"
"""The service's value if nothing was set."""

PATIENCE = 5.0
"""Seconds for one answer."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Settings of one queue. Times are seconds.

    Attributes:
        lock: LockDuration.
        deliveries: MaxDeliveryCount.
        duplicates: Window of duplicate detection; 0 = off.
        ttl: DefaultMessageTimeToLive; infinite when nothing expires.
        keeps_expired: True if an expired message becomes a dead letter.
        sessions: True if it takes only messages with a session.
        status: `WORKS` when it works.
    """

    lock: float = USUAL_LOCK
    deliveries: int = USUAL_DELIVERIES
    duplicates: float = 0.0
    ttl: float = float("inf")
    keeps_expired: bool = False
    sessions: bool = False
    status: str = WORKS


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
    ttl = _seconds(properties.default_message_time_to_live, FOREVER)
    window = _seconds(properties.duplicate_detection_history_time_window, USUAL_WINDOW)
    return Facts(
        lock=_seconds(properties.lock_duration, USUAL_LOCK),
        deliveries=properties.max_delivery_count or USUAL_DELIVERIES,
        duplicates=window if properties.requires_duplicate_detection else 0.0,
        ttl=ttl if ttl < FOREVER else float("inf"),
        keeps_expired=bool(properties.dead_lettering_on_message_expiration),
        sessions=bool(properties.requires_session),
        status=str(getattr(properties.status, "value", properties.status) or WORKS),
    )


def _client(address: Address) -> ServiceBusAdministrationClient:
    from azure.servicebus.management import ServiceBusAdministrationClient  # slow to import, and seldom asked

    options: dict[str, Any] = {"retry_total": 0, "connection_timeout": PATIENCE, "read_timeout": PATIENCE}
    if address.connection_string is not None:
        return ServiceBusAdministrationClient.from_connection_string(address.connection_string, **options)
    from azure.identity import DefaultAzureCredential

    return ServiceBusAdministrationClient(address.host, DefaultAzureCredential(), **options)


def _seconds(duration: timedelta | str | None, default: float) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else default
