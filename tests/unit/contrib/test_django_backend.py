"""`jobpool.contrib.django` with the real Django: a task becomes a job, and a job runs a task. No pool."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import django
import pytest
from django.conf import settings

from jobpool.client.jobs import Jobs
from jobpool.client.worker import QueueWorker
from jobpool.errors import Retry, Unrecoverable
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.lease import JobLease
from jobpool.policy.retry import RetryPolicy
from jobpool.testing import VirtualPool, context

ALIASES: dict[str, dict[str, Any]] = {
    "default": {},
    "quick": {"on_commit": False},
    "other": {"on_commit": "second"},
    "tuned": {"max_retries": 4, "timeout": 9},
    "keeping": {"on_commit": False, "result_ttl": 60, "max_retries": 1},
}
if not settings.configured:  # once a process; the app of jobpool stays out, whose start sets the default producer
    NAME = "jobpool.contrib.django.JobpoolBackend"
    OF_SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(
        DATABASES={"default": dict(OF_SQLITE), "second": dict(OF_SQLITE)},
        LOGGING_CONFIG=None,
        TASKS={
            alias: {"BACKEND": NAME, "QUEUES": [], "OPTIONS": {"backend": "memory://", **options}}
            for alias, options in ALIASES.items()
        },
        USE_TZ=True,
    )
    django.setup()

from django.db import connections, transaction  # noqa: E402 - after the settings

from jobpool.contrib.django import backend, running  # noqa: E402
from jobpool.contrib.django.framework import (  # noqa: E402
    InvalidTask,
    Task,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)


def task(function: Any, **options: Any) -> Any:
    return Task(func=function, **options)


SEEN: list[Any] = []


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def later(a: int) -> int:
    await asyncio.sleep(0)
    return a


@partial(task, takes_context=True)
def attempt(context: Any, text: str = "") -> str:
    SEEN.append(context.task_result)
    return f"{text}{context.attempt}"


@task
def ends(how: str) -> None:
    raise Retry(after=3) if how == "retry" else ZeroDivisionError(how)


renamed = task(lambda: None)
hidden_function = add.func


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    """Where the tasks go: a broker of the test's own."""
    with backend.open_jobs("memory://") as made:
        yield made
    backend._producers.clear()


def fetched(jobs: Jobs, queue: str = "default") -> list[JobLease]:
    return jobs.backend.fetch_many(queue, limit=100)


def run(path: str, *args: Any, attempts: int = 1, **kwargs: Any) -> Any:
    return running.run_task(
        context(attempt=attempts, identifier="17"), f"{__name__}.{path}", [*args], kwargs, "default"
    )


def test_a_task_becomes_a_job_with_what_it_asks_for(jobs: Jobs) -> None:
    moment = datetime.now(UTC) - timedelta(seconds=5)
    result = add.using(queue_name="mails", priority=-3, run_after=moment, backend="tuned").enqueue(1, b=2)
    [lease] = fetched(jobs, "mails")
    job = lease.envelope
    assert (lease.id, job.job, job.name) == (result.id, "django.task", f"{__name__}.add")
    assert job.payload == {"task": job.name, "args": [1], "kwargs": {"b": 2}, "backend": "tuned"}
    assert (job.max_retries, job.timeout, job.priority) == (4, 9, 103)
    assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [1], {"b": 2})
    assert result.enqueued_at is not None

    add.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue(1)
    stats = jobs.stats("default")
    assert (stats.waiting, stats.delayed) == (0, 1)


def test_the_larger_priority_runs_first(jobs: Jobs) -> None:
    for priority in (0, -100, 100, 1, -1):
        add.using(priority=priority).enqueue(priority)
    assert [lease.envelope.payload["args"][0] for lease in fetched(jobs)] == [100, 1, 0, -1, -100]


@pytest.mark.parametrize(
    ("alias", "database", "waits"),
    [
        ("default", "default", True),
        ("default", "second", False),
        ("quick", "default", False),
        ("other", "second", True),
        ("other", "default", False),
    ],
)
def test_a_task_is_sent_when_its_transaction_commits(jobs: Jobs, alias: str, database: str, waits: bool) -> None:
    chosen = add.using(backend=alias)
    with transaction.atomic(using=database):
        result = chosen.enqueue(1)
        assert jobs.stats().waiting == int(not waits)
        assert (result.enqueued_at is None) is waits
    assert (jobs.stats().waiting, result.enqueued_at is None) == (1, False)

    with transaction.atomic(using=database):
        chosen.enqueue(2)
        transaction.set_rollback(True, using=database)
    assert jobs.stats().waiting == 1 + int(not waits)


