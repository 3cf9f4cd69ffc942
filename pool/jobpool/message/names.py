"""The rules for names, ids, keys and texts: one place, so that every producer, broker and file name agrees."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TypeGuard

from jobpool.errors import InvalidJob

QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # safe in a file name, a broker's key and a shell word
IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=~-]{0,127}")  # of a producer; minted ones are 16 hex digits
DEFAULT_QUEUE = "default"  # of jobs that name none
LONGEST_IDENTIFIER = 128
MAX_NAMED = 10  # names that a sentence lists
LONGEST_NAME = 255  # characters in a handler's name, a job's name, an idempotency key or a concurrency key


def is_queue(name: object) -> TypeGuard[str]:
    """Return whether a queue can have this name: one that another program gave may even inject a command."""
    return isinstance(name, str) and QUEUE_NAME.fullmatch(name) is not None


def check_queue(queue: object) -> str:
    """Return `queue` as plain text, or raise `InvalidJob` naming what a queue name may hold."""
    if not is_queue(queue):
        raise InvalidJob(
            f"queue name {quoted(queue)} is refused: 1 to 100 letters, digits, '.', '_' or '-',"
            " starting with a letter or digit"
        )
    return str.__str__(queue)


def check_identifier(identifier: str) -> str:
    """Return `identifier`, or raise `InvalidJob` naming what an id may hold."""
    if not isinstance(identifier, str) or not IDENTIFIER.fullmatch(identifier):
        raise InvalidJob(
            f"identifier {quoted(identifier)} is refused: 1 to 128 letters, digits or '._:@/+=~-',"
            " starting with a letter or digit"
        )
    return identifier


def check_text(value: object, what: str) -> str:
    """Return `value`, or raise `InvalidJob` for one that is not a `str`; `what` says which argument it is."""
    if not isinstance(value, str):
        raise InvalidJob(f"{what} {quoted(value)} is refused: it is a str, not {type(value).__name__}")
    return value


def check_name(name: str, what: str) -> str:
    """Return `name` as plain text, which frames need, or raise `InvalidJob`; `what` says which name it is."""
    if not is_name(name):
        raise InvalidJob(f"{what} {quoted(name)} is refused: 1 to {LONGEST_NAME} printable characters")
    return str.__str__(name)


def is_name(value: object) -> bool:
    """Return whether this is text for one line and for UTF-8: no control characters, no lone surrogates."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def nearest_word(word: str, known: Iterable[str]) -> str:
    """Return the known word that `word` is most likely meant for; "" = none is near."""
    from difflib import get_close_matches  # only here: most programs make no such mistake

    return next(iter(get_close_matches(word, sorted(known), n=1)), "")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known word; "" = none is near."""
    near = nearest_word(word, known)
    return f"; did you mean {near!r}?" if near else ""


def nearest_or_all(word: str, known: Collection[str]) -> str:
    """Return the same, or where none is near `; there are …` with the first known words; "" = there are none."""
    return nearest(word, known) or (f"; there are {listed(known)}" if known else "")


def listed(names: Collection[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - MAX_NAMED
    return ", ".join([*names][:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def storable(text: str) -> str:
    """Return `text` as every broker can keep it: lone surrogates are written out (`\\ud800`), NUL becomes U+FFFD."""
    whole = text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
    return whole.replace("\0", "\ufffd")


def quoted(value: object) -> str:
    """Return a refused value as an error shows it: not all of one that is refused for its length."""
    text = repr(value)
    length = len(value if isinstance(value, str) else text)
    return text if len(text) <= LONGEST_NAME + 2 else f"{text[:60]}… ({length:,} characters)"
