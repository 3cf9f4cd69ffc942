"""Batches and chains in the caller's own process: what `Jobs.batch` refuses, what handlers and callbacks find."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobpool.broker.control import Cancel
from jobpool.broker.packing import MAX_CALLBACK_BYTES
from jobpool.broker.values import MessageFilter, State
from jobpool.client.batch import Batch
from jobpool.client.jobs import Jobs
from jobpool.client.worker import QueueWorker
from jobpool.errors import InvalidJob, ResultNotKept, UnknownJob, Unrecoverable, Unsupported
from jobpool.handlers import registry as registries
from jobpool.handlers.handler import AnyHandler
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.builder import JobBuilder
from jobpool.message.context import JobContext
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.message.outcome import Status
from jobpool.message.payload import MAX_DEPTH
from jobpool.message.results import JobState
from jobpool.message.settlement import Ack
from jobpool_backends.memory import MemoryBackend

Said = list[tuple[str, Any]]


@pytest.fixture
def said() -> Said:
    return []


@pytest.fixture
def registry(said: Said) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handler("double")
    def double(n: int) -> int:
        if n == 3:
            raise Unrecoverable("no 3")
        return 2 * n

    @registry.handler("told")
    def told(ctx: JobContext, name: str = "", batch: dict[str, Any] | None = None) -> str:
        said.append((name, batch or ctx.previous))
        return f"{name}!"

    @registry.handler("grow")
    def grow(ctx: JobContext, n: int) -> None:
        assert ctx.batch is not None
        said.append(("grow", ctx.batch.id))
        if n:
            ctx.batch.add(JobDefinition("grow", {"n": n - 1}))

    @registry.handler("odd")
    def odd() -> object:
        return {"set": {1}, "complex": 1j}

    @registry.handler("large")
    def large() -> str:
        return "x" * MAX_BODY_BYTES

    @registry.handler("deep")
    def deep() -> object:
        return json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)

    return registry


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    with Jobs("memory://", signing_key="secret") as jobs:
        yield jobs


@pytest.fixture
def run(jobs: Jobs, registry: HandlerRegistry) -> Callable[[], None]:
    worker = QueueWorker(jobs.backend, registry)

    def run() -> None:
        while worker.process_once("default").status is not Status.EMPTY:
            pass

    return run


def double(n: int) -> JobDefinition:
    return JobDefinition("double", {"n": n})


def told(name: str) -> JobDefinition:
    return JobDefinition("told", {"name": name})


def test_a_callback_that_cannot_take_the_end_is_refused_before_anything_is_sent(
    jobs: Jobs, registry: HandlerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "DEFAULT", registry)
    deaf = registry.handler("deaf")(lambda: None)
    for callback in (deaf, JobDefinition("deaf"), JobBuilder("double", {"n": 1})):
        with pytest.raises(InvalidJob, match=r"on_done: .*'batch' is unknown.*give it a parameter batch: dict"):
            jobs.batch(on_done=callback)
    assert jobs.batch(on_done=JobDefinition("of another program")).status().open


def test_the_callbacks_find_the_end_in_their_payload(jobs: Jobs, run: Callable[[], None], said: Said) -> None:
    with jobs.batch(told("success"), told("done")) as batch:
        ids = batch.add_many([double(1), double(3)])
        ids.append(batch.add(JobBuilder("double", {"n": 2})))
    assert batch.status().total == 3
    run()
    end = {"id": batch.id, "total": 3, "succeeded": 2, "failed": 1, "cancelled": 0, "failed_ids": [ids[1]]}
    assert said == [("done", end)]
    assert (batch.wait(0).has_ended, batch.status().progress) == (True, 1.0)
    with pytest.raises(ResultNotKept, match="is a batch"):
        jobs.result(batch.id)


def test_all_of_it_succeeds(jobs: Jobs, run: Callable[[], None], said: Said) -> None:
    with jobs.batch(told("success"), told("done")) as batch:
        batch.add(double(1))
    run()
    assert [name for name, _ in said] == ["success", "done"]


def test_a_handler_may_be_a_callback(
    jobs: Jobs, registry: HandlerRegistry, said: Said, run: Callable[[], None]
) -> None:
    handler: AnyHandler = registry.resolve("told", "default")
    with jobs.batch(on_done=handler):
        pass
    run()
    [(_, end)] = said
    assert end["total"] == 0


def test_what_is_no_callback_is_refused_and_nothing_is_opened(jobs: Jobs) -> None:
    with pytest.raises(InvalidJob, match="a callback is a handler"):
        jobs.batch(on_done=len, identifier="b")  # type: ignore[arg-type]
    told = jobs.define("told")
    for late in (JobDefinition("told", expires_in=60), told.expires_in(60), told.expires_in(None).delay(60)):
        with pytest.raises(InvalidJob, match="on_done: expires_in and delay would count from the opening of the batch"):
            jobs.batch(on_done=late, identifier="b")
    with pytest.raises(InvalidJob, match="the payload of on_done is an object"):
        jobs.batch(on_done=JobDefinition("told", [1]), identifier="b")
    with pytest.raises(InvalidJob, match="at most"):
        jobs.batch(on_success=JobDefinition("told", {"name": "x" * MAX_CALLBACK_BYTES}), identifier="b")
    with pytest.raises(InvalidJob, match="batch unknown is not open"):
        jobs.batch(parent="unknown", identifier="b")
    assert jobs.backend.find_batch("b") is None
    assert jobs.status("b").state is JobState.UNKNOWN
    with pytest.raises(UnknownJob, match="no batch b is known"):
        Batch(jobs, "b").status()


def test_a_block_that_raises_cancels_its_batch(jobs: Jobs, run: Callable[[], None], said: Said) -> None:
    batch = jobs.batch(on_done=told("done"), on_success=told("success"))

    def fill() -> None:
        with batch:
            batch.add_many([double(1), double(2)])
            raise KeyError

    with pytest.raises(KeyError):
        fill()
    run()
    assert [(name, end["cancelled"]) for name, end in said] == [("done", 2)]
    [first, second] = jobs.backend.list_messages(MessageFilter(states=(State.DEAD,)))
    assert first.reason == second.reason == "cancelled"
    with pytest.raises(InvalidJob, match=f"batch {batch.id} is not open"):
        batch.add(double(1))


def test_a_block_that_raises_after_its_batch_was_closed_leaves_it(jobs: Jobs) -> None:
    batch = jobs.batch()

    def fill() -> None:
        with batch:
            batch.add(double(1))
            batch.close()
            raise KeyError

    with pytest.raises(KeyError):
        fill()
    assert (batch.status().stopped, batch.status().left) == (False, 1)


def test_a_producer_that_failed_completes_its_batch(jobs: Jobs, run: Callable[[], None], said: Said) -> None:
    def produce(fails: bool) -> None:
        with jobs.batch(on_done=told("done"), identifier="june") as batch:
            for n in (1, 2, 4):
                if fails and n == 4:
                    raise ConnectionError
                batch.add(double(n).with_identifier(f"june-{n}"))

    with pytest.raises(ConnectionError):
        produce(fails=True)
    assert jobs.backend.find_batch("june").open  # type: ignore[union-attr]
    run()
    produce(fails=False)
    run()
    assert [(end["total"], end["succeeded"]) for _, end in said] == [(3, 3)]


def test_a_refusal_says_why_the_batch_is_not_open(jobs: Jobs) -> None:
    def refused(match: str) -> None:
        for add in (batch.add, lambda job: batch.add_many([job])):
            with pytest.raises(InvalidJob, match=f"^batch b is not open: {match}"):
                add(double(2))
        with pytest.raises(InvalidJob, match=f"^batch b is not open: {match}"):
            jobs.batch(parent=batch)

    with jobs.batch(identifier="b") as batch:
        batch.add(double(1))
    refused(r"it was closed, and stays as it is\..* looks at batch\.status\(\)\.open")
    batch.cancel()
    refused(r"it was cancelled\. Make one with another identifier")
    batch = Batch(Jobs("memory://"), "b")
    with pytest.raises(InvalidJob, match=r"^batch b is not open: no batch b is known: it never was"):
        batch.add(double(1))
    with jobs.batch() as batch, pytest.raises(InvalidJob, match=r"has .* bytes; at most"):
        batch.add(JobDefinition("double", "x" * 2**20))
    batch = jobs.batch(identifier="ended")
    batch.close()
    with pytest.raises(InvalidJob, match=r"^batch ended is not open: it has ended"):
        batch.add(double(1))
    batch = jobs.batch(identifier="closed")

    def one_too_many() -> Iterator[JobBuilder]:
        yield from [JobBuilder("double", {"n": 1})] * 1000
        batch.close()
        yield JobBuilder("double", {"n": 1})

    with pytest.raises(InvalidJob, match=r"^batch closed is not open: it was closed") as raised:
        batch.add_many(one_too_many())
    assert raised.value.__notes__ == ["1000 jobs were enqueued before it"]


@pytest.mark.usefixtures("in_child")
def test_a_handler_fills_a_batch_through_its_pool(backend: MemoryBackend) -> None:
    jobs = Jobs("redis://elsewhere")
    with jobs.batch(on_done=told("done"), identifier="june") as batch:
        batch.add_many([double(1), double(2)])
        assert (batch.status().total, batch.status().open) == (2, True)
    assert not batch.status().open
    for call in (batch.wait, batch.cancel):
        with pytest.raises(Unsupported, match="it can enqueue, and fill batches"):
            call()
    other = jobs.batch()

    def fill() -> None:
        with other:
            other.add(double(1))
            raise KeyError

    with pytest.raises(KeyError):
        fill()
    assert other.status().stopped
    assert backend.stats("default").waiting == 2


@pytest.mark.usefixtures("in_child")
def test_a_handlers_block_that_raises_ends_the_chains_that_go_on_meanwhile(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master does not wait for the members that run, and one may succeed before a pool has read that it is over."""
    batch = Jobs("redis://elsewhere").batch()
    first = batch.add(double(1))
    [running] = backend.fetch_many("default", limit=1)
    monkeypatch.setattr(backend, "call_batch", partial(backend.call_batch, cancel_wait=0.0))
    rest = (double(2).with_batch(batch.id).with_identifier(f"{first}-2"),)
    monkeypatch.setattr(time, "sleep", lambda _: backend.settle_many([(running, Ack(follow_ups=rest))]))

    with pytest.raises(KeyError), batch:
        raise KeyError
    assert (batch.status().succeeded, batch.status().cancelled, backend.stats("default").waiting) == (1, 1, 0)


