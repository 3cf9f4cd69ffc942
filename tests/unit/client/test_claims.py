"""`jobs.queue(…)`: posting, claiming, and what a claim does as a loop and as a block."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jobpool import Claim, ClaimMessage, ClaimNotFound, Forbidden, Jobs, Queue
from jobpool.broker.values import State
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, BadSignature, InvalidJob, Unsupported
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.sync import SyncBackend


class Overheard(MemoryBackend):
    """A broker that tells `heard` of the calls for claims that were made: the name, what was sent, and the answer."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.heard: Callable[[str, Any, Any], object] = lambda *_: None

    @property
    def claims(self) -> Any:
        store = super().claims

        def overheard(name: str) -> Callable[..., Any]:
            def call(queue: str, *words: Any, **asked: Any) -> Any:
                answer = getattr(store, name)(queue, *words, **asked)
                self.heard(name, words, answer)
                return answer

            return call

        return SimpleNamespace(**{name: overheard(name) for name in CALLS}, stats=store.stats)


CALLS = ("post", "claim", "get", "renew", "release", "delete_many", "pop", "list_free", "list_claims")


@pytest.fixture
def backend(clock: ManualClock) -> Overheard:
    return Overheard(clock)


@pytest.fixture
def mail(backend: MemoryBackend) -> Queue:
    return Jobs(backend=backend).queue("mail")


def claimed(queue: Queue, limit: int = 10) -> Claim:
    claim = queue.claim(limit)
    assert claim is not None
    return claim


def work_on(claim: Claim, handle: Callable[[int], object]) -> None:
    with claim:
        for message in claim:
            handle(message.payload)


def payloads(queue: Queue) -> list[object]:
    return [message.payload for message in queue.messages()]


# --- posting ----------------------------------------------------------------------------------------------


def test_what_was_posted_is_there_in_its_order(mail: Queue) -> None:
    ids = mail.post([{"to": "a"}, ["b", 1], "c", 4, None, True])
    assert [message.id for message in mail.messages()] == ids
    assert payloads(mail) == [{"to": "a"}, ["b", 1], "c", 4, None, True]


def test_bytes_stay_as_they_are(mail: Queue) -> None:
    mail.post([b"\x00\xff no JSON", bytearray(b"[1, 2]")])
    assert [message.body for message in mail.messages()] == [b"\x00\xff no JSON", b"[1, 2]"]
    assert payloads(mail) == [b"\x00\xff no JSON", [1, 2]]


def test_no_call_carries_more_than_a_broker_can_take_or_a_listing_needs(backend: Overheard, mail: Queue) -> None:
    carried: list[list[int]] = []  # by each call: the sizes of its messages
    backend.heard = lambda name, sent, answer: carried.append(
        [len(message.body) for message in (sent[0] if name == "post" else answer)]
    )
    ids = mail.post([*(b"x" * 2**20 for _ in range(41)), *(b"small" for _ in range(620))])
    assert sum(map(len, carried)) == len(ids)
    assert max(map(sum, carried)) <= 5 * 2**20
    assert max(map(len, carried)) == 500
    carried.clear()
    assert [message.id for message in mail.messages()] == ids
    pages = list(map(len, carried))
    assert pages[0] == 20
    assert max(map(sum, carried[1:])) <= 4 * 2**20
    assert 200 in pages


@pytest.mark.parametrize("one", [{"to": "a"}, "text", b"bytes"])
def test_a_single_message_is_refused_with_the_mend(mail: Queue, one: object) -> None:
    with pytest.raises(InvalidJob, match="put it into a list"):
        mail.post(one)  # type: ignore[arg-type]


def test_what_json_cannot_carry_is_refused_with_its_path(mail: Queue) -> None:
    with pytest.raises(InvalidJob, match=r"messages\[1\]\.price"):
        mail.post([{"price": 1.0}, {"price": float("nan")}])
    assert payloads(mail) == []


def test_lives_and_delays(mail: Queue, clock: ManualClock) -> None:
    mail.post(["short"], ttl=60)
    mail.post(["later"], delay=90)
    assert payloads(mail) == ["short"]
    clock.advance(60)
    assert payloads(mail) == []
    clock.advance(30)
    assert payloads(mail) == ["later"]
    assert mail.stats().expired == 1


# --- claiming ---------------------------------------------------------------------------------------------


