"""A job as its producer describes it: immutable, checked when it is made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Raw, json

from jobpool.errors import ConfigurationError, InvalidJob, Unsupported, check_seconds
from jobpool.message.guards import keyless
from jobpool.message.names import DEFAULT_QUEUE, check_identifier, check_name, check_queue
from jobpool.message.payload import check_payload
from jobpool.message.units import check_int

MOST_RETRIES = 2**31 - 1
MAX_RESULT_TTL_S = 30 * 86400.0
DEFAULT_PRIORITY = 5
EVERY_MINUTE = "* * * * *"
UTC_ZONE = "UTC"
MAKE_UP_ONE = "one"
_set = object.__setattr__


@dataclass(frozen=True, slots=True)
class JobDefinition:
    """One job to enqueue, or one scheduled job. Each field has a `with_<field>()` copy helper.

    Attributes:
        handler: Name of the handler that runs it; 1 to 255 printable characters.
        payload: Any JSON value, copied; handlers with keyword arguments need an object.
        name: Shown in logs and titles; None = the handler's name.
        queue: None = `default` when dispatched, inline in cron.
        priority: 0..255; a smaller number runs sooner.
        max_retries: Runs after the first that fails, >= 0; None = not set, the handler's or the pool's value applies.
        timeout: Seconds, >= 0, where 0 = unlimited; None = the handler's or the pool's value applies.
        scheduled_at: Not before this moment, timezone-aware, kept in UTC; in the past = now.
        single_instance: At most one of this name runs at a time.
        environments: Cron runs it in these only; empty = in all.
        depends_on: Names of the jobs that cron runs before it.
        cron_expression: Five fields: minute, hour, day of month, month, day of week. `@daily` and its like are kept as
            the five fields that they stand for.
        zone: IANA name of the time zone that cron reads them in.
        misfire: Treatment of firings that cron missed: `skip`, `one`, or `all(n)`, the newest n, 1..1000.
        meta: The producer's own JSON object, handed to the handler; keys starting with `_`, and `v`, are reserved.
        enabled: False: cron skips it.
        idempotency_key: Trimmed; empty = None. Once a job with the key is done, others are skipped.
        unique: Enqueue only if no job with this idempotency key exists.
        identifier: The message's id; None = minted. Enqueueing it again changes nothing.
        expires_in: Seconds, > 0, after its enqueue; not started by then, it is a dead letter `expired`.
        concurrency_key: Jobs that share it share a limit.
        result_ttl: Seconds that the broker keeps what the handler returned, 30 days at most; 0 = it does not. None =
            not set, the handler's value applies.
        batch: Id of the batch of which it is a member.
        then: Jobs that come after it, one after the other, each enqueued with the ack of the one before.
        previous: The result of the job before it in a chain, in a list; [] = it is asked for, None = it is not.

    Raises `InvalidJob`: a value is out of bounds; the text names the field and the bound.
    """

    handler: str
    payload: Any = field(default_factory=dict)
    name: str | None = None
    queue: str | None = None
    priority: int = DEFAULT_PRIORITY
    max_retries: int | None = None
    timeout: float | None = None
    scheduled_at: datetime | None = None
    single_instance: bool = False
    environments: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    cron_expression: str = EVERY_MINUTE
    zone: str = UTC_ZONE
    misfire: str = MAKE_UP_ONE
    meta: dict[str, Any] = field(default_factory=dict)
    enabled: bool = True
    idempotency_key: str | None = None
    unique: bool = False
    identifier: str | None = None
    expires_in: float | None = None
    concurrency_key: str | None = None
    result_ttl: float | None = None
    batch: str | None = None
    then: tuple[JobDefinition, ...] = ()
    previous: list[Any] | None = None

    def __post_init__(self) -> None:
        check_name(self.handler, "handler name")
        _set(self, "payload", check_payload(self.payload))
        check_int(self.priority, "priority", 0, 255)
        if self.name is not None:
            check_name(self.name, "job name")
        if self.queue is not None:
            check_queue(self.queue)
        if self.identifier is not None:
            check_identifier(self.identifier)
        if self.idempotency_key is not None:
            _set(self, "idempotency_key", _check_key(self.idempotency_key, "idempotency_key"))
        if self.concurrency_key is not None:
            _set(self, "concurrency_key", _check_key(self.concurrency_key, "concurrency_key"))
        if self.max_retries is not None:
            check_int(self.max_retries, "max_retries", 0, MOST_RETRIES)
        if self.timeout is not None:
            _set(self, "timeout", check_seconds(self.timeout, "timeout"))
        if self.expires_in is not None:
            _set(self, "expires_in", check_seconds(self.expires_in, "expires_in", zero=False))
        if self.result_ttl is not None:
            _set(self, "result_ttl", check_result_ttl(self.result_ttl))
        if self.scheduled_at is not None:
            _set(self, "scheduled_at", _check_moment(self.scheduled_at))
        if self.cron_expression != EVERY_MINUTE or self.zone != UTC_ZONE or self.misfire != MAKE_UP_ONE:
            self._check_schedule()
        if self.environments != ():
            _set(self, "environments", _check_names(self.environments, "environments"))
        if self.depends_on != ():
            _set(self, "depends_on", _check_names(self.depends_on, "depends_on"))
        if not (type(self.single_instance) is type(self.enabled) is type(self.unique) is bool):
            self._refuse_flags()
        if self.meta or type(self.meta) is not dict:
            _set(self, "meta", _check_meta(self.meta))
        if self.batch is not None or self.then != () or self.previous is not None:
            self._check_company()

    def _check_company(self) -> None:
        if self.batch is not None:
            check_name(self.batch, "batch")
        _set(self, "then", _check_chain(self.then))
        if self.previous is not None:
            _set(self, "previous", check_payload(self.previous, "previous"))

    def _refuse_flags(self) -> None:
        for flag in ("single_instance", "enabled", "unique"):
            if not isinstance(getattr(self, flag), bool):
                raise InvalidJob(f"{flag} is True or False, not {getattr(self, flag)!r}")

    def _check_schedule(self) -> None:
        # Imported here, with the time zones and croniter: a job that is not scheduled pays for none of them.
        from jobpool.message.cron_fields import Misfire, open_zone, parse_fields

        if not isinstance(self.cron_expression, str):
            raise InvalidJob(f"cron_expression is text, such as {EVERY_MINUTE!r}, not {self.cron_expression!r}")
        if self.cron_expression != EVERY_MINUTE:
            _set(self, "cron_expression", parse_fields(self.cron_expression).text)
        open_zone(self.zone)
        _set(self, "misfire", Misfire.parse(self.misfire).text)

    def require(self, key_store: bool, scheme: str) -> None:
        """Check that the broker of this scheme, with or without a key store, can do what this job and its chain ask.

        Raises:
            Unsupported: One needs a key store and there is none; the text says what to leave out.
            InvalidJob: `unique` without an idempotency key.
        """
        for job in (self, *self.then):
            if not key_store:
                asked = {name: getattr(job, name) for name in _NEEDS_KEY_STORE}
                if refusal := keyless(scheme, job.handler, asked):
                    raise Unsupported(refusal)
            if job.unique and job.idempotency_key is None:
                raise InvalidJob("unique needs an idempotency_key: give one, or leave unique out")

    def to_dict(self) -> dict[str, Any]:
        """Return the values that `from_dict` reads: JSON values only, fields at their default left out."""
        values: dict[str, Any] = {"handler": self.handler, "payload": self.payload}
        values |= {name: value for name, default in _DEFAULTS if (value := getattr(self, name)) != default}
        if self.scheduled_at is not None:
            values["scheduled_at"] = rfc3339(self.scheduled_at)
        if self.then:
            values["then"] = [job.to_dict() for job in self.then]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JobDefinition:
        """Return the definition that `to_dict` described, checked again.

        Raises `InvalidJob`: a value is out of bounds, a field is unknown, or `handler` is missing.
        """
        if not isinstance(values, Mapping) or "handler" not in values:
            raise InvalidJob("a definition is an object with a handler")
        if unknown := sorted(set(values) - set(cls.__dataclass_fields__)):
            raise InvalidJob(f"a definition has no field {', '.join(map(repr, unknown))}")
        known = dict(values)
        if known.get("scheduled_at") is not None:
            try:
                known["scheduled_at"] = datetime.fromisoformat(str(known["scheduled_at"]))
            except ValueError:
                raise InvalidJob(f"scheduled_at {known['scheduled_at']!r} is not an RFC 3339 date and time") from None
        if isinstance(known.get("then"), list | tuple):
            known["then"] = tuple(map(cls.from_dict, known["then"]))
        return cls(**known)

    # Copies with one field changed; each checks as the constructor does.

    def with_handler(self, handler: str) -> JobDefinition:
        return replace(self, handler=handler)

    def with_payload(self, payload: Any) -> JobDefinition:
        return replace(self, payload=payload)

    def with_name(self, name: str | None) -> JobDefinition:
        return replace(self, name=name)

    def with_queue(self, queue: str | None) -> JobDefinition:
        return replace(self, queue=queue)

    def with_priority(self, priority: int) -> JobDefinition:
        return replace(self, priority=priority)

    def with_max_retries(self, max_retries: int | None) -> JobDefinition:
        return replace(self, max_retries=max_retries)

    def with_timeout(self, timeout: float | None) -> JobDefinition:
        return replace(self, timeout=timeout)

    def with_scheduled_at(self, scheduled_at: datetime | None) -> JobDefinition:
        return replace(self, scheduled_at=scheduled_at)

    def with_single_instance(self, single_instance: bool = True) -> JobDefinition:
        return replace(self, single_instance=single_instance)

    def with_environments(self, environments: Iterable[str]) -> JobDefinition:
        return replace(self, environments=environments)  # type: ignore[arg-type]  # the constructor makes it a tuple

    def with_depends_on(self, depends_on: Iterable[str]) -> JobDefinition:
        return replace(self, depends_on=depends_on)  # type: ignore[arg-type]

    def with_cron_expression(self, cron_expression: str) -> JobDefinition:
        return replace(self, cron_expression=cron_expression)

    def with_zone(self, zone: str) -> JobDefinition:
        return replace(self, zone=zone)

    def with_misfire(self, misfire: str) -> JobDefinition:
        return replace(self, misfire=misfire)

    def with_meta(self, meta: dict[str, Any]) -> JobDefinition:
        return replace(self, meta=meta)

    def with_enabled(self, enabled: bool = True) -> JobDefinition:
        return replace(self, enabled=enabled)

    def with_idempotency_key(self, idempotency_key: str | None) -> JobDefinition:
        return replace(self, idempotency_key=idempotency_key)

    def with_unique(self, unique: bool = True) -> JobDefinition:
        return replace(self, unique=unique)

    def with_identifier(self, identifier: str | None) -> JobDefinition:
        return replace(self, identifier=identifier)

    def with_expires_in(self, expires_in: float | None) -> JobDefinition:
        return replace(self, expires_in=expires_in)

    def with_concurrency_key(self, concurrency_key: str | None) -> JobDefinition:
        return replace(self, concurrency_key=concurrency_key)

    def with_result_ttl(self, result_ttl: float | None) -> JobDefinition:
        return replace(self, result_ttl=result_ttl)

    def with_batch(self, batch: str | None) -> JobDefinition:
        made = object.__new__(JobDefinition)  # checked already, and each member of a batch is such a copy
        for name in self.__slots__:
            _set(made, name, getattr(self, name))
        _set(made, "batch", None if batch is None else check_name(batch, "batch"))
        return made

    def with_then(self, then: Iterable[JobDefinition]) -> JobDefinition:
        return replace(self, then=tuple(then))

    def with_previous(self, previous: list[Any] | None) -> JobDefinition:
        return replace(self, previous=previous)


def check_enqueue_to(job: JobDefinition | Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raise `ConfigurationError` if a pool's `enqueue_to` keeps its handlers from the queue of a job, or of its chain.

    `job`: a definition, or JSON that is meant to be its `to_dict`: what is none is left to `from_dict`. An empty
    `allowed` allows every queue.
    """
    jobs: list[Any] = [job] if allowed else []
    while jobs:
        one = jobs.pop()
        if isinstance(one, JobDefinition):
            one = {"queue": one.queue, "then": one.then}
        if not isinstance(one, dict):
            continue
        queue, then = one.get("queue") or DEFAULT_QUEUE, one.get("then")
        if queue not in allowed:
            raise ConfigurationError(
                f"the handlers of this pool may not enqueue to queue {queue!r:.80}: its setting enqueue_to allows"
                f" {', '.join(map(repr, allowed))}"
            )
        if isinstance(then, list | tuple):
            jobs += then


