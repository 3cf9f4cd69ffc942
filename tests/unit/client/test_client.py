"""`Jobs`: what it sends and where, in a program, in a forked process and in a child of a pool."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.client.jobs import Jobs
from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob, Unsupported
from jobpool.message import producer
from jobpool.message.definition import JobDefinition


@pytest.fixture
def memory() -> Iterator[QueueBackend]:
    backend = open_backend("memory://")
    yield backend
    backend.close()


class Recorder:
    """A producer that keeps what it was given, as a child's channel to its master would pass it on."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.jobs: list[JobDefinition] = []

    def enqueue(self, definition: JobDefinition, /) -> str:
        return self.enqueue_many([definition])[0]

    def enqueue_many(self, definitions: Iterable[JobDefinition], /) -> list[str]:
        batch = list(definitions)
        self.batches.append(len(batch))
        self.jobs += batch
        return [f"id-{number}" for number in range(len(self.jobs) - len(batch), len(self.jobs))]


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """This process plays a child: everything goes to its master."""
    recorder = Recorder()
    monkeypatch.setattr(producer, "process", producer.Process())
    producer.enter_child(cast(producer.Target, recorder))
    return recorder


def test_a_job_is_sent_in_each_of_its_forms(memory: QueueBackend) -> None:
    jobs = Jobs(backend=memory)
    ids = [
        jobs.define("report", {"customer": 7}).queue("reports").max_retries(5).dispatch(),
        jobs.enqueue(JobDefinition("report")),
        jobs.enqueue(jobs.define("report")),
        jobs.enqueue("report", {"customer": 7}),
        asyncio.run(jobs.aenqueue("report")),
    ]
    messages = memory.list_messages()
    assert [(message.id, message.handler) for message in messages] == [(ident, "report") for ident in ids]
    assert [message.queue for message in messages] == ["reports", *["default"] * 4]
    found = [lease.envelope.payload for lease in memory.fetch_many("default", limit=4)]
    assert found == [{}, {}, {"customer": 7}, {}]
    with pytest.raises(InvalidJob, match="give a payload with a handler's name only"):
        jobs.enqueue(JobDefinition("report"), {"customer": 7})


def test_a_connection_that_is_none_is_refused_and_not_left_out(memory: QueueBackend) -> None:
    jobs, unopened = Jobs(backend=memory), None
    told = r"the connection is None, so it is not open yet: .*ensure_connection\(\)"
    with pytest.raises(ConfigurationError, match=told):
        jobs.enqueue("report", connection=unopened)
    with pytest.raises(ConfigurationError, match=told):
        jobs.enqueue_many([JobDefinition("report")], connection=unopened)
    assert memory.list_messages() == []


@pytest.mark.parametrize("other", [len, {"report": 1}], ids=lambda other: type(other).__name__)
def test_anything_else_is_refused_with_a_sentence(memory: QueueBackend, other: Any) -> None:
    jobs: Any = Jobs(backend=memory)
    for call, given in ((jobs.enqueue, other), (jobs.enqueue_many, [other]), (jobs.enqueue_many, "ab")):
        with pytest.raises(InvalidJob, match=r"^not a job, but .*: give handler\.define\(…\), or jobs\.define"):
            call(given)


def test_many_jobs_go_in_batches_and_keep_their_order() -> None:
    recorder = Recorder()
    jobs = Jobs(backend=recorder)  # type: ignore[arg-type]  # it needs no more of a backend
    ids = jobs.enqueue_many(JobDefinition("report", {"n": n}) for n in range(2500))
    assert recorder.batches == [1000, 1000, 500]
    assert ids == [f"id-{n}" for n in range(2500)]
    assert [job.payload["n"] for job in recorder.jobs] == list(range(2500))


def test_large_jobs_go_in_smaller_batches() -> None:
    recorder = Recorder()
    bodies = ["x" * (2**20 - 100)] * 9 + ["x"] * 9  # four of them in 4 MiB, with what is around them
    Jobs(backend=recorder).enqueue_many(JobDefinition("report", body) for body in bodies)  # type: ignore[arg-type]
    assert recorder.batches == [4, 4, 10]
    assert [definition.payload for definition in recorder.jobs] == bodies
    half = "x" * (2**19 - 500)
    large = JobDefinition("report", meta={"text": half}, then=(JobDefinition("report", half),))
    Jobs(backend=recorder).enqueue_many([large] * 9)  # type: ignore[arg-type]
    assert recorder.batches[3:] == [4, 4, 1]


