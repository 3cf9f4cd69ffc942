"""What must never run: forged, altered, moved and malformed messages (FAULTS 26)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

from support.poolrig import Rig

KEY = "secret-key"


def tamper(rig: Rig, ident: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite the stored body of a message, as who reaches the file could."""
    database = sqlite3.connect(rig.directory / "jobpool.db")
    with database:
        found = database.execute("SELECT seq, body FROM messages JOIN bodies USING (seq) WHERE id = ?", (ident,))
        [(seq, body)] = found.fetchall()
        changed = change(json.loads(body))
        new = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
        database.execute("UPDATE bodies SET body = ? WHERE seq = ?", (new, seq))
    database.close()


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another payload": lambda wire: wire | {"payload": {"tag": "evil"}},
    "another handler": lambda wire: wire | {"job": "noop"},
    "no signature": lambda wire: {key: value for key, value in wire.items() if key != "_sig"},
    "a null signature": lambda wire: wire | {"_sig": None},
    "a short signature": lambda wire: wire | {"_sig": wire["_sig"][:-1]},
    "more retries": lambda wire: wire | {"maxRetries": 99},
    "another queue": lambda wire: wire | {"queue": "other"},
    "not JSON": lambda _: b"{not json",
    "not an object": lambda _: b"[1, 2]",
    "very deep": lambda _: b'{"job":"work","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "empty": lambda _: b"",
}


def test_forged_messages_are_dead_and_never_run(rig: Rig) -> None:
    rig.sign_with(KEY)
    ids = {name: rig.enqueue("work", {"tag": name}) for name in FORGERIES}
    good = rig.enqueue("work", {"tag": "good"})
    for name, ident in ids.items():
        tamper(rig, ident, FORGERIES[name])
    pool = rig.run_pool("--until-empty", "--fail-on-dead", JOBPOOL_SIGNING_KEY=KEY)
    assert pool.wait() == 1
    assert {line.id for line in rig.lines()} == {good}
    dead = rig.dead()
    assert set(dead) == set(ids.values())
    assert {message.reason for message in dead.values()} == {"rejected"}
    assert not any(message.crashes for message in dead.values())


def test_what_another_key_signed_is_rejected_unless_it_is_known(rig: Rig) -> None:
    rig.sign_with("old-key")
    old = rig.enqueue("work")
    rig.run_pool("--until-empty", JOBPOOL_SIGNING_KEY=json.dumps(["new-key", "old-key"]))
    assert rig.ends(old)
    stale = rig.enqueue("work")
    rig.run_pool("--until-empty", JOBPOOL_SIGNING_KEY="new-key")
    assert rig.inspect(stale).reason == "rejected"
    assert len(rig.starts()) == 1


def test_a_handler_that_its_queue_does_not_allow_is_not_run(rig: Rig) -> None:
    allowed, other = rig.enqueue("work"), rig.enqueue("fail")
    rig.run_pool("--until-empty", "--queue-handlers", "default=work,noop")
    assert rig.ends(allowed)
    assert rig.inspect(other).reason == "handler-not-allowed"
    assert len(rig.starts()) == 1


def test_without_keys_every_message_is_taken_signed_or_not(rig: Rig) -> None:
    rig.enqueue("work")
    rig.sign_with(KEY)
    rig.enqueue("work")
    assert rig.run_pool("--until-empty", "--fail-on-dead").wait() == 0
    assert len(rig.ends()) == 2


def test_an_empty_key_is_a_mistake_and_never_signing_off(rig: Rig) -> None:
    pool = rig.run_pool("--until-empty", JOBPOOL_SIGNING_KEY="")
    assert pool.wait() == 2
    assert "JOBPOOL_SIGNING_KEY" in pool.log_path.read_text()
