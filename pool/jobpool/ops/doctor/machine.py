"""Checks of the machine: time for a stop, kernel, open files, memory, clock."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jobpool.broker.finding import Finding, Level
from jobpool.master.run import DESCRIPTORS_A_CHILD, DESCRIPTORS_BESIDES
from jobpool.master.state import slot_count
from jobpool.message.units import format_size
from jobpool.ops.doctor.surroundings import Supervisor, Surroundings
from jobpool.settings import Settings

STOP_MARGIN_S = 2.0
"""Seconds that a stop takes beyond `stop_grace`: kills, releases, goodbyes."""

EARLIEST = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
LATEST = datetime(2100, 1, 1, tzinfo=UTC).timestamp()
"""Unix times between which a clock may be right."""


def judge(settings: Settings, around: Surroundings) -> Iterator[Finding]:
    """Yield every check of the machine."""
    yield judge_stop(settings.stop_grace, around)
    yield judge_kernel(around)
    yield judge_open_files(settings.workers, around)
    yield judge_memory(settings.workers, settings.memory_limit, around, settings.on_memory_limit_queue)
    yield judge_clock(around)
    yield judge_zone(around)


def judge_stop(stop_grace: float, around: Surroundings) -> Finding:
    """Compare `stop_grace` with the time that the supervisor waits."""
    supervisor = around.supervisor
    if supervisor is None:
        return Finding("stop-grace", Level.OK, f"stop_grace is {stop_grace:g} s, and no supervisor is seen")
    if supervisor.seconds >= stop_grace + STOP_MARGIN_S:
        return Finding("stop-grace", Level.OK, f"{_waits(supervisor)}, and stop_grace is {stop_grace:g} s")
    return Finding(
        "stop-grace",
        Level.PROBLEM if supervisor.known else Level.WARNING,
        f"{_waits(supervisor)}, and stop_grace is {stop_grace:g} s",
        "it kills the pool in the middle of its stop: a crash for what runs, which then waits for its lease to end",
        _mend(supervisor, stop_grace),
    )


def _waits(supervisor: Supervisor) -> str:
    waits = f"{supervisor.name} waits {supervisor.seconds:g} s for a stop"
    return waits if supervisor.known else f"{waits} unless told otherwise"


def _mend(supervisor: Supervisor, stop_grace: float) -> str:
    lower = supervisor.seconds - STOP_MARGIN_S
    raised = f"set {supervisor.setting} to {math.ceil(stop_grace + 5)} s or more"
    return f"{raised}, or stop_grace to {lower:g} or less" if lower > 0 else raised


def judge_kernel(around: Surroundings) -> Finding:
    """Check that a pool runs here at all."""
    if not around.kernel:
        return Finding("kernel", Level.OK, f"{platform.system()} {platform.release()}, with pidfd")
    return Finding(
        "kernel", Level.PROBLEM, around.kernel, "no pool starts here", "use Linux 5.4 or later, and its /proc"
    )


def judge_open_files(workers: int, around: Surroundings) -> Finding:
    """Judge the hard limit: a pool raises its soft one by itself."""
    needed = DESCRIPTORS_BESIDES + DESCRIPTORS_A_CHILD * slot_count(workers)
    found = f"{workers} workers need up to {needed} open files"
    if around.open_files is None or around.open_files >= needed:
        allowed = "no limit" if around.open_files is None else f"{around.open_files} are allowed"
        return Finding("open-files", Level.OK, f"{found}, and {allowed}")
    return Finding(
        "open-files",
        Level.PROBLEM,
        f"{found}, and {around.open_files} are allowed",
        "the pool does not start",
        "raise `ulimit -Hn` (LimitNOFILE= under systemd), or use fewer workers",
    )


def judge_memory(workers: int, limit: int, around: Surroundings, moves_to: str | None = None) -> Finding:
    """Check that all children may reach `memory_limit` (bytes) at once. `moves_to`: on_memory_limit_queue."""
    if not limit and moves_to is not None:
        why = "nothing is ever sent there: what outgrows this machine meets the kernel's killer, as a crash"
        found = f"on_memory_limit_queue is {moves_to!r}, and memory_limit is 0"
        return Finding("memory", Level.WARNING, found, why, "set memory_limit")
    if not limit:
        return Finding("memory", Level.OK, "no memory_limit")
    found = f"{workers} workers of {format_size(limit)} each (memory_limit) make {format_size(workers * limit)}"
    if not around.memory:
        return Finding("memory", Level.NOTE, f"{found}, and how much there is could not be read")
    found = f"{found}, and there are {format_size(around.memory)}"
    if workers * limit <= around.memory:
        return Finding("memory", Level.OK, found)
    why = "the kernel's out-of-memory killer comes before the limit does, and takes what it likes, as crashes"
    return Finding("memory", Level.PROBLEM, found, why, "use fewer workers, or a lower memory_limit")


def judge_clock(around: Surroundings) -> Finding:
    """Check that this machine's time can be true."""
    if EARLIEST <= around.now <= LATEST:
        return Finding("clock", Level.OK, "this machine's clock can be right")
    year = datetime.fromtimestamp(around.now, UTC).year
    why = "jobs with a time (scheduled_at, expires_in) run or expire at the wrong one"
    return Finding(
        "clock", Level.PROBLEM, f"this machine's clock says it is {year}", why, "set it, and run an NTP client"
    )


def judge_zone(around: Surroundings) -> Finding:
    """Judge the variable TZ: an unknown zone is UTC without a word."""
    name = around.zone.removeprefix(":")
    if not name or name.startswith("/") or _is_zone(name) or any(char.isdigit() for char in name):
        return Finding("time-zone", Level.OK, f"TZ is {around.zone!r}" if name else "TZ is not set")
    why = "local times are then those of UTC, without a word"
    return Finding(
        "time-zone", Level.WARNING, f"TZ names no zone: {around.zone!r}", why, "write one such as Europe/Zurich"
    )


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
