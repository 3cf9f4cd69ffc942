"""Envelopes that were tampered with, put straight into the broker of two pools that know a key.

Each is dead and never run, or it is the very same job and is run once. That this holds for every byte replaced by every
other, and for every field, is shown without a broker in `unit/message/test_signing_attacks.py`.
"""

from __future__ import annotations

import json
import os
import random
import time
from contextlib import closing
from typing import Any

import pytest
from support.faultmoves import Figure, begin_peak, peak
from support.poolrig import PoolProcess, Rig
from support.seeds import printed_seed
from support.waiting import wait_until

from jobpool.broker.opening import open_backend
from jobpool.broker.values import NewMessage
from jobpool.errors import MalformedEnvelope
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES, decode, encode, verify
from jobpool.message.signing import EnvelopeSigner

KEY, OLD = "a key of the pool's own, long enough", "the key before it, still listed"
KNOWN = EnvelopeSigner([KEY, OLD])
EVIL = {"tag": "evil"}
DEEP = 100_000
HUGE = 32 << 20
PATIENCE = 300.0
"""Seconds for a broker to take a huge body, on a busy machine."""

MOST = 16 << 20
"""Bytes more than a master has that is quiet, whatever the size of a body is: what any first message costs it."""

LINES_OF_A_FLOOD = 50
"""At most, of one pool: five lines in ten seconds, and how many were left out."""

IMPORTED = """
from pathlib import Path
Path({marker!r}).touch()
import jobpool

@jobpool.handler("evil")
def run(ctx: jobpool.JobContext) -> None:
    Path({marker!r}).touch()
"""


def genuine(ident: str, handler: str = "work", payload: Any = None, *, queue: str = "default", key: str = KEY) -> bytes:
    """The body of a message as its producer signed it."""
    job = JobDefinition(handler, payload or {"tag": "good"}, queue=queue, identifier=ident, max_retries=1)
    return encode(job, identifier=ident, queue=queue, signer=EnvelopeSigner(key), now=time.time())


