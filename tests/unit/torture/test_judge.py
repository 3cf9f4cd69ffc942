"""What a run judges itself: late timeouts, poison that ran too often, keys that were not kept, descriptors."""

from __future__ import annotations

from collections import Counter

import pytest

from jobpool.torture.judge import AFTER, Window, broken_keys, copied, overruns, recounted, repeated, unpoisoned, unrun
from jobpool.torture.ledger import Line
from jobpool.torture.remains import FILES_TOLERATED, SOCKETS_TOLERATED, difference, grown, listed
from jobpool.torture.result import quantiles
from jobpool.torture.tally import Tally
from jobpool.torture.workload import TIMEOUT, Item


def item(kind: str, **options: object) -> Item:
    return Item(0, 0.0, kind, "torture.work", {}, 0.0, dict(options))


HANG = {"a": item("hang")}
STORY = [Line("start", "a", fence=2, at=10.0), Line("asked", "a", fence=2, at=12.5, verb="nack", pool="pool1")]


@pytest.mark.parametrize(
    ("window", "excused"),
    [
        (Window("pool1", "master.stop", 11.0, 11.5), True),
        (Window("", "broker.restart", 11.0, 11.5), True),
        (Window("pool2", "master.stop", 11.0, 11.5), False),
        (Window("pool1", "child.stop", 11.0, 11.5), False),
        (Window("pool1", "net.hole", 10.0 - AFTER, 10.0 - AFTER), True),
        (Window("pool1", "net.hole", 9.9 - AFTER, 9.9 - AFTER), False),
        (Window("pool1", "net.hole", 12.6, 20.0), False),
    ],
    ids=["stopped", "all of them", "another pool", "the child alone", "just before", "long before", "after"],
)
def test_a_timeout_is_late_by_the_verdict_unless_its_pool_was_held_up(window: Window, excused: bool) -> None:
    assert overruns(STORY, HANG, []) == {"a": pytest.approx(1.5 - (TIMEOUT - 1.0))}
    assert (overruns(STORY, HANG, [window]) == {}) is excused


def test_only_verdicts_on_jobs_that_hang_count() -> None:
    assert overruns(STORY, {"a": item("work")}, []) == {}
    forfeited = [STORY[0], Line("asked", "a", fence=2, at=12.5, verb="forfeit", pool="pool1")]
    assert overruns(forfeited, HANG, []) == {}


def test_poison_runs_once_more_than_the_budget_and_released_runs_are_not_charged() -> None:
    items = {"p": item("poison")}
    starts = [Line("start", "p", fence=number) for number in range(1, 5)]
    assert unpoisoned(starts[:3], items, max_crashes=2) == set()
    assert unpoisoned(starts, items, max_crashes=2) == {"p"}
    released = Line("settled", "p", fence=3, verb="release", answer="ok")
    assert unpoisoned([*starts, released], items, max_crashes=2) == set()
    assert unpoisoned(starts, {"p": item("crash")}, max_crashes=2) == set()


KEYED = {"a": item("keyed", idempotency_key="k"), "b": item("keyed", idempotency_key="k")}
DONE = [Line("start", "a", fence=1, at=1.0), Line("settled", "a", fence=1, at=2.0, verb="ack", answer="ok")]


@pytest.mark.parametrize(
    ("lines", "broken"),
    [
        ([*DONE, Line("start", "b", fence=1, at=2.1)], {"b"}),
        ([*DONE, Line("start", "b", fence=1, at=1.9)], set()),
        ([*DONE, Line("settled", "b", fence=1, at=2.1, verb="ack", answer="ok")], set()),
        ([DONE[0], Line("unknown", "a", fence=1, at=2.0, verb="ack"), Line("start", "b", fence=1, at=2.1)], set()),
        ([DONE[1], Line("start", "b", fence=1, at=2.1)], set()),
    ],
    ids=["after the ack", "before it", "skipped", "the ack was not answered", "the ack was a skip"],
)
def test_after_an_accepted_ack_no_other_job_of_the_key_begins(lines: list[Line], broken: set[str]) -> None:
    assert broken_keys(lines, KEYED) == broken