def test_an_id_of_ones_own_is_the_same_batch_again(jobs: Jobs, run: Callable[[], None], said: Said) -> None:
    for _ in range(2):
        with jobs.batch(on_done=told("done"), identifier="june") as batch:
            if batch.status().open:
                batch.add(double(1).with_identifier("one"))
    run()
    assert [end["total"] for _, end in said] == [1]


def test_nested_batches_and_their_cancel(jobs: Jobs, run: Callable[[], None], said: Said) -> None:
    with jobs.batch(on_done=told("outer")) as outer:
        with jobs.batch(on_done=told("inner"), parent=outer) as inner:
            inner.add(double(1))
        outer.add(double(2))
    assert jobs.status(outer.id).state is JobState.RUNNING
    assert jobs.status(outer.id).note == "0 of 2 jobs have ended"
    assert jobs.cancel(outer.id) is Cancel.CANCELLED
    assert jobs.cancel(outer.id) is Cancel.ALREADY
    assert jobs.status(outer.id).state is JobState.CANCELLED
    assert jobs.status(outer.id).note == "2 of 2 jobs have ended, 2 cancelled"
    run()
    assert [(name, end["failed"], end["cancelled"]) for name, end in said] == [("inner", 0, 1), ("outer", 0, 2)]


def test_members_add_members(jobs: Jobs, run: Callable[[], None], said: Said) -> None:
    with jobs.batch(on_done=told("done")) as batch:
        batch.add(JobDefinition("grow", {"n": 3}))
    run()
    assert said[:4] == [("grow", batch.id)] * 4
    assert said[4][1]["succeeded"] == 4


