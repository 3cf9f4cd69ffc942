"""What faults excuse: of which messages a broker that copies may have left two, and which brokers those are."""

from __future__ import annotations

import pytest

from jobpool.broker.values import Capabilities
from jobpool_torture.judge import Window, copied, doubled, heard, recounted, repeated
from jobpool_torture.ledger import Line


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


@pytest.mark.parametrize(
    ("window", "is_heard"),
    [
        (Window("pool1", "forkserver.kill", 5.02, 5.02), False),
        (Window("pool1", "forkserver.kill", 4.99, 4.99), False),
        (Window("pool1", "forkserver.kill", 3.9, 3.9), True),
        (Window("pool1", "forkserver.kill", 5.2, 5.2), True),
        (Window("pool2", "forkserver.kill", 5.02, 5.02), True),
        (Window("pool1", "child.kill", 5.02, 5.02), True),
    ],
    ids=["killed then", "killed just before", "killed long before", "killed after", "another pool", "a child"],
)
def test_a_failure_is_unheard_if_its_fork_server_died_before_the_release(window: Window, is_heard: bool) -> None:
    fail = Line("fail", "a", fence=2, at=5.0)
    release = Line("settled", "a", fence=2, verb="release", pool="pool1", since=5.1, at=5.12)
    assert heard([fail, release], [window]) == ([fail, release] if is_heard else [release])
    nack = Line("settled", "a", fence=2, verb="nack", pool="pool1", since=5.1, at=5.12)
    assert heard([fail, nack], [window]) == [fail, nack]


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


@pytest.mark.parametrize(
    ("can", "excused"),
    [
        (Capabilities(), set()),
        (Capabilities(keeps_records=False, exact_counts=False), {"nacked", "slow"}),
        (Capabilities(keeps_records=False), {"nacked", "slow", "held"}),
    ],
    ids=["none", "copies, and counts not exactly", "charges by a copy"],
)
def test_only_what_a_broker_cannot_do_is_excused(can: Capabilities, excused: set[str]) -> None:
    story = [
        *(Line("try", "slow", at=1.0), Line("enq", "slow", at=2.0)),
        Line("settled", "nacked", verb="nack", pool="pool1", since=4.9, at=5.1),
        Line("fetched", "held", pool="pool1", since=1.0, at=1.1),
    ]
    assert doubled(story, [Window("pool1", "net.cut", 5, 5)], can) == excused
