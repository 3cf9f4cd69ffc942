"""A message that its machines cannot carry goes on where it can: two real pools, signed, on one broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import apps_deaths
from support.poolrig import LIMIT, Rig
from support.waiting import wait_until, whole_lines

from jobpool.broker.values import Message, State
from jobpool.message.death import Death
from jobpool.message.envelope import decode, verify
from jobpool.message.signing import EnvelopeSigner

APP = Path(apps_deaths.__file__)
KEY = "sixteen bytes of it"
SIGNED: dict[str, Any] = {"JOBPOOL_SIGNING_KEY": KEY}
SMALL = ("-Q", "small", "--memory-limit", "150M queue=big", "--on-crash", "queue=careful")


def runs(rig: Rig) -> list[str]:
    """`queue fence attempt crashes customer` of each run."""
    return whole_lines(rig.directory / "runs")


def moved(rig: Rig, ident: str, queue: str) -> Message:
    """Wait until it waits in that queue; the message."""
    wait_until(lambda: rig.inspect(ident).queue == queue, LIMIT, f"{ident} is in {queue}")
    return rig.inspect(ident)


@pytest.mark.brokers
def test_what_outgrows_the_small_machines_or_crashes_there_succeeds_in_the_queue_for_it(rig: Rig) -> None:
    """It has one attempt only, and gets a second run all the same; body, expiry and meta go with it."""
    rig.sign_with(KEY)
    small = rig.start_pool(*SMALL, workers=1, app=APP, **SIGNED).wait_ready(1)
    grown = rig.enqueue("outgrow", {"mebibytes": 200}, queue="small", meta={"customer": 7}, expires_in=3600.0)
    before = decode(rig.inspect(grown).body, attempts=0)

    message = moved(rig, grown, "big")
    after = decode(message.body, attempts=message.attempts)
    verify(after, EnvelopeSigner([KEY]), "big")
    assert (message.state, message.attempts, message.crashes, message.deliveries) == (State.WAITING, 1, 0, 1)
    assert (after.payload, after.meta, after.expires) == (before.payload, before.meta, before.expires)
    assert Death.from_text(message.cause or "").how == "memory limit"
    wait_until(lambda: small.header().moved == 1, LIMIT, "it is counted")
    assert small.header().dead == 0
    [told] = wait_until(lambda: small.log("a message goes on in another queue"), LIMIT, "it is told")
    assert told["to"] == "big"

    crashed = rig.enqueue("crash_in", {"queue": "small"}, queue="small", meta={"customer": 8})
    message = moved(rig, crashed, "careful")
    assert (message.attempts, message.crashes, message.deliveries) == (0, 1, 1)
    assert Death.from_text(message.cause or "").how == "killed by SIGSEGV"

    rig.run_pool("-Q", "big,careful", "--until-empty", app=APP, **SIGNED)
    one, other = ["small 1 1 0 7", "big 2 2 0 7"], ["small 1 1 0 8", "careful 2 1 1 8"]
    assert sorted(runs(rig)) == sorted(one + other), "the fence goes on, and so does the count of attempts"
    assert [rig.backend.inspect(ident) for ident in (grown, crashed)] == [None, None], "they have succeeded"
    assert small.stop() == 0


def test_a_crash_in_that_queue_is_an_ordinary_crash_and_ends_at_the_limit(rig: Rig) -> None:
    flags = ("-Q", "small", "-Q", "careful", "--on-crash", "queue=careful", "--max-crashes", "2")
    pool = rig.start_pool(*flags, workers=1, app=APP).wait_ready(1)
    ident = rig.enqueue("end", {"how": "segfault"}, queue="small")
    wait_until(lambda: rig.is_dead(ident), LIMIT, "it is dead")
    message = rig.inspect(ident)
    assert (message.queue, message.reason, message.crashes, message.deliveries) == ("careful", "crash-limit", 3, 3)
    assert pool.stop() == 0
