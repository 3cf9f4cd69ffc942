"""The fetch thread with limits and breakers: nothing spins, no queue holds up another, and it looks again in time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from running import Running
from support.jobs import QUEUE, a_job, numbered
from support.stalls import Stopwatch
from support.waiting import wait_until

from jobpool.errors import AccessRefused, BackendUnavailable
from jobpool.master import events as ev
from jobpool.master.fetch_thread import FetchThread
from jobpool.master.inbox import Inbox
from jobpool.message.guards import Begun, Guards
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Contended
from jobpool.message.settlement import Ack, Release
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy import breaker
from jobpool.policy.inspection import LeaseInspector
from jobpool.policy.limits import Limits
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.memory.keys import MemoryKeys

OTHER = "mails"


class Watched(MemoryBackend):
    """Counts its fetches; those from the queues in `down` are not answered, and their answers are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches: Counter[str] = Counter()
        self.ids: dict[str, set[str]] = {QUEUE: set(), OTHER: set()}
        self.down: set[str] = set()
        self.refused: set[str] = set()
        self.on_fetch: Callable[[], None] = lambda: None

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        self.fetches[queue] += 1
        self.on_fetch()
        if queue in self.refused:
            raise AccessRefused(f"no rights to {queue}")
        leases = super()._fetch(queue, limit, ttl, fetch_id)
        if queue in self.down:
            self.ids[queue].add(fetch_id)
            raise BackendUnavailable("silent")
        return leases


class SilentKeys(MemoryKeys):
    def _begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:  # noqa: ARG002
        raise BackendUnavailable("its table is locked")


class Desk(Running[FetchThread]):
    """A fetch thread, and a loop that says what it could take and settles what it is told to."""

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008
        keys: type[MemoryKeys] = MemoryKeys,
    ) -> None:
        self.backend = backend = Watched()
        backend._keys = keys(backend._turn, backend._store)
        queues, inspector = ((QUEUE, 1.0), (OTHER, 1.0)), LeaseInspector(EnvelopeSigner(), {})
        super().__init__(lambda inbox: FetchThread(backend, queues, 30.0, inspector, inbox, limits))
        self.running: list[JobLease] = []
        self.refused = 0
        self._taken_in = 0

    def turn(self, want: int = 8) -> None:
        """One turn of the loop: take in what came, give back what was refused, say what could be taken."""
        leased = self.of(ev.Leased)
        for event in leased[self._taken_in :]:
            self._take_in(event)
            self.thread.seen(event.brought)
        self._taken_in = len(leased)
        self.thread.hold(Counter(lease.queue for lease in self.running), ())
        self.thread.want(want)

    def until_told(self, kind: type[ev.Event]) -> None:
        """Turn until there is an event of this kind."""
        wait_until(lambda: self.turn() or self.of(kind))

    def _take_in(self, event: ev.Leased) -> None:
        for inspected in event.leases:
            if inspected.outcome is None:
                self.running.append(inspected.lease)
            else:
                assert isinstance(inspected.outcome, Contended)
                self.backend.settle_many([(inspected.lease, Release(inspected.outcome.delay))])
                self.refused += 1

    def finish(self, lease: JobLease) -> None:
        self.running.remove(lease)
        assert self.backend.settle_many([(lease, Ack())])

    def until_running(self, count: int, limit: float = 10.0) -> None:
        def there() -> bool:
            self.turn()
            return len(self.running) >= count

        wait_until(there, limit, f"{count} are running")

    def turn_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.turn()
            time.sleep(0.002)


def test_never_more_than_the_limit_runs_and_nothing_spins() -> None:
    with Desk(Limits(concurrency={QUEUE: 3})) as desk:
        desk.backend.enqueue_many(numbered(20))
        desk.until_running(3)
        fetches = desk.backend.fetches[QUEUE]
        desk.turn_for(0.3)
        assert len(desk.running) == 3
        assert desk.backend.fetches[QUEUE] - fetches <= 1
        assert desk.refused == 0, "what this pool holds itself need not be refused"


def test_each_job_that_ends_makes_room_for_the_next_at_once() -> None:
    with Desk(Limits(concurrency={QUEUE: 3})) as desk:
        desk.backend.enqueue_many(numbered(60))
        begun = Stopwatch()
        for _ in range(57):
            desk.until_running(3)
            desk.finish(desk.running[0])
        assert begun.seconds() < 20, "half a second each would be 28"


def test_a_shut_queue_does_not_hold_up_another() -> None:
    with Desk(Limits(concurrency={QUEUE: 1})) as desk:
        desk.backend.enqueue_many(numbered(20))
        desk.until_running(1)
        desk.backend.enqueue_many([a_job(queue=OTHER) for _ in range(5)])
        desk.until_running(6)
        assert Counter(lease.queue for lease in desk.running) == {QUEUE: 1, OTHER: 5}


def test_what_other_pools_hold_is_asked_for_now_and_then_and_given_back(inbox: Inbox) -> None:
    with Desk(Limits(concurrency={QUEUE: 1})) as desk:
        desk.backend.enqueue_many(numbered(10))
        other = FetchThread(  # never started: another pool's first fetch, by hand
            desk.backend,
            ((QUEUE, 1.0),),
            30.0,
            LeaseInspector(EnvelopeSigner(), {}),
            inbox,
            Limits(concurrency={QUEUE: 1}),
        )
        other._fetch(1)
        [theirs] = inbox.take()
        assert isinstance(theirs, ev.Leased)
        wait_until(lambda: desk.turn() or desk.refused)
        desk.turn_for(0.3)
        assert desk.running == []
        assert desk.refused <= 10
        assert desk.backend.fetches[QUEUE] < 12
        desk.backend.ack(theirs.leases[0].lease)
        desk.until_running(1)


