"""Checks of the machine: time for a stop, kernel, open files, memory, clock."""

from __future__ import annotations

import math
import os
import platform
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jobpool.broker.finding import Finding, Level
from jobpool.errors import ConfigurationError
from jobpool.ipc import linux
from jobpool.master.run import DESCRIPTORS_A_CHILD, DESCRIPTORS_BESIDES
from jobpool.master.state import slot_count
from jobpool.message.control_groups import group_files
from jobpool.message.units import format_size, parse_duration
from jobpool.settings import Settings

STOP_MARGIN_S = 2.0  # seconds that a stop takes beyond `stop_grace`: kills, releases, goodbyes
STOP_VARIABLE = "TIMEOUT_STOP_SEC"  # how long the supervisor waits, where it cannot be asked
KUBERNETES_GRACE_S = 30.0  # seconds. Source: Kubernetes, Pod v1, terminationGracePeriodSeconds.
DOCKER_GRACE_S = 10.0  # seconds. Source: docker stop, --time.
SYSTEMCTL_LIMIT_S = 3.0  # seconds that systemctl may take

NO_LIMIT_BYTES = 1 << 60  # without a limit, control groups report more than this

EARLIEST = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
LATEST = datetime(2100, 1, 1, tzinfo=UTC).timestamp()  # unix times between which a clock may be right


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The program that stops the pool, and kills it after `seconds`."""

    name: str
    seconds: float
    setting: str  # the one to raise
    known: bool = True  # it said so itself; else `seconds` is its default


def judge(settings: Settings) -> Iterator[Finding]:
    """Yield every check of the machine. Blocks for up to 3 s, under systemd only."""
    root = Path("/")
    yield judge_stop(settings.stop_grace, find_supervisor(os.environ, root))
    yield judge_kernel()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    yield judge_open_files(settings.workers, None if hard == resource.RLIM_INFINITY else hard)
    yield judge_memory(settings.workers, settings.memory_limit.size, memory_of(root))
    yield judge_clock(time.time())
    yield judge_zone(os.environ.get("TZ", ""))


def judge_stop(stop_grace: float, supervisor: Supervisor | None) -> Finding:
    """Compare `stop_grace` with the time that the supervisor waits; None = nobody as far as can be seen."""
    if supervisor is None:
        return Finding("stop-grace", Level.OK, f"stop_grace is {stop_grace:.12g} s, and no supervisor is seen")
    waits = f"{supervisor.name} waits {supervisor.seconds:.12g} s for a stop"
    found = f"{waits}{'' if supervisor.known else ' unless told otherwise'}, and stop_grace is {stop_grace:.12g} s"
    if supervisor.seconds >= stop_grace + STOP_MARGIN_S:
        return Finding("stop-grace", Level.OK, found)
    why = "it kills the pool before its stop is over: running jobs are charged a crash, and wait for `ttl`"
    wanted = math.ceil(stop_grace + 5)
    tell = "" if supervisor.known else f" and {STOP_VARIABLE}={wanted} here"
    mend = f"set {supervisor.setting} to {wanted} s or more{tell}"
    lower = supervisor.seconds - STOP_MARGIN_S
    if lower > 0:
        mend += f", or stop_grace to {lower:.12g} or less"
    return Finding("stop-grace", Level.PROBLEM if supervisor.known else Level.WARNING, found, why, mend)


def find_supervisor(environ: Mapping[str, str], root: Path) -> Supervisor | None:
    """Find the supervisor: by the environment, then systemd, Kubernetes, Docker. `root`: of the system's files."""
    if (text := environ.get(STOP_VARIABLE)) is not None:
        try:
            return Supervisor(STOP_VARIABLE, parse_duration(text), "the supervisor's time and this variable")
        except ValueError:
            return Supervisor(STOP_VARIABLE, 0.0, f"it: {text!r} is not a duration")
    unit = _unit(root) if "INVOCATION_ID" in environ else None
    if unit and (seconds := _asked(unit, environ)) is not None:
        return Supervisor(f"systemd ({unit})", seconds, "TimeoutStopSec")
    if "KUBERNETES_SERVICE_HOST" in environ:
        return Supervisor("Kubernetes", KUBERNETES_GRACE_S, "terminationGracePeriodSeconds", known=False)
    if (root / ".dockerenv").exists() and " /etc/hosts " in _read(root / "proc/self/mountinfo"):  # no unpacked image
        setting = "the time of docker stop (stop_grace_period in compose)"
        return Supervisor("docker", DOCKER_GRACE_S, setting, known=False)
    return None


