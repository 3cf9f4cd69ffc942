"""Checks of a server: its version, its clock, and what its settings can lose. Judged by INFO and CONFIG GET alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from redis.exceptions import ResponseError

from jobpool.broker.finding import Finding, Level
from jobpool.errors import ConfigurationError
from jobpool_backends.redis.connections import Link

MIN_VERSION = (6, 2)

MIN_VERSION_HEEDING_REPLICAS = (7, 0)
"""The first that refuses a script's writes when too few replicas are connected."""

NEARLY_FULL_SHARE = 0.9
"""Share of `maxmemory` from which on it deserves a word."""

_SETTINGS = ("appendonly", "appendfsync", "save", "no-appendfsync-on-rewrite", "min-replicas-to-write")
_ASK = [("INFO",), *(("CONFIG", "GET", setting) for setting in _SETTINGS)]

_EVICTION, _MEMORY = "redis.eviction", "redis.memory"
_PERSISTENCE, _REPLICATION, _ROLE = "redis.persistence", "redis.replication", "redis.role"


@dataclass(frozen=True, slots=True)
class Facts:
    """The settings of one server. `config` is None where CONFIG is forbidden."""

    info: Mapping[str, str]
    config: Mapping[str, str] | None


def check_version(link: Link) -> None:
    """Ask every server for its version. Raises `ConfigurationError` where one is older than Redis 6.2."""
    for title, [info] in link.survey([("INFO", "server")]):
        require_version(title, _read_info(info))


def diagnose(link: Link) -> list[Finding]:
    """Return the findings of all servers; one that several share comes once, with all their names."""
    found: dict[Finding, list[str]] = {}
    for title, answers in link.survey(_ASK):
        facts = read_facts(answers)
        require_version(title, facts.info)
        for finding in judge(facts):
            found.setdefault(finding, []).append(title)
    return [replace(finding, found=f"{', '.join(titles)}: {finding.found}") for finding, titles in found.items()]


def server_time(link: Link) -> float:
    """Return Unix time on the server's clock; of several, the one furthest from ours. Raises as a link's calls."""
    answers = [answer for _, [answer] in link.survey([("TIME",)])]
    times = [int(answer[0]) + int(answer[1]) / 1e6 for answer in answers if isinstance(answer, list)]
    now = time.time()
    return max(times, key=lambda moment: abs(moment - now), default=now)


def read_facts(answers: list[object]) -> Facts:
    """Return the answers to INFO and to each CONFIG GET, as facts."""
    info, *settings = answers
    if isinstance(info, ResponseError):
        return Facts({}, None)
    if any(isinstance(pair, ResponseError) for pair in settings):
        return Facts(_read_info(info), None)
    pairs = [pair for pair in settings if isinstance(pair, list) and len(pair) == 2]
    return Facts(_read_info(info), {name.decode(): value.decode() for name, value in pairs})


def judge(facts: Facts) -> list[Finding]:
    """Judge the facts of one server, without its name."""
    found = [_eviction(facts.info), _memory(facts.info), _persistence(facts), _replication(facts), _role(facts.info)]
    return [finding for finding in found if finding is not None]


def _eviction(info: Mapping[str, str]) -> Finding:
    if not info:
        return Finding(_EVICTION, Level.NOTE, "INFO is forbidden, so what a full memory loses could not be checked")
    policy = info.get("maxmemory_policy", "unknown")
    found = f"maxmemory-policy {policy}"
    if info.get("maxmemory", "0") == "0":
        return Finding(_EVICTION, Level.OK, f"{found}, and no maxmemory: nothing is thrown away")
    if policy.startswith("allkeys"):
        why = "when memory runs out, messages are thrown away unseen"
        return Finding(_EVICTION, Level.PROBLEM, found, why, "set noeviction")
    if policy.startswith("volatile"):
        why = "when memory runs out, the memory of calls is thrown away, so that a repeated call may be done twice"
        return Finding(_EVICTION, Level.PROBLEM, found, why, "set noeviction")
    return Finding(_EVICTION, Level.OK, found)


