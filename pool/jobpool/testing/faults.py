"""Faults to inject, and the plan that says when each has its turn: values.

The points of a delivery, in order:

* `before_start`: the message is leased, and holds its key, places and starts; its handler has not begun.
* `in_handler`: the handler has begun (its `before_run` is done), or has reported enough progress.
* `before_settle`: the handler has done all its work; the broker has not heard of it.
* `after_settle`: the broker has heard of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from jobpool.errors import ConfigurationError, MalformedEnvelope
from jobpool.message.lease import JobLease

Point = Literal["before_start", "in_handler", "before_settle", "after_settle"]

POINTS: tuple[Point, ...] = get_args(Point)  # all of them, in order: to parametrize a test with


@dataclass(frozen=True, slots=True)
class Crash:
    """The process that runs the handler dies: no verdict, so the lease is forfeited, and the reaper counts a crash.

    After the settlement there is nothing left to lose. In the handler it is an exception that is not an `Exception`, so
    that `finally` blocks run, which a killed process would not.
    """

    cause: str = "killed by a test"  # is kept with the message


@dataclass(frozen=True, slots=True)
class Timeout:
    """The handler is stopped because its time is up: a failed attempt, as if it had run for all of its timeout."""


@dataclass(frozen=True, slots=True)
class LoseLease:
    """The lease ends early, and the handler is not told: another delivery repeats its work."""


@dataclass(frozen=True, slots=True)
class BrokerDown:
    """The broker does not answer the next `calls` (>= 1) calls; the pool repeats them while the lease runs.

    `before_start`: the fetch fails, and no message is touched. `before_settle`: the settlement is lost on the way
    there. `after_settle`: its answer is lost on the way back.
    """

    calls: int = 1

    def __post_init__(self) -> None:
        if type(self.calls) is not int or self.calls < 1:
            raise ConfigurationError(f"calls is a whole number from 1 on, not {self.calls!r}")


Fault = Crash | Timeout | LoseLease | BrokerDown

_WHERE: dict[type[Fault], Sequence[Point]] = {
    Crash: POINTS,
    Timeout: ("in_handler",),
    LoseLease: ("before_start", "in_handler", "before_settle"),
    BrokerDown: ("before_start", "before_settle", "after_settle"),
}


@dataclass(slots=True)
class Injection:
    """One fault, planned. `left`: how often it is still to happen."""

    fault: Fault
    at: Point
    handler: str | None = None
    job: str | None = None
    attempt: int | None = None
    progress: float | None = None
    left: int = 1

    def __post_init__(self) -> None:
        where = _WHERE.get(type(self.fault))
        if where is None:
            raise ConfigurationError(
                f"{self.fault!r} is not a fault: choose Crash(), Timeout(), LoseLease(), BrokerDown()"
            )
        if self.at not in where:
            points = ", ".join(where)
            raise ConfigurationError(f"{type(self.fault).__name__} can happen at {points}, not at {self.at!r}")
        if type(self.left) is not int or self.left < 1:
            raise ConfigurationError(f"times is a whole number from 1 on, not {self.left!r}")
        if self.progress is not None and self.at != "in_handler":
            raise ConfigurationError("progress says when in the handler: leave it out elsewhere")
        if self.progress is not None and not 0 <= self.progress <= 1:
            raise ConfigurationError(f"progress is a number from 0 to 1, not {self.progress!r}")
        for value in (self.handler, self.job):
            if not isinstance(value, str | None):
                raise ConfigurationError(f"handler and job are texts, a name and an id, not {value!r}")
        if self.is_of_no_message() and (self.handler or self.job or self.attempt):
            raise ConfigurationError("a fetch that is not answered concerns no job: leave handler, job and attempt out")

    def is_of_no_message(self) -> bool:
        """Return whether it is a fetch that is not answered."""
        return isinstance(self.fault, BrokerDown) and self.at == "before_start"

    def concerns(self, lease: JobLease) -> bool:
        """Return whether this delivery is meant; one whose body is not a wire object never is."""
        try:
            envelope = lease.envelope
        except MalformedEnvelope:
            return False
        return (
            not self.is_of_no_message()
            and self.handler in (None, envelope.job)
            and self.job in (None, lease.id)
            and self.attempt in (None, envelope.attempts + 1)
        )

    def __str__(self) -> str:
        """Describe, for people, the fault that has not happened, and its target."""
        names = ("handler", "job", "attempt", "progress")
        chosen = [f"{name}={getattr(self, name)!r}" for name in names if getattr(self, name) is not None]
        return ", ".join([f"{self.fault!r} at {self.at}", *chosen, f"{self.left} time{'s' * (self.left > 1)}"])


class FaultPlan(list[Injection]):
    """The faults, in the order in which they were planned."""

    @property
    def left(self) -> list[Injection]:
        """Return the faults that have not happened as often as planned."""
        return [injection for injection in self if injection.left]

    def take(self, at: Point, lease: JobLease, *kinds: type[Fault], progress: float | None = None) -> Fault | None:
        """Return the fault of these kinds whose turn it is at this point of this delivery; counts it.

        `progress`: the fraction that the handler has reported; None = it has only begun.
        """
        return self._count(
            injection
            for injection in self.left
            if injection.at == at
            and (injection.progress is None) == (progress is None)
            and (injection.progress or 0.0) <= (progress or 0.0)
            and isinstance(injection.fault, kinds)
            and injection.concerns(lease)
        )

    def take_fetch(self) -> BrokerDown | None:
        """Return the outage that the next fetch meets; counts it."""
        fault = self._count(injection for injection in self.left if injection.is_of_no_message())
        return fault if isinstance(fault, BrokerDown) else None

    def concerns_handler(self, lease: JobLease) -> bool:
        """Return whether anything is planned for the handler of this delivery."""
        return any(injection.at == "in_handler" and injection.concerns(lease) for injection in self.left)

    def _count(self, found: Iterator[Injection]) -> Fault | None:
        injection = next(found, None)
        if injection is None:
            return None
        injection.left -= 1
        return injection.fault
