"""`IdempotencyGuard`, once for a key, and `RateLimiter`, so many starts in any window, over all that share a broker."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.tables import row

from jobpool import IdempotencyGuard, Jobs, Limits, RateLimiter
from jobpool.broker.key_store import KeyStore
from jobpool.client.worker import QueueWorker
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob, Unsupported
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.definition import JobDefinition
from jobpool.message.guards import Rate
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
    guard, limiter = IdempotencyGuard(Jobs("memory://")), RateLimiter(Jobs("memory://"), "smtp", 5)
    for call in (guard.first_run, guard.forget):
        with pytest.raises(Unsupported, match="give the job an idempotency_key"):
            call("order-17")
    for ask in (limiter.take, limiter.wait):
        with pytest.raises(Unsupported, match="rate_limits"):
            ask()


@pytest.mark.usefixtures("in_child")
def test_in_a_child_it_works_on_a_backend_that_the_handler_opened() -> None:
    assert IdempotencyGuard(MemoryBackend()).first_run("order-17")
    assert RateLimiter(MemoryBackend(), "smtp", 5).take() == 0.0


def test_they_say_what_they_are(backend: MemoryBackend) -> None:
    limiter = RateLimiter(backend, "smtp", 5, "mails", 2.5)
    assert repr(limiter) == "<RateLimiter 'smtp' of queue 'mails': 5 in 2.5 s, in a memory backend>"
    assert repr(IdempotencyGuard(backend, "mails")) == "<IdempotencyGuard of queue 'mails' in a memory backend>"
    jobs = Jobs("redis://user:secret@host")
    assert "secret" not in repr(IdempotencyGuard(jobs))


class Deaf(MemoryBackend):
    """Does what it is asked, and loses its next so many answers."""

    def __init__(self, losses: int, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.losses = losses

    @property
    def keys(self) -> KeyStore:
        store = super().keys
        answer = store.take

        def take(queue: str, rate: Rate, token: str) -> float:
            after = answer(queue, rate, token)
            if self.losses:
                self.losses -= 1
                raise BackendUnavailable("silent")
            return after

        store.take = take  # type: ignore[method-assign]
        return store


# --- limiter: take ------------------------------------------------------------------------------------


def test_so_many_go_and_the_next_is_told_how_long(backend: MemoryBackend, clock: ManualClock) -> None:
    limiter = RateLimiter(backend, "smtp", per_minute=2)
    assert limiter.take() == 0.0
    clock.advance(10.0)
    assert limiter.take() == 0.0
    assert limiter.take() == 50.0
    clock.advance(50.0)
    assert limiter.take() == 0.0
    assert limiter.take() == 10.0


def test_two_limiters_of_one_name_share_it(backend: MemoryBackend) -> None:
    one, other = (RateLimiter(backend, "smtp", 1) for _ in range(2))
    assert one.take() == 0.0
    assert other.take() == 60.0
    assert RateLimiter(backend, "imap", 1).take() == 0.0
    assert RateLimiter(backend, "smtp", 1, queue="mails").take() == 0.0


def test_under_the_queues_own_name_it_counts_with_the_jobs(backend: MemoryBackend) -> None:
    registry = HandlerRegistry()
    registry.handler("report")(lambda _: None)
    worker = QueueWorker(backend, registry, limits=Limits(rates={"reports": 2}))
    backend.enqueue_many([JobDefinition("report", queue="reports")] * 2)
    assert RateLimiter(backend, "queue", 2, "reports").take() == 0.0
    assert [worker.process_once("reports").status for _ in range(2)] == [Status.ACKED, Status.RELEASED]


def test_of_many_at_once_so_many_go(backend: MemoryBackend) -> None:
    limiter = RateLimiter(backend, "smtp", 7)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: limiter.take(), range(100)))
    assert answers.count(0.0) == 7


def test_a_start_whose_answer_was_lost_is_not_counted_again(clock: ManualClock) -> None:
    limiter = RateLimiter(Deaf(3, clock), "smtp", 2)
    for _ in range(3):
        with pytest.raises(BackendUnavailable):
            limiter.take()
    assert limiter.take() == 0.0
    assert limiter.take() == 0.0
    assert limiter.take() == 60.0


# --- limiter: wait ------------------------------------------------------------------------------------


def test_wait_goes_at_once_when_there_is_room(backend: MemoryBackend) -> None:
    assert RateLimiter(backend, "smtp", 1).wait(0.0) is True


@pytest.mark.xdist_group("timing")
def test_wait_sleeps_until_there_is_room_and_does_not_spin() -> None:
    backend = MemoryBackend()
    limiter = RateLimiter(backend, "smtp", 1, window=0.2)
    first = time.monotonic()
    assert limiter.wait()
    used = time.process_time()
    for _ in range(3):
        assert limiter.wait(timeout=30.0)
    assert time.monotonic() - first >= 0.6 - 0.001
    assert time.process_time() - used < 0.3  # a busy loop would use all of it, and more threads' time besides


def test_wait_says_no_at_once_when_the_room_comes_too_late(backend: MemoryBackend) -> None:
    """On a clock that stands still: had it waited for the room, the test would never end."""
    limiter = RateLimiter(backend, "smtp", 1)
    limiter.take()
    assert limiter.wait(timeout=50.0) is False
    assert limiter.wait(timeout=0.0) is False


def test_what_gave_up_waiting_has_counted_nothing(backend: MemoryBackend, clock: ManualClock) -> None:
    limiter = RateLimiter(backend, "smtp", 1)
    limiter.take()
    clock.advance(30.0)
    assert not limiter.wait(1.0)
    clock.advance(30.0)
    assert limiter.take() == 0.0


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), "soon"])
def test_a_timeout_out_of_bounds_is_refused(backend: MemoryBackend, timeout: float) -> None:
    limiter = RateLimiter(backend, "smtp", 1)
    with pytest.raises(InvalidJob, match="timeout"):
        limiter.wait(timeout)
    assert limiter.take() == 0.0


# --- limiter: refused when it is made ------------------------------------------------------------------


def test_what_is_out_of_bounds_is_refused(backend: MemoryBackend) -> None:
    tables: dict[str, tuple[str, tuple[object, ...]]] = {
        "most": ("from 1 to 1000000", (0, -1, 1_000_001, 2.5, "3", True, None)),
        "name": (r"1 to 300 printable characters, not ('(a\\nb|x+…|)|None)", ("", "x" * 301, "a\nb", None)),
        "window": ("window", (0.0, -1.0, 86401.0, float("nan"), float("inf"))),
        "backend": (r"a RateLimiter takes a jobpool\.Jobs or an open backend, not str", ("memory://",)),
    }
    for part, (told, values) in tables.items():
        for value in values:
            given = {"backend": backend, "name": "smtp", "most": 5, "window": 60.0} | {part: value}
            with row(part, value), pytest.raises(ConfigurationError, match=told):
                RateLimiter(given["backend"], given["name"], given["most"], window=given["window"])  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="queue name"):
        RateLimiter(backend, "smtp", 5, queue="no queue")
