"""The SASL layer: AMQP 5.3. Whoever asks is let in: what a client may do depends on its tokens (`cbs`)."""

from __future__ import annotations

from servicebus_peer import codes
from servicebus_peer import encoding as e
from servicebus_peer.framing import SASL_FRAME, frame

MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
"""As the service offers them; the SDK takes ANONYMOUS for shared access signatures."""

OK = 0
"""The code of an outcome: AMQP 5.3.3.6."""


def offer() -> bytes:
    """What a client may choose from."""
    return frame(0, e.composite(codes.SASL_MECHANISMS, [e.array_of_symbols(MECHANISMS)]), SASL_FRAME)


def outcome() -> bytes:
    """What to tell a client that has chosen."""
    return frame(0, e.composite(codes.SASL_OUTCOME, [e.ubyte(OK), e.NULL]), SASL_FRAME)