def test_a_chain_hands_its_results_on(jobs: Jobs, run: Callable[[], None], said: Said) -> None:
    first = jobs.define("double", {"n": 4}).then(told("a"), previous=True).then(told("b"))
    first.then(jobs.define("told", {"name": "c"}), previous=True).dispatch()
    run()
    assert said == [("a", 8), ("b", None), ("c", "b!")]


def test_a_chain_of_chains_is_one_row() -> None:
    inner = JobBuilder("b").then(JobDefinition("c"))
    made = JobBuilder("a").then(inner).then(JobDefinition("d"), previous=True).to_definition()
    assert [job.handler for job in made.then] == ["b", "c", "d"]
    assert [job.previous for job in made.then] == [None, None, []]
    assert not any(job.then for job in made.then)
    assert JobDefinition.from_dict(made.to_dict()) == made


def test_a_chain_ends_with_a_death(jobs: Jobs, run: Callable[[], None], said: Said) -> None:
    ident = jobs.define("double", {"n": 3}).then(told("after")).dispatch()
    run()
    assert said == []
    assert jobs.status(ident).state is JobState.DEAD


def test_a_refused_member_leaves_no_count_in_a_transaction_that_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    with Jobs(f"sqlite:///{file}") as jobs, closing(sqlite3.connect(file, isolation_level=None)) as own:
        batch = jobs.batch()
        own.execute("BEGIN IMMEDIATE")
        with pytest.raises(InvalidJob, match="not open"):
            jobs.enqueue_many([double(1).with_batch(batch.id), double(2).with_batch("unknown")], connection=own)
        own.execute("COMMIT")
        assert batch.status().total == 0


