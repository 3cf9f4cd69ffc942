"""Batches in Postgres: in a handler's own transaction, at the commit, in the same plan however many there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from postgres_explained import check_plans, explained
from postgres_rig import Rig, together
from support.jobs import QUEUE, a_job, new_lease, new_leases, numbered
from support.waiting import wait_until

from jobpool.broker.packing import pack
from jobpool.broker.values import MessageFilter, NewBatch, ReapPolicy, Verb
from jobpool.errors import InvalidJob
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Abandon, Ack, Settled
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres.in_transaction import ack

BATCH = "import-of-May"
DONE = "done"
"""The queue of callbacks."""


def opened(backend: PostgresBackend, ident: str = BATCH, parent: str | None = None, **callback: Any) -> None:
    job = JobDefinition("finish", **{"queue": DONE, "identifier": f"{ident}:done", **callback})
    done = pack(backend, job, str(job.identifier), callback_of=ident)
    backend.batches.open(NewBatch(ident, parent, on_done=done))


def counts(backend: PostgresBackend, ident: str = BATCH) -> tuple[int, int, int, int]:
    found = backend.batches.get(ident)
    assert found is not None
    return found.total, found.succeeded, found.failed, found.cancelled


def callbacks(backend: PostgresBackend) -> list[str]:
    return [message.id for message in backend.list_messages(MessageFilter(queue=DONE))]


def test_a_member_that_acks_itself_brings_another(rig: Rig, backend: PostgresBackend) -> None:
    """Until the commit, in which the batch would end, that has joined."""
    opened(backend)
    lease = new_lease(backend, batch=BATCH)
    backend.batches.close(BATCH)
    with rig.connect() as connection:
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # as some callers do, to learn of their own violations
        ack(connection, backend.ticket(lease), [backend.pack(a_job(batch=BATCH))])
    assert counts(backend) == (2, 1, 0, 0)
    assert callbacks(backend) == []
    [last] = backend.fetch_many(QUEUE, limit=2)
    assert backend.ack(last)
    assert callbacks(backend) == [f"{BATCH}:done"]


def test_a_batch_that_is_not_open_undoes_the_callers_transaction(rig: Rig, backend: PostgresBackend) -> None:
    opened(backend)
    opened(backend, "open")
    backend.batches.close(BATCH)
    connection = rig.connect()
    with pytest.raises(InvalidJob, match=f"batch {BATCH} is not open"):
        backend.enqueue_in(connection, [a_job(batch="open"), a_job(batch=BATCH)])
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        connection.execute("SELECT 1")
    connection.rollback()
    assert counts(backend, "open") == (0, 0, 0, 0)
    backend.batches.close("open")
    assert callbacks(backend) == [f"{BATCH}:done", "open:done"]


def test_ends_of_one_batch_wait_for_an_own_transaction_and_those_of_others_do_not(
    rig: Rig, backend: PostgresBackend
) -> None:
    opened(backend)
    opened(backend, "other")
    first, second = new_leases(backend, 2, batch=BATCH)
    other = new_lease(backend, batch="other")
    none = new_lease(backend)
    backend.batches.close(BATCH)
    connection = rig.connect()
    ack(connection, backend.ticket(first))
    assert rig.open(timeout=2).settle_many([(other, Ack()), (none, Ack())]) == [Settled.OK] * 2
    assert counts(backend) == (2, 0, 0, 0)
    waiting = rig.submit(backend.ack, second)
    wait_until(rig.waits_for_another, what="it waits")
    connection.commit()
    assert waiting.result(30.0) is Settled.OK
    assert callbacks(backend) == [f"{BATCH}:done"]


def test_a_callback_that_cannot_be_added_undoes_the_end_of_the_last_member(rig: Rig, backend: PostgresBackend) -> None:
    opened(backend)
    lease = new_lease(backend, batch=BATCH)
    backend.batches.close(BATCH)
    rig.ask(f"ALTER TABLE {{schema}}.messages ADD CONSTRAINT never CHECK (queue <> '{DONE}')")
    with pytest.raises(psycopg.errors.CheckViolation):
        backend.ack(lease)
    assert counts(backend) == (1, 0, 0, 0)
    assert backend.stats(QUEUE).leased == 1
    rig.ask("ALTER TABLE {schema}.messages DROP CONSTRAINT never")
    assert backend.ack(lease) is Settled.OK
    assert callbacks(backend) == [f"{BATCH}:done"]


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_ends_at_once_are_each_counted(rig: Rig, isolation: str) -> None:
    """Of batches in one another, and beside each other in each call."""
    clients = [rig.open(timeout=60, isolation=isolation) for _ in range(4)]
    backend, names = clients[0], ["outer", "a", "b"]
    for name in names:
        opened(backend, name, None if name == "outer" else "outer")
        backend.enqueue_many(numbered(20, batch=name))
    leases = backend.fetch_many(QUEUE, limit=60, ttl=300.0)
    for name in names:
        backend.batches.close(name)

    def end(number: int) -> None:
        for part in range(4):
            mine = leases[number::4][part::4]
            answers = clients[number].settle_many([(lease, Ack()) for lease in mine])
            assert set(answers) == {Settled.OK}

    together(4, end)
    assert [counts(backend, name)[:2] for name in names] == [(22, 22), (20, 20), (20, 20)]
    assert sorted(callbacks(backend)) == sorted(f"{name}:done" for name in names)


def test_a_dead_lock_is_ended_and_the_step_tried_again(rig: Rig, backend: PostgresBackend) -> None:
    """A caller's own transaction may lock batches in any order. The server may choose that one to give way, too."""
    for name in ("a", "b"):
        opened(backend, name)
    joined = 0
    with rig.connect(autocommit=True) as connection:
        with connection.transaction():
            backend.enqueue_in(connection, [a_job(batch="b")])
            waiting = rig.submit(rig.open(timeout=60).enqueue_many, [a_job(batch="a"), a_job(batch="b")])
            wait_until(rig.waits_for_another, what="it waits")
            with suppress(psycopg.errors.DeadlockDetected), connection.transaction():
                backend.enqueue_in(connection, [a_job(batch="a")])
                joined = 1
        assert len(waiting.result(60.0)) == 2
    assert [counts(backend, name)[0] for name in ("a", "b")] == [1 + joined, 2]


