"""Where this program runs, as plain facts: who supervises it, and what the machine gives it."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobpool.errors import ConfigurationError
from jobpool.ipc import linux
from jobpool.message.units import parse_duration

STOP_VARIABLE = "TIMEOUT_STOP_SEC"
"""Says how long the supervisor waits, where nobody can be asked."""

KUBERNETES_GRACE = 30.0
"""Seconds. Source: Kubernetes, Pod v1, terminationGracePeriodSeconds."""

DOCKER_GRACE = 10.0
"""Seconds. Source: docker stop, --time."""

_PATIENCE = 3.0
_NO_LIMIT = 1 << 60
"""Bytes: what control groups say when there is no limit is above this."""

_SYSTEMD_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The program that stops the pool, and kills it after `seconds`.

    Attributes:
        name: For people.
        seconds: How long it waits.
        setting: The setting to raise.
        known: It said so itself; else `seconds` is its default.
    """

    name: str
    seconds: float
    setting: str
    known: bool = True


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts about this process and its machine.

    Attributes:
        supervisor: None = nobody as far as can be seen.
        open_files: Hard limit; None = none.
        memory: Bytes that this machine, or the container's limit, has; 0 = not known.
        kernel: The reason why jobpool cannot run here; "" = nothing.
        now: Unix time on this machine's clock.
        zone: The variable TZ; "" = not set.
    """

    supervisor: Supervisor | None = None
    open_files: int | None = None
    memory: int = 0
    kernel: str = ""
    now: float = 0.0
    zone: str = ""


def look_around(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Surroundings:
    """Return the facts. `root`: where the system's files are. Blocks for up to 3 s, under systemd only."""
    variables = os.environ if environ is None else environ
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Surroundings(
        supervisor=find_supervisor(variables, root),
        open_files=None if hard == resource.RLIM_INFINITY else hard,
        memory=memory_of(root),
        kernel=_kernel(),
        now=time.time(),
        zone=variables.get("TZ", ""),
    )


def find_supervisor(environ: Mapping[str, str], root: Path) -> Supervisor | None:
    """Find the supervisor: by the environment, then systemd, Kubernetes, Docker."""
    if STOP_VARIABLE in environ:
        return _named(environ[STOP_VARIABLE])
    if "INVOCATION_ID" in environ and (unit := _unit(root)):
        seconds = _asked(unit, environ)
        if seconds is not None:
            return Supervisor(f"systemd ({unit})", seconds, "TimeoutStopSec")
    if "KUBERNETES_SERVICE_HOST" in environ:
        return Supervisor("Kubernetes", KUBERNETES_GRACE, "terminationGracePeriodSeconds", known=False)
    if (root / ".dockerenv").exists():
        return Supervisor("docker", DOCKER_GRACE, "the time of docker stop (stop_grace_period in compose)", known=False)
    return None


def _named(text: str) -> Supervisor | None:
    try:
        return Supervisor(STOP_VARIABLE, parse_duration(text), "the supervisor's time and this variable")
    except ValueError:
        return Supervisor(STOP_VARIABLE, 0.0, f"it: {text!r} is no duration")


def _unit(root: Path) -> str | None:
    """Return the service that this process belongs to."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    parts = [part for line in lines for part in line.rpartition(":")[2].split("/")]
    return next((part for part in reversed(parts) if part.endswith(".service") and not part.startswith("user@")), None)


def _asked(unit: str, environ: Mapping[str, str]) -> float | None:
    """Return the answer of systemd; None if it gives none."""
    command = ["systemctl", "show", "--property=TimeoutStopUSec", "--value", unit]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, env=dict(environ), check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_systemd(done.stdout.strip())


def parse_systemd(text: str) -> float | None:
    """Return seconds of `1min 30s`, `500ms`, `infinity`; None for any other text."""
    if text == "infinity":
        return float("inf")
    total = 0.0
    for part in text.split():
        number = part.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = _SYSTEMD_UNITS.get(part[len(number) :])
        if unit is None or not number.replace(".", "", 1).isdigit():
            return None
        total += float(number) * unit
    return total if text else None


def memory_of(root: Path) -> int:
    """Return bytes of the machine, or of the container's limit when that is less."""
    found = [_meminfo(root / "proc/meminfo")]
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(root / name)
        found += [int(text)] if text.isdigit() else []
    return min((size for size in found if 0 < size < _NO_LIMIT), default=0)


def _meminfo(path: Path) -> int:
    for line in _read(path).splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _kernel() -> str:
    try:
        linux.check_kernel()
    except ConfigurationError as error:
        return str(error)
    return ""
