"""The witness: it is the backend to whoever calls it, and what the broker answered is in the ledger."""

from __future__ import annotations

import inspect
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.jobs import QUEUE, a_job, new_lease, numbered
from support.tables import row

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ReapPolicy
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, ConfigurationError, LeaseLost
from jobpool.message.settlement import Ack, Move, Settled
from jobpool_backends.memory import MemoryBackend
from jobpool_torture.ledger import LEDGER, Ledger, Line
from jobpool_torture.witness import POOL_NAME, Witness, watched

WATCHED = {
    *("fetch", "fetch_many", "ack", "nack", "abandon", "release", "forfeit", "settle_many"),
    *("renew", "renew_many", "reap", "lost", "close"),
}


class Scene:
    """A backend in memory, on a clock that the test turns, under a witness."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.inner = MemoryBackend(clock=self.clock)
        self.witness = Witness(self.inner, folder / "ledger", pool="p")
        self.backend = cast(QueueBackend, self.witness)
        self.ledger = Ledger(folder / "ledger")

    def events(self) -> list[tuple[str, str, str]]:
        """Event, verb and answer of each line."""
        return [(line.event, line.verb, line.answer) for line in self.ledger.read()]

    def last(self) -> Line:
        return self.ledger.read()[-1]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.backend.close()


# --- it is the backend -------------------------------------------------------------------------------------------


def public_names() -> list[str]:
    return sorted(name for name in {*dir(QueueBackend), *QueueBackend.__annotations__} if not name.startswith("_"))


@pytest.mark.parametrize("name", public_names())
def test_all_that_a_backend_has_is_the_backends_own_unless_it_is_watched(scene: Scene, name: str) -> None:
    if name in WATCHED:
        ours, theirs = getattr(Witness, name), getattr(QueueBackend, name)
        assert inspect.signature(ours, eval_str=True) == inspect.signature(theirs, eval_str=True)
    elif name in ("keys", "claims"):
        assert type(getattr(scene.backend, name)) is type(getattr(scene.inner, name))
    else:
        assert getattr(scene.backend, name) == getattr(scene.inner, name)


def test_what_asks_for_a_backend_by_its_class_takes_it(scene: Scene) -> None:
    assert isinstance(scene.backend, QueueBackend)


def test_nothing_that_is_there_nowhere_is_there(scene: Scene) -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = cast(Any, scene.backend).no_such_thing


def test_an_error_is_the_callers(scene: Scene) -> None:
    with pytest.raises(ValueError, match="limit"):
        scene.backend.fetch_many(QUEUE, limit=0)


# --- what it writes ----------------------------------------------------------------------------------------------


def test_a_fetch(scene: Scene) -> None:
    ident = scene.backend.enqueue(a_job(max_retries=3))
    begun = time.monotonic()
    [lease] = scene.backend.fetch_many(QUEUE, limit=1)

    line = scene.last()
    assert (line.event, line.id, line.fence, line.attempt, line.crashes) == ("fetched", ident, 1, 1, 0)
    assert (line.pool, line.owner, line.tag) == ("p", lease.owner_token, QUEUE)
    assert begun <= line.since <= line.at <= time.monotonic()
    assert abs(line.wall - time.time()) < 60


def test_an_empty_fetch_writes_nothing(scene: Scene) -> None:
    assert scene.backend.fetch(QUEUE) is None
    assert scene.events() == []


@pytest.mark.parametrize("verb", ["ack", "nack", "abandon", "release", "forfeit"])
def test_a_settlement_by_a_single_verb(scene: Scene, verb: str) -> None:
    lease = new_lease(scene.backend)
    call = getattr(scene.backend, verb)
    arguments = ("cause",) if verb == "forfeit" else ()

    assert (call(lease, *arguments), call(lease, *arguments)) == (Settled.OK, Settled.ALREADY)
    assert scene.events()[1:] == [
        *(("asked", verb, ""), ("settled", verb, "ok"), ("asked", verb, ""), ("settled", verb, "already")),
    ]


def test_a_refused_settlement(scene: Scene) -> None:
    lease = new_lease(scene.backend, ttl=5)
    scene.clock.advance(5)

    assert not scene.backend.ack(lease)
    assert scene.events()[-1] == ("settled", "ack", "expired")


def test_a_move_says_what_it_adds(scene: Scene) -> None:
    lease = new_lease(scene.backend)
    scene.backend.settle_many([(lease, Move("large", attempts=1))])

    line = scene.last()
    assert (line.event, line.verb, line.tag, line.attempt, line.crashes) == ("settled", "move", "large", 1, 0)


class Silent(MemoryBackend):
    """Settles, and does not say so."""

    def _settle(self, *arguments: Any) -> list[Settled]:
        super()._settle(*arguments)
        raise BackendUnavailable("no answer")


def test_a_settlement_that_is_not_answered(tmp_path: Path) -> None:
    backend = cast(QueueBackend, Witness(Silent(), tmp_path / "ledger"))
    lease = new_lease(backend)
    with pytest.raises(BackendUnavailable):
        backend.ack(lease)

    asked, unknown = Ledger(tmp_path / "ledger").read()[1:]
    assert (asked.event, asked.verb) == ("asked", "ack")
    assert (unknown.event, unknown.verb, unknown.answer, unknown.since) == (
        *("unknown", "ack", "BackendUnavailable"),
        asked.since,
    )


def test_a_lost_lease(scene: Scene) -> None:
    scene.backend.enqueue_many(numbered(2))
    [held, lost] = scene.backend.fetch_many(QUEUE, limit=2, ttl=5)
    scene.backend.release(lost)

    assert [lease is None for lease in scene.backend.renew_many([held, lost], 5)] == [False, True]
    assert (scene.last().event, scene.last().verb, scene.last().id) == ("lost", "renew", lost.id)
    with pytest.raises(LeaseLost):
        scene.backend.renew(lost, 5)
    assert scene.events()[-2:] == [("lost", "renew", "")] * 2


def test_renewals_write_nothing(scene: Scene) -> None:
    scene.backend.renew(new_lease(scene.backend, ttl=5), 5)
    assert len(scene.events()) == 1


class Breaking(MemoryBackend):
    """Its connection breaks."""

    def lost(self) -> list[Any]:
        return [self.fetch(QUEUE)]


def test_leases_that_broke_with_a_connection(tmp_path: Path) -> None:
    inner = Breaking()
    inner.enqueue(a_job())
    [lease] = cast(QueueBackend, Witness(inner, tmp_path / "ledger")).lost()

    [line] = Ledger(tmp_path / "ledger").read()
    assert (line.event, line.verb, line.id) == ("lost", "connection", lease.id)


def test_a_reap(scene: Scene) -> None:
    ident = scene.backend.enqueue(a_job())
    policy = ReapPolicy(max_crashes=1, back_off=0)
    for answer, crashes in (("back", 1), ("dead", 2)):
        [lease] = scene.backend.fetch_many(QUEUE, limit=1)
        scene.backend.forfeit(lease, "killed by SIGSEGV")
        scene.backend.reap(QUEUE, policy)
        line = scene.last()
        assert (line.event, line.id, line.answer, line.crashes) == ("reaped", ident, answer, crashes)
        assert "SIGSEGV" in line.tag


# --- threads, cost -----------------------------------------------------------------------------------------------


def test_it_is_used_by_several_threads_at_once(scene: Scene) -> None:
    scene.backend.enqueue_many(numbered(400))

    def work() -> None:
        while leases := scene.backend.fetch_many(QUEUE, limit=5):
            scene.backend.renew_many(leases, 30)
            scene.backend.settle_many([(lease, Ack()) for lease in leases])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    events = scene.events()
    for event in (("fetched", "", ""), ("asked", "ack", ""), ("settled", "ack", "ok")):
        assert events.count(event) == 400


def test_it_costs_some_microseconds_a_message(scene: Scene) -> None:
    """The limit is twenty times what it takes on an idle machine."""

    def took(backend: QueueBackend) -> float:
        backend.enqueue_many(numbered(500))
        begun = time.thread_time()
        leases = backend.fetch_many(QUEUE, limit=500)
        backend.settle_many([(lease, Ack()) for lease in leases])
        return (time.thread_time() - begun) / 500

    plain = statistics.median(took(scene.inner) for _ in range(3))
    assert statistics.median(took(scene.backend) for _ in range(3)) - plain < 400e-6


# --- as the environment asks -------------------------------------------------------------------------------------


def test_as_the_environment_asks(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    backend = watched(MemoryBackend(), {LEDGER: str(path), POOL_NAME: "a pool"})
    backend.enqueue(a_job())
    backend.fetch(QUEUE)

    assert [line.pool for line in Ledger(path).read()] == ["a pool"]


def test_what_cannot_be_is_said() -> None:
    for environ, why in [
        ({}, LEDGER),
        ({LEDGER: "/no/such/folder/ledger"}, "cannot be opened: No such file"),
    ]:
        with row(environ), pytest.raises(ConfigurationError, match=why):
            watched(MemoryBackend(), environ)
