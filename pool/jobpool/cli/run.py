"""`jobpool` itself: run a pool until it is told to stop, or until there is nothing left to do."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from jobpool import __version__
from jobpool.broker.config_file import SQLITE, ConfigFile
from jobpool.cli import options
from jobpool.cli.main import logged_failure
from jobpool.cli.options import Command, option
from jobpool.cli.session import Session, leave_at_once, warn_of_secrets
from jobpool.errors import JobpoolError
from jobpool.settings import Settings
from jobpool.telemetry.logs import LineHandler, configure

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend
    from jobpool.master.serving import OtherPools
    from jobpool.ops.runtime_dir import PoolFile

LOOK_AGAIN_S = 0.1  # seconds between two looks whether a signal came before the pool takes them

log = logging.getLogger("jobpool.cli")


_stop = partial(option, section="When to stop  [default: when told to]")


@click.command("run", cls=Command, common=options.COMMON_KEYS)
@options.settings
@_stop("--until-empty", "--burst", is_flag=True, help="Stop when nothing is left to do.")
@_stop("--once", "--one-shot", is_flag=True, help="Stop after one job.")
@_stop("--max", "max_total", type=click.IntRange(0), default=0, metavar="N", help="Stop after N jobs; 0 = no limit.")
@_stop("--fail-on-dead", is_flag=True, help="Exit with 1 if a job became a dead letter.")
@_stop("--progress/--no-progress", default=None, help="Show progress below the log.  [default: on a terminal]")
@option("--watch", is_flag=True, help="Reload when a Python file of the app changes: for development.")
@click.pass_context
def run(ctx: click.Context, /, session: Session, once: bool, progress: bool | None, watch: bool, **flags: Any) -> None:
    """Run a pool of worker processes until it is told to stop.

    \b
      jobpool --workers 16 --queue reports --app myapp.jobs
      jobpool -Q reports=8,mail=1 -A myapp.jobs --until-empty --fail-on-dead

    SIGTERM and SIGINT drain; a second one kills. SIGHUP reloads the app, or drains if the terminal was closed. SIGTTIN
    and SIGTTOU add and remove a worker process. SIGQUIT logs the stack of each.
    """
    early = _EarlyStop()
    _take_early(ctx, early, signal.SIGTERM, signal.SIGINT)
    mode = {key: flags.pop(key) for key in ("max_total", "until_empty", "fail_on_dead")}
    if once and mode["max_total"] > 1:
        raise click.UsageError("--once and --max exclude each other")
    from jobpool.broker.opening import LOCAL, redact, scheme_of
    from jobpool.ipc import linux

    if ctx.obj is None:  # a witness counts this process's descriptors
        linux.hide_memory()  # in it, jobs, which are of the same user, could read the broker's credentials
    linux.ends_with_terminal()  # looked for while it is there
    _take_early(ctx, _hang_up, signal.SIGHUP)
    _take_early(ctx, lambda *_: None, signal.SIGTTIN, signal.SIGTTOU)  # they would stop this process, until a SIGCONT
    pool = session.pool(flags, **mode | ({"max_total": 1} if once else {}))
    lines = configure(pool.log_level, pool.log_format)
    lines.write_in_background()
    sys.stderr = lines.stream  # warnings, ignored exceptions, and the sentence of an error that ends the pool
    if progress is None:
        progress = sys.stderr.isatty() and pool.log_format == "text" and os.environ.get("TERM") != "dumb"
    queues = {"queues": list(pool.queue_names)} if pool.queues else {}  # else those of the app, once it has loaded
    config = session.config_file()
    about = {"name": pool.name, "workers": pool.workers, **queues}
    about |= {"backend": redact(pool.backend), "apps": list(pool.apps)}
    log.info("pool starts", extra={"fields": about | ({"config": str(config.path)} if config.path else {})})
    if not session.names_backend():
        _tell_default(pool, config)
    if not pool.signing_keys() and scheme_of(pool.backend) not in LOCAL:
        log.warning("messages are not signed", extra={"mend": "set signing_key: anyone at the broker can enqueue"})
    warn_of_secrets(pool, config)
    if watch:
        from jobpool.cli import watch as watcher

        watcher.watch(pool.apps, pool.sys_path)
    early.keep_looking(ctx)
    status = _serve(pool, lines if progress else None, ctx.obj)
    # The end of the interpreter can crash on a thread that still waits for the broker. The pool waits for no thread
    # that only sleeps in its backend: it would hold up each stop by half a second.
    leave_at_once(status)


def _tell_default(pool: Settings, config: ConfigFile) -> None:
    """Log which SQLite file a pool without a configured backend works on, if it is new or may not be meant."""
    from jobpool.broker.opening import missing_database

    folders = {Path(app).resolve().parent for app in pool.apps if os.path.isabs(app)} - {config.directory.resolve()}
    others = sorted(path for folder in folders if os.path.isfile(path := str(folder / "jobpool.db")))
    fields: dict[str, Any] = {"file": pool.backend.removeprefix(SQLITE)}
    if others:
        mend = "start the pool in that folder, or set backend"
        log.warning("no backend is configured", extra={"fields": fields | {"beside_app": others, "mend": mend}})
    elif missing_database(pool.backend):
        log.info("no backend is configured", extra={"fields": fields})


def _take_early(ctx: click.Context, handler: Callable[..., object], *numbers: signal.Signals) -> None:
    """Handle these signals until the pool takes them, or the command ends."""
    with contextlib.suppress(ValueError):  # elsewhere than on the main thread
        for number in numbers:
            before = signal.signal(number, handler)
            ctx.call_on_close(partial(signal.signal, number, before or signal.SIG_DFL))


def _hang_up(*_: object) -> None:
    """Pass over a reload that comes too early; end the process if its terminal was closed."""
    from jobpool.ipc.linux import terminal_is_closed

    if terminal_is_closed():
        signal.raise_signal(signal.SIGTERM)


class _EarlyStop:
    """Ends the process by an exception: the kernel drops a signal to process 1 that would end it by default.

    Python ignores an exception that comes in a destructor, or in the callback of an import's lock. And a signal just
    before a call that blocks is heard after that call. So a timer looks again, until `master.inbox.Signals` takes over:
    the signals in `came` are then passed on.
    """

    def __init__(self) -> None:
        self.came: set[int] = set()

    def __call__(self, number: int, _: object) -> NoReturn:
        sys.unraisablehook = _pass_over
        self.came.add(number)
        raise SystemExit(0)

    def keep_looking(self, ctx: click.Context) -> None:
        _take_early(ctx, self._look, signal.SIGALRM)
        if signal.getsignal(signal.SIGALRM) == self._look:
            signal.setitimer(signal.ITIMER_REAL, LOOK_AGAIN_S, LOOK_AGAIN_S)
            ctx.call_on_close(partial(signal.setitimer, signal.ITIMER_REAL, 0.0))

    def _look(self, *_: object) -> None:
        if signal.getsignal(signal.SIGTERM) is not self:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        elif self.came:
            raise SystemExit(0)


def _pass_over(ignored: sys.UnraisableHookArgs) -> None:
    if ignored.exc_type is not SystemExit:
        sys.__unraisablehook__(ignored)


@contextlib.contextmanager
def _published(pool: Settings) -> Iterator[tuple[Settings, PoolFile | None]]:
    """Leave a note for `top` and `health` while the block runs; without a runtime directory the pool runs unseen."""
    from jobpool.ops.runtime_dir import VARIABLE, note_path, register, runtime_dir, this_pool, unregister

    about: dict[str, Any] = {"queues": pool.queue_names, "workers": pool.workers, "scheduler": pool.cron}
    with contextlib.ExitStack() as at_the_end:
        try:
            place = runtime_dir()
            about |= {"directory": place, "version": __version__, "since": time.time()}
            note = this_pool(name=pool.name, backend=pool.backend, **about)
            at_the_end.callback(unregister, note_path(place, note.name, note.pid))  # a stop may come before its end
            at_the_end.callback(os.close, register(place, note))
        except JobpoolError as error:
            if os.environ.get(VARIABLE) or "NOTIFY_SOCKET" in os.environ:  # systemd waits to be told of it
                raise
            log.warning("top and health will not see this pool", extra={"why": str(error)})
            yield pool, None
            return
        yield replace(pool, board_path=note.board), note


def _serve(pool: Settings, lines: LineHandler | None, wrap: Callable[[QueueBackend], QueueBackend] | None) -> int:
    """Run the pool where others see it; return its exit status, 0 if it was stopped before it took signals itself."""
    from jobpool.ipc.fork_client import ForkServerClient

    try:
        with (
            logged_failure(pool.log_format, "the pool ends"),
            _published(pool) as (published, note),
            contextlib.ExitStack() as at_the_end,
        ):
            if note is not None and "NOTIFY_SOCKET" in os.environ:
                from jobpool.cli.service_manager import notifying

                at_the_end.enter_context(notifying(note))
            begun = None
            with contextlib.suppress(OSError):  # the master tries again, and says why
                begun = ForkServerClient(os.environ)  # its imports run beside those of the master
                at_the_end.callback(begun.discard)
            from jobpool.master.run import run_pool

            start = partial(run_pool, published, wrap=wrap, last=True, begun=begun)
            return start() if note is None else _run(start, published, note, lines)
    except SystemExit as stopped:
        if stopped.code:
            raise
        log.info("stopped before it began")
        return 0


def _run(start: Callable[..., int], pool: Settings, note: PoolFile, lines: LineHandler | None) -> int:
    """Run it beside the others of this machine, and tell how it gets on: with `lines` on a terminal, below them."""
    from jobpool.master.run import MachinePools
    from jobpool.master.serving import OtherPools
    from jobpool.ops.runtime_dir import rewrite, serving

    place = Path(note.board).parent
    queues = list(pool.queue_names)  # or those of the app, once it is loaded

    def announce(served: Sequence[str]) -> None:
        queues[:] = served
        with contextlib.suppress(OSError):  # the note was removed: this pool is not seen any more
            rewrite(place, replace(note, queues=tuple(served)))

    def read() -> OtherPools:
        others = [one for one in serving(place, note.backend) if one.pid != note.pid]
        served = frozenset(queue for one in others for queue in one.queues)
        return OtherPools(served, any(one.scheduler for one in others))

    with _progress(pool, note, lines, queues):
        return start(machine_pools=MachinePools(announce, read))


def _progress(
    pool: Settings, note: PoolFile, lines: LineHandler | None, queues: Sequence[str]
) -> AbstractContextManager[None]:
    from jobpool.cli import progress

    if lines is None:
        return progress.logged_summary(note, awaits_delayed=pool.until_empty)
    if not (pool.until_empty or pool.max_total):
        return progress.live_summary(note, lines)
    return progress.progress_bar(note, partial(progress.expected, pool, queues), lines)