def test_an_async_program_enqueues(jobs: Jobs) -> None:
    result = asyncio.run(add.aenqueue(1))
    [lease] = fetched(jobs)
    assert lease.id == result.id
    with pytest.raises(NotImplementedError, match=r"keeps no results: set OPTIONS\['result_ttl'\]"):
        asyncio.run(add.aget_result(result.id))
    connections.close_all()


def test_a_task_tells_its_result_where_results_are_kept(jobs: Jobs) -> None:
    """Through its whole life: ready, running, successful; and by its id alone."""
    keeping = backend.open_jobs("memory://").backend
    registry = HandlerRegistry()
    registry.handler(running.HANDLER)(running.run_task)
    worker = QueueWorker(keeping, registry)
    result = add.using(backend="keeping").enqueue(1, b=2)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.READY, 0)
    [lease] = fetched(jobs)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.RUNNING, 1)
    jobs.backend.release(lease)
    assert worker.process_once("default").status == "acked"
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 1)
    found = add.using(backend="keeping").get_result(result.id)
    assert (found.task.func, found.args, found.kwargs, found.return_value) == (add.func, [1], {"b": 2}, 3)
    assert found.started_at is not None
    assert found.finished_at >= found.started_at


def test_a_task_that_failed_for_good_tells_its_error(jobs: Jobs) -> None:
    registry = HandlerRegistry()
    registry.handler(running.HANDLER)(running.run_task)
    worker = QueueWorker(jobs.backend, registry, retry=RetryPolicy(strategy="fixed", base=0.0))
    result = ends.using(backend="keeping").enqueue("boom")
    assert [worker.process_once("default").status for _ in range(2)] == ["requeued", "dead-lettered"]
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)
    [error] = result.errors
    assert error.exception_class is ZeroDivisionError
    assert "boom" in error.traceback
    with pytest.raises(TaskResultDoesNotExist):
        ends.using(backend="keeping").get_result("0123456789abcdef")


@pytest.mark.usefixtures("jobs")
def test_the_arguments_of_a_task_that_waits_have_no_secrets() -> None:
    result = ends.using(backend="keeping").enqueue("token=s3cr3t")
    assert ends.using(backend="keeping").get_result(result.id).args == ["token=***"]


def test_a_job_that_is_not_a_task_has_no_result_for_django(jobs: Jobs) -> None:
    registry = HandlerRegistry()
    registry.handler("plain")(lambda: {"task": "none"})
    done, waits = [jobs.define("plain").result_ttl(60).dispatch() for _ in range(2)]
    QueueWorker(jobs.backend, registry).process_once("default")
    for ident in (done, waits, 7, None, "a\0b"):
        with pytest.raises(TaskResultDoesNotExist):
            add.using(backend="keeping").get_result(ident)


def test_a_virtual_pool_takes_tasks_in_place_of_their_own_broker(jobs: Jobs) -> None:
    for _ in range(2):
        with VirtualPool() as pool, transaction.atomic():
            result = later.using(backend="keeping").enqueue(3)
            add.enqueue(1, b=2)  # waits for the commit
            run, *others = pool.run_all()
            assert (run.id, run.status, others) == (result.id, "acked", [])
            result.refresh()
            assert result.return_value == 3
    assert fetched(jobs) == []


def test_the_signal_of_an_enqueued_task_comes_when_it_is_sent(jobs: Jobs) -> None:
    heard: list[str] = []

    def hear(task_result: Any, **_: Any) -> None:
        heard.append(f"{task_result.id} {jobs.stats().waiting}")

    task_enqueued.connect(hear)
    try:
        result = add.enqueue(1)
    finally:
        task_enqueued.disconnect(hear)
    assert heard == [f"{result.id} 1"]


