"""What has ended: how much one call clears, what is left of it in the file, and that the counts are always right."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing

import pytest
from support.claims import AT_ONCE, a_post, claim, ids, post
from support.jobs import QUEUE, a_job, at, numbered

from jobpool.broker.claim_store import ClaimStats
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.clock import ManualClock
from jobpool.message.settlement import Ack, Nack
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.claim_rows import CLEAR_LIMIT
from jobpool_backends.sqlite.claims import BURY_LIMIT

Open = Callable[..., SqliteBackend]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backend(open_sqlite: Open, clock: ManualClock) -> SqliteBackend:
    return open_sqlite(clock=clock, pragmas=("synchronous = OFF",))


def rows(backend: SqliteBackend, table: str) -> int:
    with backend._database.read() as connection:
        count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return count


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


# --- counts ---------------------------------------------------------------------------------------------

_TRUTH = """
SELECT count(state = 0 OR NULL), count(state = 1 OR NULL), count(state = 2 AND handler <> '' OR NULL),
    count(state = 3 OR NULL), count(state = 4 OR NULL), count(state = 5 OR NULL),
    count(state = 2 AND handler = '' OR NULL)
FROM messages WHERE queue = ?
"""
_COUNTED = "SELECT waiting, delayed, leased, dead, posts, posts_delayed, posts_claimed FROM queues WHERE name = ?"
_HOMELESS = """
SELECT count(*) FROM messages LEFT JOIN claims ON claims.queue = messages.queue AND claims.id = messages.claim
WHERE (messages.claim IS NOT NULL) <> (state = 2 AND messages.boot IS NULL)
    OR (messages.claim IS NOT NULL AND claims.id IS NULL)
"""


class Anything:
    """Calls in any order, on few messages of one queue."""

    def __init__(self, backend: SqliteBackend, clock: ManualClock, seed: int) -> None:
        self.backend = backend
        self.clock = clock
        self.random = random.Random(seed)
        self.last = "a" * 32
        """The last claim that was tried."""
        self.steps = [self.post, self.post, self.enqueue, self.claim, self.claim, self.run, self.tend, self.wait]
        self.steps += [self.delete, self.pop, self.release, self.renew]

    def post(self) -> None:
        life, delay = self.random.choice([None, 60.0, 90.0]), self.random.choice([0.0, 30.0])
        post(self.backend, b"0", b"1", life=life, delay=delay)

    def enqueue(self) -> None:
        due = at(self.clock.wall() + 30.0) if self.random.random() < 0.5 else None
        self.backend.enqueue_many(numbered(2, scheduled_at=due))

    def claim(self) -> None:
        limit, most = self.random.randint(1, 4), self.random.choice([0, 1])
        self.last = f"{self.random.getrandbits(128):032x}"
        self.backend.claims.claim(QUEUE, limit=limit, ttl=60.0, grace=60.0, max_claims=most, claim_id=self.last)

    def delete(self) -> None:
        known = ids(self.backend.list_messages(limit=20))
        live = ids(self.backend.claims.list_claims(QUEUE))
        chosen = self.random.sample(known, len(known) // 2)
        self.backend.claims.delete_many(QUEUE, chosen, self.random.choice([None, *live]))

    def pop(self) -> None:
        self.backend.claims.pop(QUEUE, self.random.randint(1, 3))

    def release(self) -> None:
        self.backend.claims.release(QUEUE, self.last)

    def renew(self) -> None:
        live = ids(self.backend.claims.list_claims(QUEUE))
        if live:
            self.backend.claims.renew(QUEUE, self.random.choice(live), ttl=60.0)

    def run(self) -> None:
        leases = self.backend.fetch_many(QUEUE, limit=3, ttl=45.0)
        verbs = [self.random.choice([Ack(), Nack(), Nack(30.0), None]) for _ in leases]
        self.backend.settle_many([(lease, verb) for lease, verb in zip(leases, verbs, strict=True) if verb])

    def tend(self) -> None:
        verb = self.random.choice([Verb.RETRY, Verb.RESUME, Verb.DELETE])
        state = State.DELAYED if verb is Verb.DELETE else State.DEAD
        self.backend.bulk(MessageFilter(states=(state,)), verb)

    def wait(self) -> None:
        self.clock.advance(self.random.choice([1.0, 30.0, 60.0]))
        if self.random.random() < 0.5:
            self.backend.reap(QUEUE, AT_ONCE)


@pytest.mark.parametrize("seed", range(4))
def test_the_counts_are_those_of_the_messages_whatever_is_done(
    backend: SqliteBackend, clock: ManualClock, seed: int
) -> None:
    anything = Anything(backend, clock, seed)
    most = [0] * 7
    for _ in range(150):
        step = anything.random.choice(anything.steps)
        step()
        with backend._database.read() as connection:
            truth = connection.execute(_TRUTH, (QUEUE,)).fetchone()
            assert (connection.execute(_COUNTED, (QUEUE,)).fetchone() or (0,) * 7) == truth, step.__name__
            assert connection.execute(_HOMELESS).fetchone() == (0,), step.__name__
        most = list(map(max, most, truth))
    assert min(most) > 0
