"""The producer repeats an enqueue until it is answered, and writes down what it can count on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs
from support.waiting import wait_until

from jobpool.broker import control
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.broker.values import Capabilities
from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob
from jobpool.message.definition import JobDefinition
from jobpool_torture import workload
from jobpool_torture.ledger import Ledger
from jobpool_torture.workload import Item, Producer

QUEUE = "torture-1"
LIMIT = 20.0


class LosesAnswers:
    """A real broker, of whose answers to enqueues the first `times` are lost on the way."""

    def __init__(self, backend: QueueBackend, times: int, capabilities: Capabilities) -> None:
        self._backend = backend
        self.times = times
        self.capabilities = capabilities
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def enqueue_many(self, definitions: Iterable[JobDefinition]) -> list[str]:
        jobs = list(definitions)
        self.sizes.append(len(jobs))
        answers = self._backend.enqueue_many(jobs)
        if len(self.sizes) <= self.times:
            raise BackendUnavailable("the answer is lost")
        return answers


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueBackend]:
    monkeypatch.setattr(workload, "RETRY_PAUSE_S", 0.001)
    backend = open_backend("memory://")
    yield backend
    backend.close()


def items(*at: float, **options: Any) -> list[Item]:
    return [
        Item(number, moment, "work", "torture.work", {"seconds": 0}, 0.0, options) for number, moment in enumerate(at)
    ]


def started(broker: LosesAnswers | QueueBackend, chosen: list[Item], ledger: Path) -> Producer:
    made = Producer(lambda: cast(QueueBackend, broker), QUEUE, "ab12", ledger)
    made.start(chosen)
    return made


def produce(broker: LosesAnswers, chosen: list[Item], ledger: Path) -> Producer:
    made = started(broker, chosen, ledger)
    wait_until(lambda: not made.is_busy, LIMIT, "all is enqueued")
    assert made.finish(0.0)
    return made


def events(ledger: Path) -> list[tuple[str, str, str]]:
    return [(line.event, line.id, line.tag) for line in Ledger(ledger).read()]


class TakesLittle(LosesAnswers):
    """A broker that takes no job whose payload is longer than `most`."""

    most = 30_000

    def enqueue_many(self, definitions: Iterable[JobDefinition]) -> list[str]:
        jobs = list(definitions)
        if any(len(job.payload["filling"]) > self.most for job in jobs):
            raise InvalidJob("too long")
        return super().enqueue_many(jobs)


def big(size: int) -> Item:
    return Item(0, 0.0, "big", "torture.weigh", {"filling": "x" * size, "size": size})


def test_what_is_too_big_for_the_broker_is_halved_until_it_is_taken(backend: QueueBackend, tmp_path: Path) -> None:
    broker = TakesLittle(backend, 0, backend.capabilities)
    made = produce(broker, [big(100_000), big(20_000)], tmp_path / "ledger")
    taken = [item.payload for item in made.items.values()]
    assert all(len(payload["filling"]) == payload["size"] <= broker.most for payload in taken)


def test_a_broker_that_takes_nothing_at_all_ends_the_producer(backend: QueueBackend, tmp_path: Path) -> None:
    broker = TakesLittle(backend, 0, backend.capabilities)
    broker.most = 10
    made = started(broker, [big(100_000)], tmp_path / "ledger")
    wait_until(lambda: not made.is_busy, LIMIT, "it has given up")
    assert isinstance(made.error, InvalidJob)


def test_a_lost_answer_is_asked_for_again_under_the_same_ids(backend: QueueBackend, tmp_path: Path) -> None:
    broker = LosesAnswers(backend, 2, backend.capabilities)
    produce(broker, items(0.0, 0.0), tmp_path / "ledger")
    tries = [("try", f"ab12-00000{number}", f"ab12-00000{number}") for number in (0, 1)]
    answered = [("enq", ident, tag) for _, ident, tag in tries]
    assert events(tmp_path / "ledger") == [*tries, *tries, *tries, *answered]
    assert broker.sizes == [2, 2, 2]
    assert backend.stats(QUEUE).waiting == 2


def test_where_no_ids_are_known_each_try_is_another_job(backend: QueueBackend, tmp_path: Path) -> None:
    can = structs.replace(backend.capabilities, keeps_records=False)
    made = produce(LosesAnswers(backend, 2, can), items(0.0, 0.0), tmp_path / "ledger")
    assert [(event, ident) for event, ident, _ in events(tmp_path / "ledger")] == [
        *(("try", "ab12-000000"), ("try", "ab12-000000r2"), ("try", "ab12-000000r3"), ("enq", "ab12-000000r3")),
        *(("try", "ab12-000001"), ("enq", "ab12-000001")),
    ]
    assert backend.stats(QUEUE).waiting == 4
    assert {item.number for item in made.items.values()} == {0, 1}


def test_the_answer_of_a_unique_job_names_the_one_that_is_there(backend: QueueBackend, tmp_path: Path) -> None:
    chosen = items(0.0, 0.0, idempotency_key="k", unique=True)
    produce(LosesAnswers(backend, 0, backend.capabilities), chosen, tmp_path / "ledger")
    answers = [(ident, tag) for event, ident, tag in events(tmp_path / "ledger") if event == "enq"]
    assert answers == [("ab12-000000", "ab12-000000"), ("ab12-000000", "ab12-000001")]


def test_what_is_not_due_is_left_at_a_finish_and_what_was_tried_is_answered(
    backend: QueueBackend, tmp_path: Path
) -> None:
    broker = LosesAnswers(backend, 5, backend.capabilities)
    made = started(broker, items(0.0, 3600.0), tmp_path / "ledger")
    wait_until(lambda: bool(broker.sizes), LIMIT, "the first is tried")
    assert made.finish(LIMIT)
    assert events(tmp_path / "ledger")[-1][:2] == ("enq", "ab12-000000")
    assert backend.stats(QUEUE).waiting == 1


def test_what_ends_the_thread_is_kept_and_nothing_was_answered(tmp_path: Path) -> None:
    error = ConfigurationError("no such broker")

    def refuse() -> QueueBackend:
        raise error

    made = Producer(refuse, QUEUE, "ab12", tmp_path / "ledger")
    made.start(items(0.0))
    assert not made.finish(LIMIT)
    assert made.error is error


def test_after_an_abort_nothing_is_tried_again(backend: QueueBackend, tmp_path: Path) -> None:
    broker = LosesAnswers(backend, 1_000_000, backend.capabilities)
    made = started(broker, items(0.0, 3600.0), tmp_path / "ledger")
    wait_until(lambda: bool(broker.sizes), LIMIT, "the first is tried")
    assert made.is_busy
    made.close()
    wait_until(lambda: not made.is_busy, LIMIT, "the thread has ended")


# --- cancels and batches -----------------------------------------------------------------------------------------


def told(ledger: Path, event: str) -> list[tuple[str, str]]:
    return [(line.id, line.answer or line.tag) for line in Ledger(ledger).read() if line.event == event]


def test_a_job_is_cancelled_at_its_time_and_the_answer_written(backend: QueueBackend, tmp_path: Path) -> None:
    [chosen] = items(0.0)
    produce(LosesAnswers(backend, 1, backend.capabilities), [replace(chosen, cancel_after=0.0)], tmp_path / "ledger")
    assert told(tmp_path / "ledger", "cancel") == [("ab12-000000", "cancelled")]
    assert backend.stats(QUEUE).dead == 1


def test_one_that_runs_is_asked_for_until_its_pool_has_answered(backend: QueueBackend, tmp_path: Path) -> None:
    [chosen] = items(0.0)
    made = started(backend, [replace(chosen, cancel_after=0.2)], tmp_path / "ledger")
    wait_until(lambda: backend.stats(QUEUE).waiting, LIMIT, "it is there")
    lease = backend.fetch(QUEUE)
    wait_until(lambda: list(control.read(backend).cancels) == ["ab12-000000"], LIMIT, "it is asked for")
    assert told(tmp_path / "ledger", "cancel") == []
    assert lease is not None
    backend.abandon(lease, "cancelled")
    wait_until(lambda: not made.is_busy, LIMIT, "it is done")
    assert told(tmp_path / "ledger", "cancel") == [("ab12-000000", "already cancelled")]


def test_a_batch_is_opened_filled_and_closed_however_often_an_answer_is_lost(
    backend: QueueBackend, tmp_path: Path
) -> None:
    single, batch = items(0.0, 0.0)
    batch = replace(batch, kind="batch", handler="torture.tally", payload={}, members=tuple(items(0.0, 0.0)))
    made = produce(LosesAnswers(backend, 2, backend.capabilities), [single, batch], tmp_path / "ledger")
    members = ["ab12-000001m0", "ab12-000001m1"]
    enqueued = ["ab12-000000", *members, "ab12-000001:on_done"]
    assert [ident for ident, _ in told(tmp_path / "ledger", "enq")] == enqueued
    assert set(made.items) == {*enqueued, "ab12-000001:on_success"}
    found = backend.batches.get("ab12-000001")
    assert found is not None
    assert (found.total, found.open) == (2, False)
    for lease in backend.fetch_many(QUEUE, limit=5, ttl=30.0):
        backend.ack(lease)
    assert sorted(lease.id for lease in backend.fetch_many(QUEUE, limit=5, ttl=30.0)) == [
        "ab12-000001:on_done",
        "ab12-000001:on_success",
    ]