def test_the_end_wakes_those_who_wait_for_the_callback_and_for_the_batch(rig: Rig, backend: PostgresBackend) -> None:
    opened(backend)
    lease = new_lease(backend, batch=BATCH)
    backend.batches.close(BATCH)
    assert rig.ask("SELECT {schema}.await_ends(%s)", [BATCH]) == [(False,)]
    callback = rig.submit(rig.open().wait_any, [DONE], 30.0)
    end = rig.submit(rig.open().wait_ended, [BATCH], 30.0)
    wanted = {(DONE,), (f"={BATCH}",)}
    wait_until(lambda: set(rig.ask("SELECT queue FROM {schema}.sleepers")) >= wanted, what="they sleep")
    backend.ack(lease)
    assert callback.result(30.0) == DONE
    end.result(30.0)
    assert rig.ask("SELECT {schema}.await_ends(%s)", [BATCH]) == [(True,)]


def test_a_batch_whose_row_was_deleted_by_hand_ends_nobodys_step(rig: Rig, backend: PostgresBackend) -> None:
    opened(backend)
    leases = new_leases(backend, 2, batch=BATCH)
    rig.ask("DELETE FROM {schema}.batches")
    assert backend.settle_many([(leases[0], Ack()), (leases[1], Abandon("failed"))]) == [Settled.OK] * 2
    assert backend.batches.get(BATCH) is None


MANY = """
INSERT INTO {schema}.messages (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body,
    batch)
SELECT {schema}.moment(), 0, 5, 0, false, false, 'many-' || number, 'many', 'report', '{}', 'many-' || number %% 100
FROM generate_series(1, 20000) AS number;
INSERT INTO {schema}.batches (id, created_at, callbacks, ended_at, until, parent)
SELECT 'many-' || number, number, '[]', number, CASE WHEN number > 100 THEN {schema}.moment() * 2 END,
    CASE WHEN number > 100 THEN 'many-1' END
FROM generate_series(1, 20000) AS number
"""


def test_no_step_reads_more_than_its_share_of_batches_and_members() -> None:
    """By plans that were made while the tables were empty, and by those that are made now."""
    with Rig(new=True) as rig:
        rig.open().prepare()
        early = explained(rig)
        few = costs(early)
        rig.ask(MANY.replace("%%", "%"))
        for found in (early, explained(rig)):
            many = costs(found)
            assert not {name: (few[name], many[name]) for name in few if many[name] > few[name] * 1.5 + 10}


def costs(found: Any) -> dict[str, int]:
    """What each step that has to do with batches costs, in pages."""
    backend: PostgresBackend = found.backend
    pages: dict[str, int] = {}
    left = MessageFilter(queue=QUEUE)

    def measure(name: str, work: Callable[[], object]) -> None:
        pages[name] = min(pages.get(name, 1_000_000), found.pages(work))
        check_plans(found, name)

    for number in range(3):
        name = f"{len(callbacks(backend))}-{number}-{id(found)}"
        measure("open", partial(opened, backend, name, queue=QUEUE))
        measure("open nested", partial(opened, backend, f"{name}-inner", name))
        measure("join", partial(backend.enqueue_many, numbered(8, batch=name)))
        leases = backend.fetch_many(QUEUE, limit=6, ttl=100.0)
        measure("members", partial(backend.batches.members, name, 5))
        measure("get", partial(backend.batches.get, name))
        measure("ack", partial(backend.settle_many, [(lease, Ack()) for lease in leases[:4]]))
        measure("abandon", partial(backend.abandon, leases[4], "failed"))
        measure("forfeit", partial(backend.forfeit, leases[5], "SIGSEGV"))
        measure("reap", lambda: backend.reap(QUEUE, ReapPolicy(max_crashes=0)))
        measure("cancel", lambda: backend.bulk(left, Verb.CANCEL, limit=1))
        measure("delete", lambda: backend.bulk(left, Verb.DELETE, limit=3))
        measure("close", partial(backend.batches.close, name))
        measure("end", partial(backend.batches.close, f"{name}-inner"))
        measure("sweep", lambda: backend._database.value("sweep", 100))
        backend.bulk(left, Verb.DELETE)
    assert math.isfinite(sum(pages.values()))
    return pages
