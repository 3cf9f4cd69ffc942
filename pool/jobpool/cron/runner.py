"""`CronRunner`: fires what schedules ask for at one moment. Any number of them may run, on any number of machines.

The unique enqueue of an instant (`QueueBackend.enqueue_once`), or the right to run it inline, decides which of them
fires. Each keeps in its own memory what it has seen. The records in the broker (records.py) only tell it where to
begin, and what others have done while it was away.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from jobpool.broker.backend import QueueBackend
from jobpool.broker.broker_time import ASK_EVERY, BrokerTime
from jobpool.broker.finding import Finding, Level
from jobpool.client.worker import DEFAULT_TIMEOUT
from jobpool.clock import Clock
from jobpool.cron.firing import GRACE, Firing, FiringStatus
from jobpool.cron.records import MAX_AHEAD, SILENT, SILENT_MEND, Owner, ScheduleStates, load, silent_until
from jobpool.cron.scheduler import Planned, Scheduler, plan
from jobpool.cron.tick import FiringContext, Tick, for_instant, taken
from jobpool.errors import ConfigurationError, JobpoolError, check_seconds
from jobpool.handlers.registry import DEFAULT, HandlerRegistry
from jobpool.message.definition import JobDefinition, rfc3339
from jobpool.message.names import listed

CLOCK_LOOK_S = 1.0
"""Seconds for which a scheduler sleeps at most while this machine's wall clock counts: somebody may set it."""

MAX_GRACE_S = 12 * 3600.0
"""Seconds: what was missed longer ago is never made up for, because firings are remembered for a day only."""

log = logging.getLogger("jobpool.cron")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CronTime:
    """The time for schedules: the broker's clock if it has one, so that machines with wrong clocks agree."""

    def __init__(self, backend: QueueBackend, clock: Clock | None = None) -> None:
        self.broker = BrokerTime(backend.broker_time, clock or backend.clock)

    def now(self) -> datetime:
        """Return the time, aware, in UTC, to the microsecond. Raises and blocks as `BrokerTime.now`."""
        return _EPOCH + timedelta(microseconds=round(self.broker.now() * 1e6))

    @property
    def check_interval(self) -> float:
        """Seconds after which a sleeper has to look at the time again, whatever it waits for."""
        return ASK_EVERY if self.broker.of_broker else CLOCK_LOOK_S


