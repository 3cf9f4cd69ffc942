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
LASTS = 3600.0
"""Seconds that a token of another kind entitles for: it is not looked into."""


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
        """Take a token for an audience. Raises `AmqpError` for what is none, or none of ours."""
        if request.operation != "put-token":
            raise AmqpError(errors.NOT_IMPLEMENTED, f"{NODE} has no operation {request.operation!r}", 501)
        token, audience = request.value, request.properties.get("name")
        if not isinstance(token, str) or not isinstance(audience, str):
            raise AmqpError(errors.AUTH_FAILED, "MalformedToken: no token, or no audience", 401)
        until = self._checked(token)
        self._until[entity_of(unquote_plus(audience)).lower()] = until

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

    def _checked(self, token: str) -> float:
        """When it ends. The SDK calls every token a jwt, so what it is shows by itself."""
        if not self._settings.auth or not token.startswith(SIGNATURE):
            return self._now() + LASTS
        return check_signature(token, self._now())


def check_signature(token: str, now: float) -> float:
    """When a shared access signature ends, in Unix time. Raises `AmqpError` when it is not by our key, or ended.

    The signature is that of the resource and the end, as they are written, with a line feed between them.
    """
    parts = dict(part.partition("=")[::2] for part in token[len(SIGNATURE) :].split("&"))
    try:
        resource, ends, given, name = (parts[part] for part in ("sr", "se", "sig", "skn"))
        until = float(ends)
    except (KeyError, ValueError):
        raise AmqpError(errors.AUTH_FAILED, "MalformedToken: sr, se, sig and skn belong in it", 401) from None
    digest = hmac.new(KEY.encode(), f"{resource}\n{ends}".encode(), hashlib.sha256).digest()
    ours = base64.b64encode(digest)
    if unquote_plus(name) != KEY_NAME or not hmac.compare_digest(ours, unquote_plus(given).encode()):
        raise AmqpError(errors.AUTH_FAILED, "InvalidSignature: The token has an invalid signature.", 401)
    if until <= now:
        raise AmqpError(errors.AUTH_FAILED, "ExpiredToken: The token is expired.", 401)
    return until


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
