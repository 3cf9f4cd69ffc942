"""The program of `jobpool cron run` and of a pool's own scheduler: import the app, open the broker, fire until stopped.

`CronLoop` waits until something is due, does it and says so. It waits out an outage of the broker, or a refusal.
"""

from __future__ import annotations

import logging
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any, Self

from setproctitle import setproctitle

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.client.worker import inline_runner
from jobpool.clock import ONE_SIGNAL_S
from jobpool.cron.firing import Firing, FiringStatus
from jobpool.cron.runner import CronRunner
from jobpool.cron.scheduler import Scheduler, known_schedulers
from jobpool.cron.tick import SIGNALS
from jobpool.errors import NO_APP, OUTAGES, AccessRefused, ConfigurationError
from jobpool.handlers import event_loop as loops
from jobpool.handlers.app import load
from jobpool.handlers.registry import DEFAULT
from jobpool.ipc.alarm import is_in_call
from jobpool.ipc.frames import MAX_SAID_BYTES
from jobpool.ipc.process_options import ChildOptions
from jobpool.ipc.scheduler_process import READY, TURNS_EVERY_S, CronStart, MasterPipe
from jobpool.message import producer
from jobpool.message.definition import rfc3339
from jobpool.message.masking import Masker
from jobpool.message.signing import EnvelopeSigner
from jobpool.telemetry.logs import JOB_LOG

FIRST_RETRY_PAUSE_S = 1.0
MAX_RETRY_PAUSE_S = 30.0  # seconds between two tries while the broker is silent: doubling from the one to the other
MIN_SLEEP_S = 0.001  # seconds: a timer that ends a hair too early must not make a busy loop

MAX_OUTPUT_LINES = 100  # of one inline run that go to the log

log = logging.getLogger("jobpool.cron")
job_log = logging.getLogger(JOB_LOG)
_masker = cache(Masker)

EVENTS = {
    FiringStatus.FIRED: (logging.INFO, "schedule fired"),
    FiringStatus.ALREADY: (logging.DEBUG, "fired by another scheduler"),
    FiringStatus.SKIPPED: (logging.INFO, "schedule skipped"),
    FiringStatus.MISSED: (logging.WARNING, "firings were missed"),
    FiringStatus.FAILED: (logging.ERROR, "firing failed"),
    FiringStatus.LATER: (logging.DEBUG, "firing is tried again"),
}
"""How the result of an instant is logged."""


# --- the loop -----------------------------------------------------------------------------------------


class Stop:
    """The waiting place of the loop. As a context on the main thread, SIGTERM, SIGINT and SIGHUP end it.

    The first signal lets an inline job finish. The second raises `KeyboardInterrupt` in it, so that its attempt fails
    now. If that is resisted, the third ends the process, with status 128 + the signal's number. A pipe, and not an
    event: a signal handler must not take a lock that its own thread is just about to take. `on_turn` is called whenever
    somebody asks whether to stop, and now and then in a sleep.
    """

    def __init__(self, on_turn: Callable[[], object] = lambda: None) -> None:
        self._on_turn = on_turn
        self._here, self._there = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._here, select.POLLIN)
        self._before: dict[int, Any] = {}
        self._is_set = False
        self._signals = 0
        self._last = (0, 0.0)  # signal, and CLOCK_MONOTONIC seconds at which it counted

    def stop(self) -> None:
        """End it soon. Safe in signal handlers, and from other threads."""
        self._is_set = True
        os.write(self._there, b"!")

    def stopped(self) -> bool:
        self._on_turn()
        return self._is_set

    def sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.stopped() and (left := until - time.monotonic()) > 0:
            self._poll.poll(1000 * min(left, TURNS_EVERY_S))

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by `nohup`
            numbers = [number for number in SIGNALS if not (is_detached and number == signal.SIGHUP)]
            self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():  # None: set by C code, which Python cannot put back
            signal.signal(number, handler or signal.SIG_DFL)
        os.close(self._here)
        os.close(self._there)

    def _note(self, number: int, frame: FrameType | None) -> None:
        last, at = self._last
        now = time.monotonic()
        if number == last and now < at + ONE_SIGNAL_S:
            return
        self._last = (number, now)
        self._signals += 1
        self.stop()
        if self._signals > 2:
            os._exit(128 + number)
        if self._signals == 2 and is_in_call(frame):
            loops.stop()
            raise KeyboardInterrupt("ended by a second signal")


