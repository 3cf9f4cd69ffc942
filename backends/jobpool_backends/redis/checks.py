"""What a server's settings can lose, in plain sentences; and whether it is new enough.

The answers of INFO and CONFIG GET come in one round trip. The decision is a function of these facts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from redis.exceptions import ResponseError

from jobpool.errors import ConfigurationError
from jobpool_backends.redis.link import Link

OLDEST = (6, 2)

HEEDS_REPLICAS = (7, 0)
"""The first that refuses a script's writes when too few replicas are connected."""

_SETTINGS = ("appendonly", "appendfsync", "save", "no-appendfsync-on-rewrite", "min-replicas-to-write")
_ASK = [("INFO",), *(("CONFIG", "GET", setting) for setting in _SETTINGS)]


@dataclass(frozen=True, slots=True)
class Facts:
    """What one server says of itself. `config` is None where CONFIG is forbidden."""

    info: Mapping[str, str]
    config: Mapping[str, str] | None


def check_version(link: Link) -> None:
    """Ask every server for its version.

    Raises:
        ConfigurationError: One is older than Redis 6.2.
        BackendUnavailable: One does not answer.
    """
    for title, [info] in link.survey([("INFO", "server")]):
        require_version(title, _read_info(info))


def cautions(link: Link) -> list[str]:
    """One sentence for each setting of the servers by which messages can be lost; none when nothing can.

    Raises: as `check_version`.
    """
    found: dict[str, list[str]] = {}
    for title, answers in link.survey(_ASK):
        facts = read_facts(answers)
        require_version(title, facts.info)
        for caution in judge(facts):
            found.setdefault(caution, []).append(title)
    return [f"{', '.join(titles)}: {caution}" for caution, titles in found.items()]


def read_facts(answers: list[object]) -> Facts:
    """The answers to INFO and to each CONFIG GET, as facts."""
    info, *settings = answers
    if isinstance(info, ResponseError):
        return Facts({}, None)
    if any(isinstance(pair, ResponseError) for pair in settings):
        return Facts(_read_info(info), None)
    pairs = [pair for pair in settings if isinstance(pair, list) and len(pair) == 2]
    return Facts(_read_info(info), {name.decode(): value.decode() for name, value in pairs})


def judge(facts: Facts) -> list[str]:
    """The cautions that the facts of one server call for, each a sentence without its subject."""
    return [*_about_eviction(facts.info), *_about_disk(facts), *_about_replicas(facts)]


def _about_eviction(info: Mapping[str, str]) -> Iterator[str]:
    policy = info.get("maxmemory_policy", "")
    if info.get("maxmemory", "0") == "0":
        return
    if policy.startswith("allkeys"):
        yield f"maxmemory-policy {policy}: when memory runs out, messages are thrown away unseen; set noeviction"
    elif policy.startswith("volatile"):
        yield (
            f"maxmemory-policy {policy}: when memory runs out, the memory of calls is thrown away, so that a repeated"
            " call may be done twice; set noeviction"
        )


def _about_disk(facts: Facts) -> Iterator[str]:
    config = facts.config
    if config is None:
        yield (
            "CONFIG is forbidden, so what a crash of the server can lose could not be checked: it loses nothing with"
            " appendonly yes and appendfsync always"
        )
    elif config.get("appendonly") == "yes":
        yield from _about_append_only_file(config)
    elif config.get("save"):
        yield (
            f"appendonly no, save {config['save']}: a crash of the server loses all that was done since it last saved;"
            " set appendonly yes"
        )
    else:
        yield "appendonly no, and no save: a crash or restart of the server loses every message; set appendonly yes"


def _about_append_only_file(config: Mapping[str, str]) -> Iterator[str]:
    match config.get("appendfsync"):
        case "everysec":
            yield (
                "appendfsync everysec: a crash of the server's machine loses up to two seconds of what was answered;"
                " appendfsync always loses nothing, and writes more slowly"
            )
        case "no":
            yield (
                "appendfsync no: a crash of the server's machine loses up to half a minute of what was answered;"
                " set appendfsync everysec, or always, which loses nothing"
            )
        case "always" if config.get("no-appendfsync-on-rewrite") == "yes":
            yield (
                "no-appendfsync-on-rewrite yes: a crash of the server's machine while it rewrites its file loses what"
                " was answered meanwhile; set it to no"
            )


def _about_replicas(facts: Facts) -> Iterator[str]:
    replicas = facts.info.get("connected_slaves", "0")
    if replicas == "0" or facts.config is None:
        return
    if facts.config.get("min-replicas-to-write", "0") == "0":
        yield (
            f"{replicas} replica{'s' if replicas != '1' else ''}, min-replicas-to-write 0: a failover loses what had"
            " not reached the replica, and a master that was cut off takes messages that are lost later; set"
            " min-replicas-to-write 1"
        )
    elif _version(facts.info) < HEEDS_REPLICAS:
        yield (
            "min-replicas-to-write is not heeded by scripts before Redis 7, and so not by jobpool: a failover loses"
            " what had not reached the replica; upgrade it"
        )


def _read_info(answer: object) -> dict[str, str]:
    lines = answer.decode("utf-8", "replace").splitlines() if isinstance(answer, bytes) else []
    pairs = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name: value.strip() for name, _, value in pairs if name}


def require_version(title: str, info: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` when what INFO says is of a server that is too old."""
    if _version(info) < OLDEST:
        version = info["redis_version"]
        raise ConfigurationError(f"{title} is version {version}, and jobpool needs Redis 6.2 or later: upgrade it")


def _version(info: Mapping[str, str]) -> tuple[int, ...]:
    """As far as it is known: new enough for everything if it is not."""
    numbers = tuple(int(part) for part in info.get("redis_version", "").split(".")[:2] if part.isdigit())
    return numbers or (999,)
