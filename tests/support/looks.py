"""Calls on one message; and looks that work also where only dead letters are listed, or refusals are all alike."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Message, MessageFilter, ReapPolicy, State, Verb
from jobpool.message.guards import Begun, Guards
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled, Settlement
from support.harness import Harness
from support.jobs import QUEUE

LOOKED_AT = "looked at"


def a_lease(backend: QueueBackend, queue: str = QUEUE, ttl: float = 30.0) -> JobLease:
    """The next message, leased."""
    [lease] = backend.fetch_many(queue, limit=1, ttl=ttl)
    return lease


def begin(backend: QueueBackend, lease: JobLease, guards: Guards) -> Begun:
    [answer] = backend.keys.begin_many([(lease, guards)])
    return answer


def settle(backend: QueueBackend, lease: JobLease, settlement: Settlement, call_id: str | None = None) -> Settled:
    [answer] = backend.settle_many([(lease, settlement)], call_id)
    return answer


def seen(backend: QueueBackend, ident: str, queue: str = QUEUE) -> Message:
    """The message with this id, dead, or waiting in `queue`.

    Where the living are not shown it is made a dead letter, looked at, and resumed: that takes it to the end of its
    queue and delivers it, and what waits beside it, once more. The answer tells how it was before, but for a crash that
    was charged, and may have killed it, when it was leased for this.
    """
    message = backend.inspect(ident)
    if message is not None:
        return message
    assert not backend.capabilities.lists_live, f"{ident} is not there"
    leases = {lease.id: lease for lease in backend.fetch_many(queue, limit=100)}
    lives = ident in leases
    if lives:
        assert backend.abandon(leases.pop(ident), LOOKED_AT)
    for other in leases.values():
        assert backend.release(other)
    dead = dead_letter(backend, ident)
    if not lives:
        return dead
    assert backend.bulk(MessageFilter(queue=queue, ids=(ident,)), Verb.RESUME) == 1
    return replace(dead, state=State.WAITING, reason=None, died_at=None, deliveries=dead.deliveries - 1)


def dead_letter(backend: QueueBackend, ident: str) -> Message:
    """The dead letter with this id."""
    message = backend.inspect(ident)
    assert message is not None
    assert message.state is State.DEAD
    return message


def picture(backend: QueueBackend, *queues: str) -> list[object]:
    """Everything that can be seen of these queues without touching them."""
    return [backend.list_messages(), *map(backend.stats, queues)]


def is_refusal(backend: QueueBackend, answer: Settled, exactly: Settled) -> bool:
    """Whether a settlement was refused, with this answer where the broker can tell its refusals apart."""
    return answer is exactly if backend.capabilities.keeps_records else not answer


def recover(
    harness: Harness, backend: QueueBackend, ttl: float, policy: ReapPolicy | None = None, queue: str = QUEUE
) -> None:
    """Let the leases that were taken for `ttl` seconds just now end, and what was leased come back by this policy.

    Where the broker frees them itself they are charged when they are fetched next, by the policy told here.
    """
    harness.expire_leases(ttl)
    backend.reap(queue, policy)


def in_order(backend: QueueBackend, found: Sequence[object]) -> list[object]:
    """`found` as it came where the broker keeps the places of its messages, and sorted where it does not."""
    return list(found) if backend.capabilities.keeps_records else sorted(found, key=repr)
