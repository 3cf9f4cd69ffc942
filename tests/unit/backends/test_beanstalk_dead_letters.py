"""Looking at the buried jobs of a real beanstalkd: in order, whole, and without a trace."""

from __future__ import annotations

import pytest
from beanstalk_rig import NOW, QUEUE, BeanstalkRig, body, died, rig_on_it, server_of_file

from jobpool.broker.values import Message, MessageFilter, State
from jobpool.errors import Unsupported
from jobpool_backends.beanstalk import inspect
from jobpool_backends.beanstalk.inspect import Walk

ALL = MessageFilter()


server, rig = server_of_file, rig_on_it


def ids(messages: list[Message]) -> list[str]:
    return [message.id for message in messages]


def walked(walk: Walk) -> list[str]:
    shown = []
    while walk.letter is not None:
        shown.append(walk.letter.message.id)
        walk.keep()
    return shown


# --- lists ------------------------------------------------------------------------------------------------


def test_all_about_a_letter(rig: BeanstalkRig) -> None:
    record = died(
        "a", attempts=3, crashes=1, deliveries=9, last_error="boom", cause='{"signal": "SIGKILL"}', reason="timeout"
    )
    rig.bury(record, priority=17)
    [message] = rig.inspector.page(ALL, 0, 50)
    assert (message.id, message.queue, message.state, message.handler) == ("a", QUEUE, State.DEAD, "send")
    assert (message.attempts, message.crashes, message.deliveries, message.priority) == (3, 1, 9, 17)
    assert (message.last_error, message.cause, message.reason) == ("boom", '{"signal": "SIGKILL"}', "timeout")
    assert (message.enqueued_at, message.died_at, message.expires_at) == (NOW - 60.0, NOW, None)
    assert message.body == body("a", priority=17)
    assert rig.inspector.inspect("a") == message


def test_looking_leaves_the_order_and_the_priorities(rig: BeanstalkRig) -> None:
    known = [rig.bury(died(ident), priority=place) for place, ident in enumerate("abcde")]
    assert ids(rig.inspector.page(ALL, 0, 2)) == ["a", "b"]
    assert rig.inspector.count(MessageFilter(text="SEND"), 100) == 5
    assert rig.inspector.inspect("c") is not None
    assert rig.inspector.inspect("nobody") is None
    assert rig.counts() == (0, 0, 0, 5)
    assert [rig.raw.stats_job(job)["pri"] for job in known] == [0, 1, 2, 3, 4]
    assert rig.buried() == known


def test_pages_follow_each_other_by_death_through_all_queues(rig: BeanstalkRig) -> None:
    for place in range(11):
        rig.bury(died(f"{place:02d}"), queue=f"q{place % 3}")
    seen: list[str] = []
    after = 0
    while page := rig.inspector.page(ALL, after, 4):
        seen += ids(page)
        after = int(page[-1].cursor)
    assert seen == [f"{place:02d}" for place in range(11)]
    assert ids(rig.inspector.page(MessageFilter(queue="q1"), 0, 9)) == ["01", "04", "07", "10"]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (MessageFilter(handler="send"), "abc"),
        (MessageFilter(handler="render"), ""),
        (MessageFilter(reason="timeout"), "b"),
        (MessageFilter(text="zürich"), "c"),
        (MessageFilter(older_than=10.0), "a"),
        (MessageFilter(newer_than=9.0), "bc"),
        (MessageFilter(ids=("c", "a", "x")), "ac"),
        (MessageFilter(states=(State.DEAD, State.WAITING)), "abc"),
        (MessageFilter(queue=QUEUE, reason="failed"), "ac"),
        (MessageFilter(queue="none"), ""),
    ],
)
def test_filters(rig: BeanstalkRig, where: MessageFilter, found: str) -> None:
    rig.bury(died("a", died_at=NOW - 10.0))
    rig.bury(died("b", reason="timeout"))
    rig.bury(died("c", last_error="in Zürich"))
    assert ids(rig.inspector.page(where, 0, 50)) == list(found)
    assert rig.inspector.count(where, 100) == len(found)


def test_only_the_dead_are_listed_and_a_sentence_says_so(rig: BeanstalkRig) -> None:
    rig.put("alive")
    assert rig.inspector.page(ALL, 0, 50) == []
    assert rig.inspector.inspect("alive") is None
    live = MessageFilter(states=(State.WAITING, State.LEASED))
    for look in (lambda: rig.inspector.page(live, 0, 50), lambda: rig.inspector.count(live, 10)):
        with pytest.raises(Unsupported, match=r"lists_live.*stats"):
            look()


def test_a_count_ends_at_its_cap(rig: BeanstalkRig) -> None:
    rig.bury_many("abcd")
    assert rig.inspector.count(ALL, 3) == rig.inspector.count(MessageFilter(reason="failed"), 3) == 3
    assert rig.inspector.count(MessageFilter(queue=QUEUE), 10) == 4


# --- what it costs ----------------------------------------------------------------------------------------


def test_a_list_is_one_step_a_letter_and_asking_again_for_one_none(rig: BeanstalkRig) -> None:
    rig.bury_many(map(str, range(30)))
    before = rig.steps()
    assert len(rig.inspector.page(ALL, 0, 50)) == 30
    assert rig.steps() - before == 30
    assert rig.inspector.inspect("17") is not None
    assert rig.inspector.count(ALL, 100) == 30
    assert rig.steps() - before == 30


