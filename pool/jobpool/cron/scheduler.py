"""`Scheduler`: what an app declares its schedules with, at the top of a module."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import Any

from jobpool.cron.misfire import Misfire
from jobpool.cron.order import execution_order, job_name
from jobpool.cron.schedule import Schedule
from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.message.builder import JobBuilder
from jobpool.message.definition import JobDefinition

QUEUED_ONLY = ("single_instance", "idempotency_key", "unique", "concurrency_key", "expires_in")
"""Fields that mean something to messages only: a job that runs inline is none."""

_all: list[Scheduler] = []
"""Every scheduler of this process, in the order in which they were made. None is dropped because no module keeps it."""


@dataclass(frozen=True)
class Entry:
    """One declared job: its builder, and where it was declared, as `file:line`."""

    builder: JobBuilder
    place: str

    def definition(self) -> JobDefinition:
        """Return the job as it is described now; a `delay` counts from here.

        Raises:
            ConfigurationError: The description is refused; the text names the place.
        """
        try:
            definition = self.builder.to_definition()
        except InvalidJob as error:
            raise ConfigurationError(f"the schedule at {self.place} is refused: {error}") from error
        why = _unfit(definition, is_delayed=self.builder.is_delayed)
        if why is not None:
            raise ConfigurationError(f"the schedule {job_name(definition)!r} at {self.place} has {why}")
        return definition


@dataclass(frozen=True)
class Planned:
    """A checked schedule of the app's. `name` is what it is known by to all schedulers of a broker."""

    entry: Entry
    definition: JobDefinition

    @cached_property
    def name(self) -> str:
        return job_name(self.definition)

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.definition.cron_expression, self.definition.zone)

    @cached_property
    def misfire(self) -> Misfire:
        return Misfire.parse(self.definition.misfire)

    @property
    def is_inline(self) -> bool:
        """It runs in the scheduler's own process, and is not enqueued."""
        return self.definition.queue is None

    def runs_in(self, environment: str | None) -> bool:
        """Return whether it is meant for this environment."""
        return not self.definition.environments or environment in self.definition.environments

    def why_not(self, environment: str | None) -> str | None:
        """Return why it never fires in this environment; None: it does."""
        if not self.definition.enabled:
            return "it is disabled"
        if not self.runs_in(environment):
            names = ", ".join(self.definition.environments)
            return f"it runs in {names} only, and this is {environment or 'no environment'}"
        return None


class Scheduler:
    """Jobs with the times at which they are due. Declare them where handlers are declared; `jobpool cron run`, or a
    pool with `--cron`, finds every scheduler that the app's import has made.

        scheduler = jobpool.Scheduler()
        scheduler.define("report", {"kind": "sales"}).named("nightly-report").queue("reports").daily_at("02:30")
        scheduler.define("clean_up").hourly()

    A job with a queue is enqueued when it is due. One without runs in the scheduler's own process, one attempt each
    time: for what takes moments; keys, locks, a delay and an expiry need a queue. Others depend on it by its name (its
    handler's, if it has none), which also makes its firings the same to all schedulers. No two may share one.
    """

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        _all.append(self)

    def define(self, handler: str, payload: Any = None) -> JobBuilder:
        """Declare a job; the builder sets when it is due, and where it runs. Every minute by default.

        The builder may be described further until the schedules are read, which is after the app's import.

        Raises:
            InvalidJob: JSON cannot carry the payload, or the name is not a handler name.
        """
        builder = JobBuilder(handler, payload)
        self._entries.append(Entry(builder, _place(sys._getframe(1))))
        return builder

    def get_definitions(self) -> list[JobDefinition]:
        """Return the jobs, in the order of their declaration.

        Raises:
            ConfigurationError: One is refused; the text names where it was declared.
        """
        return [entry.definition() for entry in self._entries]

    def get_execution_order(self) -> list[JobDefinition]:
        """Return the jobs, each after those that it depends on, else in the order of declaration.

        Raises:
            ConfigurationError: As `get_definitions`; two jobs have one name, and both places are named; `Dependency 'x'
                for job 'y' does not exist.`; `Circular dependency detected in jobs.`
        """
        return execution_order(self.get_definitions(), [entry.place for entry in self._entries])

    @property
    def entries(self) -> list[Entry]:
        """Return the declared jobs, with their places."""
        return list(self._entries)

    def __repr__(self) -> str:
        return f"<Scheduler of {len(self._entries)} jobs>"


def known_schedulers() -> list[Scheduler]:
    """Return every scheduler that this process has made, the oldest first."""
    return list(_all)


def plan(schedulers: Iterable[Scheduler]) -> list[Planned]:
    """Return all jobs of these schedulers together, checked, each behind those that it depends on.

    Raises:
        ConfigurationError: A definition, expression, zone or misfire policy is refused, and the text names its place;
            or as `Scheduler.get_execution_order`, over all of them.
    """
    entries = [entry for scheduler in schedulers for entry in scheduler.entries]
    definitions = [entry.definition() for entry in entries]
    place_of = {id(definition): entry for definition, entry in zip(definitions, entries, strict=True)}
    ordered = _ordered(definitions, [entry.place for entry in entries])
    planned = [Planned(place_of[id(definition)], definition) for definition in ordered]
    for one in planned:
        _check(one)
    return planned


def _ordered(definitions: list[JobDefinition], places: list[str]) -> list[JobDefinition]:
    """Order as `execution_order`; the text of an error has its notes, too: which jobs make the circle."""
    try:
        return execution_order(definitions, places)
    except ConfigurationError as error:
        raise ConfigurationError(" ".join([str(error), *getattr(error, "__notes__", ())])) from None


def _check(planned: Planned) -> None:
    try:
        _ = planned.schedule, planned.misfire
    except InvalidJob as error:
        raise ConfigurationError(
            f"the schedule {planned.name!r} at {planned.entry.place} is refused: {error}"
        ) from error


def _unfit(definition: JobDefinition, *, is_delayed: bool) -> str | None:
    """Return why no schedule, or none without a queue, can have this option, and the mend; None if all is well."""
    if definition.identifier is not None:
        return "an identifier: leave it out, for each of its firings has an id of its own"
    if definition.scheduled_at is not None and not is_delayed:
        return (
            "a fixed moment, scheduled_at, for which every firing would wait: leave it out, or say delay(seconds),"
            " which counts from each firing"
        )
    if definition.queue is not None:
        return None
    asked = [name for name in QUEUED_ONLY if getattr(definition, name)] + ["delay"] * is_delayed
    if not asked:
        return None
    return f"no queue, and what runs inline knows no {' and no '.join(asked)}: give it a queue, .queue(name)"


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