def _unit(root: Path) -> str | None:
    """Return the service that this process belongs to."""
    lines = _read(root / "proc/self/cgroup").splitlines()
    parts = [part for line in lines for part in line.rpartition(":")[2].split("/")]
    return next((part for part in reversed(parts) if part.endswith(".service") and not part.startswith("user@")), None)


def _asked(unit: str, environ: Mapping[str, str]) -> float | None:
    """Return the answer of systemd; None if it gives none."""
    words = ["systemctl", "show", "--property=TimeoutStopUSec", "--value", unit]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=SYSTEMCTL_LIMIT_S, env=environ, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_systemd(done.stdout.strip())


def parse_systemd(text: str) -> float | None:
    """Return seconds of `1min 30s`, `500ms`, `infinity`; None for any other text."""
    try:
        return math.inf if text == "infinity" else parse_duration(text.replace("min", "m"))
    except ValueError:
        return None


def judge_kernel() -> Finding:
    """Check that jobpool can run here."""
    try:
        linux.check_kernel()
    except ConfigurationError as error:
        mend = "use Linux 5.4 or later, and its /proc"
        return Finding("kernel", Level.PROBLEM, str(error), "no pool starts here", mend)
    return Finding("kernel", Level.OK, f"{platform.system()} {platform.release()}, with pidfd")


def judge_open_files(workers: int, limit: int | None) -> Finding:
    """Judge the hard limit (None = none): a pool raises its soft one by itself."""
    needed = DESCRIPTORS_BESIDES + DESCRIPTORS_A_CHILD * slot_count(workers)
    found = f"{workers} workers need up to {needed} open files, and"
    if limit is None or limit >= needed:
        return Finding("open-files", Level.OK, f"{found} {'no limit' if limit is None else f'{limit} are allowed'}")
    mend = "raise `ulimit -Hn` (LimitNOFILE= under systemd), or use fewer workers"
    return Finding("open-files", Level.PROBLEM, f"{found} {limit} are allowed", "the pool does not start", mend)


def judge_memory(workers: int, limit: int, memory: int) -> Finding:
    """Check that all children may reach `memory_limit` (bytes) at once, of the machine's `memory` (0 = not known)."""
    if not limit:
        return Finding("memory", Level.OK, "no memory_limit")
    found = f"{workers} workers of {format_size(limit)} each (memory_limit) make {format_size(workers * limit)}"
    if not memory:
        return Finding("memory", Level.NOTE, f"{found}, and how much there is could not be read")
    found = f"{found}, and there are {format_size(memory)}"
    if workers * limit <= memory:
        return Finding("memory", Level.OK, found)
    why = "the kernel's out-of-memory killer comes before the limit does, and takes what it likes, as crashes"
    return Finding("memory", Level.PROBLEM, found, why, "use fewer workers, or a lower memory_limit")


def memory_of(root: Path) -> int:
    """Return bytes of the machine, or of the limit of the container or service when that is less."""
    lines = _read(root / "proc/meminfo").splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    for file in group_files("memory", "max", "limit_in_bytes", root):
        text = _read(file)
        found += [int(text)] if text.isdigit() else []
    return min((size for size in found if 0 < size < NO_LIMIT_BYTES), default=0)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def judge_clock(now: float) -> Finding:
    """Check that this machine's time (Unix) can be true."""
    if EARLIEST <= now <= LATEST:
        return Finding("clock", Level.OK, "this machine's clock can be right")
    found = f"this machine's clock says it is {datetime.fromtimestamp(now, UTC).year}"
    why = "jobs with a time (scheduled_at, expires_in) run or expire at the wrong one"
    return Finding("clock", Level.PROBLEM, found, why, "set it, and run an NTP client")


def judge_zone(zone: str) -> Finding:
    """Judge the variable TZ ("" = not set): an unknown zone is UTC without a word."""
    name = zone.removeprefix(":")
    try:
        if name and not name.startswith("/") and not any(char.isdigit() for char in name):
            ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        why, mend = "local times are then those of UTC, without a word", "write one such as Europe/Zurich"
        return Finding("time-zone", Level.WARNING, f"TZ names no zone: {zone!r}", why, mend)
    return Finding("time-zone", Level.OK, f"TZ is {zone!r}" if name else "TZ is not set")
