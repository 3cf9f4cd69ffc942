"""Looking at the buried jobs of a real beanstalkd: in order, whole, and without a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import greenstalk
import pytest
from beanstalk_clients import Clients
from support.claims import ids
from support.jobs import QUEUE
from support.servers import BeanstalkServer
from support.tables import row

from jobpool.broker.values import MessageFilter, QueueStats, State, Verb
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, Unsupported
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import encode
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.beanstalk import inspect
from jobpool_backends.beanstalk.inspect import Walk
from jobpool_backends.beanstalk.records import Record, from_bytes, to_bytes
from jobpool_torture.network import Proxy

ALL = MessageFilter()
NOW = 1_800_000_000.0
LARGEST = 2**20


class Rig(Clients):
    """Dead letters, made by hand, and who looks at them, by a clock that stands."""

    def __init__(self, server: BeanstalkServer | None = None) -> None:
        super().__init__(server)
        self.clock: ManualClock = ManualClock()
        self.admin = self.open()
        self.inspector = self.admin._inspector

    def put(self, ident: str, *, delay: int = 0, queue: str = QUEUE) -> int:
        """A message that is alive; the server's number of it."""
        self.raw.use(self.prefix + queue)
        packed = to_bytes(Record(ident, self.clock.wall()), body(ident, queue=queue), LARGEST)
        return self.raw.put(packed, priority=5, delay=delay)

    def bury(self, record: Record, *, queue: str = QUEUE, priority: int = 5, ttr: int = 30) -> int:
        """A dead letter with this header; the server's number of it."""
        packed = to_bytes(record, body(record.id, queue=queue, priority=priority), LARGEST)
        return self.bury_bytes(packed, queue=queue, priority=priority, ttr=ttr)

    def bury_bytes(self, packed: bytes, *, queue: str = QUEUE, priority: int = 5, ttr: int = 30) -> int:
        self.raw.use(self.prefix + queue)
        number = self.raw.put(packed, priority=priority, ttr=ttr)
        self.raw.bury(self.raw.reserve_job(number), priority)
        return number

    def bury_many(self, idents: Iterable[str], **fields: object) -> list[int]:
        return [self.bury(died(ident, **fields)) for ident in idents]

    def steps(self) -> int:
        """How many jobs were ever buried, for anybody."""
        return self.raw.stats()["cmd-bury"]


def died(ident: str, **fields: object) -> Record:
    """The header of a dead letter."""
    return Record(ident, NOW - 60.0, **{"reason": "failed", "died_at": NOW, **fields})  # type: ignore[arg-type]


def body(ident: str, *, queue: str = QUEUE, priority: int = 5) -> bytes:
    definition = JobDefinition("send", {"to": ident}, queue=queue, priority=priority)
    return encode(definition, identifier=ident, queue=queue, signer=EnvelopeSigner(), now=NOW)


def walked(walk: Walk) -> list[str]:
    shown = []
    while walk.letter is not None:
        shown.append(walk.letter.message.id)
        walk.keep()
    return shown


# --- what it costs ----------------------------------------------------------------------------------------


def test_a_list_is_one_step_a_letter_and_asking_again_for_one_none(rig: Rig) -> None:
    rig.bury_many(map(str, range(30)))
    before = rig.steps()
    assert len(rig.inspector.page(ALL, 0, 50)) == 30
    assert rig.steps() - before == 30
    assert rig.inspector.inspect("17") is not None
    assert rig.inspector.count(ALL, 100) == 30
    assert rig.steps() - before == 30


def test_a_place_that_was_remembered_wrongly_is_looked_for_again(rig: Rig) -> None:
    first = rig.bury(died("a"))
    assert rig.inspector.inspect("a") is not None
    rig.raw.delete(first)
    assert rig.inspector.inspect("a") is None
    again = rig.bury(died("a", attempts=7))
    found = rig.inspector.inspect("a")
    assert found is not None
    assert (found.cursor, found.attempts) == (str(again), 7)


def test_a_walk_has_an_end_and_the_next_goes_on_behind_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "MAX_WALK_STEPS", 5)
    rig.bury_many("abcdefgh")
    assert ids(rig.inspector.page(ALL, 0, 50)) == list("abcde")
    assert ids(rig.inspector.page(ALL, 0, 50)) == ["a", "b", "f", "g", "h"]


# --- others at the same time ------------------------------------------------------------------------------


def test_what_dies_during_a_walk_is_seen_and_it_ends(rig: Rig) -> None:
    rig.bury_many("abc")
    with rig.admin._connections.spare() as connection:
        walk = Walk(connection, QUEUE, rig.clock)
        walk.keep()
        rig.bury(died("d"))
        assert walked(walk) == ["b", "c", "d"]


