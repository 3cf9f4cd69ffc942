"""What an administrator means, decided without the broker: where to look, what may be deleted, how much was counted."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
    ("where", "verb", "states"),
    [
        pytest.param(MessageFilter(), Verb.DELETE, [WAITING, DELAYED, DEAD], id="all of all queues"),
        pytest.param(MessageFilter(queue="q"), Verb.DELETE, [WAITING, DELAYED, DEAD], id="all of a queue"),
        pytest.param(MessageFilter(states=(WAITING,)), Verb.DELETE, [WAITING], id="all that wait"),
        pytest.param(MessageFilter(states=(LEASED,)), Verb.DELETE, [], id="never what is leased"),
        pytest.param(MessageFilter(states=(DEAD,), text="x"), Verb.DELETE, [DEAD], id="dead letters by any filter"),
        pytest.param(MessageFilter(states=(DELAYED,), ids=("a",)), Verb.DELETE, [DELAYED], id="delayed by any filter"),
        pytest.param(MessageFilter(reason="timeout"), Verb.DELETE, [DEAD], id="only the dead have a reason"),
        pytest.param(MessageFilter(handler="mail"), Verb.RETRY, [DEAD], id="only the dead are raised"),
        pytest.param(MessageFilter(states=(WAITING,)), Verb.RESUME, [], id="what waits is not raised"),
    ],
)
def test_a_verb_meets_only_what_it_can_take(where: MessageFilter, verb: Verb, states: list[State]) -> None:
    assert touched(where, verb) == states


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(MessageFilter(ids=("a",)), id="ids"),
        pytest.param(MessageFilter(handler="mail", states=(WAITING, DEAD)), id="handler"),
        pytest.param(MessageFilter(queue="q", older_than=5.0), id="age"),
    ],
)
def test_what_waits_is_not_deleted_one_by_one_and_the_refusal_says_what_is(where: MessageFilter) -> None:
    with pytest.raises(Unsupported, match=r"keeps_records.*state:dead"):
        touched(where, Verb.DELETE)


# --- where to look ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "looked"),
    [
        (MessageFilter(), [False, True]),
        (MessageFilter(states=(DEAD,)), [True]),
        (MessageFilter(states=(WAITING, LEASED)), [False]),
        (MessageFilter(reason="timeout"), [True]),
        (MessageFilter(reason="timeout", states=(WAITING,)), []),
    ],
)
def test_only_what_can_hold_a_match_is_looked_through(where: MessageFilter, looked: list[bool]) -> None:
    assert sides(where) == looked


def test_a_page_has_the_oldest_behind_its_cursor() -> None:
    found = [Found(a_message(place=place), sequence=0) for place in (5, 1, 4, 2, 3)]
    assert [int(sight.message.cursor) for sight in oldest(found, 2, after=1)] == [2, 3]
    assert [int(sight.message.cursor) for sight in oldest(found, 9)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (MessageFilter(text="ZÜRICH"), True),
        (MessageFilter(text="Bern"), False),
        (MessageFilter(older_than=60.0), True),
        (MessageFilter(older_than=60.001), False),
        (MessageFilter(newer_than=60.0), True),
        (MessageFilter(newer_than=59.999), False),
    ],
)
def test_age_counts_from_the_enqueue_and_words_in_any_case(where: MessageFilter, expected: bool) -> None:
    assert is_meant(a_message(), where, now=160.0) is expected


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
