"""A deploy that rolls: a pool of today beside one that knows the next wire version, on one queue."""

from __future__ import annotations

import json

from support.poolrig import Rig
from support.waiting import wait_until

from jobpool.broker.values import NewMessage
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import WIRE_VERSION, decode
from jobpool.message.signing import EnvelopeSigner

KEY = "a key that is long enough"
SAID = "a message is of a newer version"
NEXT = f"""
import jobpool.message.envelope as envelope
envelope.WIRE_VERSION = {WIRE_VERSION + 1}
"""
"""What makes a pool of a process's today's one that knows the next version too."""


def test_what_only_the_newer_pool_can_read_waits_for_it_and_is_run_once(rig: Rig) -> None:
    rig.witness = True
    rig.sign_with(KEY)
    later = rig.directory / "later"
    later.mkdir()
    (later / "sitecustomize.py").write_text(NEXT)
    old = rig.start_pool(JOBPOOL_SIGNING_KEY=KEY).wait_ready(2)
    newer = [enqueue_newer(rig, f"newer-{number}") for number in range(4)]
    wait_until(lambda: len(old.log(SAID)) >= len(newer))
    assert rig.starts() == []
    entry = old.log(SAID)[0]
    assert (entry["version"], entry["level"]) == (WIRE_VERSION + 1, "warning")
    assert entry["id"] in newer
    wait_until(lambda: rig.stats().delayed == len(newer), what="they are given back for later")
    assert {(message.attempts, message.crashes) for message in map(rig.inspect, newer)} == {(0, 0)}

    new = rig.start_pool(JOBPOOL_SIGNING_KEY=KEY, PYTHONPATH=str(later)).wait_ready(2)
    plain = rig.enqueue_many("work", [{}] * 40)
    wait_until(lambda: {line.id for line in rig.ends()} >= set(plain))
    assert old.stop() == 0
    rig.wait_drained()
    assert {line.pid for ident in newer for line in rig.starts(ident)} <= set(new.children())
    wait_until(lambda: new.header().succeeded >= len(newer))
    assert new.log(SAID) == []
    assert new.stop() == 0
    rig.account().assert_once_each()


def enqueue_newer(rig: Rig, ident: str) -> str:
    """A message of the next version; this process knows none."""
    wire = json.loads(rig.backend.pack(JobDefinition("work", identifier=ident)).body)
    del wire["_sig"]
    wire["meta"] = {"v": WIRE_VERSION + 1}
    wire["_sig"] = EnvelopeSigner(KEY).sign(decode(json.dumps(wire).encode(), attempts=0))
    rig.backend._enqueue([NewMessage(ident, True, "default", "work", 5, None, json.dumps(wire).encode())])
    rig.enqueued.add(ident)
    return ident
