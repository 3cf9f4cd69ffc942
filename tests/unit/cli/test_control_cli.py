"""The verbs by which a person controls queues and pools, on a SQLite file or with a lent key store."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from calling import Jobpool
from support.jobs import a_job, numbered
from support.modest import Modest

from jobpool.broker import control
from jobpool.broker.backend import QueueBackend
from jobpool.broker.control import Cancel
from jobpool.broker.opening import open_backend
from jobpool.broker.values import Edited, MessageFilter, NewBatch, State
from jobpool.client.jobs import Jobs
from jobpool.errors import ConfigurationError, InvalidJob, Unsupported
from jobpool_backends.memory import MemoryBackend


def tell_of_a_pool(broker: QueueBackend) -> None:
    facts = {"host": "far", "pid": 7, "version": "1", "state": "running", "queues": ["mails"], "lease_margin": None}
    control.publish_pool(broker, control.PoolRecord(id="0a1b", name="night", children=2, busy=1, started=1.0, **facts))  # type: ignore[arg-type]


def test_a_pause_shows_in_stats_and_doctor_until_it_is_resumed(jobpool: Jobpool, broker: QueueBackend) -> None:
    result = jobpool("pause", "reports", "mails", "--reason", "disk full", "--until", "2h", code=0)
    assert "reports is paused until 20" in result.stdout
    [mails, reports] = json.loads(jobpool("stats", "--json").stdout)
    assert (mails["queue"], reports["queue"], reports["paused"]["reason"]) == ("mails", "reports", "disk full")
    assert reports["paused"]["until"] - reports["paused"]["since"] == pytest.approx(7200.0)
    assert "disk full" in jobpool("stats").stdout
    found = json.loads(jobpool("doctor", "--json").stdout)["findings"]
    assert [one["mend"] for one in found if one["check"] == "broker.paused"] == [
        "jobpool resume mails",
        "jobpool resume reports",
    ]
    result = jobpool("resume", "reports", "mails", "nothing")
    assert (result.exit_code, result.stdout) == (0, "reports is resumed\nmails is resumed\n")
    assert "nothing was not paused" in result.stderr
    assert control.read(broker).paused == {}


def test_a_name_that_is_refused_keeps_the_others_as_they_are(jobpool: Jobpool, broker: QueueBackend) -> None:
    jobpool("pause", "reports", "bad!name", code=2)
    assert control.read(broker).paused == {}
    jobpool("pause", "reports", code=0)
    jobpool("resume", "reports", "bad!name", code=2)
    assert control.read(broker).paused.keys() == {"reports"}
    answer = json.loads(jobpool("resume", "reports", "mails", "--json").stdout)
    assert answer == [{"queue": "reports", "resumed": True}, {"queue": "mails", "resumed": False}]


def test_a_pause_of_a_queue_that_nobody_knows_is_remarked(jobpool: Jobpool, broker: QueueBackend) -> None:
    result = jobpool("pause", "reprots")
    assert (result.exit_code, result.stdout) == (0, "reprots is paused\n")
    assert result.stderr == "queue 'reprots' holds no message, and no pool serves it\n"
    broker.enqueue(a_job())
    tell_of_a_pool(broker)
    result = jobpool("pause", "reprots", "sweeps", "reports", "mails")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 4)
    assert result.stderr.splitlines() == [
        "queue 'reprots' holds no message, and no pool serves it; did you mean 'reports'?",
        "queue 'sweeps' holds no message, and no pool serves it; there are mails, reports",
    ]


def test_jobs_pause_and_resume(broker: QueueBackend) -> None:
    with Jobs(backend=broker) as jobs:
        assert jobs.pause("reports", "later", until=60).reason == "later"
        assert control.read(broker).paused.keys() == {"reports"}
        assert (jobs.resume("reports"), jobs.resume("reports")) == (True, False)


def test_a_broker_without_keys_is_refused_and_a_lent_store_helps(tmp_path: Path) -> None:
    with closing(Modest()) as backend:
        with pytest.raises(Unsupported, match="state=URL"):
            control.pause(backend, "reports")
        assert not backend.has_control
        backend.lend(open_backend(f"sqlite:///{tmp_path}/state.db"))
        control.pause(backend, "reports")
        assert control.read(backend).paused.keys() == {"reports"}


def test_threads_that_ask_at_once_open_one_state(tmp_path: Path) -> None:
    opened = list[QueueBackend]()

    def borrow() -> QueueBackend:
        opened.append(open_backend(f"sqlite:///{tmp_path}/state.db"))
        return opened[-1]

    with closing(Modest()) as backend, ThreadPoolExecutor(8) as threads:
        backend.borrow = borrow
        assert len({id(keys) for keys in threads.map(lambda _: backend.control_keys, range(8))}) == len(opened) == 1


def test_a_state_is_for_brokers_without_keys_and_has_some_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="keeps keys of its own"):
        open_backend(f"sqlite:///{tmp_path}/jobs.db?state=memory://")
    with closing(Modest()) as backend, closing(Modest()) as other, pytest.raises(ConfigurationError, match="as state"):
        backend.lend(other)
    assert MemoryBackend().has_control


def test_pools_are_listed_drained_and_resumed(jobpool: Jobpool, broker: QueueBackend) -> None:
    assert "no pool has a record" in jobpool("pools").stderr
    tell_of_a_pool(broker)
    [pool] = json.loads(jobpool("pools", "--json").stdout)
    assert (pool["id"], pool["host"], pool["queues"], pool["silent"]) == ("0a1b", "far", ["mails"], False)
    assert "0a1b  night  far" in jobpool("pools", "list").stdout
    assert jobpool("pools", "drain", "0a1b").stdout == "0a1b is asked to drain\n"
    assert control.read(broker).drained == {"0a1b"}
    assert jobpool("pools", "resume", "0a1b").stdout == "0a1b is resumed\n"
    assert "0a1b was not drained" in jobpool("pools", "resume", "0a1b").stderr
    assert json.loads(jobpool("pools", "drain", "0a1b", "--json").stdout) == {"id": "0a1b", "silent": False}
    for was in (True, False):
        assert json.loads(jobpool("pools", "resume", "0a1b", "--json").stdout) == {"id": "0a1b", "resumed": was}
    for verb in ("drain", "resume"):
        result = jobpool("pools", verb, "nobody")
        assert (result.exit_code, "`jobpool pools` lists them" in result.stderr) == (1, True)


def test_a_silent_pool_may_never_read_that_it_is_asked_to_drain(
    jobpool: Jobpool, broker: QueueBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_of_a_pool(broker)
    monkeypatch.setattr(control, "SILENT_AFTER_S", -1.0)
    result = jobpool("pools", "drain", "0a1b")
    assert (result.exit_code, result.stdout) == (5, "0a1b is asked to drain\n")
    assert "0a1b has been SILENT for " in result.stderr
    assert control.read(broker).drained == {"0a1b"}


# --- cancel -----------------------------------------------------------------------------------------------


def test_cancel_by_id_answers_and_exits_by_what_became_of_it(jobpool: Jobpool, broker: QueueBackend) -> None:
    waiting, dead, leased = broker.enqueue_many(numbered(3))
    for ident in (waiting, dead):
        assert (lease := broker.fetch("reports")) is not None
        assert broker.release(lease) if ident == waiting else broker.abandon(lease, "failed")
        if ident == waiting:
            assert jobpool("cancel", waiting).stdout == f"{waiting}  cancelled\n"
    for ident, answer, code in (
        (waiting, "already cancelled", 0),
        ("0" * 16, "unknown", 1),
        (dead, "dead already", 4),
    ):
        result = jobpool("cancel", ident)
        assert (result.stdout, result.exit_code) == (f"{ident}  {answer}\n", code)
    assert (lease := broker.fetch("reports")) is not None
    assert lease.id == leased
    result = jobpool("cancel", leased, waiting, "--wait=0", "--json")
    assert (json.loads(result.stdout), result.exit_code) == ({leased: "asked", waiting: "already cancelled"}, 5)


def test_cancel_by_a_filter_asks_first_and_leaves_what_does_not_match(jobpool: Jobpool, broker: QueueBackend) -> None:
    broker.enqueue_many([*numbered(3), a_job(queue="mails")])
    assert "would cancel 3 messages" in jobpool("cancel", "queue:reports", "--dry-run").stdout
    assert jobpool("cancel", "queue:reports").exit_code == 2, "there is no terminal to ask on"
    assert broker.stats("reports").waiting == 3
    result = jobpool("cancel", "-Q", "reports", "--yes", "--json", "--wait", "0")
    assert (json.loads(result.stdout), result.exit_code) == ({"matched": 3, "cancelled": 3}, 0)
    assert broker.count(MessageFilter(states=(State.DEAD,), reason="cancelled")) == 3
    jobpool("cancel", "--all", "--purge", "--yes", code=0)
    assert broker.stats("mails").pending == broker.stats("mails").dead == 0
    for words in ((), ("state:dead",), ("--all", "queue:reports")):
        jobpool("cancel", *words, code=2)


def test_a_dry_run_of_a_cancel_counts_the_members_of_a_batch(jobpool: Jobpool, broker: QueueBackend) -> None:
    broker.batches.open(NewBatch("june"))
    alone, *_ = broker.enqueue_many([a_job(), *[a_job(batch="june")] * 3])
    broker.batches.close("june")
    result = jobpool("cancel", "id:june", "--dry-run")
    assert (result.stdout, result.exit_code) == ("would cancel batch june: 3 members\n", 0)
    assert json.loads(jobpool("cancel", "id:june", "--dry-run", "--json").stdout) == {"matched": 3, "cancelled": 0}
    result = jobpool("cancel", "id:june", alone, "--dry-run")
    assert "would cancel 1 message:" in result.stdout
    assert result.stdout.endswith("\nwould cancel batch june: 3 members\n")
    told = json.loads(jobpool("cancel", "id:june", alone, "--dry-run", "--json").stdout)
    assert told == {"matched": 4, "cancelled": 0}
    assert broker.stats("reports").waiting == 4
    for words in (("cancel", "id:june", "id:july"), ("edit", "id:june", "--now")):
        result = jobpool(*words, "--dry-run")
        assert (result.exit_code, "there is no such message" in result.stderr) == (1, True)
    jobpool("cancel", "id:june", code=0)
    result = jobpool("cancel", "id:june", "--dry-run")
    assert (result.exit_code, "june: the batch has ended" in result.stderr) == (1, True)


def test_jobs_cancel_by_id_and_by_filter(broker: QueueBackend) -> None:
    with Jobs(backend=broker) as jobs:
        first, *_ = broker.enqueue_many(numbered(3))
        assert jobs.cancel(first) is Cancel.CANCELLED
        assert jobs.cancel_matching("queue:reports") == {Cancel.CANCELLED: 2}
        assert jobs.cancel_matching(MessageFilter(queue="reports")) == {}


def test_where_jobs_are_not_seen_a_lent_store_takes_the_mark_and_else_it_is_refused(tmp_path: Path) -> None:
    with closing(Modest()) as backend:
        with pytest.raises(Unsupported, match="state=URL"):
            control.cancel(backend, ["0" * 16])
        with pytest.raises(Unsupported):
            control.cancel_matching(backend, MessageFilter(queue="reports"))
        backend.lend(open_backend(f"sqlite:///{tmp_path}/state.db"))
        assert control.cancel(backend, ["0" * 16], wait=0.0) == {"0" * 16: Cancel.ASKED}
        [mark] = control.read(backend).cancels.values()
        assert 0 < mark.enqueued_by <= backend.clock.wall(), "a later one with the same id is not touched"


# --- edit -------------------------------------------------------------------------------------------------


def test_edit_by_id_answers_and_exits_by_what_became_of_it(jobpool: Jobpool, broker: QueueBackend) -> None:
    dead, leased, waiting = broker.enqueue_many(numbered(3))
    [to_die, _] = broker.fetch_many("reports", limit=2)
    assert broker.abandon(to_die, "failed")
    assert jobpool("edit", waiting, "--at", "2h").stdout == f"{waiting}  edited\n"
    assert broker.stats("reports").delayed == 1
    for ident, answer, code in (
        (waiting, "edited", 0),
        (waiting, "unchanged", 0),
        ("0" * 16, "unknown", 1),
        (dead, "dead", 4),
        (leased, "running", 4),
    ):
        result = jobpool("edit", ident, "--now")
        assert (result.stdout, result.exit_code) == (f"{ident}  {answer}\n", code)
    result = jobpool("edit", waiting, leased, "-p", "1", "--move", "mails", "--json")
    assert (json.loads(result.stdout), result.exit_code) == ({waiting: "edited", leased: "running"}, 4)
    message = broker.inspect(waiting)
    assert message is not None
    assert (message.queue, message.priority) == ("mails", 1)


def test_edit_by_a_filter_asks_first_and_leaves_what_does_not_match(jobpool: Jobpool, broker: QueueBackend) -> None:
    broker.enqueue_many([*numbered(3), a_job(queue="mails")])
    result = jobpool("edit", "queue:reports", "--move", "big", "--dry-run")
    assert ("would edit 3 messages" in result.stdout, result.exit_code) == (True, 0)
    assert jobpool("edit", "queue:reports", "--move", "big").exit_code == 2, "there is no terminal to ask on"
    assert broker.stats("reports").waiting == 3
    result = jobpool("edit", "-Q", "reports", "--move", "big", "-p", "0", "--yes", "--json")
    assert (json.loads(result.stdout), result.exit_code) == ({"matched": 3, "edited": 3}, 0)
    assert broker.stats("big").waiting == 3
    result = jobpool("edit", "--all", "-p", "0", "--yes")
    assert (result.stdout, "3 messages: unchanged" in result.stderr) == ("1 message edited\n", True)
    result = jobpool("edit", "queue:big", "id:nobody", "--now")
    assert (result.exit_code, "id:nobody" not in result.stdout) == (1, True)


@pytest.mark.parametrize("verb", [("cancel",), ("edit", "--now"), ("purge",), ("dead", "retry")])
def test_a_lone_word_is_an_id_and_an_empty_one_is_nothing(
    jobpool: Jobpool, broker: QueueBackend, verb: tuple[str, ...]
) -> None:
    others = [a_job(identifier=f"order-2{number}", payload={"about": "order-2\tagain"}) for number in range(3)]
    broker.enqueue_many(others)
    for more in ((), ("--dry-run",)):
        jobpool(*verb, "order-2", "--yes", *more, code=1)
    for empty in ("", "\t", '""'):
        assert "an empty word is not a filter" in jobpool(*verb, empty, "--yes").stderr
    assert "--all" in jobpool(*verb, "", "queue:reports", "--yes").stderr
    assert broker.stats("reports").waiting == 3
    jobpool(*verb, "queue:nothing", "--yes", code=0)


def test_jobs_edit_by_id_and_by_filter(broker: QueueBackend) -> None:
    with Jobs(backend=broker) as jobs:
        first, *_ = broker.enqueue_many(numbered(3))
        assert jobs.edit(first, at=60.0) is Edited.EDITED
        assert jobs.edit(first, at=0, priority=1, queue="mails") is Edited.EDITED
        assert jobs.edit("nobody", at=0) is Edited.UNKNOWN
        assert jobs.edit_matching("queue:reports", queue="mails") == {Edited.EDITED: 2}
        assert jobs.edit_matching(MessageFilter(queue="mails"), at=0) == {Edited.UNCHANGED: 3}
        with pytest.raises(InvalidJob):
            jobs.edit(first)
