"""Small builders of posted messages and claims."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import HeldClaim, NewPost
from jobpool.broker.values import Message, ReapPolicy
from support.jobs import QUEUE

AT_ONCE = ReapPolicy(back_off=0.0)


def a_post(
    body: bytes = b"hello", *, ident: str | None = None, life: float | None = None, delay: float = 0.0
) -> NewPost:
    """A message for `ClaimStore.post`, with an id of its producer's own where one is named."""
    return NewPost(ident or secrets.token_hex(8), ident is not None, body, life, delay)


def post(backend: QueueBackend, *bodies: bytes, queue: str = QUEUE, **fields: Any) -> list[str]:
    """Post these; their ids."""
    return backend.claims.post(queue, [a_post(body, **fields) for body in bodies or (b"hello",)])


def claim(
    backend: QueueBackend, limit: int = 10, *, queue: str = QUEUE, ttl: float = 300.0, grace: float = 60.0, **more: Any
) -> HeldClaim:
    """A claim, where there is something to claim."""
    held = backend.claims.claim(queue, limit=limit, ttl=ttl, grace=grace, **more)
    assert held is not None
    return held


def nothing_to_claim(backend: QueueBackend, queue: str = QUEUE) -> bool:
    return backend.claims.claim(queue, limit=20, ttl=60.0, grace=60.0) is None


def ids(messages: Iterable[Any]) -> list[str]:
    return [message.id for message in messages]


def bodies(messages: Iterable[Any]) -> list[bytes]:
    return [message.body for message in messages]


def found(backend: QueueBackend, ident: str) -> Message:
    message = backend.inspect(ident)
    assert message is not None
    return message
