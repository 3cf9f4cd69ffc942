"""Checks of a server: its version, its clock, and what its settings can lose. Judged by INFO and CONFIG GET alone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

from msgspec.structs import replace

from jobpool.broker.finding import Finding, Level
from jobpool.errors import AccessRefused, BackendUnavailable, ConfigurationError, WriteRefused
from jobpool_backends.redis.connections import Link, Script

_SETTINGS = ("appendonly", "appendfsync", "save", "no-appendfsync-on-rewrite", "min-replicas-to-write")
_ASK = [("INFO",), *(("CONFIG", "GET", setting) for setting in _SETTINGS)]

_EVICTION, _MEMORY, _PERSISTENCE, _REPLICATION, _WRITES = (
    f"redis.{check}" for check in ("eviction", "memory", "persistence", "replication", "writes")
)
_TRIAL = Script("""
for _, write in ipairs({{'SET', '1', 'PX', 1000}, {'HSET', 'a', 1}, {'ZADD', 1, 'a'}, {'SADD', 'a'}}) do
    redis.call(write[1], KEYS[1], unpack(write, 2))
    redis.call('DEL', KEYS[1])
end
redis.call('RPUSH', KEYS[1], 'a')
redis.call('PEXPIRE', KEYS[1], 1000)
""")
_SILENT = Finding(_WRITES, Level.PROBLEM, "no answer", "its queues stand still", "bring it back")
_NEARLY_FULL_SHARE = 0.9  # of `maxmemory`, from which on it deserves a word

_EVICTED = {
    "allkeys": "messages are thrown away unseen",
    "volatile": "idempotency keys, unique keys and results are thrown away unseen, so that jobs run twice",
}


def check_version(link: Link) -> None:
    """Ask every server for its version. Raises `ConfigurationError` where one is older than Redis 6.2."""
    for title, [info] in link.survey([("INFO", "server")]):
        require_version(title, _read_info(info))


def diagnose(link: Link) -> list[Finding]:
    """Return the findings of all servers; one that several share comes once, with all their names."""
    found: dict[Finding, list[str]] = {}
    for title, [info, *settings] in link.survey(_ASK):
        if isinstance(info, BackendUnavailable):
            found.setdefault(_SILENT, []).append(title)
            continue
        pairs = (pair for pair in settings if isinstance(pair, list) and len(pair) == 2)
        config = {name.decode(): value.decode() for name, value in pairs}
        told = _read_info(info)
        require_version(title, told)
        for finding in judge(told, config or None):
            found.setdefault(finding, []).append(title)
    return [replace(finding, found=f"{', '.join(titles)}: {finding.found}") for finding, titles in found.items()]


def try_to_write(link: Link, prefix: str) -> list[Finding]:
    """Write a key of each kind and remove it, the last by a wait; return what came of it, nothing for a replica."""
    key = f"{prefix}:trial:{secrets.token_hex(8)}"
    try:
        link.run(_TRIAL, [key], ())
        link.wait_pop([key], 0.0)
    except (AccessRefused, WriteRefused) as error:
        found, _, mend = str(error).removesuffix("; nothing was changed").partition(": ")
        why = "nothing can be enqueued" + (" or fetched" if isinstance(error, AccessRefused) else "")
        return [Finding(_WRITES, Level.PROBLEM, found, why, mend)]
    except BackendUnavailable:
        return []
    return [Finding(_WRITES, Level.OK, f"{link.title}: this user may write keys {prefix}:*")]


def server_time(link: Link) -> float:
    """Return Unix time on the server's clock; of several, the one furthest from ours. Raises as a link's calls."""
    answers = [answer for _, [answer] in link.survey([("TIME",)])]
    times = [int(answer[0]) + int(answer[1]) / 1e6 for answer in answers if isinstance(answer, list)]
    now = time.time()
    return max(times, key=lambda moment: abs(moment - now), default=now)


def judge(info: Mapping[str, str], config: Mapping[str, str] | None) -> list[Finding]:
    """Judge the settings of one server, without its name. `config` is None where CONFIG is forbidden."""
    found = [_eviction(info), _memory(info), _persistence(config), _replication(info, config)]
    if info.get("role") == "slave":
        mend = "name its master in the URL, or the sentinels: redis+sentinel://"
        why = "nothing can be enqueued or fetched"
        found.append(Finding("redis.role", Level.PROBLEM, "the server is a replica", why, mend))
    return [finding for finding in found if finding is not None]


def _eviction(info: Mapping[str, str]) -> Finding:
    if not info:
        return Finding(_EVICTION, Level.NOTE, "INFO is forbidden, so what a full memory loses could not be checked")
    policy = info.get("maxmemory_policy", "unknown")
    found = f"maxmemory-policy {policy}"
    if info.get("maxmemory", "0") == "0":
        return Finding(_EVICTION, Level.OK, f"{found}, and no maxmemory: nothing is thrown away")
    lost = _EVICTED.get(policy.partition("-")[0])
    if lost is None:
        return Finding(_EVICTION, Level.OK, found)
    return Finding(_EVICTION, Level.PROBLEM, found, f"when memory runs out, {lost}", "set noeviction")


def _memory(info: Mapping[str, str]) -> Finding | None:
    most, used = (int(info.get(name, "0") or 0) for name in ("maxmemory", "used_memory"))
    if not most:
        return None
    found = f"{used / 2**20:,.0f} of {most / 2**20:,.0f} MiB (maxmemory) are used"
    if used < _NEARLY_FULL_SHARE * most:
        return Finding(_MEMORY, Level.OK, found)
    why = "a full server refuses enqueues, posts, records and log lines; fetches and settlements go on"
    return Finding(_MEMORY, Level.PROBLEM, found, why, "raise maxmemory, or purge dead letters (`jobpool dead purge`)")


def _persistence(config: Mapping[str, str] | None) -> Finding:
    if config is None:
        found = "CONFIG is forbidden, so what a crash of the server can lose could not be checked"
        mend = "it loses nothing with appendonly yes and appendfsync always"
        return Finding(_PERSISTENCE, Level.WARNING, found, "", mend)
    if config.get("appendonly") == "yes":
        return _append_only_file(config.get("appendfsync"), config.get("no-appendfsync-on-rewrite") == "yes")
    why, found = "a crash or restart of the server loses every message", "appendonly no, and no save"
    if config.get("save"):
        why = "a crash of the server loses all that was done since it last saved"
        found = f"appendonly no, save {config['save']}"
    return Finding(_PERSISTENCE, Level.PROBLEM, found, why, "set appendonly yes")


def _append_only_file(fsync: str | None, pauses: bool) -> Finding:
    found, why = f"appendfsync {fsync}", "a crash of the server's machine"
    if fsync == "everysec":
        why += " loses up to two seconds of what was answered"
        mend = "appendfsync always loses nothing, and writes more slowly"
        return Finding(_PERSISTENCE, Level.WARNING, found, why, mend)
    if fsync == "no":
        why += " loses up to half a minute of what was answered"
        mend = "set appendfsync everysec, or always, which loses nothing"
        return Finding(_PERSISTENCE, Level.PROBLEM, found, why, mend)
    if fsync == "always" and pauses:
        why += " while it rewrites its file loses what was answered meanwhile"
        return Finding(_PERSISTENCE, Level.WARNING, "no-appendfsync-on-rewrite yes", why, "set it to no")
    return Finding(_PERSISTENCE, Level.OK, f"appendonly yes, {found}")


def _replication(info: Mapping[str, str], config: Mapping[str, str] | None) -> Finding | None:
    replicas = info.get("connected_slaves", "0")
    if replicas == "0" or config is None:
        return None
    awaited = config.get("min-replicas-to-write", "0")
    found = f"{replicas} replica{'s' if replicas != '1' else ''}, min-replicas-to-write {awaited}"
    why, mend = "a failover loses what had not reached the replica", "set min-replicas-to-write 1"
    if awaited == "0":
        why += ", and a master that was cut off takes messages that are lost later"
    elif _version(info) < (7, 0):
        found = "min-replicas-to-write is not heeded by scripts before Redis 7, and so not by jobpool"
        mend = "upgrade it"
    else:
        return Finding(_REPLICATION, Level.OK, found)
    return Finding(_REPLICATION, Level.PROBLEM, found, why, mend)


def _read_info(answer: object) -> dict[str, str]:
    lines = answer.decode("utf-8", "replace").splitlines() if isinstance(answer, bytes) else []
    pairs = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name: value.strip() for name, _, value in pairs if name}


def require_version(title: str, info: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` when what INFO says is of a server that is too old, or of a sentinel."""
    if info.get("redis_mode") == "sentinel":
        raise ConfigurationError(f"{title} is a sentinel: write redis+sentinel://host:26379/SERVICE instead")
    if _version(info) < (6, 2):
        version = info["redis_version"]
        raise ConfigurationError(f"{title} is version {version}, and jobpool needs Redis 6.2 or later: upgrade it")


def _version(info: Mapping[str, str]) -> tuple[int, ...]:
    """Return the version; if it is unknown, one new enough for everything."""
    numbers = tuple(int(part) for part in info.get("redis_version", "").split(".")[:2] if part.isdigit())
    return numbers or (999,)
