"""The program of `jobpool cron run` and of a pool's companion: import the app, open the broker, fire until told to
end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from setproctitle import setproctitle

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.client.worker import inline_runner
from jobpool.cron.firing import Firing, FiringStatus
from jobpool.cron.loop import CronLoop, report
from jobpool.cron.runner import CronRunner
from jobpool.cron.scheduler import Scheduler, known_schedulers
from jobpool.cron.stopping import Stop
from jobpool.errors import ConfigurationError
from jobpool.handlers.app import load
from jobpool.ipc.process_options import ChildOptions
from jobpool.ipc.scheduler_process import CronStart
from jobpool.message import producer
from jobpool.message.signing import EnvelopeSigner


def schedules_of(options: ChildOptions) -> list[Scheduler]:
    """Import the app; the schedulers that it has made.

    Raises:
        ConfigurationError: It names no app, the app does not import, or it declares no schedule.

    Blocks for the import.
    """
    if not options.apps:
        raise ConfigurationError(
            "no application: name the module with your schedules, --app myapp.jobs or apps in jobpool.toml"
        )
    load(options, may_be_empty=True)
    schedulers = [scheduler for scheduler in known_schedulers() if scheduler.entries]
    if not schedulers:
        raise ConfigurationError(
            f"{', '.join(options.apps)} declares no schedule: make a scheduler = jobpool.Scheduler() at the top of a"
            " module, and define jobs with it"
        )
    return schedulers


@contextmanager
def opened(start: CronStart) -> Iterator[QueueBackend]:
    """Yield the broker, open for the block; jobs that handlers enqueue there go to it, too.

    Raises:
        ConfigurationError, BackendUnavailable: It cannot be opened, or does not answer.
    """
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


def serve(
    start: CronStart,
    *,
    companion: bool = False,
    on_ready: Callable[[], object] | None = None,
    on_fired: Callable[[list[float]], object] | None = None,
) -> None:
    """Fire what is due until SIGTERM or SIGINT. Call it on the main thread.

    Until the app is imported and the broker has answered, those signals keep their old effect, so that a hanging import
    can be stopped.

    Args:
        start: The scheduler's settings.
        companion: This process is a pool's own. As in the pool's children, its jobs enqueue only to the pool's broker,
            whatever URL a `Jobs` names.
        on_fired: Called after a turn in which something was fired, with the lateness of each, in seconds.
        on_ready: Called once nothing can refuse the start any more, before the first firing.

    Raises:
        ConfigurationError: The app or a setting cannot work.
        BackendUnavailable: The broker does not answer at the start. Later outages are waited out.
    """
    setproctitle(f"jobpool: cron [{start.name}]")
    schedulers = schedules_of(start.options)
    with opened(start) as backend:
        backend.ping()
        if companion:
            producer.enter_child(backend)
        runner = runner_of(start, backend, schedulers)
        with Stop() as stop:
            if on_ready is not None:
                on_ready()
            CronLoop(runner, stop, None if on_fired is None else partial(_tell, on_fired)).run()


def _tell(on_fired: Callable[[list[float]], object], firings: Sequence[Firing]) -> None:
    report(firings)
    late = [firing.lateness for firing in firings if firing.status is FiringStatus.FIRED]
    if late:
        on_fired(late)


def read_start(fd: int) -> CronStart:
    """Read the start that the pool's master has written to this descriptor, which is closed."""
    try:
        return CronStart.from_json(os.pread(fd, os.fstat(fd).st_size, 0))
    finally:
        os.close(fd)
