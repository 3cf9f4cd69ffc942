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
from support.waiting import wait_until

from jobpool.broker.values import Message, MessageFilter, Verb

APP = Path(apps_deaths.__file__)
FLAGS = ("--dead-letter-queue", "failures", "--max-crashes", "1", "--until-empty")


def copies(rig: Rig) -> list[Message]:
    return rig.backend.list_messages(MessageFilter(queue="failures"))


def payload(message: Message) -> Any:
    return json.loads(message.body)["payload"]


@pytest.mark.brokers
def test_a_payload_that_failed_for_good_is_forwarded_once_with_where_it_comes_from(rig: Rig) -> None:
    failed = rig.enqueue("end", {"how": "no such way"}, max_retries=1)
    rig.run_pool(*FLAGS, workers=1, app=APP)
    [copy] = copies(rig)
    said = payload(copy)["_dlq_metadata"]
    assert payload(copy)["how"] == "no such way"
    assert (said["reason"], said["attempts"], said["original_queue"]) == ("failed", 2, "default")
    assert datetime.fromisoformat(said["timestamp"]).tzinfo is not None
    assert copy.handler == "end"
    assert rig.is_dead(failed), "the dead letter stays where it is"
    assert rig.inspect(failed).attempts == 2, "one count, wherever it is told"


def test_a_death_at_the_crash_limit_is_forwarded_behind_the_reap(rig: Rig) -> None:
    crashed = rig.enqueue("end", {"how": "segfault"})
    rig.run_pool(*FLAGS, workers=1, app=APP)
    assert rig.inspect(crashed).reason == "crash-limit"
    [copy] = copies(rig)
    said = payload(copy)["_dlq_metadata"]
    assert (said["reason"], said["attempts"], said["original_queue"]) == ("crash-limit", 0, "default")


def test_what_is_rejected_is_never_forwarded(rig: Rig) -> None:
    """FAULTS 26: nobody has verified it."""
    forged = rig.enqueue("end", {"how": "no such way"})
    rig.run_pool(*FLAGS, workers=1, app=APP, JOBPOOL_SIGNING_KEY="a key that it lacks")
    assert rig.inspect(forged).reason == "rejected"
    assert copies(rig) == []


def test_what_fails_among_the_copies_is_not_copied_again(rig: Rig) -> None:
    rig.enqueue("end", {"how": "no such way"}, queue="failures")
    rig.enqueue("end", {"how": "segfault"}, queue="failures")
    rig.run_pool("-Q", "failures", *FLAGS, workers=1, app=APP)
    assert sorted(message.reason or "" for message in copies(rig)) == ["crash-limit", "failed"]


def test_a_pool_on_that_queue_gets_payload_and_metadata(rig: Rig) -> None:
    rig.enqueue("note_payload", [1, 2])  # no object: it fails before the handler is called
    rig.run_pool(*FLAGS, workers=1, app=APP)
    rig.run_pool("-Q", "failures", "--until-empty", workers=1, app=APP)
    [got] = rig.directory.glob("got-*")
    assert re.match(
        r"failures \{'payload': \[1, 2\], '_dlq_metadata': \{'reason': 'unrecoverable', 'timestamp': '.*Z', "
        r"'attempts': 1, 'original_queue': 'default'\}\}\n",
        got.read_text(),
    )


def test_a_letter_that_is_retried_and_dies_again_is_forwarded_again(rig: Rig) -> None:
    rig.enqueue("end", {"how": "no such way"})
    rig.run_pool(*FLAGS, workers=1, app=APP)
    assert rig.backend.bulk(MessageFilter(queue="default"), Verb.RETRY) == 1
    rig.run_pool(*FLAGS, workers=1, app=APP)
    assert len(copies(rig)) == 2


def test_a_copy_that_is_too_large_does_not_hold_up_the_death(rig: Rig) -> None:
    room = 2**20 - 250
    failed = rig.enqueue("end", {"how": "x" * room})
    pool = rig.run_pool(*FLAGS, workers=1, app=APP)
    assert rig.is_dead(failed)
    assert copies(rig) == []
    wait_until(lambda: pool.log("a dead letter is not forwarded"), 5.0)
    assert "has 1048" in pool.log("a dead letter is not forwarded")[0]["error"]
