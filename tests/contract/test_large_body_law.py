"""A body that is larger than any producer of ours sends: it stays at the broker, and holds up nobody."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from support.claims import claim, post
from support.harness import Harness
from support.jobs import QUEUE, a_job
from support.looks import dead_letter, recover
from support.tiers import more

from jobpool.broker import control, editing
from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, NewMessage
from jobpool.errors import MalformedEnvelope
from jobpool.message.envelope import MAX_BODY_BYTES, OVERSIZED
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Settled

HOLDERS = ["memory", "postgres", "redis", *more(("redis-cluster",)), "sqlite"]
"""beanstalkd (`-z`) and Service Bus bound what they take themselves."""

pytestmark = pytest.mark.parametrize("harness", HOLDERS, indirect=True)

MIB = 1 << 20
LARGE = 3 * MIB
SOME = MIB // 2
"""Bytes of this process that a fetch may cost besides what it brings."""


def put(backend: QueueBackend, ident: str, body: bytes) -> None:
    """Straight into the broker, as who has its URL can."""
    backend._enqueue([NewMessage(ident, True, QUEUE, "work", 5, None, body)])


def fetched(backend: QueueBackend, limit: int = 10, fetch_id: str | None = None) -> dict[str, JobLease]:
    return {lease.id: lease for lease in backend.fetch_many(QUEUE, limit=limit, fetch_id=fetch_id)}


def peak(look: Callable[[], object]) -> int:
    """How many bytes of this process it takes at most."""
    tracemalloc.start()
    try:
        look()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_it_is_leased_and_refused_unread(harness: Harness, backend: QueueBackend) -> None:
    put(backend, "large", b"{" * LARGE)
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=5.0)
    assert lease.body is OVERSIZED
    assert (lease.attempts, lease.crashes, lease.deliveries) == (0, 0, 1)
    with pytest.raises(MalformedEnvelope, match=f"^the body has more than {MAX_BODY_BYTES} bytes$"):
        _ = lease.envelope
    recover(harness, backend, 5.0)
    [again] = backend.fetch_many(QUEUE, limit=1)
    assert again.body is OVERSIZED


@pytest.mark.parametrize("excess", [0, 1])
def test_the_bound_is_exact(backend: QueueBackend, excess: int) -> None:
    body = b"x" * (MAX_BODY_BYTES + excess)
    put(backend, "edge", body)
    assert fetched(backend)["edge"].body == (OVERSIZED if excess else body)


def test_a_job_beside_it_is_brought_as_it_is(backend: QueueBackend) -> None:
    before = backend.enqueue(a_job({"place": "before"}))
    put(backend, "large", b"{" * LARGE)
    behind = backend.enqueue(a_job({"place": "behind"}))
    leases = fetched(backend)
    assert list(leases) == [before, "large", behind]
    assert [leases[ident].envelope.payload for ident in (before, behind)] == [{"place": "before"}, {"place": "behind"}]
    backend.ack(leases[behind])
    assert backend.stats(QUEUE).leased == 2


def test_as_a_dead_letter_it_has_its_whole_body(backend: QueueBackend) -> None:
    body = bytes(range(256)) * (LARGE // 256)
    put(backend, "large", body)
    lease = fetched(backend)["large"]
    answers = backend.settle_many([(lease, Abandon("rejected", error="too large"))])
    assert answers == [Settled.OK]
    dead = dead_letter(backend, "large")
    assert dead.reason == "rejected"
    assert dead.body == body


def test_a_repeated_fetch_does_not_bring_it_either(backend: QueueBackend) -> None:
    put(backend, "large", b"{" * LARGE)
    small = backend.enqueue(a_job())
    first, second = (fetched(backend, fetch_id="again") for _ in range(2))
    assert list(second) == ["large", small]
    assert second["large"].body is OVERSIZED
    assert {ident: lease.owner_token for ident, lease in second.items()} == {
        ident: lease.owner_token for ident, lease in first.items()
    }
    assert second[small].body == first[small].body


def test_many_cost_whoever_fetches_no_more_than_one(backend: QueueBackend) -> None:
    """Neither the fetch, nor what it leaves behind."""
    for number in range(4):
        put(backend, f"large-{number}", b"{" * LARGE)
    leases: dict[str, JobLease] = {}
    assert peak(lambda: leases.update(fetched(backend))) < SOME
    assert len(leases) == 4


LOOKS: dict[str, Callable[[QueueBackend, list[str]], object]] = {
    "wait": lambda backend, idents: backend.wait(idents, timeout=0.0),
    "put off": lambda backend, _: editing.edit_matching(
        backend, editing.read_changes(backend, at=60.0), MessageFilter(queue=QUEUE)
    ),
    "cancel": lambda backend, _: control.cancel_matching(backend, MessageFilter(queue=QUEUE)),
}


@pytest.mark.parametrize("look", LOOKS)
def test_no_body_is_brought_to_whoever_asks_for_states_or_changes_no_body(backend: QueueBackend, look: str) -> None:
    idents = backend.enqueue_many([a_job("x" * (MIB - 1000)) for _ in range(4)])
    assert peak(lambda: LOOKS[look](backend, idents)) < SOME


def test_a_list_does_not_bring_it_and_finds_a_text_in_it(backend: QueueBackend) -> None:
    put(backend, "large", b"{" * LARGE + b"needle")
    assert peak(lambda: backend.list_messages(MessageFilter(queue=QUEUE))) < SOME
    [found] = backend.list_messages(MessageFilter(text="NEEDLE"))
    assert (found.id, found.body) == ("large", OVERSIZED)
    whole = backend.inspect("large")
    assert whole is not None
    assert len(whole.body) == LARGE + len("needle")


# --- claims --------------------------------------------------------------------------------------------------


@pytest.fixture
def claimed(backend: QueueBackend) -> tuple[QueueBackend, str]:
    """A claim of a large one, and of one beside it."""
    put(backend, "large", b"{" * LARGE)
    [posted] = post(backend, b"beside it")
    held = claim(backend)
    assert {message.id: message.body for message in held.messages} == {"large": OVERSIZED, posted: b"beside it"}
    return backend, held.id


def test_a_claim_does_not_bring_it_however_it_is_asked_for(claimed: tuple[QueueBackend, str]) -> None:
    backend, ident = claimed
    told = [
        backend.claims.claim(QUEUE, limit=10, ttl=300.0, grace=60.0, claim_id=ident),
        backend.claims.get(QUEUE, ident),
        backend.claims.renew(QUEUE, ident, ttl=300.0),
    ]
    for held in told:
        assert held is not None
        assert [message.body for message in held.messages] == [OVERSIZED, b"beside it"]


def test_it_is_whole_once_its_claim_has_been_released(claimed: tuple[QueueBackend, str]) -> None:
    backend, ident = claimed
    backend.claims.release(QUEUE, ident)
    assert [len(message.body) for message in backend.claims.list_free(QUEUE)] == [LARGE, len(b"beside it")]


def test_a_pop_does_not_bring_it(backend: QueueBackend) -> None:
    put(backend, "large", b"{" * LARGE)
    post(backend, b"beside it")
    assert [message.body for message in backend.claims.pop(QUEUE, limit=10)] == [OVERSIZED, b"beside it"]
    assert backend.stats(QUEUE).pending == 0
