"""Every verb on a broker that can do as little as any may: a true answer, or a sentence with the mend; no traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import Jobpool
from support.modest import Modest

from jobpool.broker import opening
from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import QueueStats
from jobpool.cron.runner import CronRunner
from jobpool.cron.scheduler import Scheduler
from jobpool.errors import ConfigurationError
from jobpool.master.run import check_compatibility
from jobpool.message.definition import JobDefinition
from jobpool.message.setting_types import History, OnCrash
from jobpool.message.settlement import Abandon
from jobpool.settings import Settings
from jobpool_backends.memory import MemoryBackend


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBackend]:
    """What all that open `modest://` share."""
    monkeypatch.setattr(opening, "_installed", lambda: {"modest": "support.modest:Modest"})
    backend = MemoryBackend()
    monkeypatch.setattr(Modest, "shared", backend)
    yield backend
    backend.close()


@pytest.fixture
def configuration(broker: MemoryBackend) -> str:
    del broker
    return 'backend = "modest://"\nqueues = ["default", "reports"]\n'


def put(broker: QueueBackend, queue: str = "reports", count: int = 1) -> list[str]:
    return broker.enqueue_many([JobDefinition("report", {}, queue=queue)] * count)


def bury(broker: QueueBackend, queue: str = "reports", reason: str = "timeout") -> str:
    put(broker, queue)
    [lease] = broker.fetch_many(queue, limit=1)
    broker.settle_many([(lease, Abandon(reason, "too slow"))])
    return lease.id


# --- looking ------------------------------------------------------------------------------------------


def test_stats_without_a_name_are_of_the_settings_queues_and_say_what_they_cannot_tell(
    ask: Jobpool, broker: MemoryBackend
) -> None:
    put(broker, count=3)
    assert broker.fetch("reports")
    result = ask("stats", "--json")
    assert [(row["queue"], row["waiting"], row["leased"]) for row in json.loads(result.stdout)] == [
        ("default", 0, 0),
        ("reports", 3, 0),
    ]
    assert "modest:// cannot list its queues: shown are default, reports" in result.stderr
    assert "counts messages that others have leased as waiting" in result.stderr
    assert "cannot list its queues" not in ask("stats", "reports").stderr
    dead = bury(broker)
    for words in (["inspect", dead], ["dead", "purge", dead, "--yes"]):
        assert "cannot list its queues" not in ask(*words).stderr, words
    assert "no message matches in the queues of the setting" in ask("dead", "purge", "--all", "--yes").stderr


def test_a_queue_of_the_settings_that_is_not_there_is_told_with_the_mend(ask: Jobpool, tmp_path: Path) -> None:
    (tmp_path / "jobpool.toml").write_text('backend = "modest://"\nqueues = ["mistyped"]\n')
    for words in (["stats"], ["list"], ["dead", "list"], ["dead", "purge", "--all", "--yes"], ["inspect", "a" * 16]):
        result = ask(*words, code=2)
        assert "name the queue: modest:// cannot list its queues" in result.stderr
        assert "there is no queue 'mistyped'" in result.stderr


@pytest.mark.parametrize("verb", [["list"], ["dead", "list"]], ids=" ".join)
def test_dead_letters_are_listed_from_every_queue_of_the_settings(
    ask: Jobpool, broker: MemoryBackend, verb: list[str]
) -> None:
    put(broker)
    dead = {bury(broker, "default"), bury(broker)}
    result = ask(*verb, "--json")
    assert {row["id"] for row in json.loads(result.stdout)} == dead
    assert ("modest:// shows dead letters alone" in result.stderr) is (verb == ["list"])


def test_what_waits_cannot_be_listed_and_the_counts_are_named(ask: Jobpool, broker: MemoryBackend) -> None:
    put(broker)
    told = ask("list", "state:waiting", "-Q", "reports", code=1).stderr
    assert "not what is waiting: `jobpool stats` counts that" in told


def test_nothing_found_is_not_taken_for_an_empty_broker(ask: Jobpool, broker: MemoryBackend) -> None:
    put(broker)
    result = ask("dead", "list", "-Q", "reports")
    assert (result.stdout, result.stderr.splitlines()[-1]) == ("", "no message matches")


def test_a_dead_letter_is_inspected_with_its_queue_or_without(ask: Jobpool, broker: MemoryBackend) -> None:
    dead, [alive] = bury(broker), put(broker)
    for words in ([dead], [dead, "-Q", "reports"]):
        assert json.loads(ask("inspect", *words, "--json").stdout)["reason"] == "timeout"
    told = ask("inspect", alive, "-Q", "reports", code=1).stderr
    assert f"no message '{alive}': no dead letter is called so, and modest:// shows dead letters alone" in told


def test_a_reap_says_that_the_broker_does_it(ask: Jobpool) -> None:
    told = ask("reap", "reports").stderr
    assert "modest:// gives back messages with an expired lease by itself" in told


# --- changing -----------------------------------------------------------------------------------------


def test_dead_letters_are_retried_and_purged_by_any_filter(ask: Jobpool, broker: MemoryBackend) -> None:
    first, second = bury(broker), bury(broker, reason="failed")
    assert ask("dead", "retry", "reason:timeout", "--yes").stdout.endswith("1 message retried\n")
    assert ask("dead", "purge", second, "-Q", "reports", "--yes").stdout.endswith("1 message purged\n")
    assert [message.id for message in broker.list_messages()] == [first]


def test_letters_that_somebody_holds_meanwhile_are_told(
    ask: Jobpool, broker: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(broker)
    monkeypatch.setattr(Modest, "bulk", lambda *_, **__: 0)
    result = ask("dead", "purge", "--all", "--yes")
    assert result.stdout == "0 messages purged\n"
    assert result.stderr.endswith("1 message not purged: held by others for now, or gone; call again in a minute\n")


def test_an_id_that_waits_is_told_apart_from_nothing(ask: Jobpool, broker: MemoryBackend) -> None:
    [alive] = put(broker)
    told = ask("dead", "retry", alive, "-Q", "reports", "--yes", code=1).stderr
    assert "there is no such message: no dead letter is called so" in told


def test_whole_queues_are_purged_and_what_is_leased_stays(ask: Jobpool, broker: MemoryBackend) -> None:
    put(broker, count=3)
    [leased] = broker.fetch_many("reports", limit=1)
    bury(broker)
    [other] = put(broker, "default")
    dry = ask("purge", "-Q", "reports", "--dry-run")
    assert dry.stdout == "would purge 4 messages:\n  reports: 3 waiting, 0 delayed, 1 dead\n"
    assert ask("purge", "-Q", "reports", "--yes").stdout == "3 messages purged\n"
    assert [message.id for message in broker.list_messages()] == [leased.id, other]
    assert ask("purge", "--all", "--yes").stdout == "1 message purged\n"


def test_a_count_that_is_capped_is_no_bound_of_a_purge(
    ask: Jobpool, broker: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(broker, count=5)
    monkeypatch.setattr(Modest, "stats", lambda *_: QueueStats(waiting=3, cap=3))
    dry = ask("purge", "-Q", "reports", "--dry-run")
    assert dry.stdout == "would purge 3 messages:\n  reports: 3+ waiting, 0 delayed, 0 dead\n"
    assert ask("purge", "-Q", "reports", "--yes").stdout == "5 messages purged\n"


def test_states_of_a_queue_are_purged_alone(ask: Jobpool, broker: MemoryBackend) -> None:
    put(broker, count=2)
    dead = bury(broker)
    assert ask("purge", "-Q", "reports", "state:waiting", "--yes").stdout == "2 messages purged\n"
    assert [message.id for message in broker.list_messages()] == [dead]


def test_some_of_what_waits_cannot_be_purged_and_nothing_is(ask: Jobpool, broker: MemoryBackend) -> None:
    put(broker)
    told = ask("purge", "-Q", "reports", "handler:report", "--yes", code=1).stderr
    assert "leave all terms but queue: and state: out; `jobpool dead purge` takes any filter" in told
    assert broker.stats("reports").waiting == 1


def test_a_reason_means_dead_letters_which_are_purged_by_it(ask: Jobpool, broker: MemoryBackend) -> None:
    put(broker)
    bury(broker)
    assert ask("purge", "-Q", "reports", "reason:timeout", "--yes").stdout == "1 message purged\n"
    assert broker.stats("reports").waiting == 1


def test_an_enqueue_says_what_means_nothing_there(ask: Jobpool) -> None:
    for words, said in [
        (["-p", "1"], "modest:// knows no priorities"),
        (["--id", "mine"], "modest:// knows no ids: enqueued again, it is a second message"),
        (["-p", "5"], ""),  # the default
    ]:
        result = ask("enqueue", "report", "-Q", "reports", *words)
        assert bool(result.stderr) is bool(said), words
        assert said in result.stderr, words


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["enqueue", "report", "--idempotency-key", "k"], 1, "modest:// keeps no keys (Capabilities.key_store)"),
        (["enqueue", "report", "--single-instance"], 1, "single_instance"),
        (["enqueue", "report", "-Q", "mistyped"], 2, "there is no queue 'mistyped'"),
        (["claim", "list"], 1, "modest:// has no claims (Capabilities.key_store): choose a backend that has them"),
        (["claim", "create", "reports"], 1, "modest:// has no claims"),
        (["message", "post", "reports", "x"], 1, "modest:// has no claims"),
        (["history", "--rollup"], 1, "modest:// keeps no keys (Capabilities.key_store)"),
        (["history", "--history", "table"], 1, "modest:// keeps no keys (Capabilities.key_store)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_it_lacks_is_named(ask: Jobpool, words: list[str], code: int, said: str) -> None:
    result = ask(*words, code=code)
    assert result.stdout == ""
    assert said in result.stderr


# --- pools and schedulers -----------------------------------------------------------------------------


def settings(**more: object) -> Settings:
    return Settings(**{"queues": (("reports", 1.0),), "backend": "modest://", **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"concurrency_limits": {"reports": 1}}, "limits of concurrency and rate need a broker that keeps keys"),
        ({"idempotency_ttl": 60.0}, "idempotency_ttl needs a broker that keeps keys, .*: leave it out, or choose"),
        ({"cron": True}, "leave --cron out, or choose another backend"),
        ({"result_ttl": {"reports": 60.0}}, "result_ttl needs a broker that keeps keys, .*: leave it out, or choose"),
        ({"history": History(table=True)}, "use history = 'file:PATH', or another backend"),
        ({"queues": (("mistyped", 1.0),)}, "there is no queue 'mistyped'"),
        ({"dead_letter_queue": "failures"}, "there is no queue 'failures'"),
        ({"on_crash": OnCrash(queue="sturdy")}, "there is no queue 'sturdy'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_pool_that_asks_for_what_is_not_there_does_not_start(asked: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_compatibility(settings(**asked), Modest())


def test_a_pool_says_that_it_keeps_no_rollups(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "jobpool")
    check_compatibility(settings(), Modest())
    check_compatibility(settings(rollups=0.0), Modest())
    check_compatibility(settings(), MemoryBackend())
    assert [record.message for record in caplog.records] == ["no rollups are kept"]


def test_the_doctor_finds_what_would_not_start_and_what_is_worth_knowing(ask: Jobpool) -> None:
    flags = ["--rate-limit", "reports=5", "--dead-letter-queue", "failures", "--retry", "exponential"]
    result = ask("doctor", "--json", *flags, code=1)
    fit = [row for row in json.loads(result.stdout)["findings"] if row["check"] == "broker.fit"]
    problems = [row for row in fit if row["level"] == "problem"]
    assert ["limits of concurrency and rate" in problems[0]["found"], "'failures'" in problems[1]["found"]] == [
        True
    ] * 2
    assert all(row["why"] and row["mend"] for row in problems)
    notes = [row["found"] for row in fit if row["level"] == "note"]
    assert ["keeps no keys" in notes[0], "no priorities" in notes[1], "rounded up to 1 s" in notes[2]] == [True] * 3


def test_a_lonely_scheduler_is_told_that_a_restart_can_fire_twice(caplog: pytest.LogCaptureFixture) -> None:
    CronRunner(Scheduler(), Modest(), only=True)
    assert "a firing can be enqueued twice, after a restart" in caplog.text
    with pytest.raises(ConfigurationError, match="--only-scheduler"):
        CronRunner(Scheduler(), Modest())


def test_an_edit_is_refused_in_a_sentence_and_changes_nothing(ask: Jobpool, broker: MemoryBackend) -> None:
    [ident] = put(broker)
    for words in ((ident, "--now"), ("queue:reports", "-p", "1", "--yes"), ("--all", "--move", "default", "--dry-run")):
        result = ask("edit", *words, code=1)
        assert result.stdout == ""
        assert "modest:// changes no job that waits: enqueue it again" in result.stderr
    assert broker.stats("reports").waiting == 1
