"""A broker that answers, and refuses: to write (row 33), or to let the pools in at all (row 36)."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import psycopg
import pytest
from redis import Redis
from support.faultmoves import end_unharmed, gated, let_pass, start_pools, stop_all
from support.outages import REFUSES_WRITES, wait_back
from support.poolrig import Rig
from support.poolrig_brokers import BeanstalkBroker, Broker, PostgresBroker, RedisBroker
from support.waiting import wait_until

REFUSES_POOL = "the broker refuses this pool; trying again until that is mended"
BACK_AGAIN = "the broker answers again"

IMPATIENT = """
import runpy, sys
from jobpool.master import deadlines
deadlines.MAX_REFUSED_S = 1.0
sys.argv = sys.argv[3:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""
"""Runs the module that follows as `PYTHON -m MODULE …`, with a second in place of half an hour."""

AWAY = 4.0
"""Seconds for which the rights are gone: more than a try and its pauses, and less than a lease."""


# --- it does not write --------------------------------------------------------------------------------------------


@pytest.mark.row(33)
@pytest.mark.on("beanstalk")
@pytest.mark.own_server
@pytest.mark.ttr(3)
def test_what_a_draining_beanstalkd_refuses_holds_up_no_ack(broker: Broker, rig: Rig) -> None:
    """A nack puts a copy, which is refused; an ack deletes, which is not."""
    assert isinstance(broker, BeanstalkBroker)
    pools = start_pools(rig, 2, "--retry", "fixed base=100ms")
    opened = rig.directory / "opened"
    rig.wait_started(*[gated(rig, opened, opened) for _ in range(4)])
    failing = rig.enqueue_many("fail", [{}] * 2, max_retries=9, priority=1)
    good = rig.enqueue_many("work", [{}] * 200)
    broker.server.drain()
    opened.touch()
    wait_back(lambda: set(good) <= settled(rig), "the good ones are acked")
    assert not settled(rig) & set(failing)
    wait_until(lambda: all(len(rig.starts(ident)) > 1 for ident in failing), what="what cannot be settled runs again")
    told = [entry["error"] for pool in pools for entry in pool.log(REFUSES_WRITES)]
    assert all("drain mode" in error and "Restart it" in error for error in told)
    assert 1 <= len(told) <= 2, "once a pool, however often it is refused"
    broker.server.restart()
    rig.wait_drained()
    stop_all(rig, pools)
    rig.account().assert_clean()


def settled(rig: Rig) -> set[str]:
    return {line.id for line in rig.lines("settled")}


# --- it does not let the pools in ---------------------------------------------------------------------------------


@contextmanager
def renamed_table(broker: Broker | None, rig: Rig) -> Iterator[None]:
    """The table of messages has another name."""
    if broker is None:
        with closing(sqlite3.connect(rig.directory / "jobpool.db", timeout=30.0, isolation_level=None)) as database:
            database.execute("ALTER TABLE messages RENAME TO away")
            yield
            database.execute("ALTER TABLE away RENAME TO messages")
        return
    assert isinstance(broker, PostgresBroker)
    with psycopg.connect(broker.server_url, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {broker.place}.messages RENAME TO away".encode())
        yield
        connection.execute(f"ALTER TABLE {broker.place}.away RENAME TO messages".encode())


@contextmanager
def no_login(broker: Broker) -> Iterator[None]:
    """Nobody may log in any more, and who had is thrown out."""
    assert isinstance(broker, PostgresBroker)
    with psycopg.connect(broker.server_url, autocommit=True) as connection:
        connection.execute("ALTER ROLE postgres NOLOGIN")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        yield
        connection.execute("ALTER ROLE postgres LOGIN")


@contextmanager
def no_rights(broker: Broker) -> Iterator[None]:
    """The pools' user may do nothing but ask whether the server is there."""
    assert isinstance(broker, RedisBroker)
    with broker.client() as client:
        client.execute_command("ACL", "SETUSER", "root", "on", ">root", "~*", "&*", "+@all")
    with Redis(host=broker.server.host, port=broker.server.port, username="root", password="root") as root:
        root.execute_command("ACL", "SETUSER", "default", "-@all", "+ping", "+hello", "+client", "+select", "+info")
        yield
        root.execute_command("ACL", "SETUSER", "default", "+@all")


@pytest.mark.row(36)
@pytest.mark.on("sqlite", "postgres")
@pytest.mark.own_server
def test_a_table_that_is_away_for_a_while_is_waited_for(broker: Broker | None, rig: Rig) -> None:
    assert_waited_for(rig, renamed_table(broker, rig), "has lost a table")


@pytest.mark.more
@pytest.mark.row(36)
@pytest.mark.on("postgres")
@pytest.mark.own_server
def test_a_login_that_is_away_for_a_while_is_waited_for(broker: Broker, rig: Rig) -> None:
    assert_waited_for(rig, no_login(broker), "does not know this user")


@pytest.mark.row(36)
@pytest.mark.on("redis")
@pytest.mark.own_server
def test_rights_that_are_away_for_a_while_are_waited_for(broker: Broker, rig: Rig) -> None:
    assert_waited_for(rig, no_rights(broker), "grant it the commands and the keys")


def assert_waited_for(rig: Rig, withdrawn: AbstractContextManager[None], said: str) -> None:
    """What has finished meanwhile is settled when it is back, and runs once. `said`: a part of what pools say of it."""
    [pool] = start_pools(rig, 1)
    opened = rig.directory / "opened"
    held = [gated(rig, opened, opened) for _ in range(2)]
    rig.wait_started(*held)
    waiting = rig.enqueue_many("work", [{}] * 20)
    with withdrawn:
        opened.touch()
        wait_until(lambda: len(rig.ends()) >= len(held), what="what ran has ended")
        wait_until(lambda: pool.log(REFUSES_POOL), what="the pool says that it is refused")
        let_pass(AWAY)
    wait_until(lambda: pool.log(BACK_AGAIN), what="its end is told")
    end_unharmed(rig, [pool])
    [refused] = pool.log(REFUSES_POOL)
    assert said in refused["error"]
    assert len(pool.log(BACK_AGAIN)) == 1
    assert {line.id for line in rig.ends()} == {*held, *waiting}


@pytest.mark.row(36)
@pytest.mark.on("sqlite")
def test_a_pool_that_is_refused_for_too_long_settles_what_it_can_and_exits(broker: Broker | None, rig: Rig) -> None:
    pool = rig.start_pool("--stop-grace", "2", through=(sys.executable, "-c", IMPATIENT)).wait_ready(2)
    rig.enqueue("work")
    rig.wait_drained()
    with renamed_table(broker, rig):
        assert pool.wait() == 1
    [entry] = pool.log("the broker has refused this pool for too long")
    assert "restore it" in entry["error"]
    assert not pool.log("a thread of the master failed: a fault in jobpool, please report it")
    rig.assert_no_processes_left()


@pytest.mark.row(36)
@pytest.mark.on("redis")
@pytest.mark.own_server
def test_a_refusal_before_the_first_answer_ends_a_pool_at_once(broker: Broker, rig: Rig) -> None:
    with no_rights(broker):
        pool = rig.start_pool()
        assert pool.wait() == 1
    assert "grant it the commands and the keys" in pool.log_path.read_text()
    assert not pool.log(REFUSES_POOL)