def test_a_chain_within_a_batch_belongs_to_it(jobs: Jobs, run: Callable[[], None], said: Said) -> None:
    with jobs.batch(on_done=told("done")) as batch:
        batch.add(JobBuilder("double", {"n": 1}).then(told("next")))
    run()
    assert [name for name, _ in said] == ["next", "done"]
    assert said[1][1]["total"] == 2


@pytest.mark.parametrize(
    ("handler", "why"), [("large", "the body of job 'told' has"), ("deep", "previous[0][0][0][0][0]…")]
)
def test_a_result_too_large_to_be_handed_on_is_the_end_at_once(
    jobs: Jobs, run: Callable[[], None], handler: str, why: str
) -> None:
    job = jobs.define(handler).max_retries(5).then(told("after"), previous=True)
    ident = job.dispatch()
    run()
    [letter] = jobs.backend.list_messages(MessageFilter(ids=(ident,)))
    assert (letter.reason, letter.attempts) == ("unrecoverable", 1)
    assert f"the result cannot be handed on by previous=True: {why}" in str(letter.last_error)


def test_results_that_json_does_not_know_are_handed_on_as_text(jobs: Jobs, run: Callable[[], None], said: Said) -> None:
    jobs.define("odd").then(told("after"), previous=True).dispatch()
    run()
    assert said == [("after", {"set": [1], "complex": "1j"})]


def test_what_is_no_job_cannot_come_after_one() -> None:
    with pytest.raises(InvalidJob, match="not a job"):
        JobBuilder("a").then("b")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="previous is True or False, not 'yes'"):
        JobBuilder("a").then(JobDefinition("b"), previous="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="then is a list of definitions"):
        JobDefinition("a", then=("b",))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (lambda job: job.identifier("order-17"), "the identifier of an earlier job, 'order-17': it would never run"),
        (lambda job: job.idempotency_key("order-17"), "the idempotency key of queue 'default' of an earlier job"),
    ],
)
def test_jobs_that_would_be_taken_for_one_before_them_are_refused(
    jobs: Jobs, step: Callable[[JobBuilder], JobBuilder], told: str
) -> None:
    charge, ship = (step(jobs.define(name)) for name in ("charge", "ship"))
    with pytest.raises(InvalidJob, match=f"^in a chain 'ship' has {told}"):
        charge.then(jobs.define("pack")).then(ship).dispatch()
    with pytest.raises(InvalidJob, match=f"^as a callback 'ship' has {told}"):
        jobs.batch(on_success=ship, on_done=ship)
    if "key" in told:
        step(jobs.define("charge")).then(ship.queue("other")).dispatch()


def test_a_broker_that_cannot_count_refuses() -> None:
    with Jobs("sync://") as jobs, pytest.raises(Unsupported, match="cannot count the jobs of a batch"):
        jobs.batch()
    with Jobs("sync://") as jobs, pytest.raises(Unsupported, match="batch"):
        jobs.enqueue(JobDefinition("double", {"n": 1}, batch="b"))


def test_who_waits_for_a_batch_sleeps_meanwhile(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    find = jobs.backend.find_batch
    monkeypatch.setattr(jobs.backend, "find_batch", lambda ident: looks.append(ident) or find(ident))
    with jobs.batch() as batch:
        batch.add(double(1))
    assert not batch.wait(0.5).has_ended
    assert len(looks) < 12
