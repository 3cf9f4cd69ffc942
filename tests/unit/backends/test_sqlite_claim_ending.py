"""What has ended: how much one call clears, what is left of it in the file, and that the counts are always right."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from sqlite_explained import rows
from support.claims import AT_ONCE, a_post, claim, ids, post
from support.jobs import QUEUE, a_job, numbered

from jobpool.broker.claim_store import ClaimStats
from jobpool.clock import ManualClock
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.claim_rows import CLEAR_LIMIT
from jobpool_backends.sqlite.claims import BURY_LIMIT

Open = Callable[..., SqliteBackend]


@pytest.fixture
def backend(open_sqlite: Open, clock: ManualClock) -> SqliteBackend:
    return open_sqlite(clock=clock, pragmas=("synchronous = OFF",))


def claim_all(backend: SqliteBackend, ttl: float = 60.0) -> int:
    """Claim 20 by 20; how many claims."""
    count = 0
    while backend.claims.claim(QUEUE, limit=20, ttl=ttl, grace=60.0):
        count += 1
    return count


# --- pieces ---------------------------------------------------------------------------------------------


def test_one_call_frees_a_thousand_messages_and_the_next_ones_the_rest(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    post(backend, *(b"" for _ in range(CLEAR_LIMIT + 40)))
    claim_all(backend)
    clock.advance(60.0)
    assert backend.claims.stats(QUEUE) == ClaimStats(claimed=40, free=CLEAR_LIMIT)
    assert backend.claims.stats(QUEUE) == ClaimStats(free=CLEAR_LIMIT + 40)


def test_a_reap_charges_and_frees_a_thousand_at_most(backend: SqliteBackend, clock: ManualClock) -> None:
    backend.enqueue_many(numbered(CLEAR_LIMIT - 40))
    backend.fetch_many(QUEUE, limit=CLEAR_LIMIT, ttl=60.0)
    backend.enqueue_many(numbered(100))
    claim_all(backend)
    clock.advance(60.0)
    assert len(backend.reap(QUEUE, AT_ONCE)) == CLEAR_LIMIT - 40
    assert (backend.stats(QUEUE).waiting, backend.stats(QUEUE).leased) == (CLEAR_LIMIT, 60)
    assert backend.reap(QUEUE, AT_ONCE) == []
    assert backend.stats(QUEUE).waiting == CLEAR_LIMIT + 60


def test_claims_that_were_emptied_do_not_stand_before_one_that_was_not(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    """As many as a well-behaved program leaves behind, which deletes everything and releases nothing."""
    known = post(backend, *(b"" for _ in range(CLEAR_LIMIT + 100)))
    for ident in known:
        held = claim(backend, 1, ttl=60.0)
        backend.claims.delete_many(QUEUE, [ident], held.id)
    [last] = post(backend)
    claim(backend, ttl=60.0)
    clock.advance(60.0)
    assert ids(claim(backend, ttl=600.0).messages) == [last]
    assert rows(backend, "claims") == 100 + 1
    backend.claims.stats(QUEUE)
    assert rows(backend, "claims") == 1


def test_a_claim_that_lost_its_messages_to_their_ends_is_dropped_too(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    post(backend, *(b"" for _ in range(40)), life=100.0)
    claim_all(backend, ttl=600.0)
    clock.set_wall(86_400.0)
    backend.claims.stats(QUEUE)
    assert (rows(backend, "messages"), rows(backend, "claims")) == (0, 2)
    clock.advance(600.0)
    backend.reap(QUEUE)
    assert rows(backend, "claims") == 0


def test_the_same_claim_id_is_a_new_claim_though_the_ended_one_is_not_cleared_yet(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    post(backend, *(b"" for _ in range(CLEAR_LIMIT + 60)))
    claim_all(backend)
    clock.advance(1.0)
    last = post(backend, b"last")
    claim(backend, 1, ttl=60.0, claim_id="a" * 32)
    clock.advance(60.0)
    again = claim(backend, 1, ttl=60.0, claim_id="a" * 32)
    assert (again.age, again.count) == (0, 1)
    assert ids(again.messages) != last
    assert backend.claims.stats(QUEUE) == ClaimStats(claimed=1, free=CLEAR_LIMIT + 60)


def test_one_call_buries_a_thousand_and_the_next_one_the_rest(backend: SqliteBackend, clock: ManualClock) -> None:
    post(backend, *(b"" for _ in range(BURY_LIMIT + 10)))
    claim_all(backend)
    clock.advance(60.0)
    backend.reap(QUEUE)
    backend.reap(QUEUE)
    good = post(backend, b"good")
    assert backend.claims.claim(QUEUE, limit=5, ttl=60.0, grace=60.0, max_claims=1) is None
    assert backend.stats(QUEUE).dead == BURY_LIMIT
    assert ids(claim(backend, 5, max_claims=1).messages) == good
    assert backend.stats(QUEUE).dead == BURY_LIMIT + 10


# --- what stays behind ----------------------------------------------------------------------------------


def test_nothing_of_messages_or_claims_stays_behind(backend: SqliteBackend, clock: ManualClock) -> None:
    for way in range(4):
        known = post(backend, *(b"body" for _ in range(10)), life=60.0)
        backend.enqueue_many(numbered(5))
        if way == 0:
            backend.claims.pop(QUEUE, 20)
        elif way == 1:
            held = claim(backend, 20)
            backend.claims.delete_many(QUEUE, ids(held.messages), held.id)
            backend.claims.release(QUEUE, held.id)
        elif way == 2:
            backend.claims.delete_many(QUEUE, known)
            claim(backend, 20, ttl=60.0)
        clock.advance(60.0)
        backend.reap(QUEUE)
        backend.claims.pop(QUEUE, 20)
        assert [rows(backend, table) for table in ("messages", "bodies", "claims")] == [0, 0, 0]


def test_ids_that_were_given_are_forgotten_where_no_pool_runs(backend: SqliteBackend, clock: ManualClock) -> None:
    backend.claims.post(QUEUE, [a_post(ident=f"mine-{number}") for number in range(20)])
    backend.claims.pop(QUEUE, 20)
    assert rows(backend, "ended") == 20
    clock.advance(601.0)
    post(backend)
    assert rows(backend, "ended") == 0


def test_an_ended_post_makes_room_for_its_id_within_a_transaction_of_the_callers_own(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    post(backend, b"old", ident="mine", life=60.0)
    clock.advance(60.0 + 601.0)
    with closing(backend._database._connect()) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert backend.enqueue_in(connection, [a_job(identifier="mine")]) == ["mine"]
        connection.execute("COMMIT")
    [message] = backend.list_messages()
    assert (message.id, message.handler) == ("mine", "report")
    assert backend.claims.stats(QUEUE) == ClaimStats(free=1, expired=1)
