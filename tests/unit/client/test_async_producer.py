"""`await jobs.aenqueue(…)`: the event loop stays free, and the broker gets few connections, however many wait."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
import redis
from support.servers import fresh_name, shared_redis

import jobpool
from jobpool.client.jobs import Jobs
from jobpool.errors import ConfigurationError, InvalidJob, JobpoolError
from jobpool.message import producer
from jobpool.message.definition import JobDefinition

T = TypeVar("T")
LIMIT_S = 30.0


class Broker(NamedTuple):
    """A real broker that can be made to answer nobody."""

    url: str
    stalled: Callable[[], AbstractContextManager[None]]
    connections: Callable[[], int]  # that this process has to it, beside the test's own


def sqlite_broker(folder: Path) -> Broker:
    path = folder / "jobs.db"

    @contextmanager
    def stalled() -> Iterator[None]:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    def connections() -> int:
        return sum(str(link.readlink()) == str(path) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())

    return Broker(f"sqlite:///{path}?timeout={LIMIT_S}", stalled, connections)


def redis_broker(_: Path) -> Broker:
    server, prefix = shared_redis(), fresh_name()
    name = f"redis://{server.host}:{server.port}/0"

    @contextmanager
    def stalled() -> Iterator[None]:
        with redis.Redis.from_url(name) as other:
            other.client_pause(int(LIMIT_S * 1000), all=False)  # writes, and all scripts
            yield
            other.client_unpause()

    def connections() -> int:
        with redis.Redis.from_url(name) as other:
            own = other.client_id()
            return sum(int(client["id"]) != own for client in other.client_list())

    return Broker(f"{name}?prefix={prefix}&timeout={LIMIT_S}", stalled, connections)


@pytest.fixture(params=[sqlite_broker, redis_broker], ids=["sqlite", "redis"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Broker:
    made: Broker = request.param(tmp_path)
    return made


@pytest.fixture
def jobs(broker: Broker) -> Iterator[Jobs]:
    with Jobs(broker.url) as opened:
        opened.backend.ping()
        yield opened


def run(test: Callable[[], Awaitable[T]]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await test()

    return asyncio.run(limited())


async def beats(count: int) -> None:
    """Let the event loop turn so many times; one that is blocked comes to none of them."""
    for _ in range(count):
        await asyncio.sleep(0.001)


def test_the_event_loop_goes_on_while_the_broker_is_slow_and_few_calls_are_under_way(
    broker: Broker, jobs: Jobs
) -> None:
    before = broker.connections()

    async def test() -> list[str]:
        with broker.stalled():
            waiting = [asyncio.ensure_future(jobs.aenqueue(JobDefinition("report"))) for _ in range(1000)]
            await beats(50)
            assert not any(each.done() for each in waiting)
            # The calls of one process take turns at SQLite's file before they connect.
            assert before <= broker.connections() <= before + producer.MAX_AWAITED_CALLS
        return await asyncio.gather(*waiting)

    ids = run(test)
    assert len(set(ids)) == 1000
    assert jobs.stats().waiting == 1000
    assert broker.connections() <= before + producer.MAX_AWAITED_CALLS


def test_a_cancelled_call_that_waited_is_not_sent_and_one_under_way_is(broker: Broker, jobs: Jobs) -> None:
    async def test() -> None:
        with broker.stalled():
            waiting = [asyncio.ensure_future(jobs.aenqueue(JobDefinition("report"))) for _ in range(10)]
            await beats(20)
            for each in waiting:
                each.cancel()
            assert all(
                isinstance(end, asyncio.CancelledError)
                for end in await asyncio.gather(*waiting, return_exceptions=True)
            )
            late = [asyncio.ensure_future(jobs.aenqueue(JobDefinition("late"))) for _ in range(10)]
            await beats(20)
            assert not any(each.done() for each in late)
            assert broker.connections() <= before + producer.MAX_AWAITED_CALLS, "a cancelled call keeps its turn"
        await asyncio.gather(*late)

    before = broker.connections()
    run(test)
    assert jobs.stats().waiting == producer.MAX_AWAITED_CALLS + 10


def test_a_call_under_way_is_finished_when_its_loop_is_closed(broker: Broker, jobs: Jobs) -> None:
    threads = threading.active_count()

    async def test() -> None:
        with broker.stalled():
            waiting = asyncio.ensure_future(jobs.aenqueue(JobDefinition("report")))
            await beats(20)
            assert not waiting.done()

    asyncio.run(test())
    assert jobs.stats().waiting == 1
    assert threading.active_count() == threads
    assert run(lambda: jobs.aenqueue(JobDefinition("report"))), "another loop has turns of its own"


def test_no_enqueue_stands_behind_looks_for_results(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def result(ident: str, timeout: float | None = None) -> str:
        assert gate.wait(LIMIT_S)
        return f"{ident} {timeout}"

    monkeypatch.setattr(jobs, "result", result)

    async def test() -> list[str]:
        looks = [asyncio.ensure_future(jobs.aresult("a job", 9)) for _ in range(4 * producer.MAX_AWAITED_CALLS)]
        await beats(5)
        await jobs.aenqueue(JobDefinition("report"))
        assert not any(look.done() for look in looks)
        gate.set()
        return list(await asyncio.gather(*looks))

    assert set(run(test)) == {"a job 0"}


def test_many_jobs_keep_their_order(jobs: Jobs) -> None:
    def numbered() -> Iterator[JobDefinition]:
        assert threading.current_thread() is threading.main_thread(), "a generator is read where it was made"
        for number in range(1500):
            yield JobDefinition("report", identifier=f"{number}")

    assert run(lambda: jobs.aenqueue_many(numbered())) == [f"{number}" for number in range(1500)]
    assert jobs.stats().waiting == 1500


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "sqlite:///nowhere/jobs.db"])
def test_a_broker_that_is_down_is_the_error_of_the_plain_call(url: str) -> None:
    with Jobs(url) as jobs:
        with pytest.raises(JobpoolError) as plain:
            jobs.enqueue(JobDefinition("report"))
        with pytest.raises(type(plain.value)) as awaited:
            run(lambda: jobs.aenqueue(JobDefinition("report")))
    assert str(awaited.value) == str(plain.value)


def test_the_call_sees_the_context_variables_of_its_caller() -> None:
    tenant = contextvars.ContextVar[str]("tenant")
    seen: list[tuple[str, bool]] = []
    jobs = Jobs(
        "sync://", runner=lambda _: seen.append((tenant.get(), threading.current_thread() is threading.main_thread()))
    )

    async def test() -> None:
        tenant.set("seven")
        await jobs.aenqueue(JobDefinition("report"))

    run(test)
    assert seen == [("seven", False)]


def test_handlers_and_builders_have_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    registry = jobpool.HandlerRegistry()

    @registry.handler(queue="reports")
    def report(customer: int) -> None: ...

    monkeypatch.setattr(producer, "process", producer.Process())
    with Jobs(f"sqlite:///{tmp_path}/default.db") as jobs, Jobs(f"sqlite:///{tmp_path}/other.db") as other:
        producer.set_default(jobs)

        async def test() -> list[str]:
            with pytest.raises(InvalidJob, match="customer"):
                await report.aenqueue("seven")  # type: ignore[arg-type]
            await other.define("report").adispatch()
            return [await report.aenqueue(7), await report.define(8).adispatch(), await jobs.aenqueue(report.define(9))]

        ids = run(test)
        found = {message.id: message.queue for message in jobs.backend.list_messages()}
        assert found == dict.fromkeys(ids, "reports")
        assert other.stats().waiting == 1
    with pytest.raises(ConfigurationError, match="closed"):
        run(lambda: jobs.aenqueue(JobDefinition("report")))


def test_the_error_of_a_call_whose_caller_was_cancelled_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        go_on.wait(LIMIT_S)
        raise ValueError("nobody waits for it")

    async def main() -> None:
        asked = asyncio.ensure_future(producer.on_thread(fail))
        await asyncio.to_thread(begun.wait, LIMIT_S)
        asked.cancel()
        await asyncio.wait([asked])
        go_on.set()
        await asyncio.get_running_loop().shutdown_default_executor()
        await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text
