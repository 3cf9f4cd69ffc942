"""A backend and `memory://` side by side: what is asked of both must be answered alike."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from jobpool.broker.backend import QueueBackend
from jobpool.clock import ManualClock
from jobpool.message.lease import JobLease
from jobpool_backends.memory import MemoryBackend
from support import tiers
from support.harness import Harness
from support.harnesses.embedded import MemoryHarness, SqliteHarness

EMBEDDED = (MemoryHarness, SqliteHarness)


@dataclass(frozen=True)
class Pair:
    """The same lease on both sides."""

    ours: JobLease
    model: JobLease


class SideBySide(RuleBasedStateMachine):
    """`self.ours` is under test, `self.model` is memory://."""

    kind: type[Harness]

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.harness = self.kind(Path(self._folder.name))
        self.clients = [self.harness.open(), self.harness.open()]
        self.turn = 0
        self.steps = 0
        self.clock = ManualClock()
        self.model = MemoryBackend(clock=self.clock)

    def teardown(self) -> None:
        self.harness.close()
        self._folder.cleanup()

    @property
    def ours(self) -> QueueBackend:
        """One client and then the other: they share one store."""
        self.turn += 1
        return self.clients[self.turn % 2]

    def is_time_to_look(self) -> bool:
        """Asked after each step, whether to compare all there is: after each third where that asks a server often."""
        self.steps += 1
        return self.kind in EMBEDDED or self.steps % 3 == 0

    def both(self, operation: Callable[[QueueBackend], Any]) -> Any:
        """The same answer from both, or the test fails."""
        answer, expected = self.ask(operation, self.ours), self.ask(operation, self.model)
        assert answer == expected, f"{answer!r}, where memory answers {expected!r}"
        return answer

    def ask(self, operation: Callable[[QueueBackend], Any], backend: QueueBackend) -> Any:
        """What must be the same in both answers."""
        return operation(backend)

    def advance(self, seconds: float) -> None:
        """Let time pass on both sides."""
        self.harness.advance(seconds)
        self.clock.advance(seconds)


def compare(machine: type[SideBySide], kind: type[Harness], examples: int) -> None:
    """Run this many sequences of up to 40 steps on such backends; two thirds on a server; a third of that by default.

    POOLTEST_FULL=1: five times as many.
    """
    wanted = tiers.examples(examples if kind in EMBEDDED else examples * 2 // 3)
    run_state_machine_as_test(
        type(machine.__name__, (machine,), {"kind": kind}),
        settings=settings(
            max_examples=wanted * (5 if os.environ.get("POOLTEST_FULL") else 1),
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )
