"""Results in the caller's own process: what is kept of a value, handles, and the calls for asyncio."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobpool.client import awaited
from jobpool.client.jobs import Jobs
from jobpool.client.worker import QueueWorker
from jobpool.errors import BackendUnavailable, InvalidJob, JobFailed, ResultNotKept, ResultPending, Unsupported
from jobpool.handlers import ending
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.definition import JobDefinition
from jobpool.message.masking import Masker
from jobpool.message.results import JobHandle, JobState

LIMIT = 30.0


class Shown:
    def __repr__(self) -> str:
        return "<shown token=abc>"


@pytest.fixture
def registry() -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handler("keeps", result_ttl=60)
    def keeps(value: list[int] | int) -> list[int] | int:
        return value

    @registry.handler("plain")
    def plain() -> int:
        return 7

    @registry.handler("fails", result_ttl=60)
    def fails() -> None:
        raise ValueError("boom")

    return registry


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    with Jobs("memory://") as jobs:
        yield jobs


@pytest.fixture
def worker(jobs: Jobs, registry: HandlerRegistry) -> QueueWorker:
    return QueueWorker(jobs.backend, registry)


def test_what_is_kept_of_a_value() -> None:
    masker = Masker()
    for value, output, kept in (
        (None, "", None),
        (7, "7", 7),
        (2**63, "9223372036854775808", 2**63),
        ("text", "text", "text"),
        ("\udc80", "\\udc80", "'\\udc80'"),
        ({"password": "x", 1: (2, 3)}, '{"password":"x","1":[2,3]}', {"password": "***", "1": [2, 3]}),
        (Shown(), '"<shown token=abc>"', "<shown token=***"),
        (2**70, str(2**70), str(2**70)),
        (b"\xff\x00abc", "\"b'\\\\xff\\\\x00abc'\"", "b'\\xff\\x00abc'"),
        ({"loss": math.nan}, '{"loss":null}', {"loss": None}),
        ('{"cookies": 3, "token": "x"}', '{"cookies": 3, "token": "x"}', '{"cookies": 3, "token": "***"}'),
    ):
        told, text = ending.rendered(value, masker, 1000)
        assert told == output, value
        assert json.loads(text) == kept, value
    assert ending.rendered("x" * 1000, masker, 1000)[1] == "!1002"
    assert ending.rendered(["x" * 1000], masker, 1000)[1] == "!1004"


def test_what_is_not_a_text_is_kept_as_returned_under_any_key_at_any_depth() -> None:
    deep: object = {"prompt_tokens": 12}
    for _ in range(200):
        deep = [deep]
    for value in (
        {"prompt_tokens": 12, "token_count": 9, "max_tokens": 512, "cookies": 3, "has_password": True, "secret": None},
        {"tokens": [[101, 2023], [102]], "credentials": {"port": 5432}},
        deep,
    ):
        assert json.loads(ending.rendered(value, Masker(), 1000)[1]) == value
    hidden = {"credentials": [{"user": "me", "port": 1}], "run": ["--token", "x"], "note": "password=x"}
    kept = {"credentials": [{"user": "***", "port": 1}], "run": ["--token", "***"], "note": "password=***"}
    assert json.loads(ending.rendered(hidden, Masker(), 1000)[1]) == kept


def test_what_is_too_large_to_keep_is_not_masked() -> None:
    class Unused(Masker):
        result = None  # type: ignore[assignment]

    assert ending.rendered("r" * (1 << 20), Unused(), 1000)[1] == f"!{(1 << 20) + 2}"


def test_the_job_decides_before_its_handler(jobs: Jobs, worker: QueueWorker) -> None:
    handles = [
        jobs.define("keeps", {"value": [1]}).dispatch(),
        jobs.define("plain").result_ttl(60).dispatch(),
        jobs.define("keeps", {"value": [1]}).result_ttl(0).dispatch(),
        jobs.define("plain").dispatch(),
    ]
    for _ in handles:
        worker.process_once("default")
    assert [handle.result() for handle in handles[:2]] == [[1], 7]
    for handle in handles[2:]:
        with pytest.raises(ResultNotKept):
            handle.result()


def test_a_handle_is_the_id(jobs: Jobs) -> None:
    handle = jobs.enqueue(JobDefinition("plain"))
    assert handle == str(handle)
    assert json.loads(json.dumps({handle: handle})) == {str(handle): str(handle)}
    assert type(pickle.loads(pickle.dumps(handle))) is str
    assert jobs.define("plain", {"parent": handle}).payload == {"parent": str(handle)}
    with pytest.raises(Unsupported, match="it can enqueue, and fill batches"):
        JobHandle("x", object()).status()


def test_a_handle_alone_is_one_job_and_not_its_letters(jobs: Jobs) -> None:
    handle = jobs.enqueue(JobDefinition("plain"))
    for found in (jobs.wait(handle, 0), jobs.wait(str(handle), 0), asyncio.run(jobs.await_all(handle, 0))):
        assert [(status.id, status.state) for status in found] == [(handle, JobState.WAITING)]


def test_what_is_no_text_is_refused_before_a_broker_is_asked() -> None:
    jobs: Any = Jobs("redis://127.0.0.1:1")
    for wrong in (None, 5, b"x"):
        for ask in (jobs.status, jobs.result, jobs.cancel, lambda wrong: jobs.edit(wrong, at=0)):
            with pytest.raises(InvalidJob, match=f"id {wrong!r} is refused: it is a str, not {type(wrong).__name__}"):
                ask(wrong)
        for ask in (jobs.wait, lambda wrong: jobs.wait(["x", wrong]), lambda wrong: asyncio.run(jobs.await_all(wrong))):
            with pytest.raises(InvalidJob, match="is refused: it is a str"):
                ask(wrong)
        for ask in (jobs.pause, jobs.resume):
            with pytest.raises(InvalidJob, match=r"queue name .* is refused"):
                ask(wrong)
        with pytest.raises(InvalidJob, match=r"reason .* is refused: it is a str"):
            jobs.pause("reports", wrong)


def test_bounds_of_a_ttl(registry: HandlerRegistry) -> None:
    for wrong in (-1, 30 * 86400 + 1, "x", True):
        with pytest.raises(InvalidJob, match="result_ttl"):
            JobDefinition("plain", result_ttl=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="at most 30 days"):
        registry.handler("more", result_ttl=1e7)(lambda: None)
    with pytest.raises(InvalidJob, match="acks its job before it returns"):
        registry.handler("own", result_ttl=1, ack_in_transaction=True)(lambda: None)


def test_asyncio_waits_for_many_at_once_and_may_stop(jobs: Jobs, worker: QueueWorker) -> None:
    """More waits than threads of the loop's own: no enqueue has to wait for them."""

    async def main() -> None:
        handles = [await jobs.aenqueue(jobs.define("keeps", {"value": number})) for number in range(40)]
        asked = [asyncio.create_task(jobs.aresult(handle, LIMIT)) for handle in handles]
        dropped = asyncio.create_task(jobs.aresult(handles[0]))
        await asyncio.sleep(0)
        dropped.cancel()
        failing = await jobs.aenqueue(jobs.define("fails"))
        assert (await jobs.astatus(failing)).state is JobState.WAITING
        with pytest.raises(ResultPending):
            await jobs.aresult(failing, 0)
        running = threading.Thread(target=lambda: [worker.process_once("default") for _ in range(41)])
        running.start()
        assert await asyncio.gather(*asked) == list(range(40))
        with pytest.raises(JobFailed, match="boom"):
            await jobs.aresult(failing, LIMIT)
        found = await jobs.await_all([*handles, failing], LIMIT)
        assert [one.state for one in found] == [JobState.DONE] * 40 + [JobState.DEAD]
        running.join()
        with pytest.raises(asyncio.CancelledError):
            await dropped

    asyncio.run(main())