def test_what_cannot_run_is_refused_where_it_is_enqueued(jobs: Jobs) -> None:
    alias = Task(func=hidden_function)
    later_name = f"{__name__}.later"
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: add.enqueue(), TypeError, "add: missing a required argument: 'a'"),
        (lambda: add.enqueue(1, c=2), TypeError, "unexpected keyword argument 'c'"),
        (lambda: attempt.enqueue(1, 2), TypeError, "too many positional arguments"),
        (lambda: add.enqueue(object()), TypeError, "Unsupported type"),
        (lambda: renamed.enqueue(), InvalidTask, "<lambda>: nothing has this name"),
        (lambda: add.using(priority=101), InvalidTask, "between -100 and"),
        (lambda: add.using(run_after=datetime.now()), InvalidTask, "aware"),
    ]
    for wrong, error, says in calls:
        with pytest.raises(error, match=says):
            wrong()
    assert jobs.stats().waiting == 0
    alias.enqueue(1)  # another object, which says the same: a worker finds the first
    assert running.find(later_name) is later


def test_a_run_tells_the_task_its_attempt_and_sends_the_signals() -> None:
    heard: list[tuple[str, str]] = []

    def started(task_result: Any, **_: Any) -> None:
        heard.append(("started", task_result.status))

    def finished(task_result: Any, **_: Any) -> None:
        heard.append(("finished", task_result.status))

    task_started.connect(started)
    task_finished.connect(finished)
    try:
        assert run("add", 1, b=2) == 3
        assert run("later", 4) == 4
        assert run("attempt", "run ", attempts=3) == "run 3"
        with pytest.raises(ZeroDivisionError):
            run("ends", "so")
        with pytest.raises(Retry):
            run("ends", "retry")
    finally:
        task_started.disconnect(started)
        task_finished.disconnect(finished)
    good, bad = [("started", "RUNNING"), ("finished", "SUCCESSFUL")], [("started", "RUNNING"), ("finished", "FAILED")]
    assert heard == [*good, *good, *good, *bad, ("started", "RUNNING")]
    result = SEEN.pop()
    assert (result.id, result.backend, result.args, len(result.worker_ids)) == ("17", "default", ["run "], 3)


def test_only_tasks_run_and_nothing_else_is_imported() -> None:
    for path, error, says in (
        ("os.system", Unrecoverable, "not a task"),
        (f"{__name__}.hidden_function", Unrecoverable, "not a task"),
        (f"{__name__}.nothing", LookupError, "nothing has this name"),
        ("antigravity.fly", LookupError, "of no app in INSTALLED_APPS"),
        ("__main__.add", LookupError, "of no app"),
        ("add", LookupError, "of no app"),
        ("", LookupError, "of no app"),
    ):
        with pytest.raises(error, match=says):
            running.run_task(context(), path, [], {}, "default")
    assert "antigravity" not in sys.modules
    with pytest.raises(Unrecoverable, match="missing a required argument"):
        run("add")


def test_the_system_check_names_each_wrong_option() -> None:
    for options, queues, says in (
        ({}, ["default", "mails"], []),
        ({"backend": "sqlite:///x.db", "on_commit": "second", "max_retries": 0, "timeout": 0.5}, [], []),
        ({"backnd": "memory://"}, [], ["no 'backnd'; did you mean 'backend'?"]),
        ({"zzz": 1}, [], ["no 'zzz'; there are backend, on_commit, max_retries, timeout"]),
        ({"backend": "nothing://h"}, [], ["no backend for nothing:// is installed"]),
        ({"on_commit": "third"}, [], ["alias of DATABASES, not 'third'"]),
        ({"max_retries": -1}, [], ["max_retries must be"]),
        ({"timeout": "1m"}, ["a b\n"], ["timeout must be", "queue"]),
    ):
        made = backend.JobpoolBackend("default", {"QUEUES": queues, "OPTIONS": options})
        found = [str(one.msg) for one in made.check()]
        assert len(found) == len(says), (options, found)
        for text, part in zip(found, says, strict=True):
            assert text.startswith("TASKS['default']: "), text
            assert part in text, (part, text)


def test_the_entry_default_names_the_broker() -> None:
    assert [entry.alias for entry in backend.entries()] == ["default", "quick", "other", "tuned", "keeping"]
