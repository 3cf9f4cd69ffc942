"""What a run judges itself: late timeouts, poison that ran too often, jobs that were skipped, swallowed or buried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from msgspec import structs
from stories import item, kept

from jobpool.broker.values import Message, State
from jobpool_torture.judge import (
    DEATH_SEEN_S,
    MAX_CRASHES,
    TOLERATED_AFTER_S,
    Window,
    acked_without_run,
    answered_as_another,
    blamed,
    over_crash_budget,
    overruns,
    wrong_dead_letters,
)
from jobpool_torture.ledger import Ledger, Line
from jobpool_torture.result import Tally, quantiles
from jobpool_torture.workload import DIES_OF, HANG_TIMEOUT_S, KINDS

HANG = {"a": item("hang")}
STORY = [Line("start", "a", fence=2, at=10.0), Line("asked", "a", fence=2, at=12.5, verb="nack", pool="pool1")]


def test_a_timeout_is_late_by_the_verdict_unless_its_pool_was_held_up() -> None:
    for case, window, excused in [
        ("stopped", Window("pool1", "master.stop", 11.0, 11.5), True),
        ("all of them", Window("", "broker.restart", 11.0, 11.5), True),
        ("another pool", Window("pool2", "master.stop", 11.0, 11.5), False),
        ("the child alone", Window("pool1", "child.stop", 11.0, 11.5), False),
        ("just before", Window("pool1", "net.hole", 10.0 - TOLERATED_AFTER_S, 10.0 - TOLERATED_AFTER_S), True),
        ("long before", Window("pool1", "net.hole", 9.9 - TOLERATED_AFTER_S, 9.9 - TOLERATED_AFTER_S), False),
        ("after", Window("pool1", "net.hole", 12.6, 20.0), False),
    ]:
        assert overruns(STORY, HANG, []) == {"a": pytest.approx(1.5 - (HANG_TIMEOUT_S - 1.0))}, case
        assert (overruns(STORY, HANG, [window]) == {}) is excused, case


def test_only_verdicts_on_jobs_that_hang_count() -> None:
    assert overruns(STORY, {"a": item("work")}, []) == {}
    forfeited = [STORY[0], Line("asked", "a", fence=2, at=12.5, verb="forfeit", pool="pool1")]
    assert overruns(forfeited, HANG, []) == {}


def test_a_verdict_is_as_late_as_it_was_first_asked_for_however_often_that_was() -> None:
    """A broker that is locked, or whose disk stands still, keeps no timeout back."""
    again = [structs.replace(STORY[1], event="unknown"), structs.replace(STORY[1], at=31.0)]
    assert overruns([*STORY, *again], HANG, []) == overruns(STORY, HANG, [])
    later = [structs.replace(line, fence=3, at=line.at + 100.0 + place) for place, line in enumerate(STORY)]
    assert overruns([*STORY, *again, *later], HANG, []) == {"a": pytest.approx(2.5 - (HANG_TIMEOUT_S - 1.0))}, (
        "the longest"
    )


def test_poison_runs_once_more_than_the_budget() -> None:
    starts = poisoned()
    assert not over_crash_budget(starts[:-1], POISON)
    assert over_crash_budget(starts, POISON) == {"p": "it ran 7 times"}
    assert not over_crash_budget(starts, {"p": item("crash")})


POISON = {"p": item("poison")}


def poisoned() -> list[Line]:
    return [Line("start", "p", fence=number) for number in range(1, MAX_CRASHES + 3)]


def test_a_run_whose_message_was_given_back_is_not_charged() -> None:
    for case, calls, excused in [
        ("accepted", [("settled", "ok")], True),
        ("repeated", [("asked", ""), ("settled", "already")], True),
        ("not answered", [("asked", ""), ("unknown", "BackendUnavailable")], True),
        ("the master was killed in the call", [("asked", "")], True),
        ("refused", [("asked", ""), ("settled", "expired")], False),
    ]:
        released = [Line(event, "p", fence=3, verb="release", answer=answer) for event, answer in calls]
        assert (not over_crash_budget([*poisoned(), *released], POISON)) is excused, case


DONE = [Line("start", "a", fence=1, at=1.0), Line("settled", "a", fence=1, at=2.0, verb="ack", answer="ok")]


def test_an_ack_of_a_job_that_never_began_is_lost_unless_a_key_may_have_been_done() -> None:
    assert not acked_without_run([DONE[1]], {"a": item("keyed", idempotency_key="k")}), "see test_keys.py"
    assert acked_without_run([DONE[1]], {}) == {"a": "it was acked, and had not begun"}
    assert set(acked_without_run([DONE[1]], {"a": item("single", name="n", single_instance=True)})) == {"a"}
    assert not acked_without_run(DONE, {})
    assert set(acked_without_run([DONE[0], Line("settled", "a", fence=2, verb="ack", answer="already")], {})) == {"a"}
    assert not acked_without_run([Line("settled", "a", fence=1, verb="ack", answer="expired")], {})


SENT = {
    "a": item("work"),
    "b": item("keyed", idempotency_key="k"),
    "u1": item("unique", idempotency_key="k"),
    "u2": item("unique", idempotency_key="k"),
    "u3": item("unique", idempotency_key="other"),
}


def test_only_a_unique_job_may_be_answered_with_anothers_id() -> None:
    for case, asked, answer, lost in [
        ("its own", "a", "a", False),
        ("another's", "a", "b", True),
        ("a unique one's", "b", "u1", True),
        ("unique, and taken", "u2", "u1", False),
        ("unique by another key", "u3", "u1", True),
        ("nobody's", "u1", "x", True),
    ]:
        assert set(answered_as_another([Line("enq", answer, tag=asked)], SENT)) == ({asked} if lost else set()), case


def dead(reason: str, failures: int = 0, crashes: int = 0) -> Message:
    return structs.replace(kept(State.DEAD, 3, failures, crashes), reason=reason)


def test_dead_letters_are_those_that_were_to_die_and_of_what_they_were_to_die() -> None:
    for kind, message, wrong in [
        ("work", dead("failed"), True),
        ("flaky", dead("failed", 5), True),
        ("big", dead("rejected"), True),
        ("delayed", dead("expired"), True),
        ("crash", dead("crash-limit", 0, 5), True),
        ("crash", dead("crash-limit", 0, 6), False),
        ("work", dead("crash-limit", 2, 6), False),
        ("poison", dead("crash-limit", 0, 6), False),
        ("poison", dead("crash-limit", 0, 1), True),
        ("poison", dead("failed"), True),
        ("doomed", dead("failed", 3), False),
        ("doomed", dead("failed", 2), True),
        ("doomed", dead("timeout", 2), True),
        ("doomed", dead("crash-limit", 0, 6), False),
        ("hang", dead("timeout", 3), False),
        ("hang", dead("timeout", 0), True),
        ("hang", dead("failed", 2), True),
        ("unrecoverable", dead("unrecoverable", 1), False),
        ("unrecoverable", dead("failed", 5), True),
        ("cancelled", dead("cancelled"), False),
        ("cancelled", dead("cancelled", 2), False),
        ("cancelled", dead("failed", 6), True),
        ("work", dead("cancelled"), True),
        ("work", dead(""), True),
        ("work", kept(State.WAITING, 1), False),
    ]:
        items = {message.id: item(kind, max_retries=2)}
        assert bool(wrong_dead_letters([message], items)) is wrong, (kind, message)


def test_a_follow_up_is_good_work() -> None:
    assert wrong_dead_letters([dead("failed")], {}) == {
        dead("").id: "it is dead (failed), which no job of the kind follow-up may be"
    }
    assert not wrong_dead_letters([dead("crash-limit", 0, 6)], {})


def test_a_broker_that_counts_deliveries_itself_may_give_up_sooner() -> None:
    assert not wrong_dead_letters([dead("crash-limit", 0, 2)], {}, exact=False)
    assert wrong_dead_letters([dead("failed")], {}, exact=False)


def test_every_kind_that_dies_is_one() -> None:
    assert set(DIES_OF) < set(KINDS)


def test_quantiles() -> None:
    assert quantiles([]) == {"n": 0}
    assert quantiles([3.0]) == {"n": 1, "p50": 3.0, "p99": 3.0, "max": 3.0}
    assert quantiles([float(number) for number in range(1, 101)]) == {"n": 100, "p50": 50.0, "p99": 99.0, "max": 100.0}


def test_the_tally_counts_what_was_accepted() -> None:
    tally = Tally()
    answers = [("ack", "ok"), ("ack", "expired"), ("nack", "already"), ("abandon", "ok"), ("release", "ok")]
    lines = [Line("settled", "a", verb=verb, answer=answer) for verb, answer in answers]
    ledger = cast(Ledger, SimpleNamespace(after=lambda read: lines[read:]))
    tally.follow(ledger)
    lines += [Line("enq", "a"), Line("start", "a"), Line("unknown", "a", verb="ack")]
    tally.follow(ledger)
    lines += [Line("reaped", "a", answer="back"), Line("reaped", "a", answer="dead")]
    tally.follow(ledger)
    assert tally == Tally(enqueued=1, runs=1, done=1, failed=1, crashed=2, dead=2, refused=1, unknown=1, written=10)


# --- innocent jobs in spoilt processes --------------------------------------------------------------------------------


def delivered(verb: str, *events: str) -> list[Line]:
    written = [Line(event, "a", fence=2, at=10.0) for event in events]
    return [*written, Line("asked", "a", fence=2, at=11.0, verb=verb, pool="pool1")]


def test_a_job_that_fails_in_spite_of_its_handler_is_told() -> None:
    for story, kind, blamed_for in [
        (delivered("nack", "start"), "work", "delivery 2 failed, and its handler had not"),
        (delivered("nack"), "work", "delivery 2 failed, and its handler had not"),
        (delivered("abandon", "start"), "doomed", "delivery 2 failed, and its handler had not"),
        (delivered("forfeit", "start"), "work", "delivery 2 died, and nothing had killed it"),
        (delivered("nack", "start", "fail"), "flaky", ""),
        (delivered("nack", "start", "end", "spoilt"), "work", ""),
        (delivered("forfeit", "start", "end", "spoilt"), "work", ""),
        (delivered("abandon"), "work", ""),
        (delivered("nack", "start"), "hang", ""),
        (delivered("forfeit", "start"), "crash", ""),
        (delivered("abandon", "start"), "cancelled", ""),
        (delivered("release", "start"), "work", ""),
        (delivered("ack", "start", "end"), "work", ""),
    ]:
        assert blamed(story, {"a": item(kind)}, []) == ({"a": blamed_for} if blamed_for else {}), (story, kind)


def test_a_death_is_nobodys_fault_where_something_had_killed_in_that_pool() -> None:
    for window, excused in [
        (Window("pool1", "child.kill", 10.5, 10.5), True),
        (Window("pool1", "forkserver.freeze", 2.0, 10.0 - DEATH_SEEN_S), True),
        (Window("pool1", "child.kill", 9.9 - DEATH_SEEN_S, 9.9 - DEATH_SEEN_S), False),
        (Window("pool1", "child.kill", 11.5, 11.5), False),
        (Window("pool2", "child.kill", 10.5, 10.5), False),
        (Window("pool1", "child.spoil", 10.5, 10.5), False),
        (Window("pool1", "net.hole", 10.5, 10.5), False),
    ]:
        story = delivered("forfeit", "start")
        again = Line("start", "a", fence=2, at=30.0)  # beanstalkd counts reserves anew when it was restarted
        for told in (story, [*story, again], [again, *story]):
            assert (blamed(told, {"a": item("work")}, [window]) == {}) is excused, window
        assert blamed(delivered("nack", "start"), {"a": item("work")}, [window]), "a kill fails no job"
