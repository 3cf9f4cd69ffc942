"""Forms in which settings are written: queues with weights, names, workers, handler lists, words with values.

Plain functions, each raising `ValueError` with a sentence that says how to write it. `settings.py` puts them to work.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from jobpool.message.allowances import LARGEST_BODY, LONGEST_CALL
from jobpool.message.control_groups import group_files
from jobpool.message.definition import check_result_ttl
from jobpool.message.guards import MOST_LINES, MOST_PLACES
from jobpool.message.names import check_queue, is_queue
from jobpool.message.units import parse_duration, parse_size

Parsed = TypeVar("Parsed")

Queues = tuple[tuple[str, float], ...]
MOST_WORKERS = 1024


class Address(NamedTuple):
    """The place where a server listens; port 0 = any free one."""

    host: str
    port: int


class History(NamedTuple):
    """The place where attempts are recorded: `path` of a file, or the broker's `table`; neither = nowhere."""

    path: Path | None = None
    table: bool = False
    keep: int = 100  # rows of each job's name, the newest
    mask: tuple[str, ...] = ()  # keys whose values are masked, besides those that always are


class OnCrash(NamedTuple):
    """The fate of a crashed message: its lease is forfeited, or left to expire; `queue` = it goes on there."""

    how: Literal["forfeit", "expire"] = "forfeit"
    queue: str | None = None


class MemoryLimit(NamedTuple):
    """Bytes above which a child is killed (0 = no limit); `queue` = its job goes on there, or in its own (None)."""

    size: int = 0
    queue: str | None = None


class Recycle(NamedTuple):
    """The reasons to replace a child."""

    jobs: int = 0  # after this number of jobs; 0 = never
    memory: int = 0  # above this number of bytes; 0 = never
    failure: str = "suspect"  # after which failures


class UrlLimits(NamedTuple):
    """Seconds that a call of the built-in handler `url` may take, and bytes of a body."""

    timeout: float = 30.0
    body: int = 1 << 20


def parse_queues(value: object) -> Queues:
    """Read `"reports"`, `"reports=8,mail"`, a list of such texts, or a table `{reports = 8}`; weight 1 if not given."""
    for name in () if isinstance(value, Mapping) else (name for part in _parts(value) for name in _split(part)[1:]):
        if name.replace(".", "", 1).isdigit():
            raise ValueError(f"{name!r} after a comma would be a queue; a weight is written NAME={name}")

    def read(queue: str, given: object) -> float:
        weight = 1.0 if given is None else _or(0.0, parse_number, given)
        if weight <= 0:
            raise ValueError(f"the weight of queue {queue!r} must be a number above 0, not {given!r}")
        return weight

    weights = _by_queue(value, read)
    if not weights:
        raise ValueError("at least one queue is needed, such as 'default'")
    return tuple(weights.items())


def parse_names(value: object) -> tuple[str, ...]:
    """Read a text with commas, or a list of such texts; empty parts are dropped."""
    return tuple(name for part in _parts(value) for name in _split(part) if name)


def parse_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("it is empty: leave it out" if value == "" else "must be a text")
    return value


def choice(*words: str) -> Callable[[object], str]:
    """Return what parses one of these words, in any case."""

    def parse_choice(value: object) -> str:
        word = value.lower() if isinstance(value, str) else value
        if word not in words:
            raise ValueError(f"must be {', '.join(map(repr, words[:-1]))} or {words[-1]!r}, not {value!r}")
        return str(word)

    return parse_choice


def parse_words(value: object, parsers: Mapping[str, Callable[[Any], Any]]) -> tuple[str, dict[str, Any]]:
    """Split `"fixed base=5s attempts=3"` into the text in front and the values of the words at its end."""
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {value!r}")
    text, found = value.strip(), dict[str, Any]()
    while True:
        front, _, word = f" {text}".rpartition(" ")
        name, sign, given = word.partition("=")
        if not sign or name not in parsers:
            return text, found
        if name in found:
            raise ValueError(f"{name}= is given twice")
        try:
            found[name] = parsers[name](given)
        except ValueError as error:
            raise ValueError(f"{name}={given}: {error}") from None
        text = front.strip()


def parse_pool_name(value: object) -> str:
    if not is_queue(value):
        raise ValueError(f"{value!r} is not a name: 1 to 100 letters, digits, '.', '_' or '-', a letter or digit first")
    return value