def wire(ident: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(genuine(ident))
    return found


def forgeries() -> dict[str, bytes]:
    """Id → body; none of them may run."""
    changes: dict[str, dict[str, Any]] = {
        "payload": {"payload": EVIL},
        "handler": {"job": "noop"},
        "module": {"job": "evil:run"},
        "evil": {"job": "evil"},
        "retries": {"maxRetries": 99},
        "priority": {"priority": 0},
        "name": {"name": "other"},
        "identifier": {"identifier": "somebody-else"},
        "meta": {"meta": {"_timeout": 0}},
        "for-ever": {"meta": {"_timeout": 1e300}},
        "null-signature": {"payload": EVIL, "_sig": None},
        "empty-signature": {"payload": EVIL, "_sig": ""},
        "short-signature": {"_sig": wire("short-signature")["_sig"][:-1]},
        "upper-case": {"_sig": wire("upper-case")["_sig"].upper()},
        "zeros": {"payload": EVIL, "_sig": "0" * 64},
    }
    bodies = {ident: json.dumps(wire(ident) | change).encode() for ident, change in changes.items()}
    bodies["no-signature"] = json.dumps(
        {key: each for key, each in wire("no-signature").items() if key != "_sig"}
    ).encode()
    bodies["other-key"] = genuine("other-key", key="a key that nobody lists any more")
    bodies["other-queue"] = genuine("other-queue", queue="other")
    bodies["not-json"] = b"{not json"
    bodies["no-object"] = b"[1, 2]"
    bodies["empty"] = b""
    bodies["deep"] = b'{"job":"work","payload":' + b"[" * DEEP + b"]" * DEEP + b"}"
    bodies["open"] = b'{"job":"work","payload":' + b"[" * DEEP
    bodies["twice"] = genuine("twice")[:-1] + b',"payload":{"tag":"evil"}}'
    return bodies


def flipped(dice: random.Random) -> dict[str, bytes]:
    """A genuine message for each byte of its body, with one bit of that byte the other way round."""
    bodies = {}
    for place in range(len(genuine("flip-000"))):
        body = bytearray(genuine(ident := f"flip-{place:03}"))
        body[place] ^= 1 << dice.randrange(8)
        bodies[ident] = bytes(body)
    return bodies


def is_genuine(body: bytes) -> bool:
    """Whether it says what its producer signed: a flip in a field that is not signed changes nothing that counts."""
    try:
        verify(decode(body, attempts=0), KNOWN, "default")
    except MalformedEnvelope:
        return False
    return True


def put(rig: Rig, bodies: dict[str, bytes]) -> None:
    """Straight into the broker, as who has its URL and its tables can, and has the patience."""
    messages = [NewMessage(ident, True, "default", "work", 5, None, body) for ident, body in bodies.items()]
    with closing(open_backend(rig.url, timeout=PATIENCE)) as backend:
        backend._enqueue(messages)
    rig.enqueued.update(bodies)


def start_two(rig: Rig, *flags: str) -> list[PoolProcess]:
    pools = [rig.start_pool(*flags, JOBPOOL_SIGNING_KEY=json.dumps([KEY, OLD])) for _ in range(2)]
    return [pool.wait_ready(2) for pool in pools]


def with_other_attempts() -> dict[str, bytes]:
    """Whose field of that name, which is not signed, says that they have all their attempts yet, or none."""
    return {
        ident: json.dumps(json.loads(genuine(ident, "fail", {"times": 9})) | {"attempts": attempts}).encode()
        for ident, attempts in (("reset", 0), ("raised", 10**6))
    }


@pytest.mark.row(26)
@pytest.mark.on("sqlite", "redis", "postgres", "beanstalk")
def test_what_was_tampered_with_is_rejected_or_the_very_same_job(rig: Rig) -> None:
    """Nothing of it is run or imported, nothing runs twice, attempts are the broker's, and the logs are not flooded."""
    seed = printed_seed()
    marker = rig.directory / "imported"
    (rig.directory / "evil.py").write_text(IMPORTED.format(marker=str(marker)))
    flips = flipped(random.Random(seed))
    same = {ident for ident, body in flips.items() if is_genuine(body)} | {"old-key"}
    failing = with_other_attempts()
    bodies = forgeries() | flips | failing | {"old-key": genuine("old-key", key=OLD)}
    put(rig, bodies)
    pools = start_two(rig)
    rig.wait_drained()
    assert {line.id for line in rig.starts()} == {*same, *failing}, f"seed {seed}"
    assert {line.tag for line in rig.starts() if line.id in same} == {"good"}
    assert not marker.exists()
    dead = rig.dead()
    assert set(dead) == set(bodies) - same
    for ident in failing:
        assert [line.attempt for line in rig.starts(ident)] == [1, 2]
        assert dead.pop(ident).reason == "failed"
    assert {message.reason for message in dead.values()} == {"rejected"}
    assert not any(message.attempts or message.crashes for message in dead.values())
    rig.account().assert_once_each()
    wait_until(lambda: sum(pool.header().rejected for pool in pools) == len(dead), what="all of them are counted")
    assert [pool.stop() for pool in pools] == [0, 0]
    for pool in pools:
        told = pool.log("a message is rejected")
        assert len(told) <= LINES_OF_A_FLOOD
        assert {entry["level"] for entry in told} <= {"critical"}
        assert {entry["id"] for entry in pool.log("a message is dead")} <= set(failing)
    rig.assert_no_processes_left()


def size_of_a_huge_body(rig: Rig) -> int:
    """POOLTEST_FULL=1: about the largest that the broker takes."""
    if not os.environ.get("POOLTEST_FULL"):
        return HUGE
    return (500 if rig.url.startswith("redis") else 900) << 20


@pytest.mark.row(26)
@pytest.mark.on("sqlite", "redis", "postgres")
def test_a_huge_body_is_rejected_and_never_reaches_a_master(rig: Rig, figure: Figure) -> None:
    """It is rejected by its length, which the broker tells, and is whole in its dead letter; jobs beside it run."""
    size = size_of_a_huge_body(rig)
    pools = start_two(rig)
    before = [begin_peak(pool) for pool in pools]
    put(rig, {"huge": b"[" * size})
    rig.sign_with(KEY)
    beside = rig.enqueue_many("work", [{}] * 4)
    rig.wait_drained()
    grown = max(peak(pool) - rss for pool, rss in zip(pools, before, strict=True))
    figure("more memory of a master at its peak", grown / (1 << 20), "MiB")
    assert grown < MOST
    assert sorted(line.id for line in rig.starts()) == sorted(beside)
    assert [pool.stop() for pool in pools] == [0, 0]
    with closing(open_backend(rig.url, timeout=PATIENCE)) as backend:
        dead = backend.inspect("huge")
    assert dead is not None
    assert (dead.reason, dead.attempts, dead.crashes) == ("rejected", 0, 0)
    assert dead.last_error is not None
    assert f"the body has more than {MAX_BODY_BYTES} bytes" in dead.last_error
    assert len(dead.body) == size
