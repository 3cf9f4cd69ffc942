"""Checks of a beanstalkd: its version, and what it can lose or refuse. Judged by its `stats` alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jobpool.broker.finding import Finding, Level
from jobpool.errors import ConfigurationError
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool_backends.beanstalk.answers import Stats, ask_stats, ask_tube_stats, ask_tubes, number
from jobpool_backends.beanstalk.connections import Connections

MIN_VERSION = (1, 12)
"""The first that reserves a job by its number, as dead letters need."""

ROOMY_JOB_BYTES = MAX_BODY_BYTES + 2**16
"""Least value of `-z` at which every job that jobpool allows fits, with its header."""

_DRAIN, _PAUSES, _PERSISTENCE = "beanstalk.drain-mode", "beanstalk.pauses", "beanstalk.persistence"
_SERVER, _SIZE = "beanstalk.server", "beanstalk.job-size"


def ping(connections: Connections) -> None:
    """Ask the server for a sign of life. Raises `BackendUnavailable`. Blocks for one round trip."""
    with connections.spare() as connection:
        connection.check(connection.burst([b"list-tube-used"])[0])


def check_version(connections: Connections) -> None:
    """Ask the server for its version. Raises `ConfigurationError` if it is older than beanstalkd 1.12."""
    require_version(connections.address.title, _ask(connections))


def diagnose(connections: Connections) -> list[Finding]:
    """Check what the server can lose or refuse. Raises as `check_version`. Blocks for three round trips."""
    title, stats = connections.address.title, _ask(connections)
    require_version(title, stats)
    found = [*judge(stats), judge_pauses(_pauses(connections))]
    return [replace(finding, found=f"{title}: {finding.found}") for finding in found]


def _ask(connections: Connections) -> Stats:
    with connections.spare() as connection:
        return ask_stats(connection)


def _pauses(connections: Connections) -> dict[str, int]:
    """Return tube → seconds for which it is paused, of paused tubes with our prefix."""
    with connections.spare() as connection:
        names = [tube for tube in ask_tubes(connection) if connections.address.queue(tube)]
        left = [number(stats, "pause-time-left") for stats in ask_tube_stats(connection, names)]
    return {tube: seconds for tube, seconds in zip(names, left, strict=True) if seconds}


def require_version(title: str, stats: Stats) -> None:
    """Raise `ConfigurationError` when the server is too old; `title` names it."""
    if _version(stats) < MIN_VERSION:
        raise ConfigurationError(
            f"{title} is version {stats['version']}, and jobpool needs beanstalkd 1.12 or later: upgrade it"
        )


def judge(stats: Stats) -> list[Finding]:
    """Judge the answer to `stats`, check by check."""
    return [_server(stats), _persistence(stats), _drain(stats), _size(stats)]


def judge_pauses(pauses: Mapping[str, int]) -> Finding:
    """Judge pauses of tubes, in seconds."""
    if not pauses:
        return Finding(_PAUSES, Level.OK, "no tube is paused")
    found = f"paused: {', '.join(f'{tube} for {_lasted(left)}' for tube, left in sorted(pauses.items()))}"
    return Finding(
        _PAUSES, Level.WARNING, found, "nothing is fetched from there until then", "`pause-tube NAME 0` ends it"
    )


def _server(stats: Stats) -> Finding:
    found = f"beanstalkd {stats.get('version', 'of no version')}, up for {_lasted(number(stats, 'uptime'))}"
    return Finding(_SERVER, Level.OK, f"{found}; connections: {number(stats, 'current-connections')}")


def _persistence(stats: Stats) -> Finding:
    """Judge the binlog: one that is written has a file with a number."""
    if not number(stats, "binlog-current-index"):
        why = "a crash or restart of the server loses every message"
        return Finding(_PERSISTENCE, Level.PROBLEM, "no binlog", why, "start it with -b and a folder")
    found = "a binlog is written"
    why = (
        "what the death of its machine can lose is 50 ms of it, or as -f says, which cannot be asked for; -f0: nothing"
    )
    return Finding(_PERSISTENCE, Level.NOTE, found, why)


def _drain(stats: Stats) -> Finding:
    if stats.get("draining") != "true":
        return Finding(_DRAIN, Level.OK, "the server takes new messages")
    why = "it takes no new messages, and so no retries, delays and dead letters either, which are put as copies"
    return Finding(_DRAIN, Level.PROBLEM, "the server is in drain mode", why, "restart it, with its binlog")


def _size(stats: Stats) -> Finding:
    largest = number(stats, "max-job-size")
    found = f"messages of up to {largest:,} bytes (max-job-size)"
    if largest >= ROOMY_JOB_BYTES:
        return Finding(_SIZE, Level.OK, found)
    why = (
        "larger ones are refused when they are enqueued, though jobpool allows 1 MiB;"
        f" with -z {ROOMY_JOB_BYTES} all fit in"
    )
    return Finding(_SIZE, Level.NOTE, found, why)


def _lasted(seconds: int) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _version(stats: Stats) -> tuple[int, ...]:
    """Return the version; if unknown, one new enough for everything. A build from a checkout has a longer text."""
    parts = str(stats.get("version", "")).split("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit()) or (999,)