def test_two_walks_in_turns_see_all_and_lose_nothing(rig: Rig) -> None:
    known = [f"{place:02d}" for place in range(10)]
    rig.bury_many(known)
    with rig.admin._connections.spare() as one, rig.open()._connections.spare() as two:
        walks = [Walk(one, QUEUE, rig.clock), Walk(two, QUEUE, rig.clock)]
        seen: list[set[str]] = [set(), set()]
        while any(walk.letter for walk in walks):
            for walk, shown in zip(walks, seen, strict=True):
                if walk.letter is not None:
                    shown.add(walk.letter.message.id)
                    walk.keep()
    assert seen == [set(known), set(known)]
    assert rig.counts() == (0, 0, 0, 10)


def test_a_letter_in_somebody_elses_hands_is_passed_over(rig: Rig) -> None:
    numbers = rig.bury_many("abc")
    job = rig.raw.reserve_job(numbers[1])
    assert ids(rig.inspector.page(ALL, 0, 50)) == ["a", "c"]
    rig.raw.bury(job, 5)
    assert ids(rig.inspector.page(ALL, 0, 50)) == ["a", "b", "c"]


# --- of other programs ------------------------------------------------------------------------------------


def test_what_another_program_buried_is_shown_with_what_there_is(rig: Rig) -> None:
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


def test_a_letter_whose_body_cannot_be_read_is_shown(rig: Rig) -> None:
    rig.bury_bytes(b'{"jobpool":1,"id":"odd","at":1800000000.5,"died_at":1800000000.5,"reason":"rejected"}\n{"no": 1}')
    [message] = rig.inspector.page(ALL, 0, 9)
    assert (message.id, message.handler, message.reason, message.body) == ("odd", "", "rejected", b'{"no": 1}')


# --- counts -----------------------------------------------------------------------------------------------


def test_the_age_of_what_another_program_put_is_the_servers(rig: Rig) -> None:
    rig.raw.put(b"foreign")
    assert rig.inspector.stats(QUEUE).oldest in (0.0, 1.0)


def test_queues_are_the_tubes_with_our_prefix_that_hold_a_job(rig: Rig) -> None:
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


MINE = MessageFilter(queue=QUEUE)
RAISE = [Verb.RETRY, Verb.RESUME]


def ready(rig: Rig) -> list[tuple[Record, bytes]]:
    """What waits, in the order in which it is fetched; it is gone then."""
    found: list[tuple[Record, bytes]] = []
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


@pytest.mark.parametrize(("verb", "kept"), [(Verb.RESUME, PAST), (Verb.RETRY, {"deliveries": 9})])
def test_what_is_raised_has_its_priority_and_ttr_and_what_the_verb_keeps(
    rig: Rig, verb: Verb, kept: dict[str, Any]
) -> None:
    rig.bury(died("a", **PAST), priority=17, ttr=45)
    assert rig.admin.bulk(MINE, verb, limit=10) == 1
    told = rig.raw.stats_job(rig.raw.peek_ready().id)
    assert (told["pri"], told["ttr"], told["delay"]) == (17, 45, 0)
    assert ready(rig) == [(Record("a", NOW - 60.0, **kept, begun=True), body("a", priority=17))]
    assert rig.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("verb", RAISE)
def test_letters_are_raised_in_their_order(rig: Rig, verb: Verb) -> None:
    known = [f"{place:03d}" for place in range(107)]
    rig.bury_many(known)
    assert rig.admin.bulk(MINE, verb, limit=1000) == len(known)
    assert rig.admin.bulk(MINE, verb, limit=1000) == 0
    assert [record.id for record, _ in ready(rig)] == known


def test_one_that_was_seen_is_raised_without_a_walk(rig: Rig) -> None:
    rig.bury_many(map(str, range(20)))
    rig.inspector.page(MINE, 0, 50)
    before = rig.steps()
    assert rig.admin.bulk(MessageFilter(ids=("11", "7")), Verb.RETRY, limit=10) == 2
    assert rig.steps() == before


def test_what_another_program_buried_is_kicked_as_it_is(rig: Rig) -> None:
    number = rig.bury_bytes(b"foreign", priority=70_000)
    assert rig.admin.bulk(MINE, Verb.RETRY, limit=10) == 1
    job = rig.raw.peek_ready()
    assert (job.id, job.body, rig.raw.stats_job(job)["pri"]) == (number, b"foreign", 70_000)
    assert rig.counts() == (1, 0, 0, 0)


def test_live_ones_of_all_queues_cannot_be_deleted_and_a_sentence_says_what_can(rig: Rig) -> None:
    rig.put("a")
    rig.bury(died("b"))
    for where in (MessageFilter(), MessageFilter(states=(State.WAITING,)), MessageFilter(ids=("a",))):
        with row(where), pytest.raises(Unsupported, match=r"keeps_records.*: delete all of a queue"):
            rig.admin.bulk(where, Verb.DELETE, limit=10)
    assert rig.counts() == (1, 0, 0, 1)


