"""The fork server, a program: `python -P -m jobpool.ipc.fork_server_main CONTROL_FD MODULE MASTER_PID`.

Started by exec, so it is small and clean: one thread, no broker socket, no secrets in its environment. It imports the
module, and waits until it is told its options: the master may still be reading settings, or connecting. Then it imports
the app once, freezes the heap, and forks children on request until the master is gone (fork_server.py).

It ends with the master. While the app is imported, only the kernel can end it, as an import may hang in C. PDEATHSIG is
then SIGKILL: there is no child yet that would need more. Later that would leave no time to sweep, and it fires when the
*thread* ends that started this program. So from then on the end of the control socket tells, and PDEATHSIG is SIGCONT,
with a handler that looks who the parent is. That also ends a fork server that is stopped, or waits in an app's at-fork
hook. One that hangs there in C code has the timer of a fork. So start it on a thread that outlives the import.

Threads that live on after the import make forking unsafe: Python's, or native ones that no fork survives. Then, or
without `options.preload`, the handlers are reported, the program executes itself anew with `CONFIG_FD BOARD_FD
--no-preload` after its arguments, and the children import the app themselves.

It is in a session of its own, so a Ctrl-C or a TERM to the master's group does not reach it. It ignores stray signals
(`IGNORED`). Exit status: 0 the master is gone; 3 the app does not import.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # until all of ours is imported, which is not garbage: the search takes a seventh of the time

import contextlib
import faulthandler
import importlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from pkgutil import resolve_name
from threading import get_ident  # by name: an app's `monkey_patch` replaces it in the module

import setproctitle
from msgspec.structs import replace

from jobpool.errors import ConfigurationError
from jobpool.ipc import linux, native_threads, packets
from jobpool.ipc.fork_server import ForkServer
from jobpool.ipc.frames import HandlerInfo, Loaded, LoadFailed
from jobpool.ipc.inheritance import Inheritance, spoilt_logs
from jobpool.ipc.postfork import flush_streams, reset_signals
from jobpool.ipc.process_options import ForkServerConfig
from jobpool.ipc.scoreboard import ChildPages
from jobpool.message import producer

NO_PRELOAD = "--no-preload"
LOAD_FAILED = 3
VICTIM_POINTS = 100
IGNORED = (linux.ACCIDENTAL_SIGNALS - {signal.SIGALRM}) | {  # SIGALRM is that of the timer of a fork
    getattr(signal, f"SIG{name}") for name in ("INT", "TERM", "HUP", "QUIT", "TSTP", "TTIN", "TTOU")
}
THREADS_LIMIT_S = 0.2  # that threads which the import started get to finish by themselves
MAX_TOLD = 20  # descriptors that are named to the master, and log files
_TRACE_CHARS = 20_000


def main(argv: list[str]) -> int:
    """Run with these arguments; return the exit status."""
    control_fd, preload = int(argv[1]), argv[-1] != NO_PRELOAD
    told = [] if preload else [int(word) for word in argv[-3:-1]]
    linux.close_all_but({0, 1, 2, control_fd, *told})
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=control_fd)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # and not SIG_IGN, which a program that the app starts would inherit
    linux.die_with_parent(int(argv[3]))
    with contextlib.suppress(Exception):  # told later, when it is needed
        importlib.import_module(argv[2])  # before the app's folders, with files of any name, are on the path
    gc.enable()
    config_fd, board_fd = told or _wait_until_told(control)
    config = ForkServerConfig.from_json(os.pread(config_fd, os.fstat(config_fd).st_size, 0))
    _prepare(config)
    inheritance = Inheritance(control_fd)
    if preload:
        os.environ.update(config.environ)
        linux.prefer_as_victim(VICTIM_POINTS)
        loaded = _load(config, inheritance)
        if isinstance(loaded, LoadFailed):
            linux.close_all_but({0, 1, 2, control_fd})
            linux.sweep_all(1.0)  # processes that the import had started before it failed; once told, the master kills
        packets.send(control, loaded.encode())
        if isinstance(loaded, LoadFailed):
            return LOAD_FAILED
        if not loaded.preloaded:
            for fd in control_fd, config_fd, board_fd:
                os.set_inheritable(fd, True)
            flush_streams()
            signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)  # the new program has no handlers until `_prepare`
            again = *sys.orig_argv[1:], str(config_fd), str(board_fd), NO_PRELOAD
            os.execv(sys.executable, [sys.executable, *again])
    else:
        linux.sweep_all(1.0)  # processes that the first import had started
    return _serve(config, control, board_fd, inheritance, preload)


def _wait_until_told(control: socket.socket) -> list[int]:
    """Return the descriptors of options and scoreboard; end if the master hangs up."""
    got = packets.recv(control)
    if got is None:
        raise SystemExit(0)
    return got[1]


def _prepare(config: ForkServerConfig) -> None:
    linux.become_subreaper()
    if sys.stderr is not None:
        faulthandler.enable()  # an import that crashes leaves its stack on the master's stderr
    name = f" [{config.name}]" if config.name else ""
    setproctitle.setproctitle(f"{config.options.title}: fork server{name}")
    known = set(sys.path)
    sys.path[:0] = [path for path in config.options.sys_path if path not in known]


def _reset_and_ignore_signals() -> None:
    """Ignore them; children reset this. Handlers would not do: many signals at once overflow the small stack that the
    fault handler has them run on.

    A signal that comes between the reset and the ignoring would end this process, so all wait meanwhile.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    reset_signals(IGNORED)  # had the app ignored SIGCHLD, the kernel would collect the dead before this process does
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _load(config: ForkServerConfig, inheritance: Inheritance) -> Loaded | LoadFailed:
    """Import the app. Turn any exception of it, SystemExit too, into one sentence and a traceback."""
    begun = time.monotonic()
    try:
        resolve_name(config.child_main)
        handlers = resolve_name(config.app_loader)(config.options)
    except BaseException as error:  # noqa: BLE001 - reported, and the program ends
        if isinstance(error, ConfigurationError):  # its sentence says all that its notes do not
            sentence, stack = str(error), "\n".join(getattr(error, "__notes__", ()))
        else:
            apps = ", ".join(config.options.apps) or "the app"
            sentence, stack = f"{apps} does not import: {type(error).__name__}: {error}", traceback.format_exc()
        return LoadFailed(sentence, stack[-_TRACE_CHARS:])
    return replace(prepared(handlers, inheritance, config.options.preload), seconds=time.monotonic() - begun)


