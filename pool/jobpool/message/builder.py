"""The fluent way to describe a job: `jobs.define("report", {...}).queue("reports").max_retries(5).dispatch()`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from jobpool.clock import Clock
from jobpool.errors import InvalidJob, check_seconds
from jobpool.message import producer as producers
from jobpool.message.definition import MOST_RETRIES, JobDefinition, check_may_start
from jobpool.message.names import DEFAULT_QUEUE, check_name, nearest
from jobpool.message.payload import check_payload
from jobpool.message.producer import Enqueues
from jobpool.message.results import JobHandle
from jobpool.message.units import check_int

_CRON_FIELDS = ("minute", "hour", "day", "month", "weekday")
_NO_CRON = dict.fromkeys(_CRON_FIELDS, "*")
PAYLOAD_TWICE = "give a payload with a handler's name only: a definition or builder has its own"
_OF_SCHEDULES = ("environments", "depends_on", "enabled", "zone", "misfire")
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip


class JobBuilder:
    """A collector of a job's fields; it ends with `to_definition()` or `dispatch()`, both of which may be called again.

    Every other method changes one field and returns the builder. Meaning and bounds are those of `JobDefinition`, and
    are checked when the definition is made; payload, expression, zone and misfire policy at once. Where seconds are
    asked for, a `timedelta` will do. The cron helpers overwrite only the fields that they name:
    `daily_at("08:30").weekdays()` is `30 8 * * 1-5`, a bare `weekdays()` each minute of them.

    Args:
        payload: Any JSON value; None = an empty object.
        producer: Where `dispatch()` sends it; None = the process's default.
        clock: The time that `delay` counts from; None = the process's, in a `VirtualPool` that pool's.

    Raises `InvalidJob`: JSON cannot carry the payload, or the name is not a name.
    """

    __slots__ = ("_clock", "_cron", "_delay", "_fields", "_handler", "_payload", "_producer")

    def __init__(
        self, handler: str, payload: Any = None, *, producer: Enqueues | None = None, clock: Clock | None = None
    ) -> None:
        self._handler = _check_handler(handler)
        self._payload = {} if payload is None else check_payload(payload)
        self._producer = producer
        self._clock = clock
        self._fields: dict[str, Any] = {}
        self._delay: float | None = None
        self._cron = _NO_CRON

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = f"; use .{name.replace('enqueue', 'dispatch')}()" if name in ("enqueue", "aenqueue") else ""
            hint = hint or nearest(name, (word for word in dir(JobBuilder) if word[0] != "_"))
            raise AttributeError(f"a job builder has no attribute {name!r}{hint}")

    @property
    def payload(self) -> Any:
        """The payload as it is sent: a copy, of JSON values alone."""
        return self._payload

    def named(self, name: str | None) -> Self:
        return self._put("name", name)

    def queue(self, queue: str | None) -> Self:
        return self._put("queue", queue)

    def priority(self, priority: int) -> Self:
        return self._put("priority", priority)

    def max_retries(self, retries: int | None) -> Self:
        return self._put("max_retries", retries)

    def max_attempts(self, attempts: int) -> Self:
        """Set the runs in all, >= 1: `max_retries` + 1."""
        return self._put("max_retries", check_int(attempts, "max_attempts", 1, MOST_RETRIES + 1) - 1)

    def timeout(self, seconds: float | timedelta | None) -> Self:
        return self._put("timeout", seconds)

    def scheduled_at(self, moment: datetime | None) -> Self:
        """Start not before this moment, timezone-aware. Takes the place of `delay`."""
        self._delay = None
        return self._put("scheduled_at", moment)

    def delay(self, wait: float | timedelta) -> Self:
        """Start not before this many seconds after the dispatch (>= 0). Takes the place of `scheduled_at`.

        Of a job that is given to `then`, they count from that call.
        """
        self._delay = check_seconds(wait, "delay")
        self._fields.pop("scheduled_at", None)
        return self

    @property
    def is_timed(self) -> bool:
        """Return whether a step has said when it is due."""
        return self._cron is not _NO_CRON

    @property
    def is_delayed(self) -> bool:
        """True if it waits for a `delay`, and not for a fixed moment."""
        return self._delay is not None

    def single_instance(self, flag: bool = True) -> Self:
        return self._put("single_instance", flag)

    def idempotency_key(self, key: str | None) -> Self:
        return self._put("idempotency_key", key)

    def unique(self, flag: bool = True) -> Self:
        return self._put("unique", flag)

    def identifier(self, identifier: str | None) -> Self:
        return self._put("identifier", identifier)

    def expires_in(self, seconds: float | timedelta | None) -> Self:
        """Set seconds after the dispatch, > 0; if not started by then, the job becomes a dead letter `expired`."""
        return self._put("expires_in", seconds)

    def concurrency_key(self, key: str | None) -> Self:
        return self._put("concurrency_key", key)

    def result_ttl(self, seconds: float | timedelta | None) -> Self:
        """Let the broker keep what the handler returns for these seconds, 30 days at most; 0 = not at all."""
        return self._put("result_ttl", seconds)

    def then(self, job: JobDefinition | JobBuilder, *, previous: bool = False) -> Self:
        """Make a chain: this job comes after it, and after those of earlier calls.

        Each is enqueued with the ack of the one before, so one that dies ends the chain. `previous`: it finds what the
        one before returned in `ctx.previous`.
        """
        if not isinstance(previous, bool):
            raise InvalidJob(f"previous is True or False, not {previous!r}")
        definition = definition_of(job, later=True)
        asked = definition.with_previous([]) if previous else definition
        return self._put("then", (*self._fields.get("then", ()), asked))

    def meta(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """Add to what the handler finds in `ctx.meta`; a key given again takes the new value."""
        merged: Any = {**self._fields.get("meta", {}), **(values or {}), **more}
        return self._put("meta", check_payload(merged, "meta"))

    def environments(self, *names: str | Iterable[str]) -> Self:
        """Let cron run it in these only. Replaces; takes names or lists of them."""
        return self._put("environments", _flatten(names))

    def depends_on(self, *names: str | Iterable[str]) -> Self:
        """Let cron run these before it. Replaces; takes names or lists of them."""
        return self._put("depends_on", _flatten(names))

    def enabled(self, flag: bool = True) -> Self:
        return self._put("enabled", flag)

    def disable(self) -> Self:
        return self.enabled(False)

    def cron(self, expression: str) -> Self:
        """Set all five fields at once: minute, hour, day of month, month, day of week; or `@daily` and its like."""
        from jobpool.message.cron_fields import parse_fields  # imported here: most programs schedule nothing

        self._cron = dict(zip(_CRON_FIELDS, parse_fields(expression).text.split(), strict=True))
        return self

    def zone(self, name: str) -> Self:
        """Read the fields in this time zone, such as `"Europe/Berlin"`."""
        from jobpool.message.cron_fields import open_zone

        open_zone(name)
        return self._put("zone", name)

    def misfire(self, policy: str) -> Self:
        """Make up for missed firings so: `skip`, `one` or `all(n)`."""
        from jobpool.message.cron_fields import Misfire

        return self._put("misfire", Misfire.parse(policy).text)

    def every_minute(self, n: int = 1) -> Self:
        """Run every n-th minute of the hour, 1..59."""
        return self._at(minute=_every(n, 59, "minutes"))

    def hourly(self) -> Self:
        return self.hourly_at(0)

    def hourly_at(self, minute: int) -> Self:
        """Run at this minute, 0..59, of every hour that the other fields allow."""
        return self._at(minute=str(check_int(minute, "minute", 0, 59)))

    def every_hour(self, n: int = 1, minute: int = 0) -> Self:
        """Run every n-th hour of the day, 1..23, at this minute."""
        return self.hourly_at(minute)._at(hour=_every(n, 23, "hours"))

    def daily(self) -> Self:
        """Run at midnight."""
        return self.daily_at("00:00")

    def daily_at(self, time: str) -> Self:
        """Run at this time, `"HH:MM"`."""
        hour, colon, minute = time.partition(":") if isinstance(time, str) else ("", "", "")
        digits = hour.isascii() and minute.isascii() and hour.isdigit() and minute.isdigit()
        if not (colon and digits and len(minute) == 2 and int(hour) < 24 and int(minute) < 60):
            raise InvalidJob(f"the time of day {time!r} is refused: write HH:MM, 00:00 to 23:59")
        return self._at(minute=str(int(minute)), hour=str(int(hour)))

    def weekly(self) -> Self:
        """Run on Sundays at midnight."""
        return self._at(minute="0", hour="0", weekday="0")

    def monthly(self) -> Self:
        """Run on the first at midnight."""
        return self._at(minute="0", hour="0", day="1")

    def quarterly(self) -> Self:
        """Run on the first of January, April, July and October at midnight."""
        return self._at(minute="0", hour="0", day="1", month="1,4,7,10")

    def yearly(self) -> Self:
        """Run on the first of January at midnight."""
        return self._at(minute="0", hour="0", day="1", month="1")

    def weekdays(self) -> Self:
        return self._at(weekday="1-5")

    def weekends(self) -> Self:
        return self._at(weekday="0,6")

    def on_days(self, *days: int | str | Iterable[int | str]) -> Self:
        """Run on these days of the week: names (`"mon"`, `"monday"`) or numbers, 0 = Sunday .. 6, 7 = Sunday."""
        return self._at(weekday=_join({_named(day, _DAYS, 0, 7, "day") % 7 for day in _flatten(days)}, "on_days"))

    def in_months(self, *months: int | str | Iterable[int | str]) -> Self:
        """Run in these months: names (`"jan"`, `"january"`) or numbers, 1..12."""
        return self._at(
            month=_join({_named(month, _MONTHS, 1, 12, "month") for month in _flatten(months)}, "in_months")
        )

    def to_definition(self) -> JobDefinition:
        """Return the definition; `delay` counts from now.

        Raises `InvalidJob`: a field is out of bounds, or it expires before its delay is over.
        """
        return self._made()

    def _made(self, *, later: bool = False) -> JobDefinition:
        values = dict(self._fields)
        if self.is_timed:
            values["cron_expression"] = " ".join(self._cron.values())
        now = None
        if self._delay is not None:  # of a moment that was given nothing is checked: it may be by a test's clock
            now = datetime.fromtimestamp((self._clock or producers.process.clock).wall(), UTC)
            values["scheduled_at"] = now + timedelta(seconds=self._delay)
        definition = JobDefinition(self._handler, self._payload, **values)
        if definition.then:
            check_distinct((definition, *definition.then), "in a chain")
        return definition if later or now is None else check_may_start(definition, now)

    def dispatch(self, backend: Enqueues | None = None) -> JobHandle:
        """Enqueue the job and return its id, as a handle.

        `backend`: None = the builder's producer, else the process's default.

        Raises:
            InvalidJob: A field is out of bounds.
            Unsupported: The backend cannot do what the job asks for.
            BackendUnavailable: Nothing is known; dispatch again with an `identifier` to be sure of no duplicate.
            ConfigurationError: The default producer cannot be opened.

        Blocks for one round trip.
        """
        definition = definition_of(self)
        producer = backend or self._producer or producers.default()
        return JobHandle(producer.enqueue(definition), producer)

    async def adispatch(self, backend: Enqueues | None = None) -> JobHandle:
        """Dispatch the job and leave the event loop free meanwhile; raises as `dispatch`.

        A cancelled one may have been enqueued or not, as after `BackendUnavailable`.
        """
        chosen, definition = backend or self._producer, definition_of(self)

        def send() -> JobHandle:
            producer = chosen or producers.default()
            return JobHandle(producer.enqueue(definition), producer)

        return await producers.on_thread(send)

    def __repr__(self) -> str:
        return f"<JobBuilder of {self._handler!r}: dispatch() enqueues it>"

    def _put(self, name: str, value: Any) -> Self:
        self._fields[name] = value
        return self

    def _at(self, **values: str) -> Self:
        self._cron = self._cron | values
        return self


def _flatten(values: Iterable[Any]) -> tuple[Any, ...]:
    flat: list[Any] = []
    for value in values:
        if isinstance(value, Iterable) and not isinstance(value, str):
            flat.extend(_flatten(value))
        else:
            flat.append(value)
    return tuple(flat)


def _every(n: int, most: int, what: str) -> str:
    return "*" if check_int(n, what, 1, most) == 1 else f"*/{n}"


def check_distinct(jobs: Iterable[JobDefinition], where: str) -> None:
    """Raise `InvalidJob` if one of these jobs would be taken for an earlier one, and left out or skipped."""
    seen: set[tuple[str, str | None]] = set()
    for job in jobs:
        queue = job.queue or DEFAULT_QUEUE
        key = f"idempotency key of queue {queue!r}"
        marks = {("", job.identifier): "identifier", (queue, job.idempotency_key): key}
        for mark, what in marks.items():
            if mark[1] is not None and mark in seen:
                told = f"{job.handler!r} has the {what} of an earlier job, {mark[1]!r}"
                raise InvalidJob(f"{where} {told}: it would never run")
        seen.update(marks)


def definition_of(job: JobDefinition | JobBuilder, *, later: bool = False) -> JobDefinition:
    """Return the job that a builder has collected, to be enqueued, or the definition itself.

    `later`: it is enqueued after another job, and its expiry counts from then on. Raises `InvalidJob`: it is neither,
    or the builder's steps make a schedule.
    """
    if isinstance(job, JobBuilder):
        _check_unscheduled(job)
        return job._made(later=later)
    if isinstance(job, JobDefinition):
        return job
    raise InvalidJob(f"not a job, but {type(job).__name__}: give handler.define(…), or jobs.define(name, payload)")


def _check_unscheduled(job: JobBuilder) -> None:
    """Raise `InvalidJob` if a step was meant for a schedule: the job would run at once, as if it had none."""
    steps = [name for name in _OF_SCHEDULES if name in job._fields]
    if job.is_timed:
        steps.insert(0, "cron times")
    if steps:
        raise InvalidJob(
            f"job {job._handler!r} has {' and '.join(steps)}, which only a schedule may have: leave that out, or"
            " declare the job with jobpool.Scheduler().define(…) and without dispatch()."
            " For a job after another write first.then(second); for a later one, delay(…)"
        )


def _check_handler(name: str) -> str:
    if isinstance(name, JobHandle):
        raise InvalidJob(f"{str(name)!r} is the id of a job that is enqueued already, and not the name of a handler")
    if not isinstance(name, str):
        raise InvalidJob(f"a handler is named by a str, not by {type(name).__name__}: give its name, or its .define(…)")
    return check_name(name, "handler name")


def named_job(job: JobDefinition | JobBuilder | str, payload: Any = None) -> JobDefinition:
    """Return the job; of a handler's name, one with this payload, None = an empty object. Raises `InvalidJob`."""
    if isinstance(job, str):
        return JobDefinition(_check_handler(job), {} if payload is None else payload)
    definition = definition_of(job)
    if payload is not None:
        raise InvalidJob(PAYLOAD_TWICE)
    return definition


def _named(value: int | str, names: tuple[str, ...], least: int, most: int, what: str) -> int:
    if isinstance(value, str):
        for index, name in enumerate(names, start=least):
            if value.lower() in (name, name[:3]):
                return index
        raise InvalidJob(f"{what} {value!r} is refused: one of {', '.join(name[:3] for name in names)}, or a number")
    return check_int(value, what, least, most)


def _join(numbers: set[int], what: str) -> str:
    if not numbers:
        raise InvalidJob(f"{what} needs at least one value")
    return ",".join(map(str, sorted(numbers)))
