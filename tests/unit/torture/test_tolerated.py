"""What faults excuse: of which messages a broker that copies may have left two, and which brokers those are."""

from __future__ import annotations

import pytest

from jobpool.broker.values import Capabilities
from jobpool_torture.judge import (
    Window,
    copies_left,
    enqueued_twice,
    excused_ids,
    half_charged,
    without_unheard_failures,
)
from jobpool_torture.ledger import Line


def a_call(verb: str, pool: str = "pool1", event: str = "settled", since: float = 4.9, at: float = 5.1) -> Line:
    return Line(event, "a", fence=2, verb=verb, pool=pool, since=since, at=at)


CUT = Window("pool1", "net.cut", 5, 5)


def test_a_copy_may_be_left_where_the_way_to_the_broker_was_bad() -> None:
    for case, line, window, may_be in [
        ("cut in the call", a_call("forfeit"), CUT, True),
        ("restarted in the call", a_call("nack", "pool1", "unknown", 1, 9), Window("", "broker.restart", 5, 5), True),
        ("an ack", a_call("ack"), CUT, False),
        ("another pool", a_call("nack", "pool2"), CUT, False),
        ("another fault", a_call("nack"), Window("pool1", "pool.term", 5, 5), False),
        ("before it", a_call("nack", since=4, at=4.9), CUT, False),
    ]:
        assert (copies_left([line], [window]) == {"a"}) is may_be, case


def test_a_failure_is_unheard_if_its_fork_server_died_before_the_release() -> None:
    fail, release = Line("fail", "a", fence=2, at=5.0), a_call("release", since=5.1, at=5.12)
    nack = a_call("nack", since=5.1, at=5.12)
    for case, pool, kind, at, is_heard in [
        ("killed then", "pool1", "forkserver.kill", 5.02, False),
        ("killed just before", "pool1", "forkserver.kill", 4.99, False),
        ("killed long before", "pool1", "forkserver.kill", 3.9, True),
        ("killed after", "pool1", "forkserver.kill", 5.2, True),
        ("another pool", "pool2", "forkserver.kill", 5.02, True),
        ("a child", "pool1", "child.kill", 5.02, True),
    ]:
        window = Window(pool, kind, at, at)
        assert without_unheard_failures([fail, release], [window]) == ([fail, release] if is_heard else [release]), case
        assert without_unheard_failures([fail, nack], [window]) == [fail, nack], case


def test_follow_ups_of_an_ack_count_as_copies_and_the_acked_does_not() -> None:
    assert copies_left([Line("follow", "a", fence=2, tag="b"), a_call("ack")], [CUT]) == {"b"}
    assert copies_left([Line("follow", "a", fence=1, tag="b"), a_call("ack")], [CUT]) == set()


def test_a_crash_may_have_been_charged_by_half_where_a_pool_was_cut_off_between_two_fetches() -> None:
    first, again = Line("fetched", "a", since=1.0, at=1.1), Line("fetched", "a", crashes=1, since=9.0, at=9.1)
    story = [Line("try", "a", at=0.5), first, again, Line("settled", "a", verb="ack", answer="ok", at=9.2)]
    assert half_charged(story, [Window("pool2", "net.drop", 4.0, 5.0)]) == {"a"}
    assert half_charged(story, [Window("pool2", "master.kill", 4.0, 5.0)]) == {"a"}
    assert half_charged(story, [Window("pool2", "child.kill", 4.0, 5.0), Window("pool2", "net.cut", 9.3, 9.3)]) == set()
    unseen = [Line("try", "a", at=0.5), again, Line("settled", "a", verb="ack", answer="ok", at=9.2)]
    assert half_charged(unseen, [Window("pool2", "net.drop", 4.0, 5.0)]) == {"a"}, "a fetch that was not answered"
    assert half_charged(story[:2], [Window("pool2", "net.drop", 4.0, 5.0)]) == {"a"}, "it may be dead by now"


def test_a_crash_that_was_settled_is_charged_whole() -> None:
    forfeited = Line("settled", "a", verb="forfeit", answer="ok", at=2.0)
    story = [Line("fetched", "a", since=1.0, at=1.1), forfeited, Line("fetched", "a", crashes=1, since=9.0, at=9.1)]
    over = Line("settled", "a", verb="ack", answer="ok", at=9.2)
    assert half_charged([*story, over], [Window("", "broker.restart", 4.0, 5.0)]) == set()


@pytest.mark.parametrize(("kind", "forgotten"), [("broker.restart", {"a"}), ("net.cut", set())])
def test_a_restart_forgets_what_was_released(kind: str, forgotten: set[str]) -> None:
    released = Line("settled", "a", verb="release", answer="ok", at=2.0)
    over = Line("settled", "a", verb="ack", answer="ok", at=9.2)
    story = [Line("fetched", "a", since=1.0, at=1.1), released, Line("fetched", "a", since=9.0, at=9.1), over]
    assert half_charged(story, [Window("", kind, 4.0, 5.0)]) == forgotten


@pytest.mark.parametrize(("took", "may_be"), [(0.1, set()), (1.7, {"a"})])
def test_an_enqueue_that_took_long_may_have_been_sent_twice(took: float, may_be: set[str]) -> None:
    assert (
        enqueued_twice([Line("try", "a", at=5.0), Line("enq", "a", at=5.0 + took), Line("try", "b", at=5.0)]) == may_be
    )


def test_only_what_a_broker_cannot_do_is_excused() -> None:
    story = [
        *(Line("try", "slow", at=1.0), Line("enq", "slow", at=2.0)),
        Line("settled", "nacked", verb="nack", pool="pool1", since=4.9, at=5.1),
        Line("fetched", "held", pool="pool1", since=1.0, at=1.1),
    ]
    for case, can, excused in [
        ("none", Capabilities(), set()),
        ("copies, and counts not exactly", Capabilities(keeps_records=False, exact_counts=False), {"nacked", "slow"}),
        ("charges by a copy", Capabilities(keeps_records=False), {"nacked", "slow", "held"}),
    ]:
        assert excused_ids(story, [CUT], can) == excused, case