def test_a_place_that_was_remembered_wrongly_is_looked_for_again(rig: BeanstalkRig) -> None:
    first = rig.bury(died("a"))
    assert rig.inspector.inspect("a") is not None
    rig.raw.delete(first)
    assert rig.inspector.inspect("a") is None
    again = rig.bury(died("a", attempts=7))
    found = rig.inspector.inspect("a")
    assert found is not None
    assert (found.cursor, found.attempts) == (str(again), 7)


def test_a_walk_has_an_end_and_the_next_goes_on_behind_it(rig: BeanstalkRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "MAX_WALK_STEPS", 5)
    rig.bury_many("abcdefgh")
    assert ids(rig.inspector.page(ALL, 0, 50)) == list("abcde")
    assert ids(rig.inspector.page(ALL, 0, 50)) == ["a", "b", "f", "g", "h"]


# --- others at the same time ------------------------------------------------------------------------------


def test_what_dies_during_a_walk_is_seen_and_it_ends(rig: BeanstalkRig) -> None:
    rig.bury_many("abc")
    with rig.admin.connections.spare() as connection:
        walk = Walk(connection, QUEUE, rig.clock)
        walk.keep()
        rig.bury(died("d"))
        assert walked(walk) == ["b", "c", "d"]


def test_two_walks_in_turns_see_all_and_lose_nothing(rig: BeanstalkRig) -> None:
    known = [f"{place:02d}" for place in range(10)]
    rig.bury_many(known)
    other = rig.administrator()
    with rig.admin.connections.spare() as one, other.connections.spare() as two:
        walks = [Walk(one, QUEUE, rig.clock), Walk(two, QUEUE, rig.clock)]
        seen: list[set[str]] = [set(), set()]
        while any(walk.letter for walk in walks):
            for walk, shown in zip(walks, seen, strict=True):
                if walk.letter is not None:
                    shown.add(walk.letter.message.id)
                    walk.keep()
    assert seen == [set(known), set(known)]
    assert rig.counts() == (0, 0, 0, 10)


def test_a_letter_in_somebody_elses_hands_is_passed_over(rig: BeanstalkRig) -> None:
    numbers = rig.bury_many("abc")
    job = rig.raw.reserve_job(numbers[1])
    assert ids(rig.inspector.page(ALL, 0, 50)) == ["a", "c"]
    rig.raw.bury(job, 5)
    assert ids(rig.inspector.page(ALL, 0, 50)) == ["a", "b", "c"]


# --- of other programs ------------------------------------------------------------------------------------


def test_what_another_program_buried_is_shown_with_what_there_is(rig: BeanstalkRig) -> None:
    number = rig.bury_bytes(b"\xff not ours", priority=70_000)
    rig.bury(died("ours"))
    foreign, ours = rig.inspector.page(ALL, 0, 50)
    assert (foreign.id, foreign.handler, foreign.reason) == (f"beanstalkd-{number}", "", "buried")
    assert (foreign.body, foreign.priority, foreign.state) == (b"\xff not ours", 255, State.DEAD)
    assert foreign.died_at == foreign.enqueued_at == pytest.approx(rig.clock.wall(), abs=2.0)
    assert ours.id == "ours"
    assert ids(rig.inspector.page(MessageFilter(reason="buried"), 0, 9)) == [foreign.id]
    assert rig.raw.stats_job(number)["pri"] == 70_000
    found = rig.inspector.inspect(foreign.id)
    assert found is not None
    assert found.body == foreign.body


def test_a_letter_whose_body_cannot_be_read_is_shown(rig: BeanstalkRig) -> None:
    rig.bury_bytes(b'{"jobpool":1,"id":"odd","at":1800000000.5,"died_at":1800000000.5,"reason":"rejected"}\n{"no": 1}')
    [message] = rig.inspector.page(ALL, 0, 9)
    assert (message.id, message.handler, message.reason, message.body) == ("odd", "", "rejected", b'{"no": 1}')


# --- counts -----------------------------------------------------------------------------------------------


def test_stats_count_each_state_and_tell_the_age_of_what_is_next(rig: BeanstalkRig) -> None:
    rig.put("first")
    rig.clock.advance(7.0)
    rig.put("second")
    rig.put("later", delay=100)
    rig.raw.reserve_job(rig.put("leased"))
    rig.bury(died("dead"))
    rig.clock.advance(3.0)
    stats = rig.inspector.stats(QUEUE)
    assert (stats.waiting, stats.delayed, stats.leased, stats.dead, stats.oldest) == (2, 1, 1, 1, 10.0)
    assert (rig.inspector.stats("nothing").pending, rig.inspector.stats("nothing").oldest) == (0, None)


def test_the_age_of_what_another_program_put_is_the_servers(rig: BeanstalkRig) -> None:
    rig.raw.put(b"foreign")
    assert rig.inspector.stats(QUEUE).oldest in (0.0, 1.0)


def test_queues_are_the_tubes_with_our_prefix_that_hold_a_job(rig: BeanstalkRig) -> None:
    rig.put("a", queue="waiting")
    rig.put("b", queue="delayed", delay=60)
    rig.bury(died("c"), queue="dead")
    rig.raw.use(f"{rig.prefix}empty")
    rig.raw.watch(f"{rig.prefix}empty")
    with rig.server.client("foreign") as other, rig.server.client(f"{rig.prefix}no(queue)") as odd:
        numbers = [client.put(b"x") for client in (other, odd)]
        assert rig.inspector.queues() == ["dead", "delayed", "waiting"]
        for client, number in zip((other, odd), numbers, strict=True):
            client.delete(number)