def test_a_full_batch_is_sent_before_the_next_job_is_read() -> None:
    recorder, sent = Recorder(), list[int]()

    def slow_source() -> Iterator[JobDefinition]:
        yield from [JobDefinition("report")] * 1000
        sent.extend(recorder.batches)

    Jobs(backend=recorder).enqueue_many(slow_source())  # type: ignore[arg-type]
    assert sent == [1000]


def test_a_generator_is_read_as_the_batches_are_sent() -> None:
    recorder = Recorder()

    def jobs_until_a_bad_one() -> Iterator[JobDefinition]:
        for n in range(1500):
            yield JobDefinition("report", {"n": n})
        raise InvalidJob("the source is broken")

    jobs = Jobs(backend=recorder)  # type: ignore[arg-type]
    calls: list[Callable[[], object]] = [
        lambda: jobs.enqueue_many(jobs_until_a_bad_one()),
        lambda: asyncio.run(_awaited(jobs, jobs_until_a_bad_one())),
    ]
    for number, call in enumerate(calls, 1):
        with pytest.raises(InvalidJob) as raised:
            call()
        assert recorder.batches == [1000] * number
        assert raised.value.__notes__ == ["1000 jobs were enqueued before it"]


async def _awaited(jobs: Jobs, definitions: Iterable[JobDefinition]) -> None:
    await jobs.aenqueue_many(definitions)


def test_no_jobs_are_no_round_trip() -> None:
    recorder = Recorder()
    assert Jobs(backend=recorder).enqueue_many([]) == []  # type: ignore[arg-type]
    assert recorder.batches == []


def test_it_looks_at_queues(memory: QueueBackend) -> None:
    jobs = Jobs(backend=memory)
    jobs.define("report").queue("reports").dispatch()
    jobs.define("report").dispatch()
    assert jobs.queues() == ["default", "reports"]
    assert jobs.stats("reports").waiting == 1
    assert jobs.stats().waiting == 1
    with pytest.raises(InvalidJob, match="queue name 'my queue' is refused"):
        jobs.stats("my queue")


# --- opening and closing ---------------------------------------------------------------------------------------------


def test_nothing_is_opened_before_the_first_use(tmp_path: Path) -> None:
    with Jobs():
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["nosuch://host", "jobpool.db"])
def test_a_wrong_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError):
        Jobs(url)


def test_a_backend_is_given_alone(memory: QueueBackend) -> None:
    with pytest.raises(ConfigurationError, match="give it alone"):
        Jobs("memory://", backend=memory)
    with pytest.raises(ConfigurationError, match="give it alone"):
        Jobs(backend=memory, signing_key="secret")


def test_the_signing_key_signs() -> None:
    with Jobs("memory://", signing_key="secret-key") as jobs:
        jobs.define("report").dispatch()
        lease = jobs.backend.fetch("default")
    assert lease is not None
    assert len(lease.envelope.sig) == 64


def test_the_default_backend_is_used_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="jobpool.client"), Jobs() as jobs:
        jobs.define("report").dispatch()
        jobs.define("report").dispatch()
        assert jobs.stats().waiting == 2
    assert (tmp_path / "jobpool.db").exists()
    assert [record.getMessage() for record in caplog.records] == [
        f"no backend is configured: using sqlite:///{tmp_path}/jobpool.db (set JOBPOOL_BACKEND, or backend in a file)"
    ]


def test_a_new_default_file_in_another_folder_than_the_program_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    levels = []
    for folder in (tmp_path, tmp_path / "app", tmp_path / "app"):
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(folder / "reports.py"), raising=False)
        with caplog.at_level(logging.INFO, logger="jobpool.client"), Jobs() as jobs:
            jobs.define("report").dispatch()
        levels.append(caplog.records[-1].levelname)
        if len(levels) == 1:
            (tmp_path / "jobpool.db").unlink()
    assert levels == ["INFO", "WARNING", "INFO"], "the last finds the file that the second has made"


def test_a_configured_backend_is_not_said_to_be_a_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="jobpool.client"):
        (tmp_path / "jobpool.toml").write_text('backend = "memory://"')
        with Jobs() as jobs:
            jobs.define("report").dispatch()
        monkeypatch.setenv("JOBPOOL_BACKEND", "memory://")
        with Jobs() as jobs:
            jobs.define("report").dispatch()
    assert caplog.records == []


