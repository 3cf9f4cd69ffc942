"""Handlers that ack in a transaction of their own: what they wrote, and that they are done, come true together."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from support.poolrig import Rig
from support.waiting import wait_until

APP = Path(__file__).parents[2] / "support" / "apps_own_ack.py"


def effects(rig: Rig) -> Counter[str]:
    with closing(sqlite3.connect(rig.directory / "jobpool.db")) as connection:
        return Counter(row[0] for row in connection.execute("SELECT of FROM effects"))


def test_effect_ack_and_follow_up_come_together_or_not_at_all(rig: Rig) -> None:
    rig.backend.ping()  # the queue's tables first: they share the file with the app's
    path = rig.directory / "jobpool.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE effects (of TEXT, attempt INTEGER)")
    pool = rig.start_pool(app=APP, workers=2, OWN_DATABASE=str(path)).wait_ready(2)

    once = [rig.enqueue("transfer", {"then": then}) for then in ("", "kill before", "kill after")]
    failing = rig.enqueue("transfer", {"then": "raise"})
    rolled_back = rig.enqueue("transfer", {"then": "roll back"})  # the master acks it, with its follow-up
    not_acked = rig.enqueue("transfer", {"then": "not acked"})  # nor has it a follow-up
    rig.wait_drained()
    left_open = rig.enqueue("transfer", {"then": "leave open"})
    wait_until(lambda: rig.is_dead(left_open))
    once.append(rig.enqueue("transfer"))  # nobody is locked out
    rig.wait_drained()
    assert pool.stop() == 0

    followed = {f"after {ident}": 1 for ident in (*once, rolled_back)}
    assert effects(rig) == dict.fromkeys((*once, not_acked), 1) | followed
    dead = rig.dead()
    assert set(dead) == {failing, left_open}
    assert "before the commit" in (dead[failing].last_error or "")
    assert "left open: commit it" in (dead[left_open].last_error or "")