def test_a_rate_lets_through_what_it_may_and_then_nothing() -> None:
    with Desk(Limits(rates={QUEUE: 6})) as desk:
        desk.backend.enqueue_many(numbered(20))
        desk.until_running(6)
        fetches = desk.backend.fetches[QUEUE]
        desk.finish(desk.running[0])
        desk.turn_for(0.3)
        assert len(desk.running) == 5
        assert desk.backend.fetches[QUEUE] - fetches <= 1
        assert desk.backend.stats(QUEUE).waiting == 14


@pytest.fixture
def long_cooldown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A breaker that opens soon, and for longer than a test."""
    monkeypatch.setattr(breaker, "FAILURES_TO_OPEN", 3)
    monkeypatch.setattr(breaker, "FIRST_COOLDOWN_S", 30.0)


@pytest.mark.usefixtures("long_cooldown")
def test_a_queue_whose_fetches_fail_is_left_alone_and_the_other_goes_on() -> None:
    with Desk() as desk:
        desk.backend.down = {QUEUE}
        desk.backend.enqueue_many([a_job(queue=OTHER)])
        desk.until_told(ev.BreakerTurned)
        assert desk.of(ev.BreakerTurned) == [ev.BreakerTurned(QUEUE, True)]
        fetches = desk.backend.fetches[QUEUE]
        desk.until_running(1)
        desk.backend.enqueue_many([a_job(queue=OTHER)])
        desk.until_running(2)
        desk.turn_for(0.2)
        assert desk.backend.fetches[QUEUE] == fetches == 3


@pytest.mark.usefixtures("long_cooldown")
@pytest.mark.parametrize("waiting", [2, 0])
def test_a_good_answer_elsewhere_sends_the_probe_and_it_closes(waiting: int) -> None:
    with Desk() as desk:
        desk.backend.down = {QUEUE}
        desk.backend.enqueue_many(numbered(waiting))
        desk.until_told(ev.BreakerTurned)
        desk.thread.answered([QUEUE])
        wait_until(lambda: desk.backend.fetches[QUEUE] == 4)
        desk.turn_for(0.1)
        assert desk.backend.fetches[QUEUE] == 4, "one probe, and it failed"
        desk.backend.down = set()
        desk.thread.answered([QUEUE])
        desk.until_running(waiting)
        wait_until(lambda: desk.turn() or desk.of(ev.BreakerTurned)[-1] == ev.BreakerTurned(QUEUE, False))
        assert len(desk.of(ev.BreakerTurned)) == 2


def test_a_refused_queue_that_a_reload_brings_does_not_end_a_pool_that_works() -> None:
    with Desk() as desk:
        desk.backend.refused = {"new"}
        desk.backend.enqueue_many(numbered(1))
        desk.until_running(1)
        desk.thread.serve_queues({QUEUE: 1.0, "new": 1.0})
        desk.until_told(ev.BrokerSilent)
        desk.backend.enqueue_many(numbered(1))
        desk.until_running(2)
        assert desk.of(ev.ThreadDied) == []


def test_a_pool_that_is_refused_at_its_first_fetch_ends() -> None:
    desk = Desk()
    desk.backend.refused = {QUEUE, OTHER}
    with desk:
        desk.until_told(ev.ThreadDied)


@pytest.mark.usefixtures("long_cooldown")
def test_keys_that_are_silent_hold_up_no_other_queue_though_fetches_are_answered() -> None:
    desk = Desk(keys=SilentKeys)
    desk.backend.enqueue_many([a_job(idempotency_key="k")])
    with desk:
        wait_until(lambda: desk.turn() or desk.refused)
        assert desk.of(ev.BreakerTurned) == [ev.BreakerTurned(QUEUE, True)]
        assert desk.of(ev.BrokerAnswered) == [], "the good fetches of meanwhile do not end this outage"
        desk.backend.enqueue_many([a_job(queue=OTHER) for _ in range(5)])
        desk.until_running(5)
        desk.thread.answered([QUEUE])
        desk.turn_for(0.2)
        assert desk.refused == desk.backend.fetches[QUEUE] == 1


def test_a_fetch_that_was_not_answered_is_made_again_under_its_id() -> None:
    with Desk() as desk:
        desk.backend.down = {QUEUE}
        desk.backend.enqueue_many(numbered(2))
        wait_until(lambda: desk.turn() or desk.backend.fetches[QUEUE] >= 3)
        desk.backend.down = set()
        desk.until_running(2)
        assert len(desk.backend.ids[QUEUE]) == 1
        assert [lease.deliveries for lease in desk.running] == [1, 1], "what the lost answers held is not lost"


def test_a_stop_waits_for_the_fetch_under_way_and_for_no_other_queue() -> None:
    desk = Desk()
    desk.backend.down = {QUEUE, OTHER}
    desk.backend.on_fetch = desk.thread.stop
    with desk:
        desk.turn()
        desk.thread.join(10.0)
        assert desk.backend.fetches.total() == 1, "each would wait for a silent broker in vain"
