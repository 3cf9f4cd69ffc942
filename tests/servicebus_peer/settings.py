"""How a peer is run."""

from __future__ import annotations

from dataclasses import dataclass, field

from servicebus_peer.properties import QueueProperties

KEY_NAME = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"
"""The name and the key that Microsoft's emulator has too."""


@dataclass(frozen=True)
class Settings:
    """Of one peer.

    Attributes:
        port: For AMQP, on 127.0.0.1; 0 = a free one.
        control_port: Likewise, for orders; never the same.
        key_name: Of the shared access policy.
        key: Of the same.
        auth: Whether tokens are checked; else every one is taken, and none is needed.
        auto_create: Whether a queue is made when a client attaches to a name that there is none of.
        defaults: Properties of queues that are made without.
        standing_clock: Unix time of a clock that moves only when it is turned; None = the machine's time.
        idle_timeout: Seconds without a frame after which a client may give this peer up; told in `open`.
    """

    port: int = 0
    control_port: int = 0
    key_name: str = KEY_NAME
    key: str = KEY
    auth: bool = True
    auto_create: bool = False
    defaults: QueueProperties = field(default_factory=QueueProperties)
    standing_clock: float | None = None
    idle_timeout: float = 120.0


def connection_string(host: str, port: int, key_name: str, key: str) -> str:
    """What the SDK takes; `UseDevelopmentEmulator` has it connect without TLS, to any port."""
    return (
        f"Endpoint=sb://{host}:{port};SharedAccessKeyName={key_name};SharedAccessKey={key};UseDevelopmentEmulator=true;"
    )
