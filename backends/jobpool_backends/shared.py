"""What several backends need alike: microseconds, and the checks and the text search of the administrator's calls."""

from __future__ import annotations

from jobpool.definition import LONGEST
from jobpool.errors import ConfigurationError

MICRO = 1_000_000

LONGEST_PAGE = 1000
"""Messages in one page of a list."""


def micros(seconds: float) -> int:
    """Seconds, or a Unix time, as whole microseconds: what is stored and compared, so that deadlines are exact."""
    return round(seconds * MICRO)


def delay_micros(delay: float) -> int:
    """A delay in seconds as microseconds: 0 for anything that is not above 0, a hundred years at most."""
    return round(min(delay, LONGEST) * MICRO) if delay > 0 else 0


def check_page(limit: int) -> int:
    """Return `limit`, or raise `ValueError`: a page has 1 to 1,000 messages."""
    if not 1 <= limit <= LONGEST_PAGE:
        raise ValueError(f"limit must be 1 to {LONGEST_PAGE} messages a page, not {limit!r}")
    return limit


def check_positive(value: int, what: str) -> int:
    """Return `value`, or raise `ValueError`: a whole number from 1 on."""
    if value < 1:
        raise ValueError(f"{what} must be 1 or more, not {value!r}")
    return value


def read_cursor(after: str | None) -> int:
    """The sequence number behind a cursor, 0 for None; `ValueError` for what is no cursor of ours."""
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) < 20):
        raise ValueError(f"cursor {after!r} is none: pass the `cursor` of the last message of the page before")
    return int(after)


def contains(needle: str, body: bytes, *texts: str | None) -> bool:
    """Whether `needle` is in the body or one of `texts`, whatever the case of its letters."""
    folded = needle.casefold()
    return folded in body.decode("utf-8", "replace").casefold() or any(
        folded in text.casefold() for text in texts if text
    )


def refuse_options(scheme: str, options: dict[str, object]) -> None:
    """Raise `ConfigurationError` when there are any: this backend takes none, or none of these names."""
    if options:
        raise ConfigurationError(f"{scheme}:// has no option {', '.join(sorted(options))}: leave it out")