def prepared(handlers: list[HandlerInfo], inheritance: Inheritance, preload: bool) -> Loaded:
    """Make this process ready to be forked, and tell what its children will miss.

    `preload` False, or `threads` found: it is not to be forked. Blocks for `THREADS_LIMIT_S` if there are threads.
    """
    faulthandler.cancel_dump_traceback_later()  # in a child it would wait for a thread that no fork has
    threads, native = _living_threads() if preload else [], 0
    if preload and not threads:
        unforkable, native = native_threads.settle()
        threads = [unforkable] if unforkable else []
    if forked := preload and not threads:
        inheritance.app_is_imported()
    return Loaded(
        handlers,
        forked,
        threads,
        cut=inheritance.cut[:MAX_TOLD],
        native=native,
        spoilt_logs=spoilt_logs(forked=forked)[:MAX_TOLD],
        enqueues=producer.process.was_used,
        memory=linux.own_memory(),
    )


def _living_threads() -> list[str]:
    """Name the Python threads beside the main one that are still alive after `THREADS_LIMIT_S`."""
    give_up = time.monotonic() + THREADS_LIMIT_S
    while (idents := set(sys._current_frames()) - {get_ident()}) and time.monotonic() < give_up:
        time.sleep(0.005)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return sorted(names.get(ident, f"thread {ident}") for ident in idents)


def _serve(
    config: ForkServerConfig, control: socket.socket, board_fd: int, inheritance: Inheritance, preloaded: bool
) -> int:
    options = replace(config.options, preload=preloaded)
    fork_server = ForkServer(control, ChildPages(board_fd), options, resolve_name(config.child_main), inheritance)
    _reset_and_ignore_signals()
    warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)
    flush_streams()  # or every child would print what the import left in the buffer
    gc.freeze()
    signal.signal(signal.SIGCONT, lambda *_: fork_server.end_with_master())
    linux.signal_at_parents_death(signal.SIGCONT)
    fork_server.run()
    return 0


if __name__ == "__main__":
    status = main(sys.argv)
    flush_streams()
    os._exit(status)  # no exit handlers: the app's are not meant for this process
