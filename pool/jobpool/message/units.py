"""Durations and sizes as people write them: `90`, `"90s"`, `"5m"`, `"1h"`; `"512M"`. And back; and checked numbers.

A value that cannot be read raises `ValueError`, with a text that says how to write one.
"""

from __future__ import annotations

import math
import re

from jobpool.errors import LONGEST_WAIT_S, InvalidJob

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
MAX_BYTES = (1 << 63) - 1  # more, which no machine has, fits into no signed 64-bit number of the kernel's
BYTES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([BKMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_duration(value: object) -> float:
    """Return seconds from a number or a text: `90`, `"1.5"`, `"250ms"`, `"5m"`, `"1h30m"`, `"2d"`.

    They are finite, and a hundred years at most.
    """
    text = str(value).replace(" ", "")
    parts = _DURATION.findall(text)
    try:
        has_units = parts and "".join(number + unit for number, unit in parts) == text
        seconds = sum(float(number) * SECONDS[unit] for number, unit in parts) if has_units else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT_S:
        long = ", a hundred years at most" if seconds > 0 else ""
        raise ValueError(f'{value!r} is not a duration: write seconds, such as 90, or "90s", "5m", "1h"{long}')
    return seconds


def parse_size(value: object) -> int:
    """Return bytes (>= 0) from a number or a text: `65536`, `"64K"`, `"512M"`, `"1.5G"`; units are powers of 1024."""
    match = _SIZE.fullmatch(str(value).strip())
    size = -1.0 if match is None or ("." in match[1] and not match[2]) else float(match[1]) * BYTES[match[2].upper()]
    if not 0 <= size <= MAX_BYTES:
        raise ValueError(f'{value!r} is not a size: write bytes, such as 65536, or "64K", "512M", "2G"')
    return int(size)


def check_number(value: float, what: str, *, nan: bool = False) -> float:
    """Return `value` as a float, or raise `ValueError`: a number, and not a truth value or, without `nan`, NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or (math.isnan(value) and not nan):
        raise ValueError(f"{what} is a number of seconds, not {value!r}")
    return float(value)


def check_seconds_between(value: float, what: str, least: float, most: float) -> float:
    """Return `value` as a float, or raise `InvalidJob`: a number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        bounds = f"{least:,.0f} to {most:,.0f} seconds ({format_duration(most)})"
        raise InvalidJob(f"{what} is {bounds}, not {value!r}")
    return float(value)


def check_int(value: int, what: str, least: int, most: int) -> int:
    """Return `value`, or raise `InvalidJob`: a whole number from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidJob(f"{what} must be a whole number from {least} to {most}, not {value!r}")
    return value


def format_duration(seconds: float) -> str:
    """Return a short text for people: `0.4s`, `59s`, `4m10s`, `3h05m`, `2d03h`. An `int` has no tenths: `4s`."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f}s" if whole < 10 and isinstance(seconds, float) else f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def format_size(size: float) -> str:
    """Return a short text for people: `0B`, `812K`, `4.2M`, `1.5G`."""
    for unit in ("B", "K", "M", "G"):
        if size < 1000:
            return f"{size:.1f}{unit}" if 0 < size < 10 and unit != "B" else f"{size:.0f}{unit}"
        size /= 1024
    return f"{size:.1f}T"