def parse_workers(value: object) -> int:
    """Read a whole number from 1 to 1024, or `auto`: one for each CPU that this process may use."""
    if isinstance(value, str) and value.strip().lower() == "auto":
        return usable_cpus()
    number = _or(0, parse_count, value)
    if not 1 <= number <= MOST_WORKERS:
        raise ValueError(f"{value!r} is not a number of workers: 1 to {MOST_WORKERS}, or 'auto'")
    return number


def parse_count(value: object) -> int:
    return int(parse_number(value, int, "a whole number"))


def parse_number(value: object, kind: type[int] | type[float] = float, what: str = "a number") -> float:
    is_one = isinstance(value, (kind, int, str)) and not isinstance(value, bool)
    number = _or(-1, kind, value) if is_one else -1  # type: ignore[arg-type]
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r} is not {what}, 0 or more")
    return number


def parse_switch(value: object) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    for answer, words in ((True, ("true", "yes", "on", "1")), (False, ("false", "no", "off", "0"))):
        if word is answer or word in words:
            return answer
    raise ValueError(f"{value!r} is neither true nor false")


def parse_share(value: object) -> float:
    text = value.strip() if isinstance(value, str) else value
    share = parse_number(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else parse_number(text)
    if share > 1:
        raise ValueError(f"{value!r} is not a share: 0 to 1, or a percentage such as '15%'")
    return share


def parse_handlers(value: object) -> dict[str, list[str]]:
    """Read the handlers that a queue allows: a table, or texts as `reports=render,mail`; `reports=` allows none."""
    if isinstance(value, Mapping):
        parts = [(queue, "=", names) for queue, names in value.items()]
    else:
        parts = [part.partition("=") for text in _parts(value) for part in text.replace(";", " ").split()]
    allowed: dict[str, list[str]] = {}
    for queue, sign, names in parts:
        if not sign:
            raise ValueError(f"{queue!r} names no handlers: write QUEUE=HANDLER,HANDLER")
        listed = parse_names(names)
        if odd := next((name for name in listed if "=" in name), None):
            raise ValueError(f"{odd!r} is not a handler: write {queue}=a,b;other=c")
        allowed[check_queue(queue)] = [*allowed.get(queue, ()), *listed]
    return allowed


def parse_limits(value: object) -> dict[str, int]:
    """Read the limits of queues: a table `{reports = 4}`, or texts such as `reports=4,mail=2`. 0 = no limit."""

    def read(queue: str, given: object) -> int:
        if given is None:
            raise ValueError(f"{queue!r} names no limit: write QUEUE=N")
        most = _or(-1, parse_count, given)
        if not 0 <= most <= MOST_PLACES:
            bounds = f"0 (no limit) to {MOST_PLACES}"
            raise ValueError(f"the limit of queue {queue!r} must be a whole number from {bounds}, not {given!r}")
        return most

    limits = _by_queue(value if isinstance(value, Mapping) else parse_names(value), read)
    return {queue: most for queue, most in limits.items() if most}


def parse_result_ttls(value: object) -> dict[str, float]:
    """Read for how long results of queues are kept: a table `{reports = "1h"}`, or texts such as `reports=1h`."""

    def read(queue: str, given: object) -> float:
        if given is None:
            raise ValueError(f"{queue!r} names no time: write QUEUE=TIME, such as reports=1h")
        return check_result_ttl(parse_duration(given), f"the time for results of queue {queue!r}")

    return _by_queue(value if isinstance(value, Mapping) else parse_names(value), read)


def parse_keys(value: object) -> tuple[str, ...]:
    value = value.strip() if isinstance(value, str) else value  # as a line of a key file
    if isinstance(value, str) and value.startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError("starts with '[' and is not a JSON list of keys") from None
    keys = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not keys:
        raise ValueError("the list of signing keys is empty: leave the setting out to work unsigned")
    if any(not isinstance(key, str) for key in keys):
        raise ValueError("a signing key must be a text in quotes, or several in a list")
    if "" in keys:
        raise ValueError("a signing key must not be empty: leave the setting out to work unsigned")
    return keys


def parse_address(value: object) -> Address:
    """Read a port (`9100`, `":9100"`), or a host and a port (`"0.0.0.0:9100"`, `"[::1]:9100"`)."""
    host, _, port = str(value).strip().rpartition(":")
    if isinstance(value, bool) or not (port.isascii() and port.isdigit() and int(port) <= 65535) or host.endswith(":"):
        raise ValueError(f"{value!r} is not an address: write a port up to 65535, such as 9100, or HOST:PORT")
    return Address(host.strip("[]") or "127.0.0.1", int(port))


def parse_history(value: object) -> History:
    """Read `off`, `table` or `file:PATH`, then `keep=N` and `mask=KEY,…`; a path counts from the working directory."""
    place, more = parse_words(value if isinstance(value, str) else "", {"keep": _parse_keep, "mask": parse_names})
    kind, colon, path = place.partition(":")
    if kind.lower() == "file" and path:
        return History(Path(path).expanduser().absolute(), **more)
    if kind.lower() not in ("off", "table") or colon:
        raise ValueError(f"must be 'off', 'table' or 'file:PATH', such as 'file:history.ndjson', not {value!r}")
    return History(table=kind.lower() == "table", **more)


def parse_on_crash(value: object) -> OnCrash:
    how, more = parse_words(value, {"queue": check_queue})
    how = choice("forfeit", "expire")(how or "forfeit")
    return OnCrash("expire" if how == "expire" else "forfeit", **more)


def parse_memory_limit(value: object) -> MemoryLimit:
    """Read a size (`512M`, or a number of bytes), then `queue=NAME`."""
    size, more = parse_words(value, {"queue": check_queue}) if isinstance(value, str) else (value, {})
    limit = MemoryLimit(parse_size(size), **more)
    if limit.queue and not limit.size:
        raise ValueError(
            f"nothing is sent to {limit.queue!r} by a limit of 0: write a size, such as '512M queue={limit.queue}'"
        )
    return limit


def parse_recycle(value: object) -> Recycle:
    parsers = {"jobs": parse_count, "memory": parse_size, "failure": choice("suspect", "always", "never")}
    return Recycle(**_only_words(value, parsers, "jobs=1000 memory=512M failure=suspect"))


def parse_url_limits(value: object) -> UrlLimits:
    parsers = {"timeout": parse_duration, "body": parse_size}
    limits = UrlLimits(**_only_words(value, parsers, "timeout=30s body=1M"))
    if not 0 < limits.timeout <= LONGEST_CALL:
        raise ValueError(f"timeout= must be above 0, and at most {LONGEST_CALL} seconds, not {limits.timeout:g}")
    if not 1 <= limits.body <= LARGEST_BODY:
        raise ValueError(f"body= must be 1 to {LARGEST_BODY} bytes, not {limits.body}")
    return limits


def usable_cpus(root: Path = Path("/")) -> int:
    """Count the CPUs that this process may use: its affinity, cut to the quota of its container or service."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for file in group_files("cpu", "max", "cfs_quota_us", root):
        with contextlib.suppress(OSError, ValueError):  # no such file, or `max 100000`
            files = [file, file.with_name("cpu.cfs_period_us")] if "cfs" in file.name else [file]  # version 1 has two
            quota, period = map(int, "".join(part.read_text() for part in files).split())
            if quota > 0:  # it is -1 there for none
                cpus = min(cpus, math.ceil(quota / period))
    return cpus


def _parse_keep(value: object) -> int:
    keep = _or(0, parse_count, value)
    if not 1 <= keep <= MOST_LINES:
        raise ValueError(f"must be 1 to {MOST_LINES}")
    return keep


def _only_words(value: object, parsers: Mapping[str, Callable[[Any], Any]], example: str) -> dict[str, Any]:
    rest, words = parse_words(value, parsers)
    if rest:
        raise ValueError(f"{rest!r} is not known there: write words such as {example!r}")
    return words


def _by_queue(value: object, read: Callable[[str, object], Parsed]) -> dict[str, Parsed]:
    """Return what `read` makes of each queue's name and text; None = the name stood alone."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        items = (item.partition("=") for part in _parts(value) for item in _split(part))
        pairs = [(name.strip(), given.strip() if sign else None) for name, sign, given in items]
    found: dict[str, Parsed] = {}
    for name, given in pairs:
        if check_queue(name) in found:
            raise ValueError(f"queue {name!r} is named twice")
        found[name] = read(name, given)
    return found


def _or(otherwise: Parsed, parse: Callable[[object], Parsed], value: object) -> Parsed:
    try:
        return parse(value)
    except ValueError:
        return otherwise


def _parts(value: object) -> list[str]:
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{value!r} is neither a text nor a list of texts")
    if odd := next((part for part in parts if part[:1] + part[-1:] in ("[]", "{}")), None):
        raise ValueError(f"{odd!r} is written as in a file: here it is a text without brackets and quotes, such as a,b")
    return list(parts)


def _split(part: str) -> list[str]:
    return [piece.strip() for piece in part.split(",")]