class CronRunner:
    """A runner that fires due jobs. Use it on one thread; on the main one, inline jobs have a hard timeout.

        CronRunner(scheduler, open_backend("redis://localhost/0")).run()      # each minute, or as often as you like

    `jobpool cron run` does that, at the right moments. A `now` without a time zone raises `ConfigurationError`.

    Args:
        schedulers: One, or several that are one plan together.
        backend: Where jobs are enqueued, and schedulers meet. It stays its owner's.
        registry: The handlers of inline jobs; None = those of `@jobpool.handler`.
        environment: Jobs that name environments run here only if this one is among them; None = none of those do.
        clock: This machine's clock; None = the backend's. Where the broker has a clock of its own, that one counts.
        grace: Seconds, 0 to 43,200, within which a missed instant is made up for.
        name: Name of this scheduler in records.
        only: True promises that no other scheduler uses this broker. Needed if the broker keeps no keys: then firings
            before this runner was made are unknown.
        default_timeout: Seconds, >= 0, for inline jobs and handlers that set none; 0 = unlimited.

    Raises `ConfigurationError`: a schedule is refused, two have one name, one depends on a missing job, or on itself;
    the texts name where they were declared. Or `grace` is out of bounds, or the broker keeps no keys without `only`.
    """

    def __init__(
        self,
        schedulers: Scheduler | Iterable[Scheduler],
        backend: QueueBackend,
        *,
        registry: HandlerRegistry | None = None,
        environment: str | None = None,
        clock: Clock | None = None,
        grace: float = GRACE,
        name: str = "jobpool",
        only: bool = False,
        default_timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.planned = plan([schedulers] if isinstance(schedulers, Scheduler) else schedulers)
        self._states = ScheduleStates(self.planned, None if _is_alone(backend, only) else backend.keys)
        self._context = FiringContext(
            backend,
            self._states,
            DEFAULT if registry is None else registry,
            check_seconds(default_timeout, "default_timeout"),
            Owner(socket.gethostname(), os.getpid(), name),
            check_grace(grace),
            environment,
            lambda schedule: self.on_inline(schedule),
        )
        self.time = CronTime(backend, clock)
        self._told_ahead: set[str] = set()
        self.on_inline: Callable[[str], object] = lambda _: None  # called before the job of that schedule runs here
        self.silence = ""  # why the broker took not all in the last `run`; "" = it did

    def serves(self, planned: Planned) -> bool:
        """Return whether this runner fires it: it is enabled, and meant for this environment."""
        return self._context.serves(planned)

    def due_definitions(self, now: datetime | None = None) -> list[JobDefinition]:
        """Return the jobs that this runner serves, of which an instant lies in the minute of `now` and not after it.

        Raises `BackendUnavailable`: the time was to be asked, and the broker has never answered.
        """
        at = self.time.now() if now is None else _aware(now)
        return [one.definition for one in self.planned if self.serves(one) and one.schedule.is_due(at)]

    def next_due(self, after: datetime | None = None) -> datetime | None:
        """Return when something is due next, as far as `run` has seen; later than `after`, if given. None: never."""
        times = [self._states[one].next for one in self.planned if self.serves(one)]
        return min((time for time in times if time is not None and (after is None or time > after)), default=None)

    def run(self, now: datetime | None = None, *, stopped: Callable[[], bool] = lambda: False) -> list[Firing]:
        """Do what is due, and return the result of each instant, in order.

        Jobs that have a queue are enqueued, the others run, one attempt each, here and now. No failure stops the rest.
        Jobs that depend on an inline job that failed are held back. A new schedule begins with the minute of `now`; for
        others, missed instants are made up for by their misfire policy.

        Args:
            now: None = now, which is what a scheduler wants. Earlier than the last time: nothing is due again.
            stopped: Asked before each firing; True: this one and those after it are left to the next turn.

        Raises `BackendUnavailable` or `AccessRefused`: the broker could not be asked for the time, or for firings of
        others. It is safe to call again.

        Blocks for the inline jobs, and about six round trips. These are for 1,000 firings together if the broker keeps
        keys. A firing that is inline, has dependencies, or makes up for several instants has its own.
        """
        fixed = None if now is None else _aware(now)
        tick = Tick(self._context, self.time.now if fixed is None else lambda: fixed, stopped)
        self._states.read(tick.now)
        self._note_ahead(tick.now)
        tick.run(self.planned)
        self.silence = next(iter(tick.silent.values()), "")
        return tick.firings

    def try_out(self, now: datetime) -> list[Firing]:
        """Do what is due in the minute of `now`, as if it were then, and leave no trace of it among the records.

        The jobs are enqueued, or run, in truth: under ids of their own, so that the firings to come are not affected.

        Blocks for the inline jobs, and a round trip a firing.
        """
        now = _aware(now)
        firings: list[Firing] = []
        bad: set[str] = set()
        for planned in self.planned:
            at = planned.schedule.previous(now)
            if at is not None and planned.schedule.is_due(now):
                firing = _try(planned, self._context, at, bad)
                firings.append(firing)
                if planned.is_inline and self.serves(planned) and firing.status is not FiringStatus.FIRED:
                    bad.add(planned.name)
        return firings

    def _note_ahead(self, now: datetime) -> None:
        """Say once which schedules are silent for long, because a clock was ahead and has been put back."""
        seen = {one.name: self._states[one].seen for one in self.planned if self.serves(one)}
        ahead = {name: until for name, until in seen.items() if until and until > now + MAX_AHEAD}
        if new := ahead.keys() - self._told_ahead:
            names = sorted(new)
            until = rfc3339(max(ahead[name] for name in names))
            fields = {"name": listed(names), "until": until, "now": rfc3339(now), "mend": SILENT_MEND}
            log.warning(SILENT, extra={"fields": fields})
        self._told_ahead = set(ahead)


def _try(planned: Planned, context: FiringContext, at: datetime, bad: set[str]) -> Firing:
    """Fire it in truth; skip it when one of `bad`, the jobs that have failed, is what it depends on."""
    failed = [f"{name} failed" for name in planned.definition.depends_on if name in bad]
    if why := planned.why_not(context.environment) or next(iter(failed), None):
        return Firing(planned.name, at, FiringStatus.SKIPPED, why=why)
    try:
        definition = for_instant(planned.entry.definition(), at).with_identifier(secrets.token_hex(8))
        if planned.is_inline:
            return context.run_inline(planned.name, definition, at, 0.0)
        ident = context.backend.enqueue(definition)
        if definition.unique and ident != definition.identifier:
            return Firing(planned.name, at, FiringStatus.SKIPPED, why=taken(definition, ident))
        return Firing(planned.name, at, FiringStatus.FIRED, id=ident)
    except JobpoolError as error:
        return Firing(planned.name, at, FiringStatus.FAILED, why=str(error))


def silent_schedules(backend: QueueBackend, names: Collection[str]) -> Iterator[Finding]:
    """Yield a finding that names those of these schedules that fire nothing, because a clock was ahead. Asks the
    broker.
    """
    if not names or not backend.capabilities.key_store:
        return
    now, records = CronTime(backend).now(), load(backend.keys, names)
    silent = [f"{name} until {rfc3339(until)}" for name in names if (until := silent_until(records.get(name), now))]
    if silent:
        yield Finding("schedules", Level.PROBLEM, f"schedules are silent: {', '.join(silent)}", SILENT, SILENT_MEND)


def check_grace(grace: float) -> float:
    """Return `grace`, or raise `ConfigurationError`: 0 to 43,200 seconds."""
    if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace <= MAX_GRACE_S:
        raise ConfigurationError(
            f"the grace for missed firings is 0 to {MAX_GRACE_S:.0f} seconds (12 hours), not {grace!r}: what fired is"
            " remembered for a day only"
        )
    return float(grace)


def _is_alone(backend: QueueBackend, only: bool) -> bool:
    """Return whether no other scheduler has to be asked. Raises `ConfigurationError` where it could not be."""
    if backend.capabilities.key_store:
        return False
    if not only:
        raise ConfigurationError(
            f"{backend.scheme}:// keeps no keys, so that two schedulers would fire everything"
            " twice: choose a backend that keeps keys, or give your word that there is one scheduler only,"
            " with --only-scheduler (in Python: only=True)"
        )
    if not backend.capabilities.keeps_records:
        why = f"{backend.scheme}:// knows no ids, and this scheduler no earlier one"
        mend = "let handlers stand a job that comes twice"
        log.warning("a firing can be enqueued twice, after a restart", extra={"fields": {"why": why, "mend": mend}})
    return True


def _aware(now: datetime) -> datetime:
    if now.utcoffset() is None:
        raise ConfigurationError(f"{now.isoformat()} has no time zone: write datetime(…, tzinfo=UTC)")
    return now.astimezone(UTC)
