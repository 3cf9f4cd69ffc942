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
from collections.abc import Callable
from typing import Any

from jobpool.broker.values import MessageFilter, State
from jobpool.errors import InvalidJob, JobpoolError
from jobpool.message.names import check_queue
from jobpool.message.units import parse_duration

_TERM = re.compile(
    r"""\s*+(?:(?P<key>[A-Za-z_]+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]*))(?=\s|$)""", re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_AGE = re.compile(r"(?P<sign>[<>])=?(?P<span>.+)")


class BadFilter(JobpoolError, ValueError):
    """A filter that says nothing clear; the text names the term and what could stand there."""


def parse_filter(text: str) -> MessageFilter:
    """Return the filter that a person wrote; the empty text matches everything.

    Raises:
        BadFilter: An unknown key, a value out of range, an open quote, or a key given twice.
    """
    found: dict[str, Any] = {}
    for key, value in _terms(text):
        reader = _READERS.get(key)
        if reader is None:
            raise BadFilter(f"there is no filter key {key!r}: use one of {', '.join(_READERS)}, or quote the term")
        if not value:
            raise BadFilter(f"the filter term {key}: has no value")
        reader(found, value)
    return MessageFilter(**found)


def _terms(text: str) -> list[tuple[str, str]]:
    terms = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        term = _TERM.match(text, at)
        if term is None:
            raise BadFilter(f"the filter cannot be read from {text[at:].strip()!r} on: is a quote left open?")
        terms.append((term["key"] or "text", _value(term)))
        at = term.end()
    return terms


def _value(term: re.Match[str]) -> str:
    if term["plain"] is not None:
        return term["plain"]
    return _ESCAPED.sub(r"\1", term["quoted"])


def _once(found: dict[str, Any], field: str, value: object, term: str) -> None:
    if field in found:
        hint = ": put the words in one pair of quotes" if field == "text" else ""
        raise BadFilter(f"the filter has more than one {term} term{hint}")
    found[field] = value


def _read_queue(found: dict[str, Any], value: str) -> None:
    try:
        _once(found, "queue", check_queue(value), "queue")
    except InvalidJob as error:
        raise BadFilter(str(error)) from None


def _read_states(found: dict[str, Any], value: str) -> None:
    names = [state.value for state in State]
    for name in value.split(","):
        if name not in names:
            raise BadFilter(f"there is no state {name!r}: use one of {', '.join(names)}")
        found["states"] = (*found.get("states", ()), State(name))


def _read_ids(found: dict[str, Any], value: str) -> None:
    idents = value.split(",")
    if not all(idents):
        # An id that vanished must not widen the filter: without any it would match everything.
        raise BadFilter(f"the filter term id:{value} has an empty id in it")
    found["ids"] = (*found.get("ids", ()), *idents)


def _read_age(found: dict[str, Any], value: str) -> None:
    age = _AGE.fullmatch(value)
    if age is None:
        raise BadFilter(f"age:{value} is not clear: write age:>1h for older, age:<1h for newer")
    try:
        seconds = parse_duration(age["span"])
    except ValueError as error:
        raise BadFilter(f"age:{value} is not clear: {error}") from None
    _once(found, "older_than" if age["sign"] == ">" else "newer_than", seconds, f"age:{age['sign']}")


def _plain(field: str) -> Callable[[dict[str, Any], str], None]:
    def read(found: dict[str, Any], value: str) -> None:
        _once(found, field, value, field)

    return read


_READERS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "queue": _read_queue,
    "handler": _plain("handler"),
    "state": _read_states,
    "reason": _plain("reason"),
    "age": _read_age,
    "id": _read_ids,
    "text": _plain("text"),
}
