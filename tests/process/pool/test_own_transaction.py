"""Handlers that ack in a transaction of their own: what they wrote, and that they are done, come true together."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from support.poolrig import PoolProcess, Rig
from support.waiting import wait_until

APP = Path(__file__).parents[2] / "support" / "apps_own_ack.py"


@pytest.fixture
def pool(rig: Rig) -> PoolProcess:
    rig.backend.ping()  # the queue's tables first: they share the file with the app's
    path = rig.directory / "jobpool.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE effects (of TEXT, attempt INTEGER)")
    return rig.start_pool(app=APP, workers=2, OWN_DATABASE=str(path)).wait_ready(2)


def effects(rig: Rig) -> Counter[str]:
    with closing(sqlite3.connect(rig.directory / "jobpool.db")) as connection:
        return Counter(row[0] for row in connection.execute("SELECT of FROM effects"))


@pytest.mark.parametrize("then", ["", "kill before", "kill after"])
def test_the_effect_and_the_follow_up_come_exactly_once(rig: Rig, pool: PoolProcess, then: str) -> None:
    ident = rig.enqueue("transfer", {"then": then})
    wait_until(lambda: effects(rig)[f"after {ident}"] == 1)
    rig.wait_drained()
    assert pool.stop() == 0
    assert effects(rig) == {ident: 1, f"after {ident}": 1}
    assert rig.dead() == {}


def test_what_fails_before_the_commit_leaves_nothing_behind(rig: Rig, pool: PoolProcess) -> None:
    ident = rig.enqueue("transfer", {"then": "raise"})
    wait_until(lambda: rig.is_dead(ident))
    assert pool.stop() == 0
    assert "before the commit" in (rig.inspect(ident).last_error or "")
    assert not effects(rig)


def test_a_handler_that_rolls_back_and_returns_is_acked_by_the_master_with_its_follow_ups(
    rig: Rig, pool: PoolProcess
) -> None:
    ident = rig.enqueue("transfer", {"then": "roll back"})
    wait_until(lambda: effects(rig)[f"after {ident}"] == 1)
    rig.wait_drained()
    assert pool.stop() == 0
    assert effects(rig) == {f"after {ident}": 1}


def test_a_handler_that_does_not_ack_is_acked_by_the_master(rig: Rig, pool: PoolProcess) -> None:
    ident = rig.enqueue("transfer", {"then": "not acked"})
    rig.wait_drained()
    assert pool.stop() == 0
    assert effects(rig) == {ident: 1}


def test_a_transaction_left_open_is_a_failed_attempt_and_locks_nobody_out(rig: Rig, pool: PoolProcess) -> None:
    ident = rig.enqueue("transfer", {"then": "leave open"})
    wait_until(lambda: rig.is_dead(ident))
    other = rig.enqueue("transfer")
    wait_until(lambda: effects(rig)[f"after {other}"] == 1)
    assert pool.stop() == 0
    assert "left open: commit it" in (rig.inspect(ident).last_error or "")
    assert set(effects(rig)) == {other, f"after {other}"}
