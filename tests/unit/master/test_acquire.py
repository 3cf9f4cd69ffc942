"""What happens between inspection and the loop: guards granted, refused, and asked for again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import orjson
import pytest
from msgspec.structs import replace
from support.jobs import QUEUE, a_job

from jobpool.broker.values import Capabilities
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.master import events as ev
from jobpool.master.acquire import check_key_store
from jobpool.master.fetch_thread import FetchThread
from jobpool.master.inbox import Inbox
from jobpool.master.run import run_pool
from jobpool.message.batches import BatchCall
from jobpool.message.context import next_of
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import TRACEPARENT, encode
from jobpool.message.guards import Begun, Guards
from jobpool.message.lease import JobLease
from jobpool.message.outcome import AlreadyDone, Contended, Expired, LostLease, NotRun, Outcome, Rejected
from jobpool.message.settlement import Ack, Release
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import Inspected, LeaseInspector
from jobpool.policy.limits import Limits
from jobpool.settings import Settings
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.memory.keys import MemoryKeys

TTL = 30.0


class UnsteadyKeys(MemoryKeys):
    """Counts its calls; the next `silent` of them are granted, and their answers lost."""

    begins = 0
    silent = 0
    meanwhile: tuple[Callable[[], object], ...] = ()

    def _begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        self.begins += 1
        answers = super()._begin(asked)
        if self.silent:
            self.silent -= 1
            for happens in self.meanwhile:
                happens()
            raise BackendUnavailable("silent")
        return answers


class Desk:
    """A broker in memory, and a fetch thread that was not started."""

    def __init__(self, limits: Limits, inbox: Inbox) -> None:
        self.clock = ManualClock()
        self.backend = MemoryBackend(clock=self.clock)
        self.keys = UnsteadyKeys(self.backend._turn, self.backend._store)
        self.backend._keys = self.keys
        self.thread = thread_of(self.backend, limits, inbox)
        self.stop, self.local_limits, self.breakers = self.thread._halt, self.thread._limits, self.thread._breakers

    def fetch(self, *jobs: dict[str, Any]) -> list[Inspected]:
        """Enqueue and lease them, not admitted yet."""
        self.backend.enqueue_many([a_job(**job) for job in jobs])
        return [Inspected(lease, None) for lease in self.backend.fetch_many(QUEUE, limit=100, ttl=TTL)]

    def admit(self, found: list[Inspected]) -> list[Inspected]:
        return admit(self.thread, found)[-1].leases

    def run(self, *jobs: dict[str, Any]) -> list[Inspected]:
        return self.admit(self.fetch(*jobs))

    @property
    def now(self) -> float:
        return self.clock.mono()


@pytest.fixture
def desk(inbox: Inbox) -> Desk:
    return Desk(Limits(), inbox)


def thread_of(backend: MemoryBackend, limits: Limits, inbox: Inbox) -> FetchThread:
    return FetchThread(backend, ((QUEUE, 1.0),), TTL, LeaseInspector(EnvelopeSigner(), {}), inbox, limits)


def admit(thread: FetchThread, found: list[Inspected]) -> list[ev.Leased]:
    """What the loop is told of these."""
    thread._admit(QUEUE, ev.Leased(found))
    return [event for event in cast(Inbox, thread._inbox).take() if isinstance(event, ev.Leased)]


def outcomes(found: list[Inspected]) -> list[Outcome | None]:
    return [inspected.outcome for inspected in found]


ALONE = {"single_instance": True}
KEYED = {"idempotency_key": "k"}


# --- what is asked ----------------------------------------------------------------------------------


def test_plain_jobs_ask_for_nothing(desk: Desk) -> None:
    found = desk.run({}, {"timeout": 5.0}, {"concurrency_key": "acme"})
    assert outcomes(found) == [None, None, None]
    assert [inspected.lease.guards for inspected in found] == [None, None, None]
    assert desk.keys.begins == 0


def test_a_whole_fetch_asks_once_and_goes_on_guarded(desk: Desk) -> None:
    found = desk.run(KEYED, {}, ALONE)
    assert outcomes(found) == [None, None, None]
    guards = [inspected.lease.guards for inspected in found]
    assert [guard and guard.key for guard in guards] == ["k", None, None]
    assert guards[1] is None
    assert guards[2] is not None
    assert [hold.name for hold in guards[2].holds] == ["job:report"]
    assert desk.keys.begins == 1


def test_what_has_an_outcome_already_asks_for_nothing(desk: Desk) -> None:
    found = desk.fetch(KEYED)
    found[0].outcome = Expired()
    assert outcomes(desk.admit(found)) == [Expired()]
    assert desk.keys.begins == 0


def test_a_key_that_can_be_none_is_rejected(desk: Desk) -> None:
    job = a_job(idempotency_key="x" * 255)
    body = encode(job, identifier="a", queue=QUEUE, signer=desk.backend.signer, now=0.0).replace(b"xxx", b"xxxx")
    lease = JobLease("a", QUEUE, body, 1, "o" * 32, desk.now + TTL, "memory")
    [outcome] = outcomes(desk.admit([Inspected(lease, None)]))
    assert isinstance(outcome, Rejected)
    assert "idempotencyKey must be 1 to 255 printable characters" in outcome.why


def test_guards_outlive_a_renewal(desk: Desk) -> None:
    [inspected] = desk.run(KEYED)
    assert desk.backend.renew(inspected.lease, TTL).guards == inspected.lease.guards is not None


# --- what is answered -------------------------------------------------------------------------------


def test_a_key_that_is_done_is_skipped_and_stays_done_no_longer_for_it(desk: Desk) -> None:
    [first] = desk.run(KEYED)
    assert desk.backend.ack(first.lease)
    [second] = desk.run(KEYED)
    assert second.outcome == AlreadyDone()
    assert second.lease.guards == Guards(), "its ack must not mark the key anew"


def test_the_chain_of_a_skipped_one_goes_on_without_its_result(desk: Desk) -> None:
    chain: list[dict[str, Any]] = [{"handler": "mail", "previous": []}, {"handler": "file"}]
    meta = {TRACEPARENT: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    then = tuple(JobDefinition.from_dict({**job, "identifier": job["handler"]}) for job in chain)
    desk.backend.call_batch(BatchCall("open", "b", None, ()))
    desk.backend.ack(desk.run(KEYED)[0].lease)
    [skipped] = desk.run({**KEYED, "then": then, "batch": "b", "meta": meta})
    assert isinstance(skipped.outcome, AlreadyDone)
    [mail] = skipped.outcome.follow_ups
    assert (mail.handler, mail.previous, mail.then) == ("mail", [None], (JobDefinition("file", identifier="file"),))
    assert (mail.batch, mail.meta) == ("b", meta)
    assert next_of(skipped.lease.envelope) == (mail,), "a repeat has the same id"


@pytest.mark.parametrize("then", [[{"handler": ""}], [{"handler": "mail", "then": 5}], [{"queue": "x"}]])
def test_a_chain_that_names_no_job_is_rejected_when_its_first_is_skipped(desk: Desk, then: list[Any]) -> None:
    desk.backend.ack(desk.run(KEYED)[0].lease)
    [found] = desk.fetch({**KEYED, "then": (JobDefinition("THEN", identifier="x"),)})
    body = found.lease.body.replace(b'[{"identifier":"x","handler":"THEN","payload":{}}]', orjson.dumps(then))
    [outcome] = outcomes(desk.admit([Inspected(replace(found.lease, body=body), None)]))
    assert isinstance(outcome, Rejected)
    assert "the next job of its chain is refused" in outcome.why


@pytest.mark.parametrize("same", [KEYED, ALONE], ids=["key", "lock"])
def test_what_another_message_holds_makes_this_one_wait(desk: Desk, same: dict[str, Any]) -> None:
    first, second = desk.run(same, same)
    assert first.outcome is None
    assert isinstance(second.outcome, Contended)
    assert 0.0 < second.outcome.delay <= 1.0


def test_a_message_that_is_contended_again_waits_longer_until_it_gets_what_it_asks_for(desk: Desk) -> None:
    [first] = desk.run(ALONE)
    delays = []
    [waiting] = desk.run(ALONE)
    for _ in range(40):
        assert isinstance(waiting.outcome, Contended)
        delays.append(waiting.outcome.delay)
        waiting.outcome = None
        desk.admit([waiting])
    assert 8.0 < max(delays) <= 30.0
    desk.backend.settle_many([(first.lease, Release())])
    waiting.outcome = None
    assert outcomes(desk.admit([waiting])) == [None]
    desk.backend.settle_many([(waiting.lease, Release())])
    _, again = desk.run()
    assert isinstance(again.outcome, Contended)
    assert again.outcome.delay <= 1.0


def test_a_key_called_as_the_queues_limit_is_holds_up_only_its_message(inbox: Inbox) -> None:
    desk = Desk(Limits(concurrency={QUEUE: 5}), inbox)
    [first, second] = desk.run({"idempotency_key": "queue"}, {"idempotency_key": "queue"})
    assert first.outcome is None
    assert isinstance(second.outcome, Contended)
    assert second.outcome.delay > 0.0
    assert desk.local_limits.room(QUEUE, 5, desk.now) == 5


def test_a_concurrency_key_is_limited_by_itself(inbox: Inbox) -> None:
    desk = Desk(Limits(concurrency_per_key={QUEUE: 1}), inbox)
    found = desk.run({"concurrency_key": "a"}, {"concurrency_key": "a"}, {"concurrency_key": "b"}, {})
    assert [type(outcome) for outcome in outcomes(found)] == [type(None), Contended, type(None), type(None)]


def test_a_rate_per_key_waits_at_least_until_there_is_room(inbox: Inbox) -> None:
    desk = Desk(Limits(rates_per_key={QUEUE: 1}), inbox)
    _, second = desk.run({"concurrency_key": "a"}, {"concurrency_key": "a"})
    assert isinstance(second.outcome, Contended)
    assert 60.0 <= second.outcome.delay <= 61.0


@pytest.mark.parametrize(
    ("limits", "wait"),
    [(Limits(concurrency={QUEUE: 2}), 5.0), (Limits(rates={QUEUE: 2}), 60.0)],
    ids=["concurrency", "rate"],
)
def test_what_the_queues_limit_refuses_goes_to_its_old_place_and_the_gate_is_shut(
    inbox: Inbox, limits: Limits, wait: float
) -> None:
    desk = Desk(limits, inbox)
    found = desk.run({}, {}, {}, {})
    assert outcomes(found) == [None, None, Contended(0.0, "queue"), Contended(0.0, "queue")]
    assert 0.0 < desk.local_limits.wait(QUEUE, desk.now) <= wait
    assert desk.local_limits.room(QUEUE, 4, desk.now) == 0


def test_a_lease_that_is_lost_is_left(desk: Desk) -> None:
    found = desk.fetch(KEYED)
    desk.backend.release(found[0].lease)
    assert outcomes(desk.admit(found)) == [LostLease()]


# --- a broker that is silent ------------------------------------------------------------------------


def test_a_lost_answer_is_asked_for_again_and_nothing_is_counted_twice(inbox: Inbox) -> None:
    desk = Desk(Limits(rates={QUEUE: 2}), inbox)
    desk.keys.silent = 2
    assert outcomes(desk.run({}, {}, {})) == [None, None, Contended(0.0, "queue")]
    assert desk.keys.begins == 3


def test_what_needs_nothing_does_not_wait_for_the_others(desk: Desk) -> None:
    desk.keys.silent = 1
    found = desk.fetch({}, KEYED, {})
    first, rest = [told.leases for told in admit(desk.thread, found)]
    assert [inspected.lease.id for inspected in first] == [found[0].lease.id, found[2].lease.id]
    assert rest == [found[1]]
    assert outcomes(rest) == [None]


def given_back(desk: Desk, inspected: Inspected) -> None:
    """It waits a little, and gives back what it may have been granted."""
    assert isinstance(inspected.outcome, Contended)
    assert 0.0 <= inspected.outcome.delay <= 2.0
    assert inspected.lease.guards is not None
    assert inspected.lease.expires_at > desk.now
    assert desk.backend.settle_many([(inspected.lease, Release(begun=False))])


def test_what_is_not_answered_in_half_a_lease_is_given_back_unharmed(inbox: Inbox) -> None:
    desk = Desk(Limits(rates={QUEUE: 1}), inbox)
    desk.keys.silent = 99
    desk.keys.meanwhile = (lambda: desk.clock.advance(TTL / 3),)
    [inspected] = desk.run({})
    given_back(desk, inspected)
    assert desk.keys.begins == 2, "nobody renews what waits here"
    desk.keys.silent = 0
    [again] = desk.run()
    assert again.outcome is None, "the start that may have been counted is given back"


def test_keys_that_stay_silent_open_the_breaker_of_their_queue_and_hold_up_no_other(desk: Desk) -> None:
    desk.keys.silent = 99
    [inspected] = desk.run(KEYED)
    given_back(desk, inspected)
    assert desk.keys.begins == 5, "not until half of the lease is over"
    desk.breakers.answered([QUEUE], desk.now)
    assert not desk.breakers.allow(QUEUE, desk.now), "an answer to something else tells nothing of the keys"
    desk.clock.advance(2.0)
    assert desk.breakers.allow(QUEUE, desk.now)
    given_back(desk, *desk.run())
    assert desk.keys.begins == 6, "one probe"
    assert desk.breakers.wait(QUEUE, desk.now) == 4.0


def test_a_stop_meanwhile_gives_everything_back_unharmed(inbox: Inbox) -> None:
    desk = Desk(Limits(rates={QUEUE: 1}), inbox)
    desk.keys.silent = 1
    desk.keys.meanwhile = (desk.stop.set,)
    [inspected] = desk.run({})
    assert inspected.outcome == NotRun()
    desk.backend.settle_many([(inspected.lease, Release(begun=False))])
    desk.stop.clear()
    [again] = desk.run()
    assert again.outcome is None, "the start that may have been counted is given back"


# --- a broker without keys --------------------------------------------------------------------------


class Keyless(MemoryBackend):
    capabilities = Capabilities(key_store=False)


def test_without_a_key_store_what_needs_it_is_rejected_and_the_rest_runs(desk: Desk, inbox: Inbox) -> None:
    found = desk.fetch({}, KEYED, ALONE)
    [told] = admit(thread_of(Keyless(clock=desk.clock), Limits(), inbox), found)
    plain, keyed, alone = outcomes(told.leases)
    assert plain is None
    assert isinstance(keyed, Rejected)
    assert isinstance(alone, Rejected)
    assert "memory:// keeps no keys (Capabilities.key_store), which job 'report' needs for idempotency_key" in keyed.why
    assert "leave single_instance out, or choose a backend with a key store" in alone.why


def test_without_a_key_store_there_are_no_limits() -> None:
    keyless = Keyless()
    check_key_store(Limits(), keyless)
    with pytest.raises(ConfigurationError, match="memory:// keeps none"):
        check_key_store(Limits(rates_per_key={QUEUE: 1}), keyless)


def test_a_pool_with_limits_does_not_start_without_a_key_store() -> None:
    settings = Settings(queues=((QUEUE, 1.0),), backend="memory://", concurrency_limits={QUEUE: 1})
    with pytest.raises(ConfigurationError, match="leave the limits out, or choose another backend"):
        run_pool(settings, backend=Keyless())


def test_an_ack_marks_the_key_for_as_long_as_the_setting_says(inbox: Inbox) -> None:
    desk = Desk(Limits(idempotency_ttl=50.0), inbox)
    [first] = desk.run(KEYED)
    assert desk.backend.settle_many([(first.lease, Ack())])
    desk.clock.advance(49.0)
    [second] = desk.run(KEYED)
    assert second.outcome == AlreadyDone()
    desk.backend.ack(second.lease)
    desk.clock.advance(2.0)
    [third] = desk.run(KEYED)
    assert third.outcome is None