@dataclass(frozen=True, slots=True)
class SentJobs:
    """JSON of jobs from a child. To iterate it reads and checks each, which takes seconds of many: not in the loop."""

    sent: Raw
    enqueue_to: Collection[str]

    def __iter__(self) -> Iterator[JobDefinition]:
        try:
            for item in map(json.decode, json.decode(self.sent, type=list[Raw])):  # not all in one step of C
                check_enqueue_to(item, self.enqueue_to)
                yield JobDefinition.from_dict(item)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidJob(str(error)) from error


def check_result_ttl(value: float | timedelta, what: str = "result_ttl") -> float:
    """Return `value` as a float, or raise `InvalidJob`: seconds, or a `timedelta`, from 0 to 30 days."""
    seconds = check_seconds(value, what)
    if seconds > MAX_RESULT_TTL_S:
        raise InvalidJob(f"{what} is at most 30 days ({MAX_RESULT_TTL_S:.0f} seconds), not {value!r}")
    return seconds


def check_may_start(job: JobDefinition, now: datetime) -> JobDefinition:
    """Return the job, or raise `InvalidJob`: if it is enqueued now, it expires before it may start."""
    if job.expires_in is not None and job.scheduled_at is not None:
        wait = (job.scheduled_at - now).total_seconds()
        if wait >= job.expires_in:
            raise InvalidJob(
                f"job {job.handler!r} would never run: it starts after {wait:.12g} s at the earliest (delay,"
                f" scheduled_at), and expires after {job.expires_in:.12g} s (expires_in), both from its enqueue"
            )
    return job