def test_a_time_limit_and_a_result_that_is_there_stand_behind_no_other_wait(
    tmp_path: Path, registry: HandlerRegistry
) -> None:
    """With 400 waits that took turns at 32 threads, each of these took six seconds."""

    async def main(jobs: Jobs) -> None:
        done = await jobs.aenqueue(jobs.define("keeps", {"value": 7}))
        await asyncio.to_thread(QueueWorker(jobs.backend, registry).process_once, "default")
        pending = await jobs.aenqueue_many([JobDefinition("keeps")] * 400)
        waits = [asyncio.create_task(jobs.aresult(ident)) for ident in pending]
        await asyncio.sleep(0.2)
        started = time.monotonic()
        for timeout in (0, 0.1):
            with pytest.raises(ResultPending):
                await jobs.aresult(pending[0], timeout)
            assert len(await jobs.await_all(pending, timeout)) == 400
        assert await jobs.aresult(done, LIMIT) == 7
        assert time.monotonic() - started < 5.0
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    with Jobs(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        asyncio.run(main(jobs))


def test_a_loop_that_ends_leaves_no_wait_behind(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entered, over = threading.Event(), threading.Event()

    def wait_ended(_: Sequence[str], __: float) -> None:
        entered.set()
        over.wait(LIMIT)

    async def main() -> None:
        ident = await jobs.aenqueue(JobDefinition("plain"))
        endless = asyncio.create_task(jobs.aresult(ident))
        with pytest.raises(ResultPending):
            await jobs.aresult(ident, 0.05)
        assert await asyncio.to_thread(entered.wait, LIMIT)
        assert not endless.done()  # the end of the loop cancels it

    monkeypatch.setattr(jobs.backend, "wait_ended", wait_ended)
    asyncio.run(main())
    assert not over.is_set()
    over.set()
    awaited._threads("wait", awaited.MAX_WAITING_CALLS).shutdown()
    awaited._threads.cache_clear()
    assert caplog.records == []


def test_an_error_of_the_broker_reaches_all_who_wait(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_ended(_: Sequence[str], __: float) -> None:
        raise BackendUnavailable("the broker is gone")

    async def main() -> None:
        idents = await jobs.aenqueue_many([JobDefinition("plain")] * 40)
        calls = [jobs.aresult(idents[0]), *map(jobs.await_all, (idents, idents[1:]))]
        for end in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(end, BackendUnavailable)

    monkeypatch.setattr(jobs.backend, "wait_ended", wait_ended)
    asyncio.run(main())


@pytest.mark.usefixtures("in_child")
def test_a_job_that_awaits_others_is_refused_without_a_thread_that_would_cost_its_child() -> None:
    awaited._threads.cache_clear()  # else a thread of another test may take the call
    before = set(threading.enumerate())
    with Jobs() as jobs:
        for call in (jobs.aresult("a-job", 0), jobs.await_all(["a-job"], 0)):
            with pytest.raises(Unsupported, match="a job cannot look into the broker"):
                asyncio.run(call)
    assert set(threading.enumerate()) <= before
