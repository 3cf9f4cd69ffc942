"""What an administrator means, decided without the broker: where to look, what may be deleted, how much was counted."""

from __future__ import annotations

import pytest
from support.tables import row

from jobpool.broker.values import Message, MessageFilter, State, Verb
from jobpool.errors import Unsupported
from jobpool_backends.servicebus.bulk import touched
from jobpool_backends.servicebus.inspect import MAX_STATS_MESSAGES, Found, oldest, sides, tally
from jobpool_backends.shared import is_meant

WAITING, DELAYED, LEASED, DEAD = State.WAITING, State.DELAYED, State.LEASED, State.DEAD


def a_message(state: State = WAITING, place: int = 1, died_at: float | None = None) -> Message:
    return Message(
        id=f"job-{place}",
        queue="reports",
        state=state,
        handler="report",
        priority=5,
        attempts=0,
        crashes=0,
        deliveries=0,
        enqueued_at=100.0,
        available_at=100.0,
        body=b'{"payload":"Z\xc3\xbcrich"}',
        died_at=died_at,
        cursor=str(place),
    )


# --- what a verb may meet -----------------------------------------------------------------------------------


def test_a_verb_meets_only_what_it_can_take() -> None:
    for case, where, verb, states in [
        ("all of all queues", MessageFilter(), Verb.DELETE, [WAITING, DELAYED, DEAD]),
        ("all of a queue", MessageFilter(queue="q"), Verb.DELETE, [WAITING, DELAYED, DEAD]),
        ("all that wait", MessageFilter(states=(WAITING,)), Verb.DELETE, [WAITING]),
        ("never what is leased", MessageFilter(states=(LEASED,)), Verb.DELETE, []),
        ("dead letters by any filter", MessageFilter(states=(DEAD,), text="x"), Verb.DELETE, [DEAD]),
        ("delayed by any filter", MessageFilter(states=(DELAYED,), ids=("a",)), Verb.DELETE, [DELAYED]),
        ("only the dead have a reason", MessageFilter(reason="timeout"), Verb.DELETE, [DEAD]),
        ("only the dead are raised", MessageFilter(handler="mail"), Verb.RETRY, [DEAD]),
        ("what waits is not raised", MessageFilter(states=(WAITING,)), Verb.RESUME, []),
    ]:
        assert touched(where, verb) == states, case


def test_what_waits_is_not_deleted_one_by_one_and_the_refusal_says_what_is() -> None:
    for case, where in [
        ("ids", MessageFilter(ids=("a",))),
        ("handler", MessageFilter(handler="mail", states=(WAITING, DEAD))),
        ("age", MessageFilter(queue="q", older_than=5.0)),
    ]:
        with row(case), pytest.raises(Unsupported, match=r"keeps_records.*state:dead"):
            touched(where, Verb.DELETE)


# --- where to look ------------------------------------------------------------------------------------------


def test_only_what_can_hold_a_match_is_looked_through() -> None:
    for where, looked in [
        (MessageFilter(), [False, True]),
        (MessageFilter(states=(DEAD,)), [True]),
        (MessageFilter(states=(WAITING, LEASED)), [False]),
        (MessageFilter(reason="timeout"), [True]),
        (MessageFilter(reason="timeout", states=(WAITING,)), []),
    ]:
        assert sides(where) == looked, where


def test_a_page_has_the_oldest_behind_its_cursor() -> None:
    found = [Found(a_message(place=place), sequence=0) for place in (5, 1, 4, 2, 3)]
    assert [int(sight.message.cursor) for sight in oldest(found, 2, after=1)] == [2, 3]
    assert [int(sight.message.cursor) for sight in oldest(found, 9)] == [1, 2, 3, 4, 5]


def test_age_counts_from_the_enqueue_and_words_in_any_case() -> None:
    for where, expected in [
        (MessageFilter(text="ZÜRICH"), True),
        (MessageFilter(text="Bern"), False),
        (MessageFilter(older_than=60.0), True),
        (MessageFilter(older_than=60.001), False),
        (MessageFilter(newer_than=60.0), True),
        (MessageFilter(newer_than=59.999), False),
    ]:
        assert is_meant(a_message(), where, now=160.0) is expected, where


def test_the_age_of_a_dead_letter_counts_from_its_death() -> None:
    dead = a_message(DEAD, died_at=150.0)
    assert is_meant(dead, MessageFilter(older_than=10.0), now=160.0)
    assert not is_meant(dead, MessageFilter(older_than=11.0), now=160.0)


# --- counts -------------------------------------------------------------------------------------------------


def test_counts_of_a_short_queue_are_exact() -> None:
    live = [a_message(), a_message(DELAYED), a_message(LEASED), a_message(LEASED)]
    stats = tally(live, dead=3, now=160.0)
    assert (stats.waiting, stats.delayed, stats.leased, stats.dead, stats.cap) == (1, 1, 2, 3, None)
    assert stats.oldest == 60.0


def test_nothing_waits_so_nothing_is_oldest() -> None:
    assert tally([a_message(DELAYED)], dead=0, now=160.0).oldest is None


def test_counts_of_a_long_queue_are_at_least_so_many() -> None:
    live = [a_message()] * (MAX_STATS_MESSAGES - 100) + [a_message(DELAYED)] * 100
    stats = tally(live, dead=7, now=160.0)
    assert stats.cap == 100
    assert tally([a_message()], dead=MAX_STATS_MESSAGES, now=160.0).cap == MAX_STATS_MESSAGES
