"""Time zones by their IANA names."""

from __future__ import annotations

import difflib
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from jobpool.errors import InvalidJob

_OF_THE_MACHINE = ("localtime", "posixrules", "Factory")
"""Keys that some machines have, with a meaning of their own or none."""


def open_zone(name: str) -> ZoneInfo:
    """Return the zone of this IANA name, `Europe/Berlin`.

    Raises:
        InvalidJob: There is none; the text names those that are written alike.

    May read one file of the machine, or of the package `tzdata`, at the first call for a name.
    """
    if not isinstance(name, str) or name in _OF_THE_MACHINE or name.startswith(("posix/", "right/")):
        raise _unknown(name)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a folder, a path, another file
        raise _unknown(name) from None


def check_zone(name: str) -> str:
    """Return `name`, or raise `InvalidJob`."""
    open_zone(name)
    return name


def _unknown(name: object) -> InvalidJob:
    near = _near(name) if isinstance(name, str) else []
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "write an IANA name, like 'Europe/Berlin'"
    shown = repr(name)
    return InvalidJob(f"there is no time zone {shown if len(shown) < 80 else shown[:60] + '…'}: {hint}")


def _near(name: str) -> list[str]:
    known = {zone.lower(): zone for zone in sorted(available_timezones()) if zone not in _OF_THE_MACHINE}
    word = name.strip().lower().replace(" ", "_")[:80]
    if word in known:
        return [known[word]]
    cities = [known[zone] for zone in known if zone.rpartition("/")[2] == word.rpartition("/")[2]]
    return cities[:3] or [known[zone] for zone in difflib.get_close_matches(word, known, n=3, cutoff=0.7)]
