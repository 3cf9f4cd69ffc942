"""Who can write to the broker, and has no key, gets nothing run: forged bodies put straight into a pool's queue."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.poolrig import PoolProcess, Rig
from support.waiting import wait_until

from jobpool.backend import NewMessage, QueueBackend
from jobpool.definition import JobDefinition
from jobpool.envelope import MAX_BODY_BYTES
from jobpool.opening import open_backend
from jobpool.signing import EnvelopeSigner

KEY = "a key of the pool's own, long enough"
EVIL = {"tag": "evil"}

IMPORTED = """
from pathlib import Path
Path({marker!r}).touch()
import jobpool

@jobpool.handler("evil")
def run(ctx: jobpool.JobContext) -> None:
    Path({marker!r}).touch()
"""


def genuine(rig: Rig, ident: str, queue: str = "default", key: str = KEY) -> dict[str, Any]:
    """The wire object of a message as its producer signed it."""
    signer = EnvelopeSigner(key)
    packer = open_backend(f"sqlite:///{rig.directory}/packer.db", signer=signer)
    try:
        job = JobDefinition("work", {"tag": "good"}, queue=queue, identifier=ident, max_retries=1)
        wire: dict[str, Any] = json.loads(packer.pack(job).body)
        return wire
    finally:
        packer.close()


def forgeries(rig: Rig) -> dict[str, bytes]:
    """Id → body."""
    wires: dict[str, dict[str, Any]] = {
        "payload": {"payload": EVIL},
        "handler": {"job": "noop"},
        "module": {"job": "evil:run"},
        "evil": {"job": "evil"},
        "retries": {"maxRetries": 99},
        "priority": {"priority": 0},
        "name": {"name": "other"},
        "identifier": {"identifier": "somebody-else"},
        "meta": {"meta": {"_timeout": 0}},
        "null-signature": {"payload": EVIL, "_sig": None},
        "empty-signature": {"payload": EVIL, "_sig": ""},
        "upper-case": {"_sig": genuine(rig, "upper-case")["_sig"].upper()},
        "zeros": {"payload": EVIL, "_sig": "0" * 64},
    }
    bodies = {ident: json.dumps(genuine(rig, ident) | change).encode() for ident, change in wires.items()}
    bodies["other-key"] = json.dumps(genuine(rig, "other-key", key="another key")).encode()
    bodies["other-queue"] = json.dumps(genuine(rig, "other-queue", queue="other")).encode()
    bodies["not-json"] = b"{not json"
    bodies["empty"] = b""
    bodies["deep"] = b'{"job":"work","payload":' + b"[" * 100_000
    bodies["large"] = json.dumps(genuine(rig, "large")).encode() + b" " * MAX_BODY_BYTES
    bodies["twice"] = json.dumps(genuine(rig, "twice")).encode()[:-1] + b',"payload":{"tag":"evil"}}'
    return bodies


def put(backend: QueueBackend, bodies: dict[str, bytes]) -> None:
    """Straight into the broker, as who has its URL and its tables can."""
    backend._enqueue([NewMessage(ident, True, "default", "work", 5, None, body) for ident, body in bodies.items()])


def start(rig: Rig) -> PoolProcess:
    return rig.start_pool(JOBPOOL_SIGNING_KEY=KEY).wait_ready(2)


@pytest.mark.brokers
def test_forged_messages_are_dead_and_nothing_of_them_is_run_or_imported(rig: Rig) -> None:
    marker = rig.directory / "imported"
    (rig.directory / "evil.py").write_text(IMPORTED.format(marker=str(marker)))
    bodies = forgeries(rig)
    put(rig.backend, bodies)
    pool = start(rig)
    rig.sign_with(KEY)
    good = rig.enqueue("work", {"tag": "good"})
    rig.wait_drained()
    assert {line.id for line in rig.lines()} == {good}
    assert not marker.exists()
    dead = rig.dead()
    assert set(dead) == set(bodies)
    assert {message.reason for message in dead.values()} == {"rejected"}
    assert not any(message.attempts or message.crashes for message in dead.values())
    wait_until(lambda: pool.header().rejected == len(bodies), limit=30.0, what="all of them are counted")
    assert pool.stop() == 0


def test_a_flood_of_forged_messages_does_not_flood_the_log(rig: Rig) -> None:
    count = 400
    wire = genuine(rig, "x")
    put(rig.backend, {f"forged-{n}": json.dumps(wire | {"payload": n}).encode() for n in range(count)})
    pool = start(rig)
    rig.wait_drained()
    rig.sign_with(KEY)
    failed = rig.enqueue("fail", {"times": 9})
    rig.wait_drained()
    wait_until(lambda: pool.header().rejected == count, limit=30.0, what="all of them are counted")
    assert pool.stop() == 0
    assert [entry["id"] for entry in pool.log("a message is dead")] == [failed]
    told = pool.log("a message is rejected")
    assert 1 <= len(told) <= 50
    assert {entry["level"] for entry in told} == {"critical"}
    assert "the signature is wrong" in told[0]["error"]


@pytest.mark.brokers
def test_a_huge_body_is_rejected_unread_and_the_pool_goes_on(rig: Rig) -> None:
    put(rig.backend, {"huge": b"[" * (32 * MAX_BODY_BYTES)})
    rig.sign_with(KEY)
    good = rig.enqueue("work")
    pool = start(rig)
    rig.wait_drained()
    assert pool.stop() == 0
    assert {line.id for line in rig.lines()} == {good}
    dead = rig.inspect("huge")
    assert (dead.reason, dead.attempts, dead.crashes) == ("rejected", 0, 0)
    assert f"the body has {32 * MAX_BODY_BYTES} bytes; at most {MAX_BODY_BYTES}" in (dead.last_error or "")


@pytest.mark.brokers
def test_the_attempts_of_a_message_are_the_brokers_and_not_the_bodys(rig: Rig) -> None:
    """A body that says 0 attempts gives no more runs, and one that says many takes none away."""
    rig.sign_with(KEY)
    wires = {"reset": 0, "raised": 10**6}
    bodies = {}
    for ident, attempts in wires.items():
        packed = rig.backend.pack(JobDefinition("fail", {"times": 9}, identifier=ident, max_retries=2))
        bodies[ident] = json.dumps(json.loads(packed.body) | {"attempts": attempts}).encode()
    put(rig.backend, bodies)
    rig.run_pool("--until-empty", JOBPOOL_SIGNING_KEY=KEY)
    for ident in wires:
        assert [line.attempt for line in rig.starts(ident)] == [1, 2, 3]
        assert rig.inspect(ident).reason != "rejected"


def test_a_timeout_beyond_every_timer_is_rejected_also_without_a_key(rig: Rig) -> None:
    packed = rig.backend.pack(JobDefinition("work", {"tag": "evil"}, identifier="for-ever", timeout=60))
    put(rig.backend, {"for-ever": packed.body.replace(b'"_timeout":60.0', b'"_timeout":1e300')})
    good = rig.enqueue("work")
    pool = rig.run_pool("--until-empty")
    assert rig.inspect("for-ever").reason == "rejected"
    assert {line.id for line in rig.lines()} == {good}
    assert pool.process.returncode == 0


@pytest.mark.brokers
def test_a_pool_without_a_key_says_so_once_where_others_reach_the_broker(rig: Rig) -> None:
    unsigned = rig.run_pool("--until-empty").log("messages are not signed")
    signed = rig.run_pool("--until-empty", JOBPOOL_SIGNING_KEY=KEY).log("messages are not signed")
    assert len(unsigned) == (0 if rig.url.startswith("sqlite") else 1)
    assert signed == []
    if unsigned:
        assert unsigned[0]["level"] == "warning"
        assert unsigned[0]["mend"] == "set signing_key: who reaches the broker can enqueue"
