"""The administrator's side: stats, lists, counts, bulk verbs, single messages (law 9)."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from support.claims import ids
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, numbered
from support.looks import in_order

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, QueueStats, State, Verb
from jobpool.errors import Unsupported
from jobpool.message.envelope import OVERSIZED

pytestmark = pytest.mark.needs("leases")


def one_of_each(harness: Harness, backend: QueueBackend) -> dict[State, str]:
    """A dead, a leased, a waiting and a delayed message, in this order; their ids."""
    dead, leased, waiting = backend.enqueue_many(
        [a_job("Perished", handler="render"), a_job("leased"), a_job("waiting", priority=9)]
    )
    delayed = backend.enqueue(a_job("delayed", scheduled_at=at(harness.now() + 100)))
    first, _ = backend.fetch_many(QUEUE, limit=2, ttl=50.0)
    backend.abandon(first, "timeout", "Traceback: TOO SLOW")
    return {State.DEAD: dead, State.LEASED: leased, State.WAITING: waiting, State.DELAYED: delayed}


def shows(backend: QueueBackend, where: MessageFilter) -> bool:
    """Whether the broker can look for what this filter means."""
    return backend.capabilities.lists_live or not where.states or State.DEAD in where.states


# --- stats ------------------------------------------------------------------------------------------------


@pytest.mark.spans
def test_an_unknown_queue_is_empty(backend: QueueBackend) -> None:
    assert backend.stats("nothing") == QueueStats()
    assert backend.queues() == []


@pytest.mark.spans
def test_a_queue_whose_name_no_broker_can_hold_is_empty(backend: QueueBackend) -> None:
    for name in ("", "a}b", "\udcff", "a\0"):
        assert (backend.stats(name), backend.evicted(name)) == (QueueStats(), 0)
        where = MessageFilter(queue=name, states=(State.DEAD,))
        assert (backend.list_messages(where), backend.count(where), backend.bulk(where, Verb.DELETE)) == ([], 0, 0)


def test_stats_count_each_message_once(harness: Harness, backend: QueueBackend) -> None:
    one_of_each(harness, backend)
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.delayed, stats.leased, stats.dead, stats.pending) == (1, 1, 1, 1, 3)
    assert stats.cap is None or not backend.capabilities.exact_counts


@pytest.mark.spans
def test_a_delayed_message_that_fell_due_counts_and_is_listed_as_waiting(
    harness: Harness, backend: QueueBackend
) -> None:
    ident = backend.enqueue(a_job(scheduled_at=at(harness.now() + 2)))
    assert backend.stats(QUEUE).delayed == 1
    listed = [ident] if backend.capabilities.lists_live else []
    waiting, delayed = (MessageFilter(states=(state,)) for state in (State.WAITING, State.DELAYED))
    if listed:
        assert ids(backend.list_messages(delayed)) == listed
    harness.advance(2.0)
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.delayed) == (1, 0)
    if listed:
        assert (ids(backend.list_messages(waiting)), backend.list_messages(delayed)) == (listed, [])
        message = backend.inspect(ident)
        assert message is not None
        assert message.state is State.WAITING


@pytest.mark.needs("keeps_place")
def test_oldest_is_the_age_of_the_waiting_message_enqueued_first(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job("first", priority=9, scheduled_at=at(harness.now() + 3)))
    harness.advance(1.0)
    backend.enqueue(a_job("second", priority=9))
    harness.advance(1.0)
    backend.enqueue(a_job("third", priority=1))
    assert backend.stats(QUEUE).oldest == pytest.approx(1.0, abs=0.5)
    harness.advance(1.0)
    assert backend.stats(QUEUE).oldest == pytest.approx(3.0, abs=0.5)
    backend.fetch_many(QUEUE, limit=3)
    assert backend.stats(QUEUE).oldest is None


@pytest.mark.lacks("keeps_place")
def test_oldest_is_the_age_of_the_next_message(harness: Harness, backend: QueueBackend) -> None:
    """Where places are not kept, the next is the oldest of messages of one priority that never came back."""
    assert backend.stats(QUEUE).oldest is None
    backend.enqueue_many([a_job("first"), a_job("second")])
    harness.advance(3.0)
    backend.enqueue(a_job("third"))
    assert backend.stats(QUEUE).oldest == pytest.approx(3.0, abs=0.5)
    backend.fetch_many(QUEUE, limit=3)
    assert backend.stats(QUEUE).oldest is None


@pytest.mark.spans
def test_queues_are_those_that_hold_a_message(backend: QueueBackend) -> None:
    backend.enqueue_many([a_job(queue="b"), a_job(queue="a"), a_job(queue="c")])
    [lease] = backend.fetch_many("c", limit=1)
    backend.ack(lease)
    assert backend.queues() == ["a", "b"]


def test_ping_answers(backend: QueueBackend) -> None:
    backend.ping()


# --- lists ------------------------------------------------------------------------------------------------


@pytest.mark.spans
@pytest.mark.needs("lists_live")
def test_a_list_shows_messages_of_every_state_and_everything_about_them(
    harness: Harness, backend: QueueBackend
) -> None:
    known = one_of_each(harness, backend)
    assert in_order(backend, ids(backend.list_messages())) == in_order(backend, list(known.values()))
    shown = {message.id: message for message in backend.list_messages()}
    dead, leased, waiting, delayed = (shown[ident] for ident in known.values())
    assert (dead.reason, dead.last_error, dead.handler) == ("timeout", "Traceback: TOO SLOW", "render")
    assert dead.died_at == pytest.approx(harness.now(), abs=1.0)
    assert leased.expires_at == pytest.approx(harness.now() + harness.lasts(50.0), abs=1.0)
    assert (leased.deliveries, waiting.deliveries) == (1, 0)
    assert (waiting.priority, waiting.expires_at, waiting.died_at, waiting.reason) == (9, None, None, None)
    assert delayed.available_at == pytest.approx(harness.now() + 100, abs=1.0)
    assert b'"delayed"' in delayed.body
    assert backend.inspect(dead.id) == dead
    assert backend.inspect("0000000000000000") is None
    assert {message.state: message.id for message in shown.values()} == known


def paged(backend: QueueBackend, limit: int) -> list[str]:
    """The ids of all messages, as pages of this length bring them."""
    seen: list[str] = []
    after = None
    while page := backend.list_messages(after=after, limit=limit):
        seen += ids(page)
        after = page[-1].cursor
    return seen


@pytest.mark.spans
@pytest.mark.needs("atomic_across_queues")
def test_pages_follow_each_other_without_gap_or_repeat(backend: QueueBackend) -> None:
    known = backend.enqueue_many([a_job(number, queue=f"q{number % 3}") for number in range(25)])
    assert paged(backend, 4) == known


@pytest.mark.needs("keeps_place")
def test_pages_follow_many_priorities_and_states(harness: Harness, backend: QueueBackend) -> None:
    later = at(harness.now() + 1000.0)
    known = backend.enqueue_many(
        [a_job(number, priority=number % 200, scheduled_at=later if number % 3 else None) for number in range(600)]
    )
    for lease in backend.fetch_many(QUEUE, limit=60):
        backend.abandon(lease, "failed")
    backend.fetch_many(QUEUE, limit=60)
    assert paged(backend, 77) == known


@pytest.mark.needs("keeps_place")
def test_more_leases_than_a_page_are_listed_in_order(backend: QueueBackend) -> None:
    known = backend.enqueue_many([a_job(number, priority=number % 3) for number in range(1200)])
    backend.fetch_many(QUEUE, limit=1200)
    where = MessageFilter(states=(State.LEASED,))
    assert ids(backend.list_messages(where, limit=1000)) == known[:1000]
    assert backend.count(where) == 1200


@pytest.mark.spans
@pytest.mark.needs("lists_live")
def test_pages_of_a_filter_follow_each_other_too(backend: QueueBackend) -> None:
    backend.enqueue_many([a_job(number, queue=f"q{number % 3}") for number in range(25)])
    for where in (MessageFilter(queue="q1"), MessageFilter(states=(State.WAITING,))):
        whole = ids(backend.list_messages(where))
        first = backend.list_messages(where, limit=3)
        rest = backend.list_messages(where, after=first[-1].cursor)
        assert ids(first + rest) == whole, where


@pytest.mark.spans
def test_a_list_brings_no_larger_body_than_is_asked_for(backend: QueueBackend) -> None:
    idents = backend.enqueue_many([a_job("small"), a_job("large" * 100)])
    for lease in backend.fetch_many(QUEUE, limit=2):
        backend.abandon(lease)
    whole = {message.id: message for message in backend.list_messages()}
    small, large = (whole[ident] for ident in idents)
    for where in (MessageFilter(), MessageFilter(ids=tuple(idents)), MessageFilter(text="large")):
        for largest in (0, len(small.body), len(large.body)):
            expected = [
                message if len(message.body) <= largest else replace(message, body=OVERSIZED)
                for message in ([large] if where.text else [small, large])
            ]
            found = backend.list_messages(where, largest=largest)
            assert in_order(backend, [*map(str, found)]) == in_order(backend, [*map(str, expected)]), (where, largest)
            assert {message.id: message.body for message in found} == {each.id: each.body for each in expected}


def test_a_cursor_that_is_none_is_refused(backend: QueueBackend) -> None:
    for cursor in ("", "x", "-1", "1;2", "9" * 40, "\u0661"):
        with pytest.raises(ValueError, match="cursor"):
            backend.list_messages(after=cursor)


FILTERS = {
    "all": (MessageFilter(), "DLWd"),
    "queue": (MessageFilter(queue=QUEUE), "DLWd"),
    "other queue": (MessageFilter(queue="mails"), ""),
    "handler": (MessageFilter(handler="render"), "D"),
    "dead": (MessageFilter(states=(State.DEAD,)), "D"),
    "two states": (MessageFilter(states=(State.DELAYED, State.LEASED)), "Ld"),
    "waiting or delayed": (MessageFilter(states=(State.WAITING, State.DELAYED)), "Wd"),
    "all states": (MessageFilter(queue=QUEUE, states=tuple(State)), "DLWd"),
    "reason": (MessageFilter(reason="timeout"), "D"),
    "part of a reason": (MessageFilter(reason="time"), ""),
    "text in the body, other case": (MessageFilter(text="pERISHED"), "D"),
    "text in the error": (MessageFilter(text="too slow"), "D"),
    "text and state": (MessageFilter(text="WAITING", states=(State.WAITING,)), "W"),
    "text with odd characters": (MessageFilter(text="100%_\\"), ""),
    "every field must match": (MessageFilter(handler="render", states=(State.WAITING,)), ""),
}


@pytest.mark.spans
def test_a_filter_finds_what_it_says(harness: Harness, backend: QueueBackend) -> None:
    known = one_of_each(harness, backend)
    letters = dict(zip(known.values(), "DLWd", strict=True))
    for name, (where, letters_found) in FILTERS.items():
        if not shows(backend, where):
            for look in (backend.list_messages, backend.count):
                with pytest.raises(Unsupported, match="lists_live"):
                    look(where)
            continue
        expected = letters_found if backend.capabilities.lists_live else "".join({*letters_found} & {"D"})
        found = [letters[ident] for ident in ids(backend.list_messages(where))]
        assert in_order(backend, found) == in_order(backend, list(expected)), name
        assert backend.count(where) == len(expected), name


@pytest.mark.spans
def test_a_filter_by_ids_finds_those(harness: Harness, backend: QueueBackend) -> None:
    known = one_of_each(harness, backend)
    wanted = (known[State.DELAYED], known[State.DEAD], "unknown")
    expected = [known[State.DEAD], known[State.DELAYED]] if backend.capabilities.lists_live else [known[State.DEAD]]
    found = ids(backend.list_messages(MessageFilter(ids=wanted)))
    assert in_order(backend, found) == in_order(backend, expected)
    where = MessageFilter(ids=wanted, states=(State.DEAD,), queue=QUEUE)
    assert ids(backend.list_messages(where)) == [known[State.DEAD]]
    assert backend.list_messages(MessageFilter(ids=wanted, queue="mails")) == []


@pytest.mark.spans
@pytest.mark.needs("keeps_place")
def test_many_ids_are_found_in_one_call(backend: QueueBackend) -> None:
    known = backend.enqueue_many([a_job(number, queue=f"q{number % 2}") for number in range(1500)])
    assert backend.count(MessageFilter(ids=tuple(known))) == 1500


def test_age_counts_from_the_enqueue_and_for_a_dead_letter_from_its_death(
    harness: Harness, backend: QueueBackend
) -> None:
    dying = backend.enqueue(a_job())
    harness.advance(10.0)
    [lease] = backend.fetch_many(QUEUE, limit=1)
    living = backend.enqueue(a_job())
    harness.advance(10.0)
    backend.abandon(lease, "hopeless")
    harness.advance(2.0)
    assert ids(backend.list_messages(MessageFilter(older_than=10.0))) == [living] * backend.capabilities.lists_live
    assert ids(backend.list_messages(MessageFilter(newer_than=10.0))) == [dying]
    assert backend.list_messages(MessageFilter(older_than=5.0, newer_than=6.0)) == []
    assert backend.list_messages(MessageFilter(older_than=12.0 + 10 * harness.tick)) == []


@pytest.mark.needs("lists_live")
def test_a_count_stops_at_its_cap(backend: QueueBackend) -> None:
    backend.enqueue_many([a_job(number, queue=f"q{number % 2}") for number in range(7)])
    for cap, counted in [(1, 1), (6, 6), (7, 7), (8, 7), (100, 7)]:
        assert backend.count(MessageFilter(), cap=cap) == counted, cap
        assert backend.count(MessageFilter(states=(State.WAITING,)), cap=cap) == counted, cap


# --- bulk -------------------------------------------------------------------------------------------------


@pytest.mark.spans
def test_delete_removes_what_matches_and_never_what_is_leased(harness: Harness, backend: QueueBackend) -> None:
    known = one_of_each(harness, backend)
    assert backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE) == 3
    if backend.capabilities.lists_live:
        assert ids(backend.list_messages()) == [known[State.LEASED]]
    if backend.capabilities.keeps_records:
        assert backend.bulk(MessageFilter(states=(State.LEASED,)), Verb.DELETE) == 0
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.delayed, stats.leased, stats.dead) == (0, 0, 1, 0)


@pytest.mark.needs("deletes_live")
def test_what_was_deleted_is_never_fetched(harness: Harness, backend: QueueBackend) -> None:
    first, second = backend.enqueue_many(numbered(2))
    later, latest = backend.enqueue_many([a_job(scheduled_at=at(harness.now() + wait)) for wait in (5, 6)])
    backend.bulk(MessageFilter(ids=(first, later)), Verb.DELETE)
    harness.advance(6.0)
    assert backend.stats(QUEUE).waiting == 2
    assert [lease.id for lease in backend.fetch_many(QUEUE, limit=5)] == [second, latest]


@pytest.mark.spans
@pytest.mark.needs("atomic_across_queues")
def test_bulk_takes_the_oldest_first_up_to_its_limit(backend: QueueBackend) -> None:
    known = backend.enqueue_many([a_job(number, queue=f"q{number % 2}") for number in range(9)])
    assert backend.bulk(MessageFilter(), Verb.DELETE, limit=4) == 4
    assert ids(backend.list_messages()) == known[4:]
    assert backend.bulk(MessageFilter(), Verb.DELETE, limit=100) == 5
    assert backend.bulk(MessageFilter(), Verb.DELETE, limit=100) == 0


def test_bulk_over_many_messages_ends(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(1700))
    where = MessageFilter(queue=QUEUE)
    assert [backend.bulk(where, Verb.DELETE) for _ in range(3)] == [1000, 700, 0]


def test_every_check_has_a_name_and_what_is_bad_a_reason_and_a_mend(backend: QueueBackend) -> None:
    for finding in backend.diagnose():
        assert re.fullmatch(r"[a-z]+(\.[a-z_-]+)+", finding.check), finding.check
        assert finding.found
        assert not finding.is_bad or finding.mend, finding
        assert finding.is_bad or not finding.mend, finding


def test_looking_changes_nothing(backend: QueueBackend) -> None:
    before = backend.queues()
    backend.diagnose()
    backend.broker_time()
    assert backend.queues() == before


def test_what_no_broker_can_hold_is_not_found_and_a_cursor_out_of_range_refused(backend: QueueBackend) -> None:
    assert backend.inspect("\udcff") is None
    assert backend.status("\udcff").state == "unknown"
    assert backend.find_batch("\udcff") is None
    assert backend.list_messages(MessageFilter(older_than=1e300, newer_than=float("-inf"))) == []
    with pytest.raises(ValueError, match="cursor"):
        backend.list_messages(after="9999999999999999999")
