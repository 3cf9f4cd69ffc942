"""Real pools, and a person who pauses their queues, drains them, and cancels and edits their jobs."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.poolrig import PoolProcess, Rig
from support.poolrig_brokers import BROKERS
from support.waiting import wait_until

from jobpool import Jobs
from jobpool.broker import control, editing
from jobpool.broker.control import Cancel
from jobpool.broker.values import Edited, MessageFilter, State

KEY = "a key of sixteen or more"


def pause(rig: Rig, queue: str) -> None:
    """Pause it, and wait until the running pools show that they know."""
    control.pause(rig.backend, queue, "by the test")
    for pool in rig.pools:
        if pool.process.poll() is None:
            wait_until(lambda pool=pool: queue in pool.header().paused.split())  # type: ignore[misc]


@pytest.mark.brokers
def test_a_paused_queue_is_fetched_by_no_pool_and_a_drained_pool_fetches_nothing(rig: Rig) -> None:
    rig.witness = True
    flags = ("-Q", "default,other")
    first = rig.start_pool(*flags, workers=1).wait_ready(1)
    [record] = wait_until(lambda: [one for one in control.pools(rig.backend) if one.queues])
    assert (record.pid, record.name, record.queues) == (first.pid, first.name, ["default", "other"])
    pause(rig, "default")
    second = rig.start_pool(*flags, workers=1).wait_ready(1)
    kept = rig.enqueue_many("work", [{}] * 5)
    free = rig.enqueue_many("work", [{}] * 20, queue="other")
    rig.wait_drained(queue="other")
    assert {line.id for line in rig.starts()} == set(free), "nor by one that starts later"
    assert rig.stats().waiting == 5

    assert control.drain(rig.backend, record.id)
    wait_until(lambda: first.header().draining)
    wait_until(lambda: {one.pid: one.state for one in control.pools(rig.backend)}[first.pid] == "drained")
    assert control.resume(rig.backend, "default")
    rig.wait_drained()
    assert {line.id for line in rig.starts()} == {*kept, *free}
    assert {line.pid for ident in kept for line in rig.starts(ident)} <= set(second.children())
    assert second.stop() == 0
    late = rig.enqueue("work", {})
    assert control.undrain(rig.backend, record.id)
    rig.wait_drained()
    assert len(rig.starts(late)) == 1
    assert first.stop() == 0
    assert control.pools(rig.backend) == []
    rig.account().assert_once_each()


def test_a_burst_neither_waits_for_what_is_not_for_it_nor_answers_for_old_dead_letters(rig: Rig) -> None:
    old = rig.enqueue("work")
    [lease] = rig.backend.fetch_many("default", limit=1)
    assert rig.backend.abandon(lease, "failed")
    queue = Jobs(backend=rig.backend).queue("other")
    queue.post(["for a person"])
    control.pause(rig.backend, "default")
    kept = rig.enqueue("work", {})
    free = rig.enqueue("work", {}, queue="other")
    pool = rig.run_pool("-Q", "default,other", "--until-empty", "--fail-on-dead")
    assert pool.wait() == 0
    assert [line["left"] for line in pool.log("the jobs that are left wait in paused queues")] == [1]
    assert {line.id for line in rig.starts()} == {free}
    assert rig.inspect(kept).attempts == 0
    assert [message.payload for message in queue.messages()] == ["for a person"]
    assert set(rig.dead()) == {old}


def cancel(rig: Rig, *idents: str) -> dict[str, Cancel]:
    return control.cancel(rig.backend, idents, wait=60.0)


def cancelled(pool: PoolProcess) -> tuple[int, int, int, int]:
    """Its counters: cancelled, failed, crashed, dead."""
    header = pool.header()
    return header.cancelled, header.failed, header.crashed, header.dead


@pytest.mark.brokers
def test_a_running_job_is_cancelled_by_an_exception_and_is_not_retried(rig: Rig) -> None:
    pool = rig.start_pool("--default-timeout", "600", workers=1).wait_ready(1)
    ident = rig.enqueue("work", {"seconds": 600}, max_retries=5)
    rig.wait_started(ident)
    ahead = rig.enqueue_many("work", [{"seconds": 600}] * 3)
    assert cancel(rig, *ahead, ident) == dict.fromkeys((*ahead, ident), Cancel.CANCELLED)
    assert rig.stats().pending == 0
    assert {line.id for line in rig.starts()} == {ident}, "what waits ahead in the child's socket is cancelled too"
    message = rig.inspect(ident)
    assert (message.state, message.reason, message.attempts, message.crashes) == (State.DEAD, "cancelled", 0, 0)
    assert "cancelled by a person" in (message.last_error or "")
    assert "apps_pool.py" in (message.last_error or ""), "the place where it met the handler"
    wait_until(lambda: cancelled(pool)[0] >= 1)
    assert cancelled(pool)[1:] == (0, 0, 0)
    assert cancel(rig, ident) == {ident: Cancel.ALREADY}
    wait_until(lambda: control.read(rig.backend).cancels == {})
    after = rig.enqueue("work", {})
    rig.wait_drained()
    assert len(rig.ends(after)) == 1
    assert pool.stop() == 0


def test_one_that_resists_is_killed_after_the_grace_and_no_crash_is_counted(rig: Rig) -> None:
    pool = rig.start_pool("--default-timeout", "600", "--kill-grace", "0.5").wait_ready(2)
    idents = [rig.enqueue("hang", {"how": how}, max_retries=5) for how in ("hang_in_sum", "swallow_everything")]
    rig.wait_started(*idents)
    assert cancel(rig, *idents) == dict.fromkeys(idents, Cancel.CANCELLED)
    for ident in idents:
        message = rig.inspect(ident)
        assert (message.reason, message.attempts, message.crashes) == ("cancelled", 0, 0)
    wait_until(lambda: cancelled(pool) == (2, 0, 0, 0))
    assert pool.stop() == 0


def test_a_mark_holds_for_the_next_pool_when_the_first_dies(rig: Rig) -> None:
    first = rig.start_pool("--ttl", "2", workers=1).wait_ready(1)
    ident = rig.enqueue("work", {"seconds": 600})
    rig.wait_started(ident)
    first.send(signal.SIGKILL)
    first.wait()
    assert control.cancel(rig.backend, [ident], wait=0.0) == {ident: Cancel.ASKED}
    second = rig.start_pool("--ttl", "2", workers=1).wait_ready(1)
    wait_until(lambda: rig.is_dead(ident), limit=60.0)
    assert rig.inspect(ident).reason == "cancelled"
    assert len(rig.starts(ident)) == 1
    wait_until(lambda: control.read(rig.backend).cancels == {})
    assert second.stop() == 0


def test_beanstalkd_with_a_lent_key_store_pauses_cancels_and_tells_of_its_pools(tmp_path: Path) -> None:
    with (
        BROKERS["beanstalk"].on_shared_server() as broker,
        Rig(tmp_path, f"{broker.url}&state=sqlite:///{tmp_path}/state.db") as rig,
    ):
        pool = rig.start_pool("--default-timeout", "600", workers=1).wait_ready(1)
        assert [one.pid for one in control.pools(rig.backend)] == [pool.pid]
        ident = rig.enqueue("work", {"seconds": 600})
        rig.wait_started(ident)
        assert control.cancel(rig.backend, [ident], wait=0.0) == {ident: Cancel.ASKED}
        wait_until(lambda: rig.is_dead(ident))
        assert rig.inspect(ident).reason == "cancelled"
        pause(rig, "default")
        kept = rig.enqueue("work", {})
        control.cancel(rig.backend, [kept], wait=0.0)
        assert control.resume(rig.backend, "default")
        wait_until(lambda: rig.is_dead(kept))
        assert rig.starts(kept) == [], "cancelled as it was fetched"
        assert control.cancel(rig.backend, [kept, "later"], wait=0.0) == {kept: Cancel.ALREADY, "later": Cancel.ASKED}
        rig.enqueue("work", {}, identifier="later")
        wait_until(lambda: rig.ends("later"))
        assert pool.stop() == 0


# --- edits ------------------------------------------------------------------------------------------------


def edit(rig: Rig, *idents: str, **changes: Any) -> set[Edited]:
    return set(editing.edit(rig.backend, editing.read_changes(rig.backend, **changes), idents).values())


@pytest.mark.brokers
def test_a_job_that_is_brought_forward_or_moved_runs_there_signed(rig: Rig) -> None:
    rig.sign_with(KEY)
    pool = rig.start_pool("-Q", "other", workers=1, JOBPOOL_SIGNING_KEY=KEY).wait_ready(1)
    assert pool.log("messages are not signed") == []
    delayed = rig.enqueue("work", {}, queue="other", scheduled_at=in_an_hour(rig))
    assert rig.stats("other").delayed == 1
    assert edit(rig, delayed, at=0) == {Edited.EDITED}
    rig.wait_drained(queue="other")
    assert len(rig.ends(delayed)) == 1, "an idle pool runs it now"
    assert edit(rig, delayed, at=0) == {Edited.UNKNOWN}
    moved = rig.enqueue("work", {})
    late = rig.enqueue("work", {}, scheduled_at=in_an_hour(rig), priority=9)
    assert edit(rig, moved, queue="other") == {Edited.EDITED}
    assert edit(rig, late, queue="other", priority=1, at=0) == {Edited.EDITED}
    rig.wait_drained(queue="other")
    assert [len(rig.ends(ident)) for ident in (moved, late)] == [1, 1]
    assert (rig.stats().pending, rig.stats().dead) == (0, 0)
    running = rig.enqueue("work", {"seconds": 600}, queue="other")
    rig.wait_started(running)
    assert edit(rig, running, queue="default", priority=0, at=60) == {Edited.RUNNING}
    assert cancel(rig, running) == {running: Cancel.CANCELLED}
    assert edit(rig, running, at=0) == {Edited.DEAD}
    assert pool.stop() == 0


@pytest.mark.brokers
def test_jobs_that_are_moved_to_and_fro_between_pools_run_once_each(rig: Rig) -> None:
    rig.witness = True
    queues = ("default", "other")
    idents = [ident for queue in queues for ident in rig.enqueue_many("work", [{}] * 150, queue=queue)]
    for queue in queues:
        rig.start_pool("-Q", queue, workers=1)
    answers: Counter[Edited] = Counter()

    def move_until_all_have_ended() -> bool:
        for here, there in (queues, queues[::-1]):
            changes = editing.read_changes(rig.backend, 0, 3, there)
            answers.update(editing.edit_matching(rig.backend, changes, MessageFilter(queue=here)))
        return not any(rig.stats(queue).pending for queue in queues)

    wait_until(move_until_all_have_ended, limit=120.0)
    assert answers[Edited.EDITED]
    for queue in queues:
        rig.wait_drained(queue=queue)
    assert len({line.id for line in rig.starts()}) == len(idents)
    for pool in rig.pools:
        pool.wait_ready(1)  # one of them may have run all jobs while the other still started
    assert [pool.stop() for pool in rig.pools] == [0, 0]
    rig.account().assert_once_each()


def in_an_hour(rig: Rig) -> datetime:
    return datetime.fromtimestamp(rig.backend.time.now() + 3600.0, UTC)