def result_ttl_of(job: float | None, handler: float | None, queue: float | None = None) -> float:
    """Return for how many seconds a result is kept: the job's, else its handler's, else its queue's; 0 = it is not."""
    return next((seconds for seconds in (job, handler, queue) if seconds is not None), 0.0)


def timeout_of(job: float | None, handler: float | None, default: float, most: float) -> float:
    """Return the timeout of an attempt: the job's, else its handler's, else the default, and `most` at most.

    All in seconds; 0 = unlimited, any of them.
    """
    asked = handler if job is None else job
    timeout = default if asked is None else asked
    return min(timeout or most, most) if most else timeout


def rfc3339(moment: datetime) -> str:
    """Return a timezone-aware moment as RFC 3339 in UTC, to the microsecond."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _check_moment(moment: datetime) -> datetime:
    if not isinstance(moment, datetime):
        raise InvalidJob(f"scheduled_at is a datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise InvalidJob(
            f"scheduled_at {moment.isoformat()} has no timezone: write datetime(…, tzinfo=UTC),"
            " or datetime.now(UTC) + timedelta(…)"
        )
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise InvalidJob(f"scheduled_at {moment.isoformat()} is outside the years 1 to 9999 in UTC") from None


def _check_key(key: str, what: str) -> str | None:
    if not isinstance(key, str):
        raise InvalidJob(f"{what} is text, not {type(key).__name__}")
    trimmed = key.strip()
    return check_name(trimmed, what) if trimmed else None


def _check_meta(meta: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(meta, dict):
        raise InvalidJob(f"meta is an object, not {meta!r}: write meta={{...}}, or leave it out")
    copy: dict[str, Any] = check_payload(meta, "meta")
    for key in copy:
        if is_reserved(key):
            raise InvalidJob(f"meta key {key!r} is reserved: 'v' and keys starting with '_' belong to the wire")
    return copy


def _check_chain(jobs: Iterable[JobDefinition]) -> tuple[JobDefinition, ...]:
    """Return the jobs with those that come after each of them, in one row."""
    known = tuple(jobs) if isinstance(jobs, Iterable) else (jobs,)
    for job in known:
        if not isinstance(job, JobDefinition):
            raise InvalidJob(f"then is a list of definitions: {job!r} is none")
    return tuple(each for job in known for each in (replace(job, then=()), *job.then))


def is_reserved(key: str) -> bool:
    """Return whether a meta key belongs to the wire and not to the producer."""
    return key == "v" or key.startswith("_")


def _check_names(names: Iterable[str], what: str) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidJob(f"{what} is a list of names, not {names!r}")
    return tuple(check_name(name, f"a name in {what}") for name in names)


_NEEDS_KEY_STORE = ("unique", "single_instance", "concurrency_key", "idempotency_key", "result_ttl", "batch")
_DEFAULTS: tuple[tuple[str, Any], ...] = tuple(
    (part.name, {} if part.name == "meta" else part.default)
    for part in fields(JobDefinition)
    if part.name not in ("handler", "payload")
)
