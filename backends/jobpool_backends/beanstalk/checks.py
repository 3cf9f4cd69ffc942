"""Checks of a beanstalkd: its version, and what it can lose or refuse. Judged by its `stats` alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from jobpool.broker.finding import Finding, Level
from jobpool.errors import ConfigurationError
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool_backends.beanstalk.connection import Stats, number
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.inspect import foreign_queues

MIN_VERSION = (1, 12)  # the first that reserves a job by its number, as dead letters need
# Least value of `-z` at which every job that jobpool allows fits, with its header.
ROOMY_JOB_BYTES = MAX_BODY_BYTES + 2**16


def diagnose(connections: Connections) -> list[Finding]:
    """Check what the server can lose or refuse. Raises as `require_version`. Blocks for two round trips a tube."""
    title = connections.address.title
    with connections.spare() as connection:
        [stats] = connection.stats()
        require_version(title, stats)
        names = [tube for tube in connection.tubes() if connections.address.queue(tube)]
        left = [number(told, "pause-time-left") for told in connection.stats(names)]
        foreign = list(map(connections.address.tube, foreign_queues(connection)))
    pauses = {tube: seconds for tube, seconds in zip(names, left, strict=True) if seconds}
    findings = [*judge(stats), judge_pauses(pauses)]
    if foreign:
        why = "`purge` and `dead` are refused without the name of a queue; an option tube_prefix keeps yours apart"
        findings.append(Finding("beanstalk.tubes", Level.NOTE, f"other programs use {', '.join(foreign)}", why))
    return [replace(finding, found=f"{title}: {finding.found}") for finding in findings]


def require_version(title: str, stats: Stats) -> None:
    """Raise `ConfigurationError` when the server of this title is too old; an unknown version is new enough."""
    parts = str(stats.get("version", "")).split("+")[0].split(".")[:2]
    version = tuple(int(part) for part in parts if part.isdigit())
    if version and version < MIN_VERSION:
        raise ConfigurationError(
            f"{title} is version {stats['version']}, and jobpool needs beanstalkd 1.12 or later: upgrade it"
        )


def judge(stats: Stats) -> Iterator[Finding]:
    """Judge the answer to `stats`, check by check."""
    found = f"beanstalkd {stats.get('version', 'of no version')}, up for {_duration(number(stats, 'uptime'))}"
    connections = number(stats, "current-connections")
    yield Finding("beanstalk.server", Level.OK, f"{found}; connections: {connections}")
    if number(stats, "binlog-current-index"):  # one that is written has a file with a number
        why = (
            "what the death of its machine can lose is 50 ms of it, or as -f says, which cannot be asked for; -f0:"
            " nothing"
        )
        yield Finding("beanstalk.persistence", Level.NOTE, "a binlog is written", why)
    else:
        why = "a crash or restart of the server loses every message"
        yield Finding("beanstalk.persistence", Level.PROBLEM, "no binlog", why, "start it with -b and a folder")
    if stats.get("draining") != "true":
        yield Finding("beanstalk.drain-mode", Level.OK, "the server takes new messages")
    else:
        why = "it takes no new messages, and so no retries, delays and dead letters either, which are put as copies"
        found, mend = "the server is in drain mode", "restart it, with its binlog"
        yield Finding("beanstalk.drain-mode", Level.PROBLEM, found, why, mend)
    largest = number(stats, "max-job-size")
    found = f"messages of up to {largest:,} bytes (max-job-size)"
    if largest >= ROOMY_JOB_BYTES:
        yield Finding("beanstalk.job-size", Level.OK, found)
    else:
        why = (
            "larger ones are refused when they are enqueued, though jobpool allows 1 MiB;"
            f" with -z {ROOMY_JOB_BYTES} all fit in"
        )
        yield Finding("beanstalk.job-size", Level.NOTE, found, why)


def judge_pauses(pauses: Mapping[str, int]) -> Finding:
    """Judge pauses of tubes, in seconds."""
    if not pauses:
        return Finding("beanstalk.pauses", Level.OK, "no tube is paused")
    found = f"paused: {', '.join(f'{tube} for {_duration(left)}' for tube, left in sorted(pauses.items()))}"
    why = "nothing is fetched from there until then"
    return Finding("beanstalk.pauses", Level.WARNING, found, why, "`pause-tube NAME 0` ends it")


def _duration(seconds: int) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
