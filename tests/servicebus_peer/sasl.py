"""The SASL layer: AMQP 5.3. Whoever asks is let in: what a client may do depends on its tokens (`cbs`)."""

from __future__ import annotations

from servicebus_peer import codes
from servicebus_peer import encoding as e
from servicebus_peer.errors import FRAMING_ERROR, AmqpError
from servicebus_peer.fields import Fields
from servicebus_peer.framing import SASL_FRAME, Frame, frame

MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
"""As the service offers them; the SDK takes ANONYMOUS for shared access signatures."""

OK = 0
AUTH = 1
"""The codes of an outcome: AMQP 5.3.3.6."""


def offer() -> bytes:
    """What a client may choose from."""
    return frame(0, e.composite(codes.SASL_MECHANISMS, [e.array_of_symbols(MECHANISMS)]), SASL_FRAME)


def outcome(answer: Frame) -> tuple[bool, bytes]:
    """Whether the client is let in, and what to tell it. Raises `AmqpError` for another frame than `init`."""
    if answer.kind != SASL_FRAME or answer.code != codes.SASL_INIT:
        raise AmqpError(FRAMING_ERROR, "a client that was offered mechanisms has to choose one")
    known = Fields(answer.fields, "sasl-init").need(0, str) in MECHANISMS
    code = e.ubyte(OK if known else AUTH)
    return known, frame(0, e.composite(codes.SASL_OUTCOME, [code, e.NULL]), SASL_FRAME)
