"""Copies of failed payloads in a queue of their own: sent with the abandon, and behind a reap."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support import apps_deaths
from support.poolrig import Rig

from jobpool.broker.values import Message, MessageFilter, Verb

APP = Path(apps_deaths.__file__)
KEY = "a key that is long enough"
FLAGS = ("--dead-letter-queue", "failures", "--max-crashes", "1", "--until-empty")


def copies(rig: Rig) -> list[Message]:
    return rig.backend.list_messages(MessageFilter(queue="failures"))


def payload(message: Message) -> Any:
    return json.loads(message.body)["payload"]


def said(message: Message) -> Any:
    return payload(message)["_dlq_metadata"]


@pytest.mark.brokers
def test_a_payload_is_forwarded_once_when_it_has_failed_for_good_or_too_many_crashes(rig: Rig) -> None:
    failed = rig.enqueue("end", {"how": "no such way"}, max_retries=1)
    crashed = rig.enqueue("end", {"how": "segfault"})
    rig.run_pool(*FLAGS, workers=1, app=APP)
    one, other = sorted(copies(rig), key=lambda copy: said(copy)["reason"])
    assert [payload(copy)["how"] for copy in (one, other)] == ["segfault", "no such way"]
    assert [said(copy)["original_queue"] for copy in (one, other)] == ["default", "default"]
    assert (said(one)["reason"], said(one)["attempts"]) == ("crash-limit", 0), "behind the reap"
    assert (said(other)["reason"], said(other)["attempts"]) == ("failed", 2)
    assert datetime.fromisoformat(said(other)["timestamp"]).tzinfo is not None
    assert other.handler == "end"
    assert set(rig.dead()) == {failed, crashed}, "the dead letters stay where they are"
    assert rig.inspect(failed).attempts == 2, "one count, wherever it is told"
    assert rig.inspect(crashed).reason == "crash-limit"


def test_a_pool_on_that_queue_gets_payload_and_metadata_and_copies_nothing_again(rig: Rig) -> None:
    """Nor is that forwarded which nobody has verified (FAULTS 26), nor what is too large."""
    forged = rig.enqueue("end", {"how": "no such way"})
    rig.sign_with(KEY)
    failed = rig.enqueue("end", {"how": "no such way"})
    rig.enqueue("note_payload", [1, 2])  # no object: it fails before the handler is called
    large = rig.enqueue("end", {"how": "x" * (2**20 - 350)})
    pool = rig.run_pool(*FLAGS, workers=1, app=APP, JOBPOOL_SIGNING_KEY=KEY)
    assert rig.inspect(forged).reason == "rejected"
    assert rig.is_dead(large), "its death is not held up"
    assert "has 1048" in pool.log("a dead letter is not forwarded")[0]["error"]
    assert sorted(said(copy)["reason"] for copy in copies(rig)) == ["failed", "unrecoverable"]

    assert rig.backend.bulk(MessageFilter(ids=(failed,)), Verb.RETRY) == 1
    for how in ("segfault", "no such way"):
        rig.enqueue("end", {"how": how}, queue="failures")
    rig.run_pool("-Q", "default,failures", *FLAGS, workers=1, app=APP, JOBPOOL_SIGNING_KEY=KEY)
    [got] = rig.directory.glob("got-*")
    assert re.match(
        r"failures \{'payload': \[1, 2\], '_dlq_metadata': \{'reason': 'unrecoverable', 'timestamp': '.*Z', "
        r"'attempts': 1, 'original_queue': 'default'\}\}\n",
        got.read_text(),
    )
    reasons = sorted(message.reason or "" for message in copies(rig))
    copied = ["unrecoverable", "unrecoverable"]  # handler `end` does not take the metadata
    assert reasons == ["crash-limit", "failed", *copied], "what dies again is forwarded again, but not from here"