def test_an_ack_of_a_job_that_never_began_is_right_only_where_a_key_was_done() -> None:
    assert unrun([DONE[1]], KEYED) == set()
    assert unrun([DONE[1]], {}) == {"a"}
    assert unrun(DONE, {}) == set()
    assert unrun([DONE[0], Line("settled", "a", fence=2, verb="ack", answer="already")], {}) == {"a"}
    assert unrun([Line("settled", "a", fence=1, verb="ack", answer="expired")], {}) == set()


def test_a_unique_key_has_one_message() -> None:
    items = {ident: item("unique", idempotency_key="k") for ident in "ab"}
    first, again = Line("enq", "a", tag="a"), Line("enq", "a", tag="b")
    assert broken_keys([first, again], items) == set()
    assert broken_keys([first, Line("enq", "b", tag="b")], items) == {"b"}


def more(now: dict[str, int], pool: str = "pool1") -> dict[str, dict[str, int]]:
    return difference({"pool1": Counter({"socket": 10, "pipe": 3, "/jobs.db": 1})}, {pool: Counter(now)})


def test_descriptors_are_compared_by_kind_and_pool() -> None:
    assert more({"socket": 12, "pipe": 3}) == {"pool1": {"socket": 2, "/jobs.db": -1}}
    assert more({"socket": 10, "pipe": 3, "/jobs.db": 1}) == {"pool1": {}}
    assert more({"socket": 50}, "pool2") == {}
    assert listed({"socket": 2, "/jobs.db": -1}) == "+2 socket, -1 /jobs.db"
    assert listed({}) == "as before"


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"socket": 10 + SOCKETS_TOLERATED, "/jobs.db": 1 + FILES_TOLERATED}, []),
        ({"socket": 11 + SOCKETS_TOLERATED}, [f"pool1: +{1 + SOCKETS_TOLERATED} socket"]),
        ({"/jobs.db": 2 + FILES_TOLERATED}, [f"pool1: +{1 + FILES_TOLERATED} /jobs.db"]),
        ({"pipe": 4, "anon_inode:[pidfd]": 1}, ["pool1: +1 anon_inode:[pidfd], +1 pipe"]),
        ({"/memfd:jobpool (deleted)": 1}, ["pool1: +1 /memfd:jobpool (deleted)"]),
    ],
)
def test_descriptors_may_grow_by_a_few_connections_and_nothing_else(now: dict[str, int], told: list[str]) -> None:
    assert grown(more(now)) == told


def test_quantiles() -> None:
    assert quantiles([]) == {"n": 0}
    assert quantiles([3.0]) == {"n": 1, "p50": 3.0, "p99": 3.0, "max": 3.0}
    assert quantiles([float(number) for number in range(1, 101)]) == {"n": 100, "p50": 50.0, "p99": 99.0, "max": 100.0}


def test_the_tally_counts_what_was_accepted() -> None:
    tally = Tally()
    answers = [("ack", "ok"), ("ack", "expired"), ("nack", "already"), ("abandon", "ok"), ("release", "ok")]
    tally.add([Line("settled", "a", verb=verb, answer=answer) for verb, answer in answers])
    tally.add([Line("enq", "a"), Line("start", "a"), Line("unknown", "a", verb="ack")])
    tally.add([Line("reaped", "a", answer="back"), Line("reaped", "a", answer="dead")])
    assert tally == Tally(enqueued=1, runs=1, done=1, failed=1, crashed=2, dead=2, refused=1, unknown=1, written=10)