def test_handled_messages_are_deleted_as_the_loop_goes_on(mail: Queue) -> None:
    mail.post([1, 2, 3])
    with claimed(mail) as claim:
        left = [mail.stats().total for _ in claim]
    assert left == [3, 2, 1]
    assert mail.stats().total == 0


def test_an_exception_frees_the_message_in_hand_and_the_rest(mail: Queue) -> None:
    mail.post([1, 2, 3])
    claim = claimed(mail)
    with pytest.raises(ZeroDivisionError):
        work_on(claim, lambda payload: 1 // (payload - 2))
    assert payloads(mail) == [2, 3]
    with pytest.raises(ClaimNotFound):
        mail.get_claim(claim.id)


def test_what_the_loop_deleted_itself_is_no_error(mail: Queue) -> None:
    mail.post([1, 2])
    with claimed(mail) as claim:
        for message in claim:
            message.delete()
    assert mail.stats().total == 0


def test_a_claim_that_ended_says_so_at_the_next_delete(mail: Queue, clock: ManualClock) -> None:
    mail.post([1, 2])
    handled: list[int] = []

    def handle_too_slowly(payload: int) -> None:
        handled.append(payload)
        clock.advance(300)

    with pytest.raises(ClaimNotFound, match="done again by somebody else"):
        work_on(claimed(mail), handle_too_slowly)
    assert handled == [1]
    assert payloads(mail) == [1, 2]


def test_a_renewed_claim_holds_on_with_what_it_had_before(mail: Queue, clock: ManualClock) -> None:
    mail.post([1, 2])
    claim = claimed(mail)
    claim.messages[0].delete()
    clock.advance(299)
    claim.renew()
    assert (claim.ttl, claim.grace, claim.age, len(claim)) == (300, 60, 0, 1)
    clock.advance(299)
    claim.renew(ttl=60, grace=90)
    assert (claim.ttl, claim.grace) == (60, 90)
    clock.advance(60)
    with pytest.raises(ClaimNotFound):
        claim.renew()


def test_a_claim_found_by_its_id_tells_its_age(mail: Queue, clock: ManualClock) -> None:
    mail.post([1])
    claim = claimed(mail)
    clock.advance(42.9)
    found = mail.get_claim(claim.id)
    assert (found.age, [message.payload for message in found.messages]) == (42, [1])
    assert 256 < found.remaining <= 257
    assert [(held.id, held.count) for held in mail.claims()] == [(claim.id, 1)]


def test_a_claim_counts_by_the_clock_of_its_broker(mail: Queue, clock: ManualClock) -> None:
    mail.post([1])
    claim = claimed(mail)
    clock.advance(240)  # as a suspend of the machine, which stops the clock of `time.monotonic`
    assert (claim.age, claim.remaining) == (240, 59)
    claim.renew()
    assert (claim.age, claim.remaining) == (0, 299)
    clock.advance(300)
    assert claim.remaining == 0


def test_a_delete_of_what_is_not_an_id_is_refused(mail: Queue) -> None:
    ids = mail.post([1, 2])
    for wrong in (ids, next(mail.messages()), None):
        with pytest.raises(InvalidJob, match="id"):
            mail.delete(ids[0], wrong)  # type: ignore[arg-type]
    assert payloads(mail) == [1, 2]


def test_popped_messages_are_gone(mail: Queue) -> None:
    mail.post([1, 2, 3])
    assert [message.payload for message in mail.pop(2)] == [1, 2]
    assert payloads(mail) == [3]
    with pytest.raises(ValueError, match="1 to 20"):
        mail.pop(21)


def test_what_another_holds_is_not_deleted_and_the_rest_is(mail: Queue) -> None:
    held, free = mail.post([1, 2])
    claim = claimed(mail, 1)
    with pytest.raises(Forbidden, match=f"holds {held}"):
        mail.delete(held, free)
    assert [message.id for message in mail.messages(claimed=True)] == [held]
    mail.delete(held, claim=claim.id)
    mail.delete(held, claim=claim.id)
    assert mail.stats().total == 0


def test_listed_messages_may_be_deleted_while_nobody_holds_them(mail: Queue) -> None:
    mail.post([1, 2])
    first, second = list(mail.messages())
    first.delete()
    claimed(mail)
    with pytest.raises(Forbidden):
        second.delete()


def test_too_many_claims_make_a_dead_letter(backend: MemoryBackend) -> None:
    mail = Jobs(backend=backend).queue("mail", max_claims=2)
    [ident] = mail.post([1])
    for _ in range(2):
        claimed(mail).release()
    assert mail.claim() is None
    dead = backend.inspect(ident)
    assert dead is not None
    assert (dead.state, dead.reason) == (State.DEAD, "claim-limit")


# --- jobs -------------------------------------------------------------------------------------------------


def test_a_job_may_be_claimed_and_shows_its_payload(backend: MemoryBackend) -> None:
    jobs = Jobs(backend=backend)
    jobs.define("send", {"to": "a"}).queue("mail").dispatch()
    [message] = claimed(jobs.queue("mail")).messages
    assert (message.handler, message.payload, message.claims) == ("send", {"to": "a"}, 1)
    message.delete()
    assert jobs.stats("mail").pending == 0


def test_a_job_that_nobody_of_ours_signed_does_not_show_its_payload(clock: ManualClock) -> None:
    backend = MemoryBackend(signer=EnvelopeSigner("ours"), clock=clock)
    signer = backend.signer
    backend.signer = EnvelopeSigner("theirs")
    jobs = Jobs(backend=backend)
    jobs.define("send", {"to": "a"}).queue("mail").dispatch()
    backend.signer = signer
    [message] = claimed(jobs.queue("mail")).messages
    with pytest.raises(BadSignature):
        _ = message.payload


# --- a broker that does not answer, and one that cannot -----------------------------------------------------


@pytest.fixture
def deaf(backend: Overheard) -> Queue:
    """On a broker that makes every call, and loses the first reply to each kind."""
    lost: set[str] = set()

    def lose(name: str, *_: object) -> None:
        if name not in lost:
            lost.add(name)
            raise BackendUnavailable("the reply was lost")

    backend.heard = lose
    return Jobs(backend=backend).queue("mail")


def test_lost_replies_post_nothing_twice_and_hold_nothing_back(deaf: Queue) -> None:
    deaf.post([1, 2])
    assert [message.payload for message in claimed(deaf).messages] == [1, 2]
    assert deaf._backend().stats("mail").posted == 2


def test_a_loop_whose_delete_got_no_reply_can_be_gone_on_with(deaf: Queue) -> None:
    deaf.post([1, 2, 3])
    claim = claimed(deaf)
    seen: list[int] = []
    with pytest.raises(BackendUnavailable):
        seen.extend(message.payload for message in claim)
    seen.extend(message.payload for message in claim)
    assert seen == [1, 2, 3]
    assert deaf.stats().total == 0


def test_the_exception_of_a_block_is_not_hidden_by_a_release_without_a_reply(deaf: Queue) -> None:
    deaf.post([0])
    with pytest.raises(ZeroDivisionError):
        work_on(claimed(deaf), lambda payload: 1 // payload)


def test_a_release_without_a_reply_is_told_where_nothing_else_is(deaf: Queue) -> None:
    deaf.post([1])
    with pytest.raises(BackendUnavailable), claimed(deaf):
        pass


def test_a_loop_over_a_claim_that_ended_says_so_again(mail: Queue, clock: ManualClock) -> None:
    """A second loop must not look as if everything had been handled."""
    mail.post([1, 2])
    claim = claimed(mail)
    assert next(iter(claim)).payload == 1
    clock.advance(300)
    for _ in range(2):
        with pytest.raises(ClaimNotFound):
            list(claim)


def test_a_broker_without_claims_says_so() -> None:
    queue = Jobs(backend=SyncBackend(runner=lambda _: None)).queue("mail")
    with pytest.raises(Unsupported, match="has no claims"):
        queue.claim()


def test_a_queue_that_cannot_be_is_refused_at_once(backend: MemoryBackend) -> None:
    with pytest.raises(InvalidJob):
        Jobs(backend=backend).queue("no queue")
    with pytest.raises(ValueError, match="max_claims"):
        Jobs(backend=backend).queue("mail", max_claims=-1)


def test_they_show_what_they_are(mail: Queue) -> None:
    mail.post([1])
    claim = claimed(mail)
    assert repr(mail) == "<Queue 'mail'>"
    assert repr(claim) == f"<Claim {claim.id} of 1 messages in <Queue 'mail'>>"
    assert isinstance(claim.messages[0], ClaimMessage)
    assert repr(claim.messages[0]).startswith(f"<message {claim.messages[0].id} in ")
