"""Builds a pool from its settings, compares these with its broker's capabilities, and runs it."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from msgspec import Struct
from msgspec.structs import asdict
from setproctitle import setproctitle

from jobpool import __version__
from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import cautions_of
from jobpool.broker.opening import open_backend, redact
from jobpool.broker.values import ReapPolicy
from jobpool.errors import ConfigurationError, JobpoolError
from jobpool.ipc import linux
from jobpool.ipc.fork_client import ForkServerClient
from jobpool.ipc.process_options import NO_LINES, ChildOptions, ForkServerConfig, scrubbed
from jobpool.ipc.requests import RequestSocket
from jobpool.ipc.scheduler_process import CronStart
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master import events as ev
from jobpool.master.acquire import KEEPS_NO_KEYS, check_key_store
from jobpool.master.child_processes import ChildProcesses
from jobpool.master.fetch_thread import FetchThread
from jobpool.master.inbox import Inbox, Signals
from jobpool.master.loop import Master
from jobpool.master.plan import Planner
from jobpool.master.scheduler import SchedulerStarter
from jobpool.master.serving import OtherPools, Surveyed
from jobpool.master.settle_thread import COUNT_EVERY_S, SettleThread
from jobpool.master.state import Pool, slot_count
from jobpool.master.telemetry import Publisher, Telemetry, make_telemetry
from jobpool.message.masking import Masker
from jobpool.message.setting_types import usable_cpus
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import LeaseInspector
from jobpool.policy.limits import Limits
from jobpool.settings import Settings
from jobpool.telemetry.metrics.catalogue import MetricsCollector
from jobpool.telemetry.metrics.memory import MemoryMetrics, RelayedMetrics

COUNT_EVERY_UNTIL_EMPTY_S = 0.2  # seconds between two looks at the counts when the pool ends as soon as they are 0

DESCRIPTORS_A_CHILD = 8
DESCRIPTORS_BESIDES = 128  # open files of the master at most: for each slot, and for brokers, logs and the rest

MAX_SURVEYED = 100  # queues that are looked at by a start: each costs a round trip

log = logging.getLogger("jobpool.pool")


class MachinePools(Struct, frozen=True):
    """The other pools on this machine: `announce` to them what this one serves, and `read` what they do. Files."""

    announce: Callable[[Sequence[str]], object] = lambda _: None
    read: Callable[[], OtherPools] = OtherPools


def run_pool(
    settings: Settings,
    *,
    backend: QueueBackend | None = None,
    on_start: Callable[[Scoreboard], None] | None = None,
    collector: MetricsCollector | None = None,
    wrap: Callable[[QueueBackend], QueueBackend] | None = None,
    last: bool = False,
    machine_pools: MachinePools | None = None,
    begun: ForkServerClient | None = None,
) -> int:
    """Run a pool until it is told to stop; its exit status: 0, or 1 with `fail_on_dead`.

    Args:
        settings: Checked already.
        backend: Used in place of `settings.backend`; the caller closes it. For half a second after the end a thread
            may still wait in it. That thread then ends without a call, so the backend may be closed before.
        on_start: Called once with the scoreboard, before the first child.
        collector: Gets each event that the pool's own metrics count, as it happens.
        wrap: Called once with the broker; the pool works with what it returns, and closes it with the broker.
        last: The process ends with the pool: from its end on, signals do nothing but for QUIT.
        machine_pools: The other pools on this machine; None = there are none.
        begun: A fork server that waits to be told, and has imported what it can meanwhile. The caller discards it.

    Raises:
        ConfigurationError: The machine or a setting cannot work.
        BackendUnavailable: The broker does not answer at the start. Later outages are waited out.
        JobpoolError: The app does not load at the start, or a thread of the master failed.

    Blocks. Installs signal handlers when called on the main thread, and puts the old ones back unless it is the `last`.
    """
    linux.check_kernel()
    _allow_descriptors(settings.workers)
    signer = EnvelopeSigner(settings.signing_keys() or None)
    broker = backend or open_backend(settings.backend, signer=signer)
    try:
        broker = wrap(broker) if wrap else broker
        check_compatibility(settings, broker)
        broker.ping()
        for caution in cautions_of(broker.diagnose()):
            log.warning("the broker's settings", extra={"fields": {"caution": caution}})
        with _new_board(settings) as board:
            machine_pools = machine_pools or MachinePools()
            return _run(settings, broker, signer, board, last, on_start, collector, machine_pools, begun)
    finally:
        if backend is None:
            broker.close()


def _run(
    settings: Settings,
    backend: QueueBackend,
    signer: EnvelopeSigner,
    board: Scoreboard,
    last: bool,
    on_start: Callable[[Scoreboard], None] | None,
    collector: MetricsCollector | None,
    machine_pools: MachinePools,
    begun: ForkServerClient | None,
) -> int:
    linux.become_subreaper()
    _entitle(settings, settings.queue_names)
    pool = Pool(
        settings,
        now=backend.clock.mono(),
        can=backend.capabilities,
        wall=backend.time.last,
        metrics=MemoryMetrics() if collector is None else RelayedMetrics(collector),
    )
    with ExitStack() as stack:
        inbox = stack.enter_context(closing(Inbox()))
        signals = stack.enter_context(closing(Signals(last=last)))
        telemetry = make_telemetry(settings, backend, board, inbox)
        if telemetry is not None:
            stack.callback(telemetry.close)
        children = ChildProcesses(fork_server_config(settings), board, _environ_of_app(settings, backend), begun)
        signals.install()
        children.watch(signals.fileno(), signals.read)
        master = _master(settings, pool, backend, signer, board, children, inbox, telemetry, machine_pools)
        if on_start:
            on_start(board)
        with _rare_collections(), _hearing_requests(settings, children):
            status = master.run()
    if pool.fatal:
        raise _fatal(pool)
    return status


@contextmanager
def _hearing_requests(settings: Settings, children: ChildProcesses) -> Iterator[None]:
    """Hear the requests of `jobpool top`. Without its socket the pool works all the same."""
    with ExitStack() as opened:
        try:
            if settings.board_path:
                requests = opened.enter_context(closing(RequestSocket(settings.board_path)))
                children.watch(requests.fileno(), lambda: [ev.Requested(*one) for one in requests.read()])
        except OSError as error:
            log.warning("`jobpool top` can only look at this pool", extra={"fields": {"error": str(error)}})
        yield


def _environ_of_app(settings: Settings, backend: QueueBackend) -> dict[str, str]:
    """Return the environment without the credentials of the broker and of the pool; log which of the broker's went."""
    kept = [name for name in backend.credential_variables if name in os.environ]
    if kept:
        log.info("the app does not get the broker's credentials", extra={"fields": {"variables": kept}})
    # Children share the processors: two with all of them for BLAS or OpenMP were eight times as slow.
    return {"OMP_NUM_THREADS": str(max(1, usable_cpus() // settings.workers)), **scrubbed(os.environ, kept)}


def _fatal(pool: Pool) -> JobpoolError:
    """Return the error that ended the pool, with the stack of the app's import as a note, if that failed."""
    mask = Masker(pool.settings.history.mask).text
    fatal = JobpoolError(mask(pool.fatal))
    if pool.fatal_stack:
        fatal.add_note(mask(pool.fatal_stack))
    return fatal


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Leave what is here already out of garbage collections, and collect more rarely.

    Each job makes and drops about ten objects, none of them in a reference cycle. At Python's own threshold of 700 the
    collector would run in vain about 100 times a second. That costs 3 % of a pool's rate on SQLite, 10 % in memory.
    """
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _master(
    settings: Settings,
    pool: Pool,
    backend: QueueBackend,
    signer: EnvelopeSigner,
    board: Scoreboard,
    children: ChildProcesses,
    inbox: Inbox,
    telemetry: Telemetry | None,
    machine_pools: MachinePools,
) -> Master:
    count_every = COUNT_EVERY_UNTIL_EMPTY_S if settings.until_empty else COUNT_EVERY_S
    inspector = LeaseInspector(signer, settings.queue_handlers)
    settle_thread = SettleThread(
        backend,
        settings.queue_names,
        settings.ttl,
        ReapPolicy(settings.max_crashes),
        inbox,
        count_every,
        settings.dead_letter_queue,
        partial(_survey, backend, machine_pools, settings.dead_letter_queue),
        until_empty=settings.until_empty,
    )
    return Master(
        pool=pool,
        planner=Planner(settings.retry, backend.pack),
        backend=backend,
        children=children,
        inbox=inbox,
        fetch_thread=FetchThread(backend, settings.queues, settings.ttl, inspector, inbox, limits_of(settings)),
        settle_thread=settle_thread,
        publisher=_publisher(settings, board, settle_thread.reap_every),
        serves=partial(_announce_queues, settings, board, machine_pools),
        telemetry=telemetry,
        scheduler=SchedulerStarter(cron_start(settings), children) if settings.cron else None,
    )


def _publisher(settings: Settings, board: Scoreboard, reap_every: float) -> Publisher:
    return Publisher(
        board,
        Masker(settings.history.mask).text,
        name=settings.name,
        version=__version__,
        queues=" ".join(settings.queue_names),
        backend=redact(settings.backend),
        broker_interval=COUNT_EVERY_S,  # the broker is asked at least as often
        reap_interval=reap_every,
    )


def _entitle(settings: Settings, queues: Sequence[str]) -> None:
    setproctitle(f"jobpool: master [{settings.name}] {' '.join(queues)}")


def _announce_queues(settings: Settings, board: Scoreboard, machine_pools: MachinePools, queues: Sequence[str]) -> None:
    _entitle(settings, queues)
    board.header.write(queues=" ".join(queues))
    machine_pools.announce(queues)


def _survey(backend: QueueBackend, machine_pools: MachinePools, letters: str | None, served: Sequence[str]) -> Surveyed:
    """Look which queues nothing here serves, though jobs wait there. Blocks and raises as `waiting_elsewhere`."""
    other_pools = machine_pools.read()
    return Surveyed(other_pools, waiting_elsewhere(backend, {*served, letters, *other_pools.queues}))


def waiting_elsewhere(backend: QueueBackend, served: Collection[str | None]) -> dict[str, int]:
    """Return, by queue, how many jobs wait where nothing serves them; {} where queues cannot be listed.

    Blocks for a round trip a queue, `MAX_SURVEYED` at most. Raises `BackendUnavailable`.
    """
    others = [queue for queue in backend.queues() if queue not in served] if backend.capabilities.makes_queues else []
    return {queue: count for queue in others[:MAX_SURVEYED] if (count := backend.stats(queue).unattended)}


def fork_server_config(settings: Settings) -> ForkServerConfig:
    """Make what the fork server and its children are told: nothing of the broker."""
    # A child above its limit is replaced after an attempt too: the next job would be killed for what this one has left.
    mark = min((mark for mark in (settings.recycle.memory, settings.memory_limit.size) if mark), default=0)
    options = ChildOptions(
        apps=list(settings.apps),
        kill_grace=settings.kill_grace,
        output_cap=settings.output_cap,
        max_jobs=settings.recycle.jobs,
        max_rss=mark,
        recycle_on_failure=settings.recycle.failure,
        lines_level=getattr(logging, settings.log_level.upper()) if settings.log_output else NO_LINES,
        mask_keys=list(settings.history.mask),
        title=settings.name,
        preload=settings.preload,
        sys_path=list(settings.sys_path) or [os.getcwd()],
        queue_handlers={queue: list(names) for queue, names in settings.queue_handlers.items()},
        enqueue_to=list(settings.enqueue_to),
        result_ttl=settings.result_ttl,
        allowances=asdict(settings.allowances),
    )
    return ForkServerConfig(
        options, child_main="jobpool.child.main:run", app_loader="jobpool.child.main:load", name=settings.name
    )


def cron_start(settings: Settings) -> CronStart:
    """Make what the scheduler beside the pool is told."""
    return CronStart(
        backend=settings.backend,
        options=fork_server_config(settings).options,
        signing_keys=settings.signing_keys(),
        name=settings.name,
        environment=settings.cron_environment,
        grace=settings.cron_grace,
        default_timeout=settings.default_timeout,
        log_level=settings.log_level,
        log_format="json",  # the master reads it, and logs it anew
    )


def _new_board(settings: Settings) -> Scoreboard:
    try:
        return Scoreboard.create(settings.board_path, slot_count(settings.workers))
    except OSError as error:
        raise JobpoolError(
            f"the scoreboard {settings.board_path or ''} cannot be written: {error.strerror}; see the free space of its"
            " folder and `ulimit -f`, or set JOBPOOL_RUNTIME_DIR to another"
        ) from error


def _allow_descriptors(workers: int) -> None:
    """Six descriptors a child, and room for a reload; many systems start a program with 1,024 in all."""
    needed = DESCRIPTORS_BESIDES + DESCRIPTORS_A_CHILD * slot_count(workers)
    allowed = linux.allow_open_files(needed)
    if allowed < needed:
        raise ConfigurationError(
            f"{workers} workers need {needed} open files, and only {allowed} are allowed: "
            "raise `ulimit -n` (LimitNOFILE= under systemd), or use fewer workers"
        )


def check_compatibility(settings: Settings, backend: QueueBackend) -> None:
    """Refuse what cannot work. Blocks for a round trip a queue where queues must have been made.

    Raises:
        ConfigurationError: A setting needs what the broker lacks, or a queue that must have been made was not.
        BackendUnavailable: The broker does not answer.
    """
    for sentence in unmet(settings, backend):
        raise ConfigurationError(sentence)
    if not backend.capabilities.makes_queues:
        for queue in queues_of(settings):
            backend.stats(queue)
    if settings.rollups and not backend.capabilities.key_store:
        log.info("no rollups are kept", extra={"fields": {"why": f"{backend.scheme}:// keeps no keys"}})


def unmet(settings: Settings, backend: QueueBackend) -> Iterator[str]:
    """Yield a sentence with its mend for each setting that needs what the broker lacks. No I/O."""
    if not backend.capabilities.leases:
        yield f"a pool cannot serve {backend.scheme}://, which runs jobs as they are enqueued; use sqlite:///jobpool.db"
    if backend.capabilities.key_store:
        return
    try:
        check_key_store(limits_of(settings), backend)
    except ConfigurationError as error:
        yield str(error)
    lacking = KEEPS_NO_KEYS.format(backend.scheme)
    if settings.cron:
        yield f"a scheduler beside the pool needs {lacking}: leave --cron out, or choose another backend"
    if settings.result_ttl:
        yield f"result_ttl needs {lacking}: leave it out, or choose another backend"
    if settings.history.table:
        yield f"history = 'table' needs {lacking}: use history = 'file:PATH', or another backend"


def queues_of(settings: Settings) -> list[str]:
    """Return every queue that the pool fetches from, or sends to by itself."""
    more = (settings.dead_letter_queue, settings.on_crash.queue, settings.memory_limit.queue)
    return list(dict.fromkeys([*settings.queue_names, *(queue for queue in more if queue is not None)]))


def limits_of(settings: Settings) -> Limits:
    """Return the limits that the settings name. Raises `ConfigurationError`."""
    return Limits(
        idempotency_ttl=settings.idempotency_ttl,
        concurrency=settings.concurrency_limits,
        concurrency_per_key=settings.concurrency_per_key,
        rates=settings.rate_limits,
        rates_per_key=settings.rate_per_key,
    )
