"""A schema of version 2, which knew no claims, with messages in it: it becomes what a new one is, and goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres_rig import Rig
from support.claims import a_post, claim, found, ids
from test_postgres_migrating import make_version, shape, versions

from jobpool.broker.claim_store import Deleted
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres.schema import VERSION

_USED_BY_VERSION_2 = """
SELECT {schema}.enqueue_one(name, true, 'reports', 'report', 5::smallint, NULL,
    convert_to('{"job":"report","payload":{},"queue":"reports"}', 'UTF8'))
FROM unnest('{leased, failed, waits, last}'::text[]) AS name;
SELECT * FROM {schema}.fetch('reports', 2, 300000000, 'c1', 7);
SELECT {schema}.settle('c2', '{}', '{}', '{}', '{reports}', '{2}', '{7}', 'b', '{-1}', '{timeout}', '{too late}');
"""
_CALLS_OF_VERSION_2 = {
    "SELECT * FROM {schema}.stats('reports', 10000)": 6,
    "SELECT seq, id, state, place FROM {schema}.look_through("
    "NULL, '{0,1,2,3}', false, false, NULL, NULL, NULL, NULL, 0, 20, false, 20)": 4,
    "SELECT * FROM {schema}.reap('reports', 5, 1, 0, 0, NULL, 1000)": 4,
}
"""What a connected pool of that version asks, and how many columns it takes."""


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(new=True) as rig:
        make_version(rig, 2)
        yield rig


def repeated_fetch(rig: Rig, backend: PostgresBackend) -> list[JobLease]:
    """What the fetch of version 2 answered, asked for again."""
    rows = rig.ask("SELECT * FROM {schema}.lease('reports', 2, 300000000, 'c1', 8)")
    return backend._leases._leased("reports", rows, backend.clock.boot())


def test_it_becomes_what_a_new_one_is(rig: Rig) -> None:
    rig.ask(_USED_BY_VERSION_2)
    before = shape(rig)
    file = "SELECT pg_relation_filenode('{schema}.messages'::regclass)"
    node = rig.ask(file)
    rig.open().prepare()
    assert rig.ask(file) == node, "the table was not rewritten"
    assert versions(rig) == list(range(1, VERSION + 1))
    with Rig(new=True) as new:
        new.open().prepare()
        assert shape(rig) == shape(new) != before


def test_what_was_there_can_be_claimed_and_goes_on(rig: Rig) -> None:
    rig.ask(_USED_BY_VERSION_2)
    backend = rig.open()
    assert [message.id for message in backend.list_messages()] == ["leased", "failed", "waits", "last"]
    [lease] = repeated_fetch(rig, backend)
    backend.claims.post("reports", [a_post(ident="posted", life=60.0)])
    held = claim(backend)
    assert ids(held.messages) == ["waits", "last", "posted"]
    assert [message.claims for message in held.messages] == [1, 1, 1]
    assert backend.claims.delete_many("reports", ["waits", "leased"], held.id) == [Deleted.DONE, Deleted.FORBIDDEN]
    assert backend.claims.release("reports", held.id) == 2
    assert backend.ack(lease) is Settled.OK
    assert backend.bulk(MessageFilter(), Verb.RESUME) == 1
    assert (found(backend, "failed").state, found(backend, "failed").last_error) == (State.WAITING, "too late")
    assert ids(backend.fetch_many("reports", limit=5)) == ["failed", "last"]
    assert backend.stats("reports").posted == 1


def test_a_pool_of_version_2_that_is_connected_goes_on_beside_posts_and_claims(rig: Rig) -> None:
    rig.ask(_USED_BY_VERSION_2)
    backend = rig.open()
    backend.claims.post("reports", [a_post(), a_post()])
    claim(backend, 2)
    for sql, columns in _CALLS_OF_VERSION_2.items():
        assert {len(row) for row in rig.ask(sql)} <= {columns}, sql
    assert rig.ask("SELECT {schema}.settle('c3', '{reports}', '{1}', '{7}')") == [("o",)]
    assert rig.ask("SELECT id FROM {schema}.fetch('reports', 5, 300000000, 'c4', 9)") == []
