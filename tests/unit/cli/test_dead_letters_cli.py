"""`dead list`, `dead retry`, `dead purge` and `inspect` on a SQLite file, called in this process."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from calling import Jobpool
from msgspec.structs import asdict
from support.claims import found

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.cli import bulk
from jobpool.errors import BackendUnavailable
from jobpool.message.death import Death
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Abandon, Settled

DEAD = MessageFilter(states=(State.DEAD,))
SEGV = Death("killed by SIGSEGV", "itself", "  File app.py, line 7 in crash", 31 << 20, 0.5, "page 7", core=True)


def kill_off(
    broker: QueueBackend, reason: str = "timeout", queue: str = "default", cause: Death | None = None, error: str = "no"
) -> str:
    """One more dead letter: with one failed attempt before its last."""
    ident = broker.enqueue(JobDefinition("report", {"customer": 7}, queue=queue))
    for settle in (lambda lease: broker.nack(lease, error="first"), None):
        [lease] = broker.fetch_many(queue, limit=1)
        if settle:
            settle(lease)
    text = cause.to_text() if cause else None
    assert broker.settle_many([(lease, Abandon(reason, error, text))]) == [Settled.OK]
    return ident


def states(broker: QueueBackend, idents: list[str]) -> list[State]:
    return [found(broker, ident).state for ident in idents]


# --- looking ----------------------------------------------------------------------------------------------------------


def test_the_list_has_reason_cause_and_error(jobpool: Jobpool, broker: QueueBackend) -> None:
    crashed = kill_off(broker, "crash-limit", cause=SEGV, error="")
    failed = kill_off(broker, "failed", error="Traceback\n  deep\nValueError: no paper")
    head, *rows = jobpool("dead", "list").stdout.splitlines()
    assert head.split() == ["ID", "QUEUE", "HANDLER", "FAILED", "CRASH", "AGE", "REASON", "CAUSE", "ERROR"]
    assert re.match(rf"{crashed}  default  report +1 +0 +\S+  crash-limit  killed by SIGSEGV \(itself\)", rows[0])
    assert re.match(rf"{failed}  default  report +2 +0 +\S+  failed +ValueError: no paper$", rows[1])


def test_json_has_the_cause_as_an_object(jobpool: Jobpool, broker: QueueBackend) -> None:
    ident = kill_off(broker, cause=SEGV)
    [row] = json.loads(jobpool("dead", "list", "--json").stdout)
    assert row["cause"] == json.loads(jobpool("inspect", ident, "--json").stdout)["cause"]
    assert row["cause"] == asdict(SEGV)
    assert json.loads(jobpool("inspect", kill_off(broker), "--json").stdout)["cause"] is None


def test_inspect_shows_death_counters_and_payload(jobpool: Jobpool, broker: QueueBackend) -> None:
    told = jobpool("inspect", kill_off(broker, cause=SEGV)).stdout
    for part in (
        "state            dead\n",
        "reason           timeout\n",
        "attempts         2\n",
        "deliveries       2\n",
        '"customer": 7',
        "\ncause\n  killed by SIGSEGV\n  ended by      itself\n  peak memory   31 MiB\n  CPU time      0.50 s\n",
        "core          dumped",
        "stack\n      File app.py, line 7 in crash",
        "last output\n    page 7",
        "\nlast_error\n  no",
    ):
        assert part in told


def test_the_record_of_an_earlier_attempt_is_not_taken_for_the_cause(jobpool: Jobpool, broker: QueueBackend) -> None:
    """It was killed first, and then it failed by itself."""
    ident = kill_off(broker, "failed", cause=SEGV, error="ValueError: no paper")
    assert jobpool("dead").stdout.splitlines()[1].split()[-4:] == ["failed", "ValueError:", "no", "paper"]
    assert "\ncause of an earlier attempt's end\n  killed by SIGSEGV\n" in jobpool("inspect", ident).stdout


def test_an_older_records_text_is_shown_as_it_is(jobpool: Jobpool, broker: QueueBackend) -> None:
    broker.enqueue(JobDefinition("report"))
    [lease] = broker.fetch_many("default", limit=1)
    assert broker.settle_many([(lease, Abandon("crash-limit", None, "lease expired"))]) == [Settled.OK]
    assert jobpool("dead").stdout.splitlines()[1].endswith("crash-limit  lease expired")
    assert "\ncause\n  lease expired\n" in jobpool("inspect", lease.id).stdout


# --- retry ------------------------------------------------------------------------------------------------------------


def test_retry_by_filter_sets_the_counters_to_nothing(jobpool: Jobpool, broker: QueueBackend) -> None:
    timeouts = [kill_off(broker, "timeout", cause=SEGV) for _ in range(2)]
    other = kill_off(broker, "failed")
    result = jobpool("dead", "retry", "reason:timeout", "--yes")
    assert (result.stdout, result.exit_code) == ("2 messages retried\n", 0)
    assert states(broker, [*timeouts, other]) == [State.WAITING, State.WAITING, State.DEAD]
    retried = found(broker, timeouts[0])
    assert (retried.attempts, retried.last_error, retried.cause, retried.reason) == (0, None, None, None)


def test_keep_counters_leaves_them_and_the_cause(jobpool: Jobpool, broker: QueueBackend) -> None:
    ident = kill_off(broker, "timeout", cause=SEGV)
    assert jobpool("dead", "retry", ident, "--keep-counters", "-y").stdout == "1 message retried\n"
    kept = found(broker, ident)
    assert (kept.state, kept.attempts, kept.last_error, kept.reason) == (State.WAITING, 2, "no", None)
    assert Death.from_text(kept.cause or "") == SEGV


def test_a_dry_run_changes_nothing(jobpool: Jobpool, broker: QueueBackend) -> None:
    idents = [kill_off(broker) for _ in range(7)]
    result = jobpool("dead", "retry", "--all", "--rate", "60", "--dry-run")
    assert result.stdout.startswith("would retry 7 messages, in about 7.0s:\n")
    assert result.stdout.endswith("  … and 2 more\n")
    assert set(states(broker, idents)) == {State.DEAD}


def test_a_rate_spreads_them_evenly(jobpool: Jobpool, broker: QueueBackend) -> None:
    """At 300 a minute 0.2 s apart: four take the time of three pauses, at least."""
    for _ in range(4):
        kill_off(broker)
    begun = time.monotonic()
    assert jobpool("dead", "retry", "--all", "-y", "--rate", "300").stdout == "4 messages retried\n"
    assert time.monotonic() - begun >= 3 * 0.2
    assert broker.stats("default").waiting == 4


class Dying:
    """A broker whose every retried job dies again before the next call; it breaks off at a call if it is told to."""

    def __init__(self, real: QueueBackend, breaks: BaseException | None = None, at: int = 3) -> None:
        self.real, self.breaks, self.at, self.calls = real, breaks, at, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        self.calls += 1
        if self.breaks is not None and self.calls == self.at:
            raise self.breaks
        changed = self.real.bulk(where, verb, limit=limit)
        time.sleep(0.1)  # the sweep goes by ages: what dies at its very start may look as old as what was dead before
        while (lease := self.real.fetch("default")) is not None:
            self.real.abandon(lease, "again")
        return changed


def test_what_dies_again_waits_for_the_next_time(broker: QueueBackend) -> None:
    idents = [kill_off(broker) for _ in range(5)]
    retry = bulk.Sweep(Dying(broker), DEAD, Verb.RETRY, rate=300)  # type: ignore[arg-type]
    assert retry.run(retry.count(), "retried") == 5
    assert {found(broker, ident).reason for ident in idents} == {"again"}, "each had its turn, none had two"
    assert {found(broker, ident).deliveries for ident in idents} == {3}


@pytest.mark.parametrize(
    ("breaks", "raised", "said"),
    [
        (KeyboardInterrupt(), "Exit", "interrupted: 2 messages retried so far; the same command goes on with the rest"),
        (BackendUnavailable("gone"), "BackendUnavailable", "2 messages retried so far; the same command goes on"),
    ],
)
def test_cut_short_it_says_how_far_it_came_and_can_go_on(
    broker: QueueBackend, capsys: pytest.CaptureFixture[str], breaks: BaseException, raised: str, said: str
) -> None:
    for _ in range(5):
        kill_off(broker)
    retry = bulk.Sweep(Dying(broker, breaks), DEAD, Verb.RETRY, rate=300)  # type: ignore[arg-type]
    with pytest.raises((Exception, KeyboardInterrupt)) as error:
        retry.run(5, "retried")
    assert type(error.value).__name__ == raised
    assert said in capsys.readouterr().err
    again = bulk.Sweep(broker, MessageFilter(states=(State.DEAD,), reason="timeout"), Verb.RETRY)
    assert again.run(again.count(), "retried") == 3


# --- purge ------------------------------------------------------------------------------------------------------------


def test_purge_by_age(jobpool: Jobpool, broker: QueueBackend) -> None:
    ident = kill_off(broker)
    assert jobpool("dead", "purge", "--older-than", "1h", "-y").stderr == "no message matches\n"
    assert jobpool("dead", "purge", "--older-than", "1h", "--all", "-y").stderr == "no message matches\n"
    assert jobpool("dead", "purge", "--older-than", "0s", "-y").stdout == "1 message purged\n"
    assert broker.inspect(ident) is None


def test_purge_keeps_the_newest(jobpool: Jobpool, broker: QueueBackend) -> None:
    idents = [kill_off(broker) for _ in range(6)]
    jobpool("dead", "retry", idents[0], "-y", code=0)
    [lease] = broker.fetch_many("default", limit=1)
    broker.settle_many([(lease, Abandon("again"))])
    idents.append(idents.pop(0))  # the first in line, and the last that died
    preview = jobpool("dead", "purge", "--keep", "2", "--dry-run").stdout
    assert preview.startswith("would purge 4 messages, and keep the newest 2:\n")
    assert preview.count("\n") == 5, "those to keep are not among the examples"
    assert jobpool("dead", "purge", "--keep", "2", "-y").stdout == "4 messages purged\n"
    assert [broker.inspect(ident) is None for ident in idents] == [True] * 4 + [False] * 2
    assert jobpool("dead", "purge", "--keep", "2", "-y").stderr == "no message is older than the newest to keep\n"


def test_more_than_the_cap_goes_in_rounds(
    jobpool: Jobpool, broker: QueueBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_COUNTED", 4)
    monkeypatch.setattr(bulk, "BATCH", 3)
    for _ in range(11):
        kill_off(broker)
    assert bulk.Sweep(broker, DEAD, Verb.DELETE).count() == 4, "at least"
    assert json.loads(jobpool("dead", "purge", "--keep", "4", "-y", "--json").stdout) == {"matched": 7, "purged": 7}
    for _ in range(3):
        kill_off(broker)
    assert json.loads(jobpool("dead", "purge", "--all", "-y", "--json").stdout) == {"matched": 7, "purged": 7}


# --- errors with their mends ------------------------------------------------------------------------------------------


def test_an_id_that_is_not_meant_is_named_and_nothing_is_changed(jobpool: Jobpool, broker: QueueBackend) -> None:
    dead, elsewhere = kill_off(broker), kill_off(broker, queue="b")
    living = broker.enqueue(JobDefinition("report"))
    result = jobpool("dead", "retry", "-Q", "default", dead, elsewhere, living, "0123456789abcdef", "-y", code=1)
    for part in (
        "nothing was changed",
        f"{elsewhere}: it is in queue 'b', not in 'default'",
        f"{living}: it is waiting, not dead",
        "0123456789abcdef: there is no such message",
    ):
        assert part in result.stderr
    assert f"{dead}:" not in result.stderr
    assert found(broker, dead).state is State.DEAD


def test_the_wrong_queue_is_answered_with_those_there_are(jobpool: Jobpool, broker: QueueBackend) -> None:
    kill_off(broker, queue="reports")
    for words in (["dead", "list", "-Q", "report"], ["dead", "retry", "queue:report", "-y"]):
        result = jobpool(*words, code=0)
        said = "no message matches: queue 'report' holds none at all; those that do: reports\n"
        assert (result.stdout, result.stderr) == ("", said)
