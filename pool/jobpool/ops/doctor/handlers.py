"""The app's handlers against the settings. The app is imported in a process of its own, with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

from msgspec import convert
from msgspec.structs import asdict

from jobpool.broker.finding import Finding, Level
from jobpool.errors import ENQUEUE_LATER
from jobpool.ipc.frames import HandlerInfo, Loaded
from jobpool.message.dead_letters import ON_DEATH
from jobpool.message.death import innermost
from jobpool.message.names import listed
from jobpool.message.printable import MAX_HEADLINE_CHARS
from jobpool.message.units import format_size
from jobpool.policy.classify import signal_name
from jobpool.settings import ANY_COMMAND, Settings

ANSWER_LIMIT_S = 10.0  # seconds after boot_timeout in which the process that imports has to tell where it hangs

_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "fish", "busybox")
_STARTERS = ("env", "find", "nice", "nohup", "ssh", "su", "sudo", "timeout", "xargs")
_LANGUAGES = ("awk", "lua", "node", "perl", "php", "python", "python3", "ruby")
_RUN_ANYTHING = frozenset((*_SHELLS, *_STARTERS, *_LANGUAGES))  # programs that run others, or code, by their arguments

_METADATA = tuple(map(ip_address, ("169.254.169.254", "169.254.170.2", "100.100.100.200", "fd00:ec2::254")))
"""Where clouds serve what a machine is and may do."""

_BEGIN_LATER = "begin it in the handler, or in a hook of os.register_at_fork (docs/forking.md)"
_forks = partial(Finding, "forking", Level.WARNING)
_warning = partial(Finding, "handlers", Level.WARNING)


def examine(settings: Settings, app: Loaded | Finding | None) -> Iterator[Finding]:
    """Yield what the handlers want, and what they get. `app`: as `load` returns it."""
    if app is None:
        yield Finding("handlers", Level.NOTE, "the handlers were not looked at: no app is named (--app, or apps)")
        yield from _permissions(settings)
    elif isinstance(app, Finding):
        yield app
    else:
        yield from judge(app.handlers, settings)
        if app.refused:
            yield Finding(
                "schedules", Level.PROBLEM, app.refused.rstrip("."), "no scheduler starts with that", "correct it"
            )
        bad = []
        if app.spoilt_logs and settings.workers > 1:
            found = f"each child rotates or empties these log files by itself: {listed(app.spoilt_logs)}"
            mend = "use WatchedFileHandler in mode 'a', and logrotate"
            bad.append(_forks(found, "that loses lines of others", mend))
        mend = "correct the schedule's handler or payload"
        bad += [_warning(told, "jobs of a schedule cannot run", mend) for told in app.unfit]
        if app.enqueues:
            found = "the app enqueues at its import, so each start adds its jobs again"
            bad.append(_warning(found, "this look at it did too", ENQUEUE_LATER))
        if why := settings.too_small_for(app.memory):
            level = Level.PROBLEM if 0 < settings.memory_limit.size < app.memory else Level.WARNING
            found, mend = f"the app alone takes {format_size(app.memory)}", "raise it: shared memory counts in full"
            yield Finding("memory", level, found, why, mend)
        if settings.preload:
            bad += _missing(app.threads, app.native, app.cut)
        yield from bad or [Finding("forking", Level.OK, "children can use all that the app's import leaves behind")]


def _missing(threads: Sequence[str], native: int, cut: Sequence[str]) -> Iterator[Finding]:
    """Yield what the app's import leaves behind that its forked children do not have."""
    if threads:
        why = "forking is not safe, so each child imports the app: it starts later, and shares no memory"
        yield _forks(f"the app leaves threads running after its import: {listed(threads)}", why, _BEGIN_LATER)
    if native:
        why = "a job whose library waits for one of them hangs until its timeout"
        yield _forks(f"the app leaves {native} native threads running after its import", why, "set preload = false")
    if cut:
        why = "a job that uses one of them fails"
        yield _forks(f"the app's import opens what its children do not have: {listed(cut)}", why, _BEGIN_LATER)


def judge(handlers: Sequence[HandlerInfo], settings: Settings) -> Iterator[Finding]:
    """Yield contradictions to the settings; one line if there are none."""
    names = [handler.name for handler in handlers if handler.enabled]
    well = Finding("handlers", Level.OK, f"within the settings: {listed(names)}")
    bad = [*_times_and_retries(handlers, settings), *_lists(handlers, settings), *_permissions(settings)]
    yield from bad or [well]


