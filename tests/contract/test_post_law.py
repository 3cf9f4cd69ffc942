"""Posted messages: bytes that no pool runs, and what their producer can count on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.claims import a_post, bodies, claim, found, ids, nothing_to_claim, post
from support.harness import Harness
from support.jobs import QUEUE, a_job

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import NewPost
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import InvalidJob

pytestmark = pytest.mark.needs("leases", "claims")


def test_what_is_posted_is_there_for_every_client(harness: Harness, backend: QueueBackend) -> None:
    known = backend.claims.post(QUEUE, [a_post(b"0"), a_post(b"1", ident="mine"), a_post(b"2")])
    assert known[1] == "mine"
    assert len(set(known)) == 3
    held = claim(harness.open())
    assert (ids(held.messages), bodies(held.messages)) == (known, [b"0", b"1", b"2"])


@pytest.mark.spans
def test_nothing_is_posted_without_messages(backend: QueueBackend) -> None:
    assert backend.claims.post(QUEUE, []) == []
    assert backend.queues() == []


BYTES = [
    b"",
    b"\0",
    b"\xff\xfe\0\n",
    "Zürich ✓".encode(),
    b'{"job": "report"}',
    b"'; -- \\ %s {} $1 ? ARGV[1]",
    b"x" * 2**20,
]


def test_any_bytes_come_back_as_they_were(backend: QueueBackend) -> None:
    known = post(backend, *BYTES)
    assert bodies(backend.claims.list_free(QUEUE)) == BYTES
    held = claim(backend)
    assert bodies(held.messages) == BYTES
    assert bodies(backend.claims.get(QUEUE, held.id).messages) == BYTES
    assert [found(backend, ident).body for ident in known] == BYTES
    backend.claims.release(QUEUE, held.id)
    assert bodies(backend.claims.pop(QUEUE, 20)) == BYTES


@pytest.mark.above
@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"id": "-x"}, InvalidJob, "identifier"),
        ({"id": ""}, InvalidJob, "identifier"),
        ({"body": b"x" * (2**20 + 1)}, InvalidJob, "1048576"),
        ({"life": 59.999}, ValueError, "60 to 1,209,600"),
        ({"life": 1_209_600.001}, ValueError, "60 to 1,209,600"),
        ({"delay": -0.001}, ValueError, "0 to 900"),
        ({"delay": 900.001}, ValueError, "0 to 900"),
    ],
)
def test_what_is_out_of_bounds_is_refused_and_nothing_is_posted(
    backend: QueueBackend, wrong: dict[str, object], error: type[Exception], text: str
) -> None:
    bad: NewPost = replace(a_post(), **wrong)
    with pytest.raises(error, match=text):
        backend.claims.post(QUEUE, [a_post(), bad, a_post()])
    assert nothing_to_claim(backend)
    assert backend.queues() == []


def test_what_is_at_its_bounds_is_posted(harness: Harness, backend: QueueBackend) -> None:
    posts = [a_post(b"0", life=60.0), a_post(b"1", life=1_209_600.0, delay=900.0), a_post(b"2", delay=0.0)]
    known = backend.claims.post(QUEUE, posts)
    delayed = found(backend, known[1])
    assert delayed.state is State.DELAYED
    assert delayed.available_at == pytest.approx(harness.now() + 900.0, abs=1e-5)
    harness.advance(900.0 - harness.tick)
    assert bodies(backend.claims.list_free(QUEUE)) == [b"2"]
    harness.advance(harness.tick)
    assert bodies(backend.claims.list_free(QUEUE)) == [b"1", b"2"]


# --- law 8 ------------------------------------------------------------------------------------------------


@pytest.mark.spans
def test_an_id_that_is_live_is_left_as_it_is(backend: QueueBackend) -> None:
    backend.claims.post(QUEUE, [a_post(b"first", ident="mine"), a_post(b"second", ident="mine")])
    assert backend.claims.post(QUEUE, [a_post(b"third", ident="mine", life=60.0, delay=9.0)]) == ["mine"]
    message = found(backend, "mine")
    assert (message.body, message.state, message.ends_at) == (b"first", State.WAITING, None)
    held = claim(backend)
    backend.claims.post(QUEUE, [a_post(b"fourth", ident="mine"), a_post(b"new", ident="other")])
    assert bodies(held.messages) == [b"first"]
    assert bodies(claim(backend).messages) == [b"new"]


@pytest.mark.spans
def test_posts_and_jobs_share_their_ids(backend: QueueBackend) -> None:
    backend.enqueue(a_job(identifier="a-job"))
    backend.claims.post(QUEUE, [a_post(ident="a-job"), a_post(ident="a-post")])
    assert backend.enqueue(a_job(identifier="a-post")) == "a-post"
    assert [message.handler for message in backend.list_messages()] == ["report", ""]


@pytest.mark.spans
@pytest.mark.needs("atomic_across_queues")
def test_an_id_is_known_in_every_queue(backend: QueueBackend) -> None:
    backend.claims.post(QUEUE, [a_post(b"here", ident="mine")])
    backend.claims.post("mails", [a_post(b"there", ident="mine"), a_post(b"new", ident="other")])
    assert bodies(backend.claims.list_free("mails")) == [b"new"]
    assert bodies(backend.claims.list_free(QUEUE)) == [b"here"]


def test_an_id_that_is_dead_is_left_as_it_is(backend: QueueBackend) -> None:
    backend.claims.post(QUEUE, [a_post(b"first", ident="mine")])
    backend.claims.release(QUEUE, claim(backend).id)
    assert backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0, max_claims=1) is None
    backend.claims.post(QUEUE, [a_post(b"second", ident="mine")])
    assert nothing_to_claim(backend)
    assert found(backend, "mine").state is State.DEAD


@pytest.mark.parametrize("life", [None, 60.0])
def test_an_id_that_was_given_is_known_for_a_while_after_its_end(
    harness: Harness, backend: QueueBackend, life: float | None
) -> None:
    """A life ends when it ends, not when somebody notices it."""
    backend.claims.post(QUEUE, [a_post(ident="mine", life=life)])
    if life is None:
        backend.bulk(MessageFilter(), Verb.DELETE)
    else:
        harness.advance(life)
    harness.advance(599.0)
    backend.claims.post(QUEUE, [a_post(ident="mine")])
    backend.enqueue(a_job(identifier="mine"))
    assert nothing_to_claim(backend)
    harness.advance(1.1)
    backend.claims.post(QUEUE, [a_post(ident="mine")])
    assert ids(claim(backend).messages) == ["mine"]


def test_an_id_is_free_again_though_nobody_noticed_the_end_of_its_life(harness: Harness, backend: QueueBackend) -> None:
    backend.claims.post(QUEUE, [a_post(b"old", ident="mine", life=60.0)])
    harness.advance(661.0)
    backend.claims.post(QUEUE, [a_post(b"new", ident="mine")])
    assert bodies(claim(backend).messages) == [b"new"]
    assert backend.claims.stats(QUEUE).expired == 1


# --- not for pools ----------------------------------------------------------------------------------------


@pytest.mark.spans
def test_a_post_is_never_fetched_and_no_job_to_any_count(harness: Harness, backend: QueueBackend) -> None:
    [ident] = post(backend, b'{"job": "report", "payload": {}}')
    post(backend, b"delayed", delay=10.0)
    post(backend, b"claimed")
    claim(backend, 1)
    assert backend.fetch_many(QUEUE, limit=10) == []
    harness.advance(10.0)
    assert backend.fetch_many(QUEUE, limit=10) == []
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.delayed, stats.leased, stats.dead, stats.pending) == (0, 0, 0, 0, 0)
    assert (stats.oldest, stats.posted) == (None, 3)
    job = backend.enqueue(a_job())
    harness.advance(1.0)
    assert backend.stats(QUEUE).oldest == pytest.approx(1.0, abs=0.01)
    assert ids(backend.fetch_many(QUEUE, limit=10)) == [job]
    assert ident in ids(backend.list_messages())


def test_a_pool_finds_its_jobs_behind_many_posts(backend: QueueBackend) -> None:
    post(backend, *(b"%d" % number for number in range(1500)))
    job = backend.enqueue(a_job(priority=9))
    assert ids(backend.fetch_many(QUEUE, limit=10)) == [job]
    assert backend.stats(QUEUE).posted == 1500