class CronLoop:
    """A loop that runs a `CronRunner` at the right moments, and tells `tell` the firings of each turn."""

    def __init__(self, runner: CronRunner, sleeper: Stop, tell: Callable[[Sequence[Firing]], object]) -> None:
        self._runner = runner
        self._sleeper = sleeper
        self._tell = tell
        self._retries = 0
        self._silent = ""
        self._is_ready = False

    def run(self) -> None:
        """Go on until the sleeper is stopped. Blocks; an inline job is run to its end, and no other is begun."""
        while not self._sleeper.stopped():
            self._sleeper.sleep(self._turn())

    def _turn(self) -> float:
        """Do what is due; for how many seconds there is nothing to do then."""
        try:
            firings = self._runner.run(stopped=self._sleeper.stopped)
            self._tell(firings)
            self._note_broker(self._runner.silence)
            if not self._is_ready:
                self._is_ready = True
                self._say_ready()
            if any(firing.status is FiringStatus.LATER for firing in firings):
                return min(self._pause(), self._until_due())
            self._retries = 0
            return self._until_due()
        except OUTAGES as error:
            if isinstance(error, AccessRefused) and not self._is_ready:
                raise
            self._note_broker(str(error))
            return self._pause()

    def _until_due(self) -> float:
        """Return seconds until the next instant that is not yet there; one that is undecided has its own pause."""
        patience, now = self._runner.time.check_interval, self._runner.time.now()
        patience = max(patience, MAX_RETRY_PAUSE_S) if self._retries else patience  # to look is to try again
        due = self._runner.next_due(now if self._retries else None)
        return patience if due is None else min(max((due - now).total_seconds(), MIN_SLEEP_S), patience)

    def _pause(self) -> float:
        pause = min(MAX_RETRY_PAUSE_S, FIRST_RETRY_PAUSE_S * 2.0 ** min(self._retries, 10))
        self._retries += 1
        return pause * random.uniform(0.75, 1.0)

    def _note_broker(self, error: str) -> None:
        """Log an outage once, and its end once."""
        if error and not self._silent:
            log.warning("firings wait for the broker", extra={"fields": {"error": error}})
        elif self._silent and not error:
            log.info("the broker answers again")
        self._silent = error

    def _say_ready(self) -> None:
        served = [one for one in self._runner.planned if self._runner.serves(one)]
        due = self._runner.next_due()
        clock = "the broker's" if self._runner.time.broker.of_broker else "this machine's"
        fields = {"schedules": len(served), "clock": clock, "next": "never" if due is None else rfc3339(due)}
        log.info("cron is ready", extra={"fields": fields})


def report(firings: Sequence[Firing], options: ChildOptions) -> None:
    """Log what became of instants, after what inline jobs have printed."""
    for firing in firings:
        say_output(firing, options)
        level, event = EVENTS[firing.status]
        fields = firing.to_dict()
        fields.pop("status")
        for key in {"why", "stack"} & fields.keys():
            fields[key] = _masker(tuple(options.mask_keys)).text(fields[key])
        limit = {} if firing.status is FiringStatus.FIRED else {"limit": f"{event}: {firing.name}"}
        log.log(level, event, extra={"fields": fields, **limit})


def say_output(firing: Firing, options: ChildOptions) -> None:
    """Log what an inline job has printed and returned, a line each, as a pool does for its jobs."""
    if not firing.output or options.lines_level > logging.INFO:
        return
    lines = _masker(tuple(options.mask_keys)).text(firing.output).splitlines()
    if len(lines) > MAX_OUTPUT_LINES:
        lines[MAX_OUTPUT_LINES:] = [f"… {len(lines) - MAX_OUTPUT_LINES:,} more lines"]
    for line in lines:
        job_log.info("%s", line[:MAX_SAID_BYTES], extra={"fields": {"schedule": firing.name}})


# --- the program --------------------------------------------------------------------------------------


