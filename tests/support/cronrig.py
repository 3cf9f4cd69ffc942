"""Schedulers on one broker and one clock that the test turns, with handlers that note what they ran."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from jobpool.clock import ManualClock
from jobpool.cron.firing import Firing
from jobpool.cron.runner import CronRunner
from jobpool.cron.scheduler import Scheduler
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.context import JobContext
from jobpool.message.envelope import decode
from jobpool_backends.memory import MemoryBackend

START = datetime(2027, 1, 15, 8, 0, tzinfo=UTC)


class Outage(MemoryBackend):
    """A broker that a test silences, and a key store of it."""

    silent: bool = False
    error: JobpoolError = BackendUnavailable("nobody there")
    """What a silenced one raises."""
    keys_work: bool = False
    """The key store answers all the same."""
    calls: int = 0
    key_calls: int = 0

    def _enqueue(self, messages: Any) -> Any:
        self.calls += 1
        if self.silent:
            raise self.error
        return super()._enqueue(messages)

    @property
    def keys(self) -> Any:
        return _Keys(self, super().keys)


class _Keys:
    def __init__(self, backend: Outage, keys: Any) -> None:
        self._backend = backend
        self._keys = keys

    def __getattr__(self, name: str) -> Any:
        if self._backend.silent and not self._backend.keys_work:
            raise self._backend.error
        self._backend.key_calls += 1
        return getattr(self._keys, name)


class CronRig:
    """See the module. The clock begins at `START`."""

    def __init__(self) -> None:
        self.clock = ManualClock(wall=START.timestamp())
        self.backend = Outage(clock=self.clock)
        self.scheduler = Scheduler()
        self.registry = HandlerRegistry()
        self.ran: list[tuple[str, str]] = []
        self.failing: set[str] = set()
        for name in ("a", "b", "c"):
            self.registry.handler(name)(self._handler(name))

    def _handler(self, name: str) -> Any:
        def run(ctx: JobContext) -> None:
            self.ran.append((name, ctx.meta["scheduled_for"]))
            if name in self.failing:
                raise RuntimeError(f"{name} is broken")

        return run

    def runner(self, name: str = "one", scheduler: Scheduler | None = None, **options: Any) -> CronRunner:
        return CronRunner(scheduler or self.scheduler, self.backend, registry=self.registry, name=name, **options)

    def pass_minutes(self, minutes: float) -> None:
        self.clock.advance(60.0 * minutes)

    def queued(self) -> list[tuple[str, str]]:
        """(handler, instant) of every message, in the order of its enqueue."""
        found = self.backend.list_messages(limit=1000)
        return [(message.handler, decode(message.body, attempts=0).meta["scheduled_for"]) for message in found]


def minute(number: float) -> datetime:
    """So many minutes after `START`."""
    return START + timedelta(minutes=number)


def text(number: float) -> str:
    """The same, as jobs are told."""
    return minute(number).isoformat().replace("+00:00", "Z")


def told(firings: list[Firing]) -> list[tuple[str, int, str]]:
    """(schedule, minutes after `START`, status) of each."""
    return [(one.name, int((one.at - START).total_seconds() // 60), one.status.value) for one in firings]
