"""What settings are written as and what they mean: queues with weights, names, workers, handler lists, shares.

Plain functions, each raising `ValueError` with a sentence that says how to write it. `settings.py` puts them to work.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from jobpool.errors import ConfigurationError
from jobpool.message.guards import MOST_PLACES
from jobpool.message.names import QUEUE_NAME, check_queue

Queues = tuple[tuple[str, float], ...]

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def parse_queues(value: object) -> Queues:
    """`"reports"`, `"reports=8,mail"`, a list of such texts, or a table `{reports = 8}`; weight 1 if not given."""
    pairs = list(_pairs(value))
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"queue {name!r} is named twice")
    if not pairs:
        raise ValueError("at least one queue is needed, such as 'default'")
    return tuple(pairs)


def parse_names(value: object) -> tuple[str, ...]:
    """A text with commas, or a list of such texts; empty parts are dropped."""
    return tuple(name for part in _parts(value) for name in _split(part) if name)


def parse_pool_name(value: object) -> str:
    """A name that is safe in a file name and a process title."""
    if not isinstance(value, str) or not QUEUE_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a name: 1 to 100 letters, digits, '.', '_' or '-', a letter or digit first")
    return value


def parse_queue_name(value: object) -> str:
    """The name of one queue."""
    return check_queue(value)  # type: ignore[arg-type]  # it looks at the type itself


def parse_workers(value: object) -> int:
    """A whole number from 1 to 1024, or `auto`: one for each CPU that this process may use."""
    if isinstance(value, str) and value.strip().lower() == "auto":
        return usable_cpus()
    number = parse_count(value)
    if not 1 <= number <= 1024:
        raise ValueError(f"{number} is not a number of workers: 1 to 1024, or 'auto'")
    return number


def parse_count(value: object) -> int:
    """A whole number, 0 or more."""
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else -1
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(f"{value!r} is not a whole number, 0 or more")
    return number


def parse_number(value: object) -> float:
    """A finite number, 0 or more."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r} is not a number, 0 or more")
    return number


def parse_switch(value: object) -> bool:
    """On or off: true, yes, on, 1, or their contraries."""
    word = value.strip().lower() if isinstance(value, str) else value
    for answer, words in ((True, ("true", "yes", "on", "1")), (False, ("false", "no", "off", "0"))):
        if word is answer or word in words:
            return answer
    raise ValueError(f"{value!r} is neither true nor false")


def each(check: Callable[[str], str]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """`check`, for every one of several names; what it raises is a `ValueError` here."""

    def check_all(names: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(map(check, names))
        except ConfigurationError as error:
            raise ValueError(str(error)) from None

    return check_all


def parse_share(value: object) -> float:
    """A number from 0 to 1, or a text such as `"15%"`."""
    text = value.strip() if isinstance(value, str) else value
    share = parse_number(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else parse_number(text)
    if share > 1:
        raise ValueError(f"{value!r} is not a share: 0 to 1, or a percentage such as '15%'")
    return share


def parse_handlers(value: object) -> dict[str, list[str]]:
    """Which handlers a queue allows: a table, or texts such as `reports=render,mail`; `reports=` allows none."""
    if isinstance(value, Mapping):
        return {check_queue(queue): list(parse_names(names)) for queue, names in value.items()}
    allowed: dict[str, list[str]] = {}
    for text in _parts(value):
        for part in text.replace(";", " ").split():
            queue, sign, names = part.partition("=")
            if not sign:
                raise ValueError(f"{part!r} names no handlers: write QUEUE=HANDLER,HANDLER")
            allowed[check_queue(queue)] = list(parse_names(names))
    return allowed


def parse_limits(value: object) -> dict[str, int]:
    """What limits a queue: a table `{reports = 4}`, or texts such as `reports=4,mail=2`. 0 = no limit."""
    limits: dict[str, int] = {}
    for queue, most in _limit_pairs(value):
        if queue in limits:
            raise ValueError(f"queue {queue!r} is named twice")
        limits[queue] = _limit(queue, most)
    return {queue: most for queue, most in limits.items() if most}


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, cut to the container's quota."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cpus, _quota(CPU_MAX) or cpus))


def _quota(path: Path) -> int | None:
    try:
        quota, period = path.read_text().split()
        return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return None


def _limit_pairs(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from ((check_queue(queue), most) for queue, most in value.items())
        return
    for item in parse_names(value):
        queue, sign, most = (piece.strip() for piece in item.partition("="))
        if not sign:
            raise ValueError(f"{item!r} names no limit: write QUEUE=N")
        yield check_queue(queue), most


def _limit(queue: str, value: object) -> int:
    try:
        most = parse_count(value)
    except ValueError:
        most = -1
    if not 0 <= most <= MOST_PLACES:
        wanted = f"must be a whole number from 0 (no limit) to {MOST_PLACES}"
        raise ValueError(f"the limit of queue {queue!r} {wanted}, not {value!r}")
    return most


def _pairs(value: object) -> Iterable[tuple[str, float]]:
    if isinstance(value, Mapping):
        for name, weight in value.items():
            yield check_queue(name), _weight(name, weight)
        return
    for part in _parts(value):
        for place, item in enumerate(_split(part)):
            yield _pair(item, after_comma=place > 0)


def _pair(item: str, *, after_comma: bool) -> tuple[str, float]:
    name, sign, weight = (piece.strip() for piece in item.partition("="))
    if after_comma and not sign and name.replace(".", "", 1).isdigit():
        raise ValueError(f"{name!r} after a comma would be a queue; a weight is written NAME={name}")
    return check_queue(name), _weight(name, weight) if sign else 1.0


def _weight(queue: str, value: object) -> float:
    try:
        weight = parse_number(value)
    except ValueError:
        weight = 0.0
    if weight <= 0:
        raise ValueError(f"the weight of queue {queue!r} must be a number above 0, not {value!r}")
    return weight


def _parts(value: object) -> list[str]:
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{value!r} is neither a text nor a list of texts")
    return list(parts)


def _split(part: str) -> list[str]:
    return [piece.strip() for piece in part.split(",")]
