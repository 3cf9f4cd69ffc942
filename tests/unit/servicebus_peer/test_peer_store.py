"""The rules of a queue, on a clock that stands still: no socket, no loop."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

import pytest
from servicebus_peer import QueueProperties, encoding
from servicebus_peer.clock import Clock
from servicebus_peer.decoding import decode
from servicebus_peer.errors import ENTITY_DISABLED, LOCK_LOST, MESSAGE_NOT_FOUND, NOT_ALLOWED, NOT_FOUND, AmqpError
from servicebus_peer.message import State, parsed
from servicebus_peer.namespace import Namespace
from servicebus_peer.sections import body_of, sections_of
from servicebus_peer.store import SUB_QUEUE, Store
from support.amqp_client import annotations_of, message

NOON = 1_800_000_000.0
LOCK = 30.0


class Rig:
    """A queue, its clock, and verbs."""

    def __init__(self, **properties: object) -> None:
        self.clock = Clock(NOON)
        self.namespace = Namespace(self.clock, QueueProperties())
        asked = {"lock_duration": LOCK, "max_delivery_count": 3, **properties}
        self.queue = self.namespace.create("jobs", QueueProperties(**asked))  # type: ignore[arg-type]
        self.store, self.dead = self.queue.store, self.queue.dead_letters

    def put(self, body: bytes = b"x", *, ttl: float | None = None, at: float | None = None, ident: str = "") -> int:
        sent = parsed(message(body, message_id=ident or None))
        sent.ttl, sent.scheduled_for = ttl, at
        return self.store.enqueue(sent)

    def take(self, owner: object = "me") -> uuid.UUID:
        found = self.store.take(owner)
        assert found is not None
        assert found.lock is not None
        return found.lock.token

    def bodies(self, store: Store | None = None) -> list[bytes]:
        return [body_of(found.body) for found in (store or self.store).peek(0, 100)]

    def states(self) -> list[State]:
        return [found.state for found in self.store.peek(0, 100)]

    def reasons(self) -> list[str]:
        """Why the dead letters are dead."""
        found = []
        for letter in self.dead.peek(0, 100):
            pair = dict(letter.application_properties or [])["DeadLetterReason"]
            found.append(str(decode(pair, decode(pair)[1])[0]))
        return found


@pytest.fixture
def rig() -> Rig:
    return Rig()


def refused(condition: str, doing: Callable[[], object]) -> None:
    with pytest.raises(AmqpError) as caught:
        doing()
    assert caught.value.condition == condition


# --- order, numbers, what is taken ----------------------------------------------------------------------


def test_first_in_first_out_with_numbers_from_1(rig: Rig) -> None:
    assert [rig.put(b"%d" % n) for n in range(3)] == [1, 2, 3]
    taken = [rig.store.take("me") for _ in range(4)]
    assert [found.sequence_number if found else None for found in taken] == [1, 2, 3, None]


def test_every_delivery_has_a_lock_token_of_its_own(rig: Rig) -> None:
    rig.put()
    first = rig.take()
    rig.store.release(first)
    assert rig.take() != first


def test_receive_and_delete(rig: Rig) -> None:
    rig.put()
    assert rig.store.remove() is not None
    assert rig.store.remove() is None
    assert rig.bodies() == []


# --- settling ---------------------------------------------------------------------------------------------

SETTLED: dict[str, tuple[Callable[[Store, uuid.UUID], None], list[int]]] = {
    "complete": (lambda store, token: store.complete(token), []),
    "abandon": (lambda store, token: store.abandon(token), [1]),
    "release": (lambda store, token: store.release(token), [0]),
    "defer": (lambda store, token: store.defer(token), [0]),
    "dead-letter": (lambda store, token: store.dead_letter(token, "why", "so"), []),
}


@pytest.mark.parametrize("name", SETTLED)
def test_what_becomes_of_a_message_and_its_delivery_count(rig: Rig, name: str) -> None:
    settle, counts = SETTLED[name]
    rig.put()

    settle(rig.store, rig.take())

    assert [found.delivery_count for found in rig.store.peek(0, 9)] == counts
    assert rig.reasons() == (["why"] if name == "dead-letter" else [])


@pytest.mark.parametrize("name", SETTLED)
@pytest.mark.parametrize("lost", ["settled", "expired", "never"])
def test_without_its_lock_nothing_is_settled(rig: Rig, name: str, lost: str) -> None:
    settle, _ = SETTLED[name]
    rig.put()
    token = rig.take() if lost != "never" else uuid.uuid4()
    if lost == "settled":
        rig.store.release(token)
    elif lost == "expired":
        rig.clock.turn(LOCK)
    before = rig.bodies()

    refused(LOCK_LOST, lambda: settle(rig.store, token))
    refused(LOCK_LOST, lambda: rig.store.renew(token))

    assert rig.bodies() == before == [b"x"]


def test_what_comes_back_is_first_again(rig: Rig) -> None:
    for body in (b"a", b"b", b"c"):
        rig.put(body)
    rig.store.abandon(rig.take())
    assert rig.store.take("me").sequence_number == 1  # type: ignore[union-attr]


# --- locks ------------------------------------------------------------------------------------------------


def test_a_lock_holds_to_its_end_and_no_longer(rig: Rig) -> None:
    rig.put()
    token = rig.take()
    rig.clock.turn(LOCK - 0.001)
    rig.store.check_locks([token])
    rig.clock.turn(0.001)
    refused(LOCK_LOST, lambda: rig.store.check_locks([token]))
    assert [found.delivery_count for found in rig.store.peek(0, 9)] == [1]


def test_a_renewed_lock_holds_as_long_again(rig: Rig) -> None:
    rig.put(b"a")
    rig.put(b"b")
    renewed, other = rig.take(), rig.take()
    rig.clock.turn(LOCK / 2)
    assert rig.store.renew(renewed) == int((NOON + LOCK * 1.5) * 1000)
    rig.clock.turn(LOCK / 2)
    refused(LOCK_LOST, lambda: rig.store.check_locks([other]))
    rig.store.check_locks([renewed])


def test_the_wall_clock_ends_no_lock(rig: Rig) -> None:
    rig.put()
    token = rig.take()
    rig.clock.set_wall(10 * LOCK)
    rig.store.check_locks([token])


def test_after_so_many_failed_deliveries_it_is_dead(rig: Rig) -> None:
    rig.put()
    for _ in range(2):
        rig.store.abandon(rig.take())
    rig.take()
    rig.clock.turn(LOCK)
    assert rig.store.take("me") is None
    assert rig.reasons() == ["MaxDeliveryCountExceeded"]
    assert rig.store.tally.lost_locks == 1


def test_released_however_often_it_never_dies(rig: Rig) -> None:
    rig.put()
    for _ in range(20):
        rig.store.release(rig.take())
    assert rig.reasons() == []


def test_locks_by_owner_and_all_at_once(rig: Rig) -> None:
    for _ in range(3):
        rig.put()
    mine = rig.take("me")
    theirs = [rig.take("them"), rig.take("them")]
    assert rig.store.locks_of("them") == theirs
    assert rig.store.expire_locks() == 3
    refused(LOCK_LOST, lambda: rig.store.check_locks([mine]))
    assert rig.store.count()["ready"] == 3


# --- dead letters -----------------------------------------------------------------------------------------


def test_a_dead_letter_is_a_message_of_the_sub_queue(rig: Rig) -> None:
    rig.put(b"a", ttl=5.0)
    rig.store.dead_letter(rig.take(), "boom", "a long story")
    rig.clock.turn(1000)  # there no time to live ends

    letter = rig.dead.take("me")

    assert letter is not None
    assert body_of(letter.encoded()) == b"a"
    assert letter.lock is not None
    refused(NOT_ALLOWED, lambda: rig.dead.dead_letter(letter.lock.token, None, None))  # type: ignore[union-attr]
    for _ in range(10):  # nor is there a limit of deliveries
        rig.dead.abandon(letter.lock.token)
        assert rig.dead.take("me") is letter


def test_a_reason_replaces_an_older_one(rig: Rig) -> None:
    sent = parsed(message())
    sent.set_property("DeadLetterReason", "old")
    sent.set_property("kept", "yes")
    rig.store.enqueue(sent)
    rig.store.dead_letter(rig.take(), "new", None)
    assert rig.reasons() == ["new"]
    assert [key for key, _ in sent.application_properties or []] == ["kept", "DeadLetterReason"]


# --- schedules --------------------------------------------------------------------------------------------


def test_a_scheduled_message_waits_for_its_time_and_has_a_new_number_then(rig: Rig) -> None:
    number = rig.put(b"later", at=NOON + 60)
    rig.put(b"now")
    assert (number, rig.states()) == (1, [State.SCHEDULED, State.ACTIVE])
    rig.clock.turn(59.999)
    assert rig.states()[0] is State.SCHEDULED
    rig.clock.turn(0.001)
    assert rig.bodies() == [b"now", b"later"]
    assert rig.store.peek(0, 9)[1].sequence_number == 3
    assert rig.store.peek(0, 9)[1].enqueued == NOON + 60


def test_one_for_a_time_gone_by_is_active_at_once(rig: Rig) -> None:
    rig.put(at=NOON)
    assert rig.states() == [State.ACTIVE]


def test_schedules_go_by_the_wall_clock(rig: Rig) -> None:
    rig.put(at=NOON + 60)
    rig.clock.set_wall(-100)
    rig.clock.turn(100)
    assert rig.states() == [State.SCHEDULED]
    rig.clock.set_wall(60)
    assert rig.states() == [State.ACTIVE]


def test_cancelled_are_all_or_none(rig: Rig) -> None:
    numbers = [rig.put(at=NOON + 60) for _ in range(3)]
    waiting = rig.put()
    for wrong in (99, waiting):
        refused(MESSAGE_NOT_FOUND, partial(rig.store.cancel, [*numbers, wrong]))
    rig.store.cancel(numbers[:2])
    refused(MESSAGE_NOT_FOUND, lambda: rig.store.cancel(numbers[:1]))
    rig.clock.turn(60)
    refused(MESSAGE_NOT_FOUND, lambda: rig.store.cancel(numbers[2:]))
    assert len(rig.bodies()) == 2


# --- deferred ---------------------------------------------------------------------------------------------


def test_deferred_is_only_had_by_its_number_and_stays_so(rig: Rig) -> None:
    number = rig.put()
    rig.store.defer(rig.take())
    assert rig.store.take("me") is None

    [found] = rig.store.take_deferred([number], "me")

    assert found.lock is not None
    refused(MESSAGE_NOT_FOUND, lambda: rig.store.take_deferred([number], "me"))  # it is locked
    rig.clock.turn(LOCK)
    assert rig.store.take("me") is None
    [again] = rig.store.take_deferred([number], "me")
    assert (again.delivery_count, again.state) == (1, State.DEFERRED)
    assert again.lock is not None
    rig.store.complete(again.lock.token)
    assert rig.bodies() == []


def test_deferred_are_had_all_or_none(rig: Rig) -> None:
    number = rig.put()
    rig.store.defer(rig.take())
    refused(MESSAGE_NOT_FOUND, lambda: rig.store.take_deferred([number, 77], "me"))
    assert len(rig.store.take_deferred([number], "me")) == 1


# --- time to live -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "default", "ends"),
    [(5.0, None, 5.0), (None, 7.0, 7.0), (5.0, 7.0, 5.0), (9.0, 7.0, 7.0)],
    ids=["own", "the queue's", "own is shorter", "the queue's is shorter"],
)
@pytest.mark.parametrize("dead", [False, True])
def test_time_to_live(own: float | None, default: float | None, ends: float, dead: bool) -> None:
    rig = Rig(default_ttl=default, dead_letter_on_expiry=dead)
    rig.put(ttl=own)
    rig.clock.turn(ends - 0.001)
    assert rig.bodies() == [b"x"]
    rig.clock.turn(0.001)
    assert rig.bodies() == []
    assert rig.reasons() == (["TTLExpiredException"] if dead else [])
    assert rig.store.tally.expired == 1


def test_what_is_locked_lives_until_it_comes_back(rig: Rig) -> None:
    rig.put(ttl=5.0)
    token = rig.take()
    rig.clock.turn(10)
    rig.store.renew(token)
    rig.store.release(token)
    assert rig.bodies() == []


def test_what_is_deferred_stays_and_what_is_scheduled_begins_to_live_at_its_time(rig: Rig) -> None:
    rig.put(b"deferred", ttl=5.0)
    rig.store.defer(rig.take())
    rig.put(b"scheduled", ttl=5.0, at=NOON + 60)
    rig.clock.turn(64)
    assert rig.bodies() == [b"deferred", b"scheduled"]
    rig.clock.turn(1)
    assert rig.bodies() == [b"deferred"]


# --- duplicates and sizes ---------------------------------------------------------------------------------


def test_an_id_is_taken_once_in_the_window() -> None:
    rig = Rig(duplicate_window=60.0)
    assert [rig.put(ident=ident) for ident in ("a", "b", "a")] == [1, 2, 0]
    rig.clock.turn(59.999)
    assert rig.put(ident="a") == 0
    rig.clock.turn(0.001)
    assert rig.put(ident="a") == 3
    assert rig.put(ident="a") == 0
    assert [rig.put(), rig.put()] == [4, 5]  # without ids
    assert rig.store.tally.duplicates == 3


def test_a_completed_message_is_remembered() -> None:
    rig = Rig(duplicate_window=60.0)
    rig.put(ident="a")
    rig.store.complete(rig.take())
    assert rig.put(ident="a") == 0


def test_without_a_window_nothing_is_a_duplicate(rig: Rig) -> None:
    assert [rig.put(ident="a"), rig.put(ident="a")] == [1, 2]


def test_a_message_has_a_size_limit() -> None:
    rig = Rig(max_message_size=2000)
    rig.put(b"x" * 1900)
    refused("amqp:link:message-size-exceeded", lambda: rig.put(b"x" * 2000))


# --- looking ----------------------------------------------------------------------------------------------


def test_peek_shows_all_states_by_number_and_no_lock(rig: Rig) -> None:
    for body in (b"locked", b"deferred", b"waits"):
        rig.put(body)
    rig.put(b"scheduled", at=NOON + 60)
    rig.take()
    rig.store.defer(rig.take())

    found = rig.store.peek(0, 100)

    marks = [annotations_of(each.encoded(peeked=True)) for each in found]
    assert [mark["x-opt-sequence-number"] for mark in marks] == [1, 2, 3, 4]
    assert [mark["x-opt-message-state"] for mark in marks] == [0, 1, 0, 2]
    assert not any("x-opt-locked-until" in mark for mark in marks)
    assert "x-opt-locked-until" in annotations_of(found[0].encoded())
    assert [each.sequence_number for each in rig.store.peek(2, 2)] == [2, 3]
    assert rig.store.count() == {"ready": 1, "locked": 1, "scheduled": 1, "deferred": 1}


def test_what_a_sender_wrote_is_untouched_but_for_our_annotations(rig: Rig) -> None:
    rig.store.enqueue(
        parsed(message(b"body", message_id="id", sequence_number=encoding.long(99), own=encoding.uint(7)))
    )
    encoded = rig.store.peek(0, 1)[0].encoded()
    marks = annotations_of(encoded)
    assert marks["x-opt-own"] == 7
    assert encoded.count(b"x-opt-sequence-number") == 1
    assert marks["x-opt-sequence-number"] == 1
    assert body_of(encoded) == b"body"
    assert [section.code for section in sections_of(encoded)] == [0x70, 0x72, 0x73, 0x75]


def test_purge_takes_all_and_ends_locks(rig: Rig) -> None:
    rig.put()
    token = rig.take()
    rig.put(at=NOON + 60)
    assert rig.store.purge() == 2
    refused(LOCK_LOST, lambda: rig.store.complete(token))
    rig.clock.turn(100)
    assert rig.bodies() == []


@pytest.mark.parametrize(
    ("does", "seconds"),
    [
        (lambda rig: rig.put(), None),
        (lambda rig: rig.put(at=NOON + 60), 60.0),
        (lambda rig: rig.put(ttl=5.0), 5.0),
        (lambda rig: (rig.put(at=NOON + 60), rig.put(), rig.take()), LOCK),
    ],
)
def test_what_is_due_next(rig: Rig, does: Callable[[Rig], object], seconds: float | None) -> None:
    does(rig)
    assert rig.store.next_due() == seconds


# --- names ------------------------------------------------------------------------------------------------


def test_names_are_the_same_in_any_case_and_lead_to_the_sub_queue(rig: Rig) -> None:
    assert rig.namespace.store("JOBS") is rig.store
    assert rig.namespace.store("Jobs" + SUB_QUEUE.upper()) is rig.dead
    with pytest.raises(ValueError, match="already"):
        rig.namespace.create("Jobs")
    refused(NOT_FOUND, lambda: rig.namespace.store("other"))
    rig.namespace.delete("jobs")
    refused(NOT_FOUND, lambda: rig.namespace.store("jobs"))


def test_queues_are_made_on_demand_only_when_asked_to() -> None:
    namespace = Namespace(Clock(NOON), QueueProperties(), auto_create=True)
    assert namespace.store("a/b").name == "a/b"
    for name in ("$cbs", "", "a?b"):
        refused(NOT_FOUND, partial(namespace.store, name))


@pytest.mark.parametrize(
    ("status", "send", "receive"),
    [
        ("Active", True, True),
        ("Disabled", False, False),
        ("SendDisabled", False, True),
        ("ReceiveDisabled", True, False),
    ],
)
def test_status(rig: Rig, status: str, send: bool, receive: bool) -> None:
    rig.namespace.set_status("jobs", status)  # type: ignore[arg-type]
    for allowed, check in ((send, rig.queue.check_send), (receive, rig.queue.check_receive)):
        if allowed:
            check()
        else:
            refused(ENTITY_DISABLED, check)
    with pytest.raises(ValueError, match="status"):
        rig.namespace.set_status("jobs", "Asleep")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"lock_duration": 0},
        {"lock_duration": 301},
        {"max_delivery_count": 0},
        {"max_delivery_count": 2001},
        {"duplicate_window": -1},
        {"default_ttl": 0},
        {"max_message_size": 1},
    ],
)
def test_properties_have_bounds(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        QueueProperties(**wrong)  # type: ignore[arg-type]


# --- the clock --------------------------------------------------------------------------------------------


def test_a_standing_clock_moves_when_it_is_turned() -> None:
    clock = Clock(NOON)
    before = clock.monotonic()
    clock.turn(1.5)
    assert (clock.wall(), clock.monotonic()) == (NOON + 1.5, before + 1.5)
    clock.set_wall(-2)
    assert (clock.wall(), clock.monotonic()) == (NOON - 0.5, before + 1.5)
    with pytest.raises(ValueError, match="ahead"):
        clock.turn(-1)


def test_a_running_clock_is_the_machines_and_what_it_was_turned() -> None:
    still, turned = Clock(), Clock()
    turned.turn(3600)
    assert 3599 < turned.wall() - still.wall() < 3700
    assert 3599 < turned.monotonic() - still.monotonic() < 3700