@pytest.mark.parametrize(
    ("line", "window", "may_be"),
    [
        (Line("settled", "a", verb="forfeit", pool="pool1", since=4.9, at=5.1), Window("pool1", "net.cut", 5, 5), True),
        (Line("unknown", "a", verb="nack", pool="pool1", since=1, at=9), Window("", "broker.restart", 5, 5), True),
        (Line("settled", "a", verb="ack", pool="pool1", since=4.9, at=5.1), Window("pool1", "net.cut", 5, 5), False),
        (Line("settled", "a", verb="nack", pool="pool2", since=4.9, at=5.1), Window("pool1", "net.cut", 5, 5), False),
        (Line("settled", "a", verb="nack", pool="pool1", since=4.9, at=5.1), Window("pool1", "pool.term", 5, 5), False),
        (Line("settled", "a", verb="nack", pool="pool1", since=4, at=4.9), Window("pool1", "net.cut", 5, 5), False),
    ],
    ids=["cut in the call", "restarted in the call", "an ack", "another pool", "another fault", "before it"],
)
def test_a_copy_may_be_left_where_the_way_to_the_broker_was_bad(line: Line, window: Window, may_be: bool) -> None:
    assert (copied([line], [window]) == {"a"}) is may_be


def test_follow_ups_of_an_ack_count_as_copies_and_the_acked_does_not() -> None:
    ack = Line("settled", "a", fence=2, verb="ack", pool="pool1", since=4.9, at=5.1)
    assert copied([Line("follow", "a", fence=2, tag="b"), ack], [Window("", "net.cut", 5, 5)]) == {"b"}
    assert copied([Line("follow", "a", fence=1, tag="b"), ack], [Window("", "net.cut", 5, 5)]) == set()


def test_a_crash_may_have_been_charged_by_half_where_a_pool_was_cut_off_between_two_fetches() -> None:
    first, again = Line("fetched", "a", since=1.0, at=1.1), Line("fetched", "a", crashes=1, since=9.0, at=9.1)
    story = [Line("try", "a", at=0.5), first, again, Line("settled", "a", verb="ack", answer="ok", at=9.2)]
    assert recounted(story, [Window("pool2", "net.drop", 4.0, 5.0)]) == {"a"}
    assert recounted(story, [Window("pool2", "master.kill", 4.0, 5.0)]) == {"a"}
    assert recounted(story, [Window("pool2", "child.kill", 4.0, 5.0), Window("pool2", "net.cut", 9.3, 9.3)]) == set()
    unseen = [Line("try", "a", at=0.5), again, Line("settled", "a", verb="ack", answer="ok", at=9.2)]
    assert recounted(unseen, [Window("pool2", "net.drop", 4.0, 5.0)]) == {"a"}, "a fetch that was not answered"
    assert recounted(story[:2], [Window("pool2", "net.drop", 4.0, 5.0)]) == {"a"}, "it may be dead by now"


def test_a_crash_that_was_settled_is_charged_whole() -> None:
    forfeited = Line("settled", "a", verb="forfeit", answer="ok", at=2.0)
    story = [Line("fetched", "a", since=1.0, at=1.1), forfeited, Line("fetched", "a", crashes=1, since=9.0, at=9.1)]
    over = Line("settled", "a", verb="ack", answer="ok", at=9.2)
    assert recounted([*story, over], [Window("", "broker.restart", 4.0, 5.0)]) == set()


@pytest.mark.parametrize(("kind", "forgotten"), [("broker.restart", {"a"}), ("net.cut", set())])
def test_a_restart_forgets_what_was_released(kind: str, forgotten: set[str]) -> None:
    released = Line("settled", "a", verb="release", answer="ok", at=2.0)
    over = Line("settled", "a", verb="ack", answer="ok", at=9.2)
    story = [Line("fetched", "a", since=1.0, at=1.1), released, Line("fetched", "a", since=9.0, at=9.1), over]
    assert recounted(story, [Window("", kind, 4.0, 5.0)]) == forgotten


@pytest.mark.parametrize(("took", "may_be"), [(0.1, set()), (1.7, {"a"})])
def test_an_enqueue_that_took_long_may_have_been_sent_twice(took: float, may_be: set[str]) -> None:
    assert repeated([Line("try", "a", at=5.0), Line("enq", "a", at=5.0 + took), Line("try", "b", at=5.0)]) == may_be
