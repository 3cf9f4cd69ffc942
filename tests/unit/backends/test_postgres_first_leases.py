"""First leases of the Postgres backend: what they write, who else finds them, and when they become ordinary ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest
from postgres_explained import check_plans, explained
from postgres_rig import Rig
from support.jobs import QUEUE, a_job, new_leases, numbered
from support.waiting import wait_until

from jobpool.broker.values import MessageFilter, ReapPolicy, State, Verb
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres.inspect import STATS_CAP

NEVER_DIES = ReapPolicy(max_crashes=0, back_off=0.0)

_KINDS = """
SELECT count(*) FILTER (WHERE state = 0 AND holder IS NULL), count(*) FILTER (WHERE state = 0 AND holder IS NOT NULL),
    count(*) FILTER (WHERE state = 2)
FROM {schema}.messages
"""
_TURN = "SELECT pg_advisory_lock(hashtext('jobpool fetch of ' || %s), hashtext(%s))"


def kinds(rig: Rig) -> tuple[int, int, int]:
    """How many messages wait, are in a first lease, and in an ordinary one."""
    [(waiting, first, ordinary)] = rig.ask(_KINDS)
    return waiting, first, ordinary


def fetches(rig: Rig) -> int:
    [(count,)] = rig.ask("SELECT count(*) FROM {schema}.fetches")
    return int(count)


def sweep(backend: PostgresBackend) -> None:
    backend._database.next_sweep = 0.0
    backend._database.sweep()


def end(backend: PostgresBackend, leases: list[JobLease], settlement: Settlement) -> None:
    assert backend.settle_many([(lease, settlement) for lease in leases]) == [Settled.OK] * len(leases)


def end_now(rig: Rig) -> None:
    """Let all first leases have ended some time ago, as their fetches know."""
    rig.ask("UPDATE {schema}.messages SET first_until = 1 WHERE first_until IS NOT NULL")
    rig.ask("UPDATE {schema}.fetches SET until = 1")


def test_a_fetch_gives_fresh_messages_first_leases_and_others_ordinary_ones(rig: Rig, backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(6))
    end(backend, backend.fetch_many(QUEUE, limit=2), Release())
    assert kinds(rig) == (6, 0, 0)
    assert len(backend.fetch_many(QUEUE, limit=5)) == 5
    assert kinds(rig) == (1, 3, 2)


def test_a_fetch_without_its_queues_turn_gives_ordinary_leases(rig: Rig, backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(3))
    other = rig.connect(autocommit=True)
    other.execute(_TURN, [f'"{rig.schema}"', QUEUE])
    assert len(backend.fetch_many(QUEUE, limit=3)) == 3
    assert (kinds(rig), fetches(rig)) == ((0, 0, 3), 0)


def test_a_fetch_waits_for_its_queues_turn(rig: Rig, backend: PostgresBackend) -> None:
    rig.ask("ALTER FUNCTION {schema}.await_turn(text) SET lock_timeout = '30s'")
    backend.enqueue_many(numbered(6))
    other = rig.connect(autocommit=True)
    other.execute(_TURN, [f'"{rig.schema}"', QUEUE])
    assert len(backend.fetch_many(QUEUE, limit=2)) == 2  # it would give no first leases
    fetch = rig.submit(backend.fetch_many, QUEUE, limit=4)
    wait_until(lambda: rig.ask("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
    other.execute("SELECT pg_advisory_unlock_all()")
    assert len(fetch.result(30.0)) == 4
    assert kinds(rig) == (0, 4, 2)


def test_a_message_or_two_get_ordinary_leases(rig: Rig, backend: PostgresBackend) -> None:
    """Their index entries cost less than a row of `fetches`."""
    backend.enqueue_many(numbered(9))
    assert [len(backend.fetch_many(QUEUE, limit=limit)) for limit in (1, 2, 3)] == [1, 2, 3]
    assert (kinds(rig), fetches(rig)) == ((3, 3, 3), 1)


def test_programs_of_older_versions_get_ordinary_leases(rig: Rig, backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(7))
    assert len(rig.ask("SELECT * FROM {schema}.lease(%s, 3, 30000000, 'c1', 7)", QUEUE)) == 3
    assert (kinds(rig), fetches(rig)) == ((4, 0, 3), 0)


@pytest.mark.parametrize(
    ("settlement", "left"),
    [
        (Ack(), (0, 0, 0)),
        (Nack(), (3, 0, 0)),
        (Release(), (3, 0, 0)),
        (Abandon("x"), (0, 0, 0)),
        (Forfeit("x"), (0, 0, 3)),
    ],
    ids=["ack", "nack", "release", "abandon", "forfeit"],
)
def test_every_settlement_ends_a_first_lease(
    rig: Rig, backend: PostgresBackend, settlement: Settlement, left: tuple[int, int, int]
) -> None:
    leases = new_leases(backend, 3)
    assert kinds(rig) == (0, 3, 0)
    end(backend, leases, settlement)
    assert kinds(rig) == left
    assert rig.ask("SELECT count(*) FROM {schema}.messages WHERE fresh OR first_until IS NOT NULL") == [(0,)]


def test_a_renewal_makes_it_an_ordinary_one_that_is_settled_among_first_ones(
    rig: Rig, backend: PostgresBackend
) -> None:
    leases = new_leases(backend, 5)
    renewed = [lease for lease in backend.renew_many(leases[1:3], 60.0) if lease is not None]
    assert kinds(rig) == (0, 3, 2)
    end(backend, [leases[0], *renewed, *leases[3:]], Ack())
    assert kinds(rig) == (0, 0, 0)


def test_first_leases_that_have_ended_are_reaped_and_others_left(rig: Rig, backend: PostgresBackend) -> None:
    backend.enqueue_many([a_job(payload=number, priority=number % 3) for number in range(11)])
    lost = backend.fetch_many(QUEUE, limit=7, ttl=600.0)
    end_now(rig)
    kept = backend.fetch_many(QUEUE, limit=3, ttl=600.0)
    assert {reaped.id for reaped in backend.reap(QUEUE, NEVER_DIES)} == {lease.id for lease in lost}
    assert (kinds(rig), fetches(rig)) == ((8, 3, 0), 2)  # a row for each of two priorities
    end(backend, kept, Ack())
    assert [backend.ack(lease) for lease in lost] == [Settled.NOT_IN_FLIGHT] * 7


def test_a_reap_that_takes_less_than_there_is_takes_the_rest_next_time(
    rig: Rig, backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobpool_backends.postgres.leases.REAP_LIMIT", 2)
    backend.enqueue_many(numbered(5))
    backend.fetch_many(QUEUE, limit=5, ttl=600.0)
    end_now(rig)
    reaped = [len(backend.reap(QUEUE, NEVER_DIES)) for _ in range(4)]
    assert (reaped, fetches(rig)) == ([2, 2, 1, 0], 0)


def test_a_person_may_reap_first_leases_before_they_end(rig: Rig, backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(3))
    backend.fetch_many(QUEUE, limit=3, ttl=600.0)
    assert backend.reap_expired(QUEUE, visibility_timeout=500.0) == 0
    rig.ask("UPDATE {schema}.messages SET first_until = first_until - 550000000")  # it was taken 550 s ago
    assert backend.reap_expired(QUEUE, visibility_timeout=500.0) == 3
    assert (kinds(rig), fetches(rig)) == ((3, 0, 0), 0)


def test_a_lease_that_a_transaction_is_acking_is_not_forgotten(
    rig: Rig, backend: PostgresBackend, connection: psycopg.Connection[Any]
) -> None:
    first, *others = new_leases(backend, 3, ttl=600.0)
    end(backend, others, Ack())
    connection.execute(f"DELETE FROM \"{rig.schema}\".messages WHERE id = '{first.id}'")
    rig.ask("UPDATE {schema}.fetches SET until = 1")
    assert backend.reap(QUEUE, NEVER_DIES) == []
    sweep(backend)
    assert fetches(rig) == 1
    connection.rollback()
    rig.ask("UPDATE {schema}.messages SET first_until = 1")
    assert [reaped.id for reaped in backend.reap(QUEUE, NEVER_DIES)] == [first.id]


def test_a_sweep_forgets_fetches_whose_first_leases_have_gone(rig: Rig, backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(10))
    first, second, third = (backend.fetch_many(QUEUE, limit=3) for _ in range(3))
    end(backend, first, Ack())
    backend.renew_many(second, 60.0)
    end(backend, third[:2], Nack())
    assert fetches(rig) == 3
    sweep(backend)
    assert (kinds(rig), fetches(rig)) == ((3, 1, 3), 1)
    assert backend.ack(third[2]) is Settled.OK


def test_whoever_looks_sees_a_first_lease_as_a_lease(backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(6))
    leases = backend.fetch_many(QUEUE, limit=4, ttl=600.0)
    held = {lease.id for lease in leases}
    backend.renew_many(leases[:1], 600.0)
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.leased) == (2, 4)

    def listed(*states: State, **fields: Any) -> set[str]:
        return {message.id for message in backend.list_messages(MessageFilter(queue=QUEUE, states=states, **fields))}

    assert listed(State.LEASED) == held
    assert len(listed(State.WAITING)) == 2
    assert not listed(State.WAITING) & held
    assert len(listed()) == 6
    assert listed(State.LEASED, ids=tuple(held)) == held
    assert not listed(State.WAITING, ids=tuple(held))
    assert backend.count(MessageFilter(queue=QUEUE, states=(State.LEASED,))) == 4
    message = backend.inspect(leases[1].id)
    assert message is not None
    assert (message.state, message.expires_at is not None) == (State.LEASED, True)
    assert {message.id for message in backend.claims.list_free(QUEUE)} == listed(State.WAITING)
    claimed = backend.claims.stats(QUEUE)
    assert (claimed.claimed, claimed.free) == (4, 2)


def test_nobody_takes_changes_or_removes_what_is_in_a_first_lease(rig: Rig, backend: PostgresBackend) -> None:
    leases = new_leases(backend, 3, ttl=600.0)
    assert backend.fetch_many(QUEUE, limit=3) == []
    assert backend.claims.pop(QUEUE, limit=3) == []
    for verb in (Verb.DELETE, Verb.CANCEL):
        assert backend.bulk(MessageFilter(queue=QUEUE, states=(State.WAITING,)), verb) == 0
    places = rig.ask("SELECT ctid::text, seq FROM {schema}.messages")
    for name in ("discard", "cancel", "retry", "resume"):
        sql = f"SELECT {{schema}}.{name}(%s::text[]::tid[], %s::bigint[])"
        assert rig.ask(sql, [place for place, _ in places], [seq for _, seq in places]) == [(0,)]
    end(backend, leases, Ack())


def test_a_fetch_that_is_repeated_returns_its_first_leases_and_those_renewed_since(backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(4))
    leases = backend.fetch_many(QUEUE, limit=4, fetch_id="one")
    backend.renew_many(leases[:1], 60.0)
    backend.ack(leases[3])
    again = backend.fetch_many(QUEUE, limit=4, fetch_id="one")
    assert [lease.owner_token for lease in again] == [lease.owner_token for lease in leases[:3]]


def test_a_first_lease_and_its_ack_write_nothing_into_an_index(rig: Rig, backend: PostgresBackend) -> None:
    backend.enqueue_many(numbered(200))
    updates = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_all_tables WHERE relid = '{schema}.messages'::regclass"
    with rig.connect() as connection:
        connection.execute(
            f"SELECT FROM \"{rig.schema}\".take_leases('{QUEUE}', 120, 30000000, 'one', 7, true)".encode()
        )
        assert connection.execute(updates.replace("{schema}", f'"{rig.schema}"').encode()).fetchall() == [(120, 120)]
    end(backend, backend.fetch_many(QUEUE, limit=120, fetch_id="one"), Ack())
    assert kinds(rig) == (80, 0, 0)


def test_where_many_numbers_lie_between_them_the_leases_are_ordinary(rig: Rig, backend: PostgresBackend) -> None:
    """Messages that have drawn these numbers may come later: each sweep would pass over all of them."""
    backend.enqueue_many(numbered(3))
    rig.ask("SELECT setval(pg_get_serial_sequence('{schema}.messages', 'seq'), 30000)")
    backend.enqueue_many(numbered(3))
    backend.enqueue_many(numbered(3, priority=9))
    assert len(backend.fetch_many(QUEUE, limit=9)) == 9
    assert (kinds(rig), fetches(rig)) == ((0, 3, 6), 1)


def test_those_who_may_use_messages_may_use_fetches(rig: Rig, backend: PostgresBackend, role: str) -> None:
    backend.prepare()
    rig.ask(f'GRANT SELECT, INSERT ON {{schema}}.messages TO "{role}"; GRANT SELECT ON {{schema}}.messages TO PUBLIC')
    rig.ask("DROP TABLE {schema}.fetches")
    rig.ask("DELETE FROM {schema}.migrations WHERE version > 7")
    rig.open().prepare()
    table = f'"{rig.schema}".fetches'
    [rights] = rig.ask(
        "SELECT has_table_privilege(%s, %s, 'INSERT'), has_table_privilege(%s, %s, 'DELETE'),"
        " has_table_privilege('public', %s, 'SELECT')",
        *(role, table, role, table, table),
    )
    assert rights == (True, False, True)


_OTHERS = """
INSERT INTO {schema}.messages (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body)
SELECT 0, 0, 5, 0, false, true, 'other-' || number || '-' || n, 'queue-' || n, 'report', '{}'
FROM generate_series(1, 20) AS number, generate_series(1, 300) AS n
"""
_WAITING = _OTHERS.replace("'queue-' || n", "'reports'").replace("'other-'", "'mine-'").replace("1, 300", "1, 2500")


def test_a_lease_is_found_by_its_number_whatever_was_there_when_it_was_planned() -> None:
    """In a queue of 50,000 that nobody has analysed, among 300 others: by plans for an empty table, and by new ones."""
    with Rig(new=True) as rig:
        rig.open().prepare()
        rig.ask("ALTER TABLE {schema}.messages SET (autovacuum_enabled = off)")
        early = explained(rig)
        early.backend.enqueue_many(numbered(60))
        for number in range(3):
            found = early if number < 2 else explained(rig)
            leases = found.backend.fetch_many(QUEUE, limit=20, ttl=600.0)
            calls: list[Callable[[], object]] = [partial(found.backend.renew_many, leases, 600.0)]
            ways: list[Settlement] = [Nack(600.0), Release(600.0), Abandon("x"), Forfeit("x"), Ack()]
            calls += [partial(end, found.backend, leases[place::5], way) for place, way in enumerate(ways)]
            for call in calls:
                assert found.pages(call) < 600
                check_plans(found, "settle")
            if number == 0:
                rig.ask(_OTHERS)
                rig.ask(_WAITING)
        assert early.backend.stats(QUEUE).waiting == STATS_CAP


def test_first_leases_are_looked_for_in_one_index_and_nothing_beside_them(rig: Rig) -> None:
    """Before 50,000 that wait. A scan that goes on past the end of a fetch reads some 250 pages more."""
    rig.open().prepare()
    found = explained(rig)
    found.backend.enqueue_many(numbered(30))
    for _ in range(5):
        end(found.backend, found.backend.fetch_many(QUEUE, limit=3), Ack())
        found.backend.fetch_many(QUEUE, limit=3)
    rig.ask(_WAITING)
    for call in ("sweep(1000)", f"stats('{QUEUE}', 1000)", f"reap('{QUEUE}', 5, 1, 1, 1, 1, 1000)"):
        pages = found.pages(lambda call=call: found.backend._database.run(f'SELECT "{rig.schema}".{call}'))  # type: ignore[misc]
        assert pages < 1200, call
        read = {
            node["Index Name"]
            for text, node in found.nodes()
            if node.get("Relation Name") == "messages" and "fetches f" in text and "Index Name" in node
        }
        assert read == {"messages_fresh"}, call
