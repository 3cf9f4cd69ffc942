"""Claims-based security: tokens that a client puts to the node $cbs, and what they entitle it to.

Source: the protocol guide, "Claims-based authorization"; and "Service Bus access control with Shared Access Signatures"
for what such a token is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from urllib.parse import unquote_plus

from servicebus_peer import encoding as e
from servicebus_peer import errors
from servicebus_peer.errors import AmqpError
from servicebus_peer.requests import Request, reply
from servicebus_peer.settings import KEY, KEY_NAME, Settings

NODE = "$cbs"
SIGNATURE = "SharedAccessSignature "


def entity_of(address: str) -> str:
    """The path in an address: amqps://host:port/queue, or just queue."""
    return address.split("://", 1)[1].partition("/")[2] if "://" in address else address


class Authorization:
    """What one connection is entitled to.

    Args:
        now: Unix time, by the machine's clock: clients reckon the ends of their tokens by it, not by the peer's.
    """

    def __init__(self, settings: Settings, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._now = now
        self._until: dict[str, float] = {}

    def put_token(self, request: Request) -> None:
        """Take a token for an audience. Raises `AmqpError` for one that is none of ours."""
        if self._settings.auth:
            audience = entity_of(unquote_plus(str(request.properties["name"])))
            self._until[audience.lower()] = check_signature(str(request.value))

    def require(self, address: str) -> None:
        """Raises `AmqpError` unless there is a token for this address, or for what it lies in."""
        if not self._settings.auth:
            return
        now, path = self._now(), address.lower()
        for audience, until in self._until.items():
            if until > now and (not audience or path == audience or path.startswith(f"{audience}/")):
                return
        raise AmqpError(
            errors.UNAUTHORIZED, f"Unauthorized access. 'Send' or 'Listen' claims are required for '{address}'.", 401
        )


def check_signature(token: str) -> float:
    """When a shared access signature ends, in Unix time. Raises `AmqpError` when it is not by our key.

    The signature is that of the resource and the end, as they are written, with a line feed between them.
    """
    parts = dict(part.partition("=")[::2] for part in token[len(SIGNATURE) :].split("&"))
    resource, ends, given, name = (parts[part] for part in ("sr", "se", "sig", "skn"))
    digest = hmac.new(KEY.encode(), f"{resource}\n{ends}".encode(), hashlib.sha256).digest()
    ours = base64.b64encode(digest)
    if unquote_plus(name) != KEY_NAME or not hmac.compare_digest(ours, unquote_plus(given).encode()):
        raise AmqpError(errors.AUTH_FAILED, "InvalidSignature: The token has an invalid signature.", 401)
    return float(ends)


def answer(authorization: Authorization, request: Request) -> bytes:
    """The reply to a request to $cbs."""
    try:
        authorization.put_token(request)
        status, description = 202, "Accepted"
    except AmqpError as error:
        status, description = error.status, str(error)
    return reply(
        request,
        [
            e.string("status-code") + e.int_(status),
            e.string("status-description") + e.string(description),
        ],
    )