def _times_and_retries(handlers: Sequence[HandlerInfo], settings: Settings) -> Iterator[Finding]:
    most = settings.retry.max_attempts
    if names := [handler.name for handler in handlers if handler.timeout == 0]:
        why = "one that hangs holds its place, and its job, for ever"
        yield _warning(f"timeout=0 (unlimited) on {listed(names)}", why, "give each a timeout")
    with_retries = (handler for handler in handlers if handler.max_retries and handler.name != ON_DEATH)  # it has waits
    names = [handler.name for handler in with_retries if not handler.backoff]
    if names and settings.retry.strategy == "none":
        found = f"retry is 'none', and max_retries is set on {listed(names)}"
        why = "the attempts follow each other at once, so an outage of a second uses them all up"
        yield _warning(found, why, "leave retry out, or give them a backoff")
    if names := [handler.name for handler in handlers if most and (handler.max_retries or 0) + 1 > most]:
        found = f"retry has attempts={most}, and max_retries asks for more on {listed(names)}"
        why = "they are dead after fewer attempts than they ask for"
        yield _warning(found, why, "raise attempts in retry, or lower max_retries")


def _lists(handlers: Sequence[HandlerInfo], settings: Settings) -> Iterator[Finding]:
    """Yield handlers in `queue_handlers` that are unknown, or may do nothing."""
    known = {handler.name for handler in handlers}
    # `url` may call public addresses though nothing is set for it.
    idle = {handler.name for handler in handlers if not handler.enabled and handler.name != "url"}
    for queue, names in settings.queue_handlers.items():
        if missing := [name for name in names if name not in known]:
            found = f"queue_handlers allows on queue {queue!r} what no app registers: {listed(missing)}"
            why = "a job with the handler's real name is dead on that queue"
            yield Finding("handlers", Level.PROBLEM, found, why, "correct the name")
    for queue, names in settings.queue_handlers.items():
        if useless := [name for name in names if name in idle]:
            found = f"queue_handlers allows on queue {queue!r} built-in handlers that may do nothing: {listed(useless)}"
            mend = "set what they may do (docs/handlers.md), or take them off the list"
            yield _warning(found, "every job for them is dead at once", mend)


def _permissions(settings: Settings) -> Iterator[Finding]:
    """Yield settings by which `shell` may start more than it seems, or `url` fetch the machine's credentials."""
    why = "whoever can enqueue a job can run anything here"
    allowed = settings.allowed_shell_commands
    if ANY_COMMAND in allowed:
        mend = "name the programs that jobs need in allowed_shell_commands"
        yield _warning("allowed_shell_commands has '*', any program", why, mend)
    elif names := [name for name in allowed if os.path.basename(name) in _RUN_ANYTHING]:
        found = f"allowed_shell_commands names what runs whatever it is told: {listed(names)}"
        yield _warning(found, why, "name programs that do one thing, or scripts of your own")
    blocks = [ip_network(block) for block in settings.allowed_url_networks]
    if names := [str(block) for block in blocks if any(address in block for address in _METADATA)]:
        found = f"allowed_url_networks holds an address where a cloud serves credentials: {listed(names)}"
        why = "whoever can enqueue a job, and read its output, can be this machine"
        yield _warning(found, why, "name the smallest blocks that will do")


def _hangs(settings: Settings, stack: str) -> Finding:
    """Return the finding of an import that takes too long. `stack`: of the fault handler, the main thread last."""
    lines = innermost(stack.strip().rpartition("\n\n")[2])
    calls = [line.removeprefix("File ") for line in lines if "<frozen " not in line]
    where = f": it is at {', called from '.join(calls)}" if calls else ""
    found = f"the app was not imported after {settings.boot_timeout:g} s (boot_timeout){where}"
    mend = "correct that, or set a longer boot_timeout"
    return Finding("handlers", Level.PROBLEM, found, "no pool starts with it", mend)


def load(settings: Settings, sys_path: Sequence[str]) -> Loaded | Finding | None:
    """Return what `settings.apps` bring, or the finding why that is not known; None = no app is named.

    Blocks for up to `boot_timeout` and `ANSWER_LIMIT_S` seconds.
    """
    if not settings.apps:
        return None
    paths, allowances = [*sys_path, os.getcwd()], asdict(settings.allowances)
    options = {"apps": settings.apps, "sys_path": paths, "allowances": allowances, "preload": settings.preload}
    asked = json.dumps(options | {"limit": settings.boot_timeout})
    command = [sys.executable, "-P", "-m", "jobpool.ops.listing"]  # as the fork server is started
    limit = settings.boot_timeout + ANSWER_LIMIT_S
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, text=True, errors="replace", timeout=limit, check=False
        )
        told: dict[str, Any] = json.loads(done.stdout.rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return _hangs(settings, "")
    except ValueError:
        if done.returncode == -signal.SIGALRM:
            return _hangs(settings, done.stderr)
        code = done.returncode
        end = f"was killed by {signal_name(-code)}" if code < 0 else f"ended its process with status {code}"
        lines = [line for line in map(str.strip, done.stderr.splitlines()) if line]
        end += f", and its last words were: {lines[-1][:MAX_HEADLINE_CHARS]}" if lines else ""
        told = {"error": f"while it was imported, the app {end}"}
    if "error" in told:
        mend = "correct the app, or the setting `apps`"
        return Finding("handlers", Level.PROBLEM, told["error"], "no pool starts with it", mend)
    return convert(told, Loaded)