def schedules_of(options: ChildOptions, *, may_be_empty: bool = False) -> list[Scheduler]:
    """Import the app, and return the schedulers that it has made. Blocks for the import.

    Raises `ConfigurationError`: no app is named, it does not import, or it has no schedule, unless it `may_be_empty`.
    """
    if not options.apps:
        raise ConfigurationError(NO_APP)
    load(options, may_be_empty=True)
    schedulers = [scheduler for scheduler in known_schedulers() if scheduler.entries]
    if not (schedulers or may_be_empty):
        raise ConfigurationError(
            f"the app {', '.join(options.apps)} declares no schedule: make a scheduler = jobpool.Scheduler() at the top"
            " of a module, and define jobs with it"
        )
    return schedulers


@contextmanager
def opened(start: CronStart) -> Iterator[QueueBackend]:
    """Yield the broker, open for the block; jobs that handlers enqueue there go to it. Raises as `open_backend`."""
    signer = EnvelopeSigner(list(start.signing_keys) or None)
    runner = inline_runner(default_timeout=start.default_timeout)  # of sync:// alone
    backend = open_backend(start.backend, signer=signer, runner=runner)
    try:
        producer.set_default(backend)
        yield backend
    finally:
        producer.set_default(None)
        backend.close()


def runner_of(start: CronStart, backend: QueueBackend, schedulers: list[Scheduler]) -> CronRunner:
    """Return the runner that `start` describes. Raises as `CronRunner`."""
    return CronRunner(
        schedulers,
        backend,
        environment=start.environment,
        grace=start.grace,
        name=start.name,
        only=start.only,
        default_timeout=start.default_timeout,
    )


def serve(start: CronStart, master: MasterPipe | None = None) -> None:
    """Fire what is due until SIGTERM, SIGINT or SIGHUP. Call it on the main thread.

    Until the app is imported and the broker has answered, those signals keep their old effect, so that a hanging import
    can be stopped. `master`: this process is a pool's own. It tells the master when nothing can refuse the start any
    more, that it turns, and how late firings were. As in the pool's children, its jobs enqueue only to the pool's
    broker, whatever URL a `Jobs` names.

    Raises `ConfigurationError`: the app or a setting cannot work, or the broker refuses this program at the start.
    `BackendUnavailable`: it does not answer then. Later outages and refusals are waited out.
    """

    def tell(firings: Sequence[Firing]) -> None:
        report(firings, start.options)
        late = [firing.lateness for firing in firings if firing.status is FiringStatus.FIRED]
        if master is not None:
            master.fired(late)

    setproctitle(f"jobpool: cron [{start.name}]")
    schedulers = schedules_of(start.options, may_be_empty=start.may_be_empty)
    with opened(start) as backend:
        backend.ping()
        stop = Stop() if master is None else Stop(master.turn)
        if master is not None:
            producer.enter_child(backend)
        runner = runner_of(start, backend, schedulers)
        with stop:
            if master is not None:
                runner.on_inline = master.begin
                master.say(READY)
            warn_of_unfit(runner, start.environment)
            CronLoop(runner, stop, tell).run()


def warn_of_unfit(runner: CronRunner, environment: str | None) -> None:
    """Log a warning for each schedule that is served here and whose jobs the imported app cannot run.

    Also of one that is due each minute, or runs inline, perhaps because a step was forgotten. And one if schedules name
    environments, but none names this one: it may be misspelt.
    """
    known = sorted({name for one in runner.planned for name in one.definition.environments})
    if environment and known and environment not in known:
        log.warning("no schedule names this environment", extra={"environment": environment, "named": known})
    for one in runner.planned:
        if not runner.serves(one):
            continue
        if why := DEFAULT.unfit(one.definition):
            log.warning("jobs of a schedule cannot run", extra={"fields": {"schedule": one.name, "why": why}})
        if not one.entry.builder.is_timed:
            mend = 'say when, such as .daily_at("06:30"), or .every_minute()'
            log.warning("a schedule names no time", extra={"fields": {"schedule": one.name, "mend": mend}})
        if one.is_inline and (handler := DEFAULT.find(one.definition.handler)) and handler.queues:
            queue = handler.queues[0]
            why = f"its handler names queue {queue!r}, but it runs inline, without retries"
            fields = {"schedule": one.name, "why": why, "mend": f"write .queue({queue!r}), or handler.define(…)"}
            log.warning("a schedule does not use its handler's queue", extra={"fields": fields})
