"""`IdempotencyGuard`: once for a key, over all that share a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tables import row

from jobpool import IdempotencyGuard, Jobs
from jobpool.client.worker import QueueWorker
from jobpool.clock import ManualClock
from jobpool.errors import ConfigurationError, InvalidJob, Unsupported
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.definition import JobDefinition
from jobpool.message.outcome import Status
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.sync import SyncBackend


def test_a_key_is_done_for_the_guards_ttl_or_for_the_calls(backend: MemoryBackend, clock: ManualClock) -> None:
    guard = IdempotencyGuard(backend, ttl=10.0)
    guard.first_run("short")
    guard.first_run("long", ttl=20.0)
    clock.advance(10.0)
    assert guard.first_run("short")
    assert not guard.first_run("long")


def test_forgotten_it_runs_first_again(backend: MemoryBackend) -> None:
    guard = IdempotencyGuard(backend)
    assert guard.forget("order-17") is False
    guard.first_run("order-17")
    assert guard.forget(" order-17 ") is True
    assert guard.first_run("order-17")


def test_keys_are_trimmed_as_those_of_jobs_are(backend: MemoryBackend) -> None:
    guard = IdempotencyGuard(backend)
    assert guard.first_run("order-17")
    assert not guard.first_run("  order-17\n")


def test_its_keys_are_those_of_the_jobs_of_its_queue(backend: MemoryBackend) -> None:
    registry = HandlerRegistry()
    registry.handler("report")(lambda _: None)
    worker = QueueWorker(backend, registry)
    guard = IdempotencyGuard(backend, "reports")
    guard.first_run("by hand")
    keys = ["by hand", "by a job"]
    backend.enqueue_many([JobDefinition("report", queue="reports", idempotency_key=key) for key in keys])
    assert [worker.process_once("reports").status for _ in keys] == [Status.SKIPPED_IDEMPOTENT, Status.ACKED]
    assert guard.first_run("by a job") is False


def test_a_jobs_is_opened_by_the_first_use(tmp_path: Path) -> None:
    with Jobs(f"sqlite:///{tmp_path}/nowhere/jobs.db") as jobs:
        IdempotencyGuard(jobs)
    with Jobs("memory://") as jobs:
        guard = IdempotencyGuard(jobs)
        assert guard.first_run("order-17")
        assert jobs.backend.keys.forget("default", "order-17")


def test_what_cannot_be_is_refused_when_it_is_made(backend: MemoryBackend) -> None:
    for ttl in (0, -1.0, float("nan"), float("inf"), 1e9, "a day", True, None):
        with row(ttl), pytest.raises(ConfigurationError, match="ttl is more than 0 and at most 31622400 seconds"):
            IdempotencyGuard(backend, ttl=ttl)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="queue name"):
        IdempotencyGuard(backend, "no queue")
    for source in (None, "memory://", 5):
        with (
            row(source),
            pytest.raises(ConfigurationError, match=r"an IdempotencyGuard takes a jobpool\.Jobs or an open backend"),
        ):
            IdempotencyGuard(source)  # type: ignore[arg-type]


def test_what_cannot_be_is_refused_by_a_call(backend: MemoryBackend) -> None:
    guard = IdempotencyGuard(backend)
    with pytest.raises(ConfigurationError, match="ttl"):
        guard.first_run("order-17", ttl=0.0)
    for key in ("", "   ", "x" * 256, "a\nb", 17, None):
        for call in (guard.first_run, guard.forget):
            with row(key), pytest.raises(InvalidJob, match="idempotency key"):
                call(key)  # type: ignore[arg-type]


def test_a_backend_without_keys_is_refused_when_it_is_made_and_a_jobs_on_one_when_it_is_used() -> None:
    with pytest.raises(Unsupported, match="key_store"):
        IdempotencyGuard(SyncBackend(print))
    guard = IdempotencyGuard(Jobs("sync://"))
    with pytest.raises(Unsupported, match="key_store"):
        guard.first_run("order-17")


@pytest.mark.usefixtures("in_child")
def test_in_a_child_it_says_what_to_do_instead() -> None:
    """Made it may be: at the top of a module that the child imports."""
    guard = IdempotencyGuard(Jobs("memory://"))
    for call in (guard.first_run, guard.forget):
        with pytest.raises(Unsupported, match="give the job an idempotency_key"):
            call("order-17")


@pytest.mark.usefixtures("in_child")
def test_in_a_child_it_works_on_a_backend_that_the_handler_opened() -> None:
    assert IdempotencyGuard(MemoryBackend()).first_run("order-17")


def test_it_says_what_it_is(backend: MemoryBackend) -> None:
    assert repr(IdempotencyGuard(backend, "mails")) == "<IdempotencyGuard of queue 'mails' in a memory backend>"
    jobs = Jobs("redis://user:secret@host")
    assert "secret" not in repr(IdempotencyGuard(jobs))
