"""The filter language of list, dead, retry, cancel and purge.

`queue:reports handler:report state:dead reason:timeout age:>1h "some text"`: every term must match.

| term | matches |
| --- | --- |
| `queue:NAME`, `handler:NAME`, `reason:WORD` | exactly this one |
| `state:waiting` | also `delayed`, `leased`, `dead`; several with commas or repeated: any of them |
| `id:ID` | several with commas or repeated: any of them |
| `age:>1h`, `age:<1h30m` | older, newer: since the enqueue, of a dead letter since its death; `s`, `m`, `h`, `d`, `w` |
| `text`, `"some text"`, `text:"…"` | part of the body, the last error or the cause, whatever the case |
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

from jobpool.broker.values import Message, MessageFilter, State
from jobpool.errors import InvalidJob, JobpoolError
from jobpool.message.envelope import MAX_BODY_BYTES, OVERSIZED
from jobpool.message.names import check_queue
from jobpool.message.units import parse_duration

FIRST_PAGE, PAGE_MESSAGES, PAGE_BYTES = 20, 500, 4 * 2**20  # of a page: the first, and each later one
KEYS = ("queue", "handler", "state", "reason", "age", "id", "text")

_TERM = re.compile(
    r"""\s*+(?:(?P<key>[A-Za-z_]+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]*))(?=\s|$)""", re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_AGE = re.compile(r"(?P<sign>[<>])=?(?P<span>.+)")


class BadFilter(JobpoolError, ValueError):
    """A filter that says nothing clear; the text names the term and what could stand there."""


def parse_filter(text: str) -> MessageFilter:
    """Return the filter that a person wrote; the empty text matches everything.

    Raises `BadFilter`: an unknown key, a value out of range, an open quote, or a key given twice.
    """
    found: dict[str, Any] = {}
    at, end = 0, len(text.rstrip())
    while at < end:
        term = _TERM.match(text, at)
        if term is None:
            raise BadFilter(f"the filter cannot be read from {text[at:].strip()!r} on: is a quote left open?")
        key, plain = term["key"] or "text", term["plain"]
        if key not in KEYS:
            written = term[0].strip()
            raise BadFilter(
                f"there is no filter key {key!r}: use one of {', '.join(KEYS)}. A text with a colon stands in quotes,"
                f" and an id is written id:{written}"
            )
        value = _ESCAPED.sub(r"\1", term["quoted"]) if plain is None else plain
        if not value:
            raise BadFilter(f"the filter term {key}: has no value")
        _read(found, key, value)
        at = term.end()
    return MessageFilter(**found)


def _read(found: dict[str, Any], key: str, value: str) -> None:
    match key:
        case "state":
            found["states"] = (*found.get("states", ()), *map(_state, value.split(",")))
        case "id":
            idents = value.split(",")
            if not all(idents):
                # An id that vanished must not widen the filter: without any it would match everything.
                raise BadFilter(f"the filter term id:{value} has an empty id in it")
            found["ids"] = (*found.get("ids", ()), *idents)
        case "age":
            sign, seconds = _age(value)
            _put(found, "older_than" if sign == ">" else "newer_than", seconds, f"age:{sign}")
        case _:
            try:
                _put(found, key, check_queue(value) if key == "queue" else value, key)
            except InvalidJob as error:
                raise BadFilter(str(error)) from None


def _put(found: dict[str, Any], field: str, value: object, term: str) -> None:
    if field in found:
        hint = ": put the words in one pair of quotes" if field == "text" else ""
        raise BadFilter(f"the filter has more than one {term} term{hint}")
    found[field] = value


def _state(name: str) -> State:
    try:
        return State(name)
    except ValueError:
        raise BadFilter(f"there is no state {name!r}: use one of {', '.join(State)}") from None


def _age(value: str) -> tuple[str, float]:
    age = _AGE.fullmatch(value)
    if age is None:
        raise BadFilter(f"age:{value} is not clear: write age:>1h for older, age:<1h for newer")
    try:
        return age["sign"], parse_duration(age["span"])
    except ValueError as error:
        raise BadFilter(f"age:{value} is not clear: {error}") from None


class Lister(Protocol):
    """A lister of messages: any `QueueBackend`."""

    def list_messages(self, where: MessageFilter, *, after: str | None, limit: int, largest: int) -> list[Message]: ...


def matching(backend: Lister, where: MessageFilter, limit: int = 0, largest: int = MAX_BODY_BYTES) -> Iterator[Message]:
    """Yield the messages that match, `limit` at most; 0 = all. Blocks and raises as `pages`."""
    return chain.from_iterable(pages(backend, where, limit, largest))


def pages(
    backend: Lister, where: MessageFilter, limit: int = 0, largest: int = MAX_BODY_BYTES
) -> Iterator[list[Message]]:
    """Yield the same page by page: fewer messages where the bodies that come along are large.

    Blocks for a round trip a page. Raises as `QueueBackend.list_messages` does.
    """
    after, left, size = None, limit or sys.maxsize, min(FIRST_PAGE, PAGE_MESSAGES)
    while asked := min(size, left):
        page = backend.list_messages(where, after=after, limit=asked, largest=largest)
        yield page
        if len(page) < asked:
            return
        after, left = page[-1].cursor, left - asked
        sizes = [0 if message.body is OVERSIZED else len(message.body) for message in page]
        size = next_page(sizes, PAGE_MESSAGES, PAGE_BYTES)


def next_page(sizes: Sequence[int], most: int, room: int) -> int:
    """Return how many messages to ask for after some of these sizes: 1 to `most`, about `room` bytes."""
    return max(1, min(most, room // (sum(sizes) // len(sizes) + 1)))
