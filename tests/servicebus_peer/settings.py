"""How a peer is run."""

from __future__ import annotations

from dataclasses import dataclass

KEY_NAME = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"
"""The name and the key that Microsoft's emulator has too."""


@dataclass(frozen=True)
class Settings:
    """Of one peer.

    Attributes:
        port: For AMQP, on 127.0.0.1; 0 = a free one.
        auth: Whether tokens are checked; else every one is taken, and none is needed.
        auto_create: Whether a queue is made when a client attaches to a name that there is none of.
        standing_clock: Unix time of a clock that moves only when it is turned; None = the machine's time.
    """

    port: int = 0
    auth: bool = True
    auto_create: bool = False
    standing_clock: float | None = None


def connection_string(host: str, port: int) -> str:
    """What the SDK takes; `UseDevelopmentEmulator` has it connect without TLS, to any port."""
    return (
        f"Endpoint=sb://{host}:{port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};UseDevelopmentEmulator=true;"
    )
