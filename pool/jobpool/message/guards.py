"""Guards: the keys, places and rates that a delivery needs besides its lease to run its handler. Plain values.

`Guards` is the request; a broker's `KeyStore` (key_store.py) grants all of it or nothing, in one atomic step. A grant
lives exactly as long as the lease: nothing is renewed, and a dead pool holds nothing for longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from jobpool.errors import ConfigurationError
from jobpool.message.names import LONGEST_NAME, quoted

IDEMPOTENCY_TTL = 86400.0  # seconds for which a key stays done, unless something else is said
LONGEST_KEPT = 366 * 86400.0  # seconds: the longest that a done key can be remembered
LONGEST_PLACE = LONGEST_NAME + 45  # characters in the name of a lock or limit: a job's name or key, after a word
LONGEST_RECORD_KEPT = 5 * LONGEST_KEPT  # seconds: longer than from one leap day to the next
MOST_PLACES = 1_000_000  # the largest concurrency or rate limit
MOST_LINES = 100_000  # lines that one log of a broker's key store can keep
RATE_WINDOW = 60.0  # seconds over which rates are counted: jobs a minute


def keyless(scheme: str, job: str, asked: Mapping[str, object]) -> str | None:
    """Say why a broker without a key store cannot do what a job asks for, by name; None: it asks for nothing."""
    names = " and ".join(name for name, value in asked.items() if value)
    if not names:
        return None
    return (
        f"{scheme}:// keeps no keys (Capabilities.key_store), which job {job!r} needs for {names}:"
        f" leave {names} out, or choose a backend with a key store"
    )


class Hold(Struct, frozen=True):
    """One of `most` places, 1 to 1,000,000, under a name of 1 to 300 printable characters.

    A single-instance lock is the only one under its name. Raises `ConfigurationError`: out of these bounds.
    """

    name: str
    most: int = 1

    def __post_init__(self) -> None:
        check_place(self.name, self.most)


class Rate(Struct, frozen=True):
    """At most `most` starts under a name within any `window` seconds (0 < window <= 86,400): sliding, exact.

    Raises as `Hold`.
    """

    name: str
    most: int
    window: float = RATE_WINDOW

    def __post_init__(self) -> None:
        check_place(self.name, self.most)
        if not 0 < self.window <= 86400:
            raise ConfigurationError(f"a rate's window is more than 0 and at most 86400 seconds, not {self.window!r}")


class Guards(Struct, frozen=True):
    """All that one delivery asks for. Names and keys are scoped by the queue of its lease."""

    key: str | None = None  # idempotency key
    keep: float = IDEMPOTENCY_TTL  # seconds for which the key stays done after the ack
    holds: tuple[Hold, ...] = ()  # places held while the lease lives: single-instance locks, concurrency limits
    rates: tuple[Rate, ...] = ()  # starts that are counted


class Begin(Enum):
    """A key store's answer to `begin`."""

    GRANTED = "granted"
    DONE = "done"  # the idempotency key is done: ack without running
    HELD = "held"  # the key, or every place under a name, is held by other messages whose leases live
    LIMITED = "limited"  # a rate is used up; `after` says for how long
    LOST = "lost"  # the lease itself has ended, or somebody else has the message


class Begun(Struct, frozen=True):
    """The answer for one lease."""

    answer: Begin  # only `GRANTED` changed anything
    name: str = ""  # the first that refused, in the order key, holds, rates, where the key is `key`; else ""
    after: float = 0.0  # seconds until a rate has room again; 0 otherwise

    def __bool__(self) -> bool:
        return self.answer is Begin.GRANTED


def check_place(name: str, most: int) -> None:
    """Raise `ConfigurationError` unless this can be the name and size of a limit."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_PLACE or not name.isprintable():
        allowed = f"1 to {LONGEST_PLACE} printable characters"
        raise ConfigurationError(f"a lock's or limit's name has {allowed}, not {quoted(name)}")
    if type(most) is not int or not 1 <= most <= MOST_PLACES:
        raise ConfigurationError(f"a limit is a whole number from 1 to {MOST_PLACES}, not {most!r}")


def check_keep(seconds: float, what: str = "idempotency_ttl", most: float = LONGEST_KEPT) -> float:
    """Return `seconds`, or raise `ConfigurationError`: a done key is kept for more than 0 s and at most a year."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= most:
        raise ConfigurationError(f"{what} is more than 0 and at most {most:.0f} seconds, not {seconds!r}")
    return float(seconds)