def test_the_default_backend_lies_beside_the_program_whatever_the_directory_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "50%41 off? # ü"
    odd.mkdir()
    monkeypatch.chdir(odd)
    with Jobs() as jobs:
        jobs.define("report").dispatch()
    assert (odd / "jobpool.db").exists()


def test_closing_is_safe_twice_and_final() -> None:
    jobs = Jobs("memory://")
    jobs.define("report").dispatch()
    jobs.close()
    jobs.close()
    with pytest.raises(ConfigurationError, match="closed"):
        jobs.define("report").dispatch()


def test_a_given_backend_stays_its_owners(memory: QueueBackend) -> None:
    with Jobs(backend=memory) as jobs:
        jobs.define("report").dispatch()
    assert memory.stats("default").waiting == 1


def test_no_password_is_shown() -> None:
    assert repr(Jobs("memory://")) == "<Jobs memory://>"
    assert repr(Jobs()) == "<Jobs on the default backend>"


def waits_for_the_first(frame: FrameType) -> bool:
    """Whether a thread is in `Jobs.backend`, and calls nothing of Python's there: it waits for the lock."""
    return frame.f_code is Jobs.backend.fget.__code__  # type: ignore[attr-defined]


def test_threads_that_waited_while_a_first_connection_failed_share_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs, tries, arrived = Jobs("redis://nowhere"), [], threading.Barrier(8)

    def fail() -> QueueBackend:
        tries.append(threading.get_ident())
        if len(tries) == 1:
            wait_until(lambda: sum(map(waits_for_the_first, sys._current_frames().values())) == 7)
        raise BackendUnavailable("no answer")

    def send() -> str:
        arrived.wait(10.0)
        with pytest.raises(BackendUnavailable) as raised:
            jobs.enqueue("report")
        return str(raised.value)

    monkeypatch.setattr(jobs, "_open", fail)
    with ThreadPoolExecutor(8) as threads:
        assert [sent.result(10.0) for sent in [threads.submit(send) for _ in range(8)]] == ["no answer"] * 8
    assert len(tries) == 1
    with pytest.raises(BackendUnavailable):
        jobs.enqueue("report")
    assert len(tries) == 2, "a later call tries anew"


# --- forked processes and children -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # the test runner may have threads
def test_a_forked_process_opens_its_own(tmp_path: Path) -> None:
    with Jobs(f"sqlite:///{tmp_path}/shared.db") as jobs:
        jobs.define("report").dispatch()
        mine = jobs.backend
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                jobs.define("report").dispatch()
                status = 0 if jobs.backend is not mine else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert jobs.backend is mine
        assert jobs.stats().waiting == 2


class PatchedLock:
    """A lock as gevent puts it in the place of Python's, in a process that was forked before. `held`: in this one."""

    held = 0

    def __enter__(self) -> None:
        PatchedLock.held += 1

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_that_patches_threads_opens_it_under_a_lock_of_theirs(tmp_path: Path) -> None:
    with Jobs(f"sqlite:///{tmp_path}/shared.db") as jobs:
        jobs.define("report").dispatch()
        pid = os.fork()
        if pid == 0:
            real, threading.Lock = threading.Lock, PatchedLock  # type: ignore[assignment]
            lock, threading.Lock = jobs._lock, real
            jobs.define("report").dispatch()
            os._exit(0 if isinstance(lock, PatchedLock) and PatchedLock.held else 1)
        assert os.waitpid(pid, 0)[1] == 0


def test_in_a_child_everything_goes_to_the_master(master: Recorder) -> None:
    jobs = Jobs("memory://")
    assert jobs.define("report", {"n": 1}).dispatch() == "id-0"
    assert jobs.enqueue_many([JobDefinition("report", {"n": n}) for n in (2, 3)]) == ["id-1", "id-2"]
    assert [job.payload["n"] for job in master.jobs] == [1, 2, 3]


def test_in_a_child_a_given_backend_is_not_used_either(master: Recorder, memory: QueueBackend) -> None:
    Jobs(backend=memory).define("report").dispatch()
    assert len(master.jobs) == 1
    assert memory.stats("default").waiting == 0


def test_a_child_cannot_look_into_the_broker(master: Recorder) -> None:
    del master
    with pytest.raises(Unsupported, match="it can enqueue, and fill batches"):
        Jobs("memory://").stats()


def test_the_default_producer_opens_jobs_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "process", producer.Process())
    jobs = producer.default()
    assert isinstance(jobs, Jobs)
    with jobs:
        jobs.enqueue(JobDefinition("report"))
        assert (tmp_path / "jobpool.db").exists()
        assert producer.default() is jobs