def test_what_is_no_name_of_a_queue_is_never_part_of_a_command(rig: Rig) -> None:
    rig.bury(died("a"))
    for name in ("no queue", "x\r\nkick 9", "-x", "", "ü", "x" * 300):
        where = MessageFilter(queue=name)
        assert rig.admin.stats(name) == QueueStats(), name
        assert rig.admin.list_messages(where) == [], name
        assert rig.admin.count(where) == rig.admin.count(MessageFilter(queue=name, text="a")) == 0
        assert {rig.admin.bulk(where, verb, limit=9) for verb in Verb if verb is not Verb.CANCEL} == {0}, name
    assert rig.counts() == (0, 0, 0, 1)


# --- what can go wrong ------------------------------------------------------------------------------------


def test_a_letter_whose_administrator_died_is_not_taken_for_a_live_message(rig: Rig) -> None:
    """A connection that breaks leaves what it has reserved ready, with its dead mark."""
    number = rig.bury(died("a"), priority=17)
    with rig.server.client() as dying:
        dying.reserve_job(number)
    rig.put("alive")
    rig.put("later", delay=10)
    rig.raw.put(rig.raw.peek(number).body, delay=3600)  # as one that was not buried in time
    assert rig.admin.bulk(MessageFilter(queue=QUEUE, states=(State.WAITING, State.DELAYED)), Verb.DELETE, limit=10) == 2
    assert rig.counts() == (0, 0, 0, 2)
    assert rig.raw.stats_job(number)["pri"] == 17
    assert [message.id for message in rig.inspector.page(MINE, 0, 9)] == ["a", "a"]


@pytest.mark.parametrize("lost", ["peek-buried", "reserve-job", "put", "delete"])
def test_a_connection_that_breaks_in_the_middle_loses_nothing(rig: Rig, lost: str) -> None:
    rig.bury_many("abc")
    with Proxy(rig.server.host, rig.server.port) as proxy:
        admin = rig.open(f"beanstalk://{proxy.host}:{proxy.port}")
        proxy.drop_replies(1, match=rf"(?m)^{lost} ?")
        with pytest.raises(BackendUnavailable, match="closed the connection"):
            admin.bulk(MINE, Verb.RETRY, limit=10)
        admin.close()
    backend = rig.open()
    leases = backend.fetch_many(QUEUE, limit=9)  # what is ready, and has a dead mark, is buried again
    messages = backend.list_messages(MINE)
    alive, letters = [lease.id for lease in leases], [message.id for message in messages]
    assert {*alive, *letters} == set("abc")
    assert len(alive) == len(set(alive))
    assert len(letters) == len(set(letters))
    assert set(alive) == ({"a"} if lost in ("put", "delete") else set())
    assert set(letters) == (set("bc") if lost == "delete" else set("abc"))
    assert [lease.crashes for lease in leases] == [0] * len(leases)


@pytest.mark.parametrize("verb", RAISE)
def test_a_server_that_takes_no_copies_keeps_its_letters(tmp_path: Path, verb: Verb) -> None:
    with BeanstalkServer(tmp_path) as server, Rig(server) as rig:
        rig.bury_many("abc")
        server.drain()
        with pytest.raises(BackendUnavailable, match="drain mode"):
            rig.admin.bulk(MINE, verb, limit=10)
        assert rig.counts() == (0, 0, 0, 3)
        assert rig.admin.bulk(MINE, Verb.DELETE, limit=10) == 3


def test_administrators_at_once_raise_each_letter_once(rig: Rig) -> None:
    known = [f"{place:03d}" for place in range(120)]
    rig.bury_many(known)
    others = [rig.open() for _ in range(3)]

    def raise_all(number: int) -> int:
        changed = 0
        while done := others[number].bulk(MINE, Verb.RETRY, limit=7):
            changed += done
        return changed

    with ThreadPoolExecutor(3) as threads:
        changed = sum(threads.map(raise_all, range(3)))
    changed += rig.admin.bulk(MINE, Verb.RETRY, limit=1000)  # what was in somebody's hands when the last of them looked
    assert changed == len(known)
    assert Counter(record.id for record, _ in ready(rig)) == Counter(known)
    assert rig.counts() == (0, 0, 0, 0)


def test_lists_while_letters_are_deleted_leave_nothing_behind(rig: Rig) -> None:
    rig.bury_many([f"{place:03d}" for place in range(80)])
    other = rig.open()
    with ThreadPoolExecutor(1) as thread:
        lists = thread.submit(lambda: [other._inspector.page(MessageFilter(text="send"), 0, 9) for _ in range(10)])
        deleted = 0
        while not lists.done() or rig.counts()[3]:
            deleted += rig.admin.bulk(MINE, Verb.DELETE, limit=10)
    assert all(len(page) <= 9 for page in lists.result())
    assert deleted == 80
    assert rig.counts() == (0, 0, 0, 0)
