"""The settings of queues, as the service tells them: over https, to those who may manage it. No emulator does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError, ResourceNotFoundError

from jobpool_backends.servicebus.address import Address

if TYPE_CHECKING:
    from azure.servicebus.management import QueueProperties, ServiceBusAdministrationClient

FOREVER_S = 10 * 365 * 86400.0
"""Seconds; the service says some ten million days for "never"."""

DEFAULT_LOCK_S = 60.0
DEFAULT_DELIVERIES = 10
DEFAULT_WINDOW_S = 600.0
ACTIVE = "Active"
"""The service's value if nothing was set."""

SETTINGS_TIMEOUT_S = 5.0
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
        status: `ACTIVE` when it works.
    """

    lock: float = DEFAULT_LOCK_S
    deliveries: int = DEFAULT_DELIVERIES
    duplicates: float = 0.0
    ttl: float = float("inf")
    keeps_expired: bool = False
    sessions: bool = False
    status: str = ACTIVE


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
    ttl = _seconds(properties.default_message_time_to_live, FOREVER_S)
    window = _seconds(properties.duplicate_detection_history_time_window, DEFAULT_WINDOW_S)
    return Facts(
        lock=_seconds(properties.lock_duration, DEFAULT_LOCK_S),
        deliveries=properties.max_delivery_count or DEFAULT_DELIVERIES,
        duplicates=window if properties.requires_duplicate_detection else 0.0,
        ttl=ttl if ttl < FOREVER_S else float("inf"),
        keeps_expired=bool(properties.dead_lettering_on_message_expiration),
        sessions=bool(properties.requires_session),
        status=str(getattr(properties.status, "value", properties.status) or ACTIVE),
    )


def _client(address: Address) -> ServiceBusAdministrationClient:
    from azure.servicebus.management import ServiceBusAdministrationClient  # slow to import, and seldom asked

    options: dict[str, Any] = {
        "retry_total": 0,
        "connection_timeout": SETTINGS_TIMEOUT_S,
        "read_timeout": SETTINGS_TIMEOUT_S,
    }
    if address.connection_string is not None:
        return ServiceBusAdministrationClient.from_connection_string(address.connection_string, **options)
    from azure.identity import DefaultAzureCredential

    return ServiceBusAdministrationClient(address.host, DefaultAzureCredential(), **options)


def _seconds(duration: timedelta | str | None, default: float) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else default