def _memory(info: Mapping[str, str]) -> Finding | None:
    most, used = (int(info.get(name, "0") or 0) for name in ("maxmemory", "used_memory"))
    if not most:
        return None
    found = f"{used / 2**20:,.0f} of {most / 2**20:,.0f} MiB (maxmemory) are used"
    if used < NEARLY_FULL_SHARE * most:
        return Finding(_MEMORY, Level.OK, found)
    why = "a full server refuses what is enqueued, and settlements too, so that jobs run again"
    return Finding(_MEMORY, Level.PROBLEM, found, why, "raise maxmemory, or purge dead letters (`jobpool dead purge`)")


def _persistence(facts: Facts) -> Finding:
    config = facts.config
    if config is None:
        found = "CONFIG is forbidden, so what a crash of the server can lose could not be checked"
        mend = "it loses nothing with appendonly yes and appendfsync always"
        return Finding(_PERSISTENCE, Level.WARNING, found, "", mend)
    if config.get("appendonly") == "yes":
        return _append_only_file(config)
    if config.get("save"):
        why = "a crash of the server loses all that was done since it last saved"
        found = f"appendonly no, save {config['save']}"
        return Finding(_PERSISTENCE, Level.PROBLEM, found, why, "set appendonly yes")
    why = "a crash or restart of the server loses every message"
    return Finding(_PERSISTENCE, Level.PROBLEM, "appendonly no, and no save", why, "set appendonly yes")


def _append_only_file(config: Mapping[str, str]) -> Finding:
    match config.get("appendfsync"):
        case "everysec":
            why = "a crash of the server's machine loses up to two seconds of what was answered"
            mend = "appendfsync always loses nothing, and writes more slowly"
            return Finding(_PERSISTENCE, Level.WARNING, "appendfsync everysec", why, mend)
        case "no":
            why = "a crash of the server's machine loses up to half a minute of what was answered"
            mend = "set appendfsync everysec, or always, which loses nothing"
            return Finding(_PERSISTENCE, Level.PROBLEM, "appendfsync no", why, mend)
        case "always" if config.get("no-appendfsync-on-rewrite") == "yes":
            why = "a crash of the server's machine while it rewrites its file loses what was answered meanwhile"
            return Finding(_PERSISTENCE, Level.WARNING, "no-appendfsync-on-rewrite yes", why, "set it to no")
        case other:
            return Finding(_PERSISTENCE, Level.OK, f"appendonly yes, appendfsync {other}")


def _replication(facts: Facts) -> Finding | None:
    replicas = facts.info.get("connected_slaves", "0")
    if replicas == "0" or facts.config is None:
        return None
    found = f"{replicas} replica{'s' if replicas != '1' else ''}"
    if facts.config.get("min-replicas-to-write", "0") == "0":
        why = (
            "a failover loses what had not reached the replica, and a master that was cut off takes messages that are"
            " lost later"
        )
        mend = "set min-replicas-to-write 1"
        return Finding(_REPLICATION, Level.PROBLEM, f"{found}, min-replicas-to-write 0", why, mend)
    if _version(facts.info) < MIN_VERSION_HEEDING_REPLICAS:
        why = "a failover loses what had not reached the replica"
        found = "min-replicas-to-write is not heeded by scripts before Redis 7, and so not by jobpool"
        return Finding(_REPLICATION, Level.PROBLEM, found, why, "upgrade it")
    return Finding(_REPLICATION, Level.OK, f"{found}, min-replicas-to-write {facts.config['min-replicas-to-write']}")


def _role(info: Mapping[str, str]) -> Finding | None:
    if info.get("role") != "slave":
        return None
    why = "nothing can be enqueued or fetched"
    mend = "name its master in the URL, or the sentinels: redis+sentinel://"
    return Finding(_ROLE, Level.PROBLEM, "the server is a replica", why, mend)


def _read_info(answer: object) -> dict[str, str]:
    lines = answer.decode("utf-8", "replace").splitlines() if isinstance(answer, bytes) else []
    pairs = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name: value.strip() for name, _, value in pairs if name}


def require_version(title: str, info: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` when what INFO says is of a server that is too old."""
    if _version(info) < MIN_VERSION:
        version = info["redis_version"]
        raise ConfigurationError(f"{title} is version {version}, and jobpool needs Redis 6.2 or later: upgrade it")


def _version(info: Mapping[str, str]) -> tuple[int, ...]:
    """Return the version; if it is unknown, one new enough for everything."""
    numbers = tuple(int(part) for part in info.get("redis_version", "").split(".")[:2] if part.isdigit())
    return numbers or (999,)
