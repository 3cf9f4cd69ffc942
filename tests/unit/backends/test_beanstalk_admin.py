"""Dead letters of a real beanstalkd raised and deleted, and queues emptied: nothing is lost, whoever else is at it."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import greenstalk
import pytest
from beanstalk_rig import NOW, QUEUE, Administrator, BeanstalkRig, body, died, rig_on_it, server_of_file
from msgspec.structs import replace
from support.servers import BeanstalkServer

from jobpool.broker.values import MessageFilter, QueueStats, State, Verb
from jobpool.errors import BackendUnavailable, Unsupported
from jobpool_backends.beanstalk import BeanstalkBackend
from jobpool_backends.beanstalk.records import Record, from_bytes
from jobpool_torture.network import Proxy

MINE = MessageFilter(queue=QUEUE)
RAISE = [Verb.RETRY, Verb.RESUME]


server, rig = server_of_file, rig_on_it


def ready(rig: BeanstalkRig) -> list[tuple[Record, bytes]]:
    """What waits, in the order in which it is fetched; it is gone then."""
    found = []
    while True:
        try:
            job = rig.raw.reserve(0)
        except greenstalk.TimedOutError:
            return found
        found.append(from_bytes(job.body, job.id))
        rig.raw.delete(job)


# --- raised -----------------------------------------------------------------------------------------------

PAST = {
    "attempts": 3,
    "crashes": 2,
    "deliveries": 9,
    "crashed_at": NOW,
    "last_error": "boom",
    "cause": "killed",
}


def test_resume_goes_on_where_it_ended(rig: BeanstalkRig) -> None:
    rig.bury(died("a", **PAST), priority=17, ttr=45)
    assert rig.bulk_changer.bulk(MINE, Verb.RESUME, 10) == 1
    number = rig.raw.peek_ready().id
    told = rig.raw.stats_job(number)
    assert (told["pri"], told["ttr"], told["delay"]) == (17, 45, 0)
    assert ready(rig) == [(Record("a", NOW - 60.0, **PAST, begun=True), body("a", priority=17))]  # type: ignore[arg-type]


def test_retry_forgets_how_it_failed(rig: BeanstalkRig) -> None:
    rig.bury(died("a", **PAST), priority=17, ttr=45)
    assert rig.bulk_changer.bulk(MINE, Verb.RETRY, 10) == 1
    assert ready(rig) == [(Record("a", NOW - 60.0, deliveries=9, begun=True), body("a", priority=17))]
    assert rig.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("verb", RAISE)
def test_letters_are_raised_in_their_order(rig: BeanstalkRig, verb: Verb) -> None:
    known = [f"{place:03d}" for place in range(107)]
    rig.bury_many(known)
    assert rig.bulk_changer.bulk(MINE, verb, 1000) == len(known)
    assert rig.bulk_changer.bulk(MINE, verb, 1000) == 0
    assert [record.id for record, _ in ready(rig)] == known


@pytest.mark.parametrize("verb", [*RAISE, Verb.DELETE])
def test_the_oldest_that_match_up_to_the_limit_and_the_others_stay_in_order(rig: BeanstalkRig, verb: Verb) -> None:
    numbers = [rig.bury(died(ident, reason="odd" if ident in "bdf" else "even")) for ident in "abcdef"]
    assert rig.bulk_changer.bulk(MessageFilter(reason="odd"), verb, 2) == 2
    assert [record.id for record, _ in ready(rig)] == ([] if verb is Verb.DELETE else ["b", "d"])
    assert rig.buried() == [numbers[place] for place in (0, 2, 4, 5)]


@pytest.mark.parametrize("verb", [*RAISE, Verb.DELETE])
def test_single_ones_by_their_ids_whether_or_not_they_were_seen(rig: BeanstalkRig, verb: Verb) -> None:
    numbers = rig.bury_many("abcde")
    rig.inspector.inspect("c")
    where = MessageFilter(ids=("c", "e", "x"), states=(State.DEAD,))
    assert rig.bulk_changer.bulk(where, verb, 10) == 2
    assert rig.buried() == [numbers[place] for place in (0, 1, 3)]


def test_one_that_was_seen_is_raised_without_a_walk(rig: BeanstalkRig) -> None:
    rig.bury_many(map(str, range(20)))
    rig.inspector.page(MINE, 0, 50)
    before = rig.steps()
    assert rig.bulk_changer.bulk(MessageFilter(ids=("11", "7")), Verb.RETRY, 10) == 2
    assert rig.steps() == before


def test_letters_of_all_queues(rig: BeanstalkRig) -> None:
    for queue in ("a", "b", "c"):
        rig.bury(died(queue), queue=queue)
    assert rig.bulk_changer.bulk(MessageFilter(), Verb.RETRY, 2) == 2
    assert rig.bulk_changer.bulk(MessageFilter(), Verb.RETRY, 2) == 1


def test_what_another_program_buried_is_kicked_as_it_is(rig: BeanstalkRig) -> None:
    number = rig.bury_bytes(b"foreign", priority=70_000)
    assert rig.bulk_changer.bulk(MINE, Verb.RETRY, 10) == 1
    job = rig.raw.peek_ready()
    assert (job.id, job.body, rig.raw.stats_job(job)["pri"]) == (number, b"foreign", 70_000)
    assert rig.counts() == (1, 0, 0, 0)


# --- deleted ----------------------------------------------------------------------------------------------


def test_all_of_a_queue_is_deleted_but_for_what_is_leased(rig: BeanstalkRig) -> None:
    leased = rig.raw.reserve_job(rig.put("leased"))
    for ident in "abc":
        rig.put(ident)
        rig.put(f"later {ident}", delay=60)
    rig.bury_many("de")
    rig.put("elsewhere", queue="other")
    assert rig.bulk_changer.bulk(MINE, Verb.DELETE, 5) == 5
    assert rig.bulk_changer.bulk(MINE, Verb.DELETE, 5) == 3
    assert rig.bulk_changer.bulk(MINE, Verb.DELETE, 5) == 0
    assert rig.counts() == (0, 0, 1, 0)
    assert rig.counts("other") == (1, 0, 0, 0)
    rig.raw.delete(leased)


@pytest.mark.parametrize(
    ("states", "left"),
    [
        ((State.WAITING,), (0, 1, 0, 1)),
        ((State.DELAYED,), (1, 0, 0, 1)),
        ((State.WAITING, State.DELAYED), (0, 0, 0, 1)),
        ((State.DEAD,), (1, 1, 0, 0)),
        ((State.LEASED,), (1, 1, 0, 1)),
    ],
)
def test_all_of_some_states_is_deleted(
    rig: BeanstalkRig, states: tuple[State, ...], left: tuple[int, int, int, int]
) -> None:
    rig.put("a")
    rig.put("b", delay=60)
    rig.bury(died("c"))
    assert rig.bulk_changer.bulk(MessageFilter(queue=QUEUE, states=states), Verb.DELETE, 10) == 3 - sum(left)
    assert rig.counts() == left


@pytest.mark.parametrize(
    "where",
    [
        MessageFilter(),
        MessageFilter(states=(State.WAITING,)),
        MessageFilter(queue=QUEUE, handler="send"),
        MessageFilter(queue=QUEUE, states=(State.WAITING, State.DEAD), handler="send"),
        MessageFilter(queue=QUEUE, states=(State.DELAYED,), older_than=1.0),
        MessageFilter(ids=("a",), states=(State.WAITING,)),
    ],
)
def test_some_of_the_live_ones_cannot_be_deleted_and_a_sentence_says_what_can(
    rig: BeanstalkRig, where: MessageFilter
) -> None:
    rig.put("a")
    rig.bury(died("b"))
    with pytest.raises(Unsupported, match=r"keeps_records.*: delete all of a queue"):
        rig.bulk_changer.bulk(where, Verb.DELETE, 10)
    assert rig.counts() == (1, 0, 0, 1)


def test_a_reason_means_dead_letters(rig: BeanstalkRig) -> None:
    rig.put("a")
    rig.bury(died("b"))
    assert rig.bulk_changer.bulk(MessageFilter(reason="failed"), Verb.DELETE, 10) == 1
    assert rig.counts() == (1, 0, 0, 0)


@pytest.mark.parametrize("name", ["no queue", "x\r\nkick 9", "-x", "", "ü", "x" * 300])
def test_what_is_no_name_of_a_queue_is_never_part_of_a_command(rig: BeanstalkRig, name: str) -> None:
    rig.bury(died("a"))
    where = MessageFilter(queue=name)
    assert rig.inspector.stats(name) == QueueStats()
    assert rig.inspector.page(where, 0, 9) == []
    assert rig.inspector.count(where, 9) == rig.inspector.count(MessageFilter(queue=name, text="a"), 9) == 0
    assert {rig.bulk_changer.bulk(where, verb, 9) for verb in Verb} == {0}
    assert rig.counts() == (0, 0, 0, 1)


# --- what can go wrong ------------------------------------------------------------------------------------


def test_a_letter_whose_administrator_died_is_not_taken_for_a_live_message(rig: BeanstalkRig) -> None:
    """A connection that breaks leaves what it has reserved ready, with its dead mark."""
    number = rig.bury(died("a"), priority=17)
    with rig.server.client() as dying:
        dying.reserve_job(number)
    rig.put("alive")
    rig.put("later", delay=10)
    rig.raw.put(rig.raw.peek(number).body, delay=3600)  # as one that was not buried in time
    assert (
        rig.bulk_changer.bulk(MessageFilter(queue=QUEUE, states=(State.WAITING, State.DELAYED)), Verb.DELETE, 10) == 2
    )
    assert rig.counts() == (0, 0, 0, 2)
    assert rig.raw.stats_job(number)["pri"] == 17
    assert [message.id for message in rig.inspector.page(MINE, 0, 9)] == ["a", "a"]


@pytest.mark.parametrize("lost", ["peek-buried", "reserve-job", "put", "delete"])
def test_a_connection_that_breaks_in_the_middle_loses_nothing(rig: BeanstalkRig, lost: str) -> None:
    rig.bury_many("abc")
    with Proxy(rig.server.host, rig.server.port) as proxy:
        far = replace(rig.address, port=proxy.port)
        admin = Administrator(far, rig.clock)
        proxy.drop_replies(1, match=rf"(?m)^{lost} ?")
        with pytest.raises(BackendUnavailable, match="closed the connection"):
            admin.bulk_changer.bulk(MINE, Verb.RETRY, 10)
        admin.connections.close()
    backend = BeanstalkBackend(rig.address, clock=rig.clock)
    leases = backend.fetch_many(QUEUE, limit=9)  # what is ready, and has a dead mark, is buried again
    messages = backend.list_messages(MINE)
    backend.close()
    alive, letters = [lease.id for lease in leases], [message.id for message in messages]
    assert {*alive, *letters} == set("abc")
    assert len(alive) == len(set(alive))
    assert len(letters) == len(set(letters))
    assert set(alive) == ({"a"} if lost in ("put", "delete") else set())
    assert set(letters) == (set("bc") if lost == "delete" else set("abc"))
    assert [lease.crashes for lease in leases] == [0] * len(leases)


@pytest.mark.parametrize("verb", RAISE)
def test_a_server_that_takes_no_copies_keeps_its_letters(tmp_path: Path, verb: Verb) -> None:
    with BeanstalkServer(tmp_path) as server:
        rig = BeanstalkRig(server)
        rig.bury_many("abc")
        server.drain()
        with pytest.raises(BackendUnavailable, match="drain mode"):
            rig.bulk_changer.bulk(MINE, verb, 10)
        assert rig.counts() == (0, 0, 0, 3)
        assert rig.bulk_changer.bulk(MINE, Verb.DELETE, 10) == 3
        rig.close()


def test_administrators_at_once_raise_each_letter_once(rig: BeanstalkRig) -> None:
    known = [f"{place:03d}" for place in range(120)]
    rig.bury_many(known)
    others = [rig.administrator() for _ in range(3)]

    def raise_all(number: int) -> int:
        changed = 0
        while done := others[number].bulk_changer.bulk(MINE, Verb.RETRY, 7):
            changed += done
        return changed

    with ThreadPoolExecutor(3) as threads:
        changed = sum(threads.map(raise_all, range(3)))
    changed += rig.bulk_changer.bulk(
        MINE, Verb.RETRY, 1000
    )  # what was in somebody's hands when the last of them looked
    assert changed == len(known)
    assert Counter(record.id for record, _ in ready(rig)) == Counter(known)
    assert rig.counts() == (0, 0, 0, 0)


def test_lists_while_letters_are_deleted_leave_nothing_behind(rig: BeanstalkRig) -> None:
    rig.bury_many([f"{place:03d}" for place in range(80)])
    other = rig.administrator()
    with ThreadPoolExecutor(1) as thread:
        lists = thread.submit(lambda: [other.inspector.page(MessageFilter(text="send"), 0, 9) for _ in range(10)])
        deleted = 0
        while not lists.done() or rig.counts()[3]:
            deleted += rig.bulk_changer.bulk(MINE, Verb.DELETE, 10)
    assert all(len(page) <= 9 for page in lists.result())
    assert deleted == 80
    assert rig.counts() == (0, 0, 0, 0)
