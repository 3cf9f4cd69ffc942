"""`Scheduler`: what an app declares its schedules with, at the top of a module."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any

from jobpool.cron.schedule import Schedule
from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.handlers.registry import DECLARED_SCHEDULES, SCHEDULE_CHECKS
from jobpool.message.builder import PAYLOAD_TWICE, JobBuilder
from jobpool.message.cron_fields import Misfire
from jobpool.message.definition import DEFAULT_PRIORITY, JobDefinition
from jobpool.message.names import nearest

_LOCKS = ("single_instance", "idempotency_key", "unique", "concurrency_key")
QUEUED_ONLY = ("max_retries", *_LOCKS, "expires_in", "result_ttl")
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

        Raises `ConfigurationError`: the description is refused; the text names the place.
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
    schedule: Schedule
    misfire: Misfire

    @cached_property
    def name(self) -> str:
        return job_name(self.definition)

    @property
    def is_inline(self) -> bool:
        """It runs in the scheduler's own process, and is not enqueued."""
        return self.definition.queue is None

    def why_not(self, environment: str | None) -> str | None:
        """Return why it never fires in this environment; None: it does."""
        if not self.definition.enabled:
            return "it is disabled"
        if self.definition.environments and environment not in self.definition.environments:
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
        self.entries: list[Entry] = []
        _all.append(self)
        DECLARED_SCHEDULES.append(self._declared)

    def define(self, job: str | JobBuilder, payload: Any = None) -> JobBuilder:
        """Declare a job; the builder sets when it is due, and where it runs. Every minute by default.

        The builder may be described further until the schedules are read, which is after the app's import.

        Args:
            job: The name of a handler, or `handler.define(…)`, which checks the arguments here and names its queue.
            payload: With a name: any JSON value; None = an empty object.

        Raises `InvalidJob`: JSON cannot carry the payload, the name is not a handler name, or a builder has a payload.
        """
        if isinstance(job, JobBuilder) and payload is not None:
            raise InvalidJob(PAYLOAD_TWICE)
        builder = job if isinstance(job, JobBuilder) else JobBuilder(job, payload)
        frame = sys._getframe(1)
        self.entries.append(Entry(builder, f"{frame.f_code.co_filename}:{frame.f_lineno}"))
        return builder

    def get_definitions(self) -> list[JobDefinition]:
        """Return the jobs, in the order of their declaration. A refused one raises `ConfigurationError`."""
        return [entry.definition() for entry in self.entries]

    def _declared(self) -> list[JobDefinition]:
        """Return the jobs that are not switched off; none if one is refused, which the scheduler's process says."""
        try:
            return [definition for definition in self.get_definitions() if definition.enabled]
        except ConfigurationError:
            return []

    def get_execution_order(self) -> list[JobDefinition]:
        """Return the jobs, each after those that it depends on, else in the order of declaration.

        Raises `ConfigurationError` as `get_definitions` and `execution_order`.
        """
        definitions = self.get_definitions()
        return [definitions[number] for number in execution_order(definitions, [one.place for one in self.entries])]

    def __repr__(self) -> str:
        return f"<Scheduler of {len(self.entries)} jobs>"


def known_schedulers() -> list[Scheduler]:
    """Return every scheduler that this process has made, the oldest first."""
    return list(_all)


def plan(schedulers: Iterable[Scheduler]) -> list[Planned]:
    """Return all jobs of these schedulers together, checked, each behind those that it depends on.

    Raises `ConfigurationError`: a definition, expression, zone or misfire policy is refused, and the text names its
    place; or as `execution_order`, over all of them.
    """
    entries = [entry for scheduler in schedulers for entry in scheduler.entries]
    definitions = [entry.definition() for entry in entries]
    try:
        order = execution_order(definitions, [entry.place for entry in entries])
    except ConfigurationError as error:  # its notes say where
        raise ConfigurationError(" ".join([str(error), *getattr(error, "__notes__", ())])) from None
    planned = []
    for entry, definition in ((entries[number], definitions[number]) for number in order):
        schedule = Schedule(definition.cron_expression, definition.zone)
        planned.append(Planned(entry, definition, schedule, Misfire.parse(definition.misfire)))
    return planned


def _refused() -> str:
    """Return why no scheduler would start with this process's schedules; "" = one would."""
    try:
        plan(_all)
    except ConfigurationError as error:
        return str(error)
    return ""


SCHEDULE_CHECKS.append(_refused)


def job_name(definition: JobDefinition) -> str:
    """Return the name of a scheduled job, as in `depends_on`: its name, else its handler's."""
    return definition.name or definition.handler


def execution_order(jobs: Sequence[JobDefinition], places: Sequence[str]) -> list[int]:
    """Order jobs by their numbers so that each comes after those that it depends on; else as declared.

    Raises `ConfigurationError`: two jobs have one name, and both are named, with their `places`. Or a dependency does
    not exist. Or it is a circle. The error's notes say more of these two.
    """
    index: dict[str, int] = {}
    for number, job in enumerate(jobs):
        first = index.setdefault(job_name(job), number)
        if first != number:
            raise ConfigurationError(
                f"two scheduled jobs are named {job_name(job)!r}: {_described(jobs[first], places[first])} and"
                f" {_described(job, places[number])}; give one of them another name with .named(…)"
            )
    for number, job in enumerate(jobs):
        for name in job.depends_on:
            if name not in index:
                refused = ConfigurationError(f"Dependency '{name}' for job '{job_name(job)}' does not exist.")
                where = f"which depends on it, is declared in {places[number]}"
                refused.add_note(f"{job_name(job)!r}, {where}{nearest(name, index)}")
                raise refused
    sorter = TopologicalSorter({number: {index[name] for name in job.depends_on} for number, job in enumerate(jobs)})
    try:
        sorter.prepare()
    except CycleError as error:
        circle = error.args[1][:0:-1]  # each waits for the next
        start = circle.index(min(circle))
        names = [f"{job_name(jobs[number])!r} ({places[number]})" for number in (*circle[start:], *circle[:start])]
        refused = ConfigurationError("Circular dependency detected in jobs.")
        refused.add_note(f"Each waits for the next: {' → '.join([*names, repr(job_name(jobs[circle[start]]))])}")
        raise refused from None
    free: list[int] = []
    order: list[int] = []
    while sorter:
        for number in sorter.get_ready():
            heappush(free, number)
        order.append(heappop(free))
        sorter.done(order[-1])
    return order


def _described(job: JobDefinition, place: str) -> str:
    return f"handler {job.handler!r}, {job.cron_expression!r} in {place}"


def _unfit(definition: JobDefinition, *, is_delayed: bool) -> str | None:
    """Return why no schedule, or none without a queue, can have this option, and the mend; None if all is well."""
    for job in (definition, *definition.then):
        if job.identifier is not None:
            return "an identifier: leave it out, for each of its firings has an id of its own"
        if job.scheduled_at is not None and not (is_delayed and job is definition):
            return (
                "a fixed moment, scheduled_at or a delay in then(…), for which every firing would wait: leave it out;"
                " only the schedule's own delay(seconds) counts from each firing"
            )
    if definition.queue is not None:
        return None
    asked = [name for name in QUEUED_ONLY if getattr(definition, name)] + ["delay"] * is_delayed
    asked += ["priority"] * (definition.priority != DEFAULT_PRIORITY)
    if not asked:
        return None
    return f"no queue, and what runs inline knows no {' and no '.join(asked)}: give it a queue, .queue(name)"
