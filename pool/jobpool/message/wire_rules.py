"""The rules for each field of the wire object, with the words of their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from jobpool.message.definition import LONGEST
from jobpool.message.names import LONGEST_IDENTIFIER, LONGEST_NAME

WIRE_VERSION = 1
"""Written as `v` in the meta from version 2 on; absent = 1."""


class Rule(NamedTuple):
    """One field. An optional one may be absent or null, which mean the same."""

    name: str
    required: bool
    holds: Callable[[Any], bool]
    wanted: str


def complaint(wire: dict[str, Any]) -> str:
    """Return the first rule that a wire object breaks, as a sentence; "" when it breaks none."""
    for name, required, holds, wanted in RULES:
        if name not in wire:
            if required:
                return f"the body has no field {name!r}"
        elif not holds(wire[name]) and (required or wire[name] is not None):
            return f"the body's field {name!r} is {shown(wire[name])}, not {wanted}"
    return ""


def shown(value: object) -> str:
    """Return a JSON value for an error text, cut."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else text[:60] + "…"


def is_name(value: object) -> bool:
    """Return whether it is text that fits on one line of a log: a handler's or a job's name."""
    return type(value) is str and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def is_meta(value: object) -> bool:
    """Return whether the reserved keys hold what they should. A newer wire may use them in its own way."""
    if type(value) is not dict:
        return False
    version = value.get("v", 1)
    if type(version) is not int or version < 1:
        return False
    if version <= WIRE_VERSION:
        for key, item in value.items():
            if key in _META_RULES and not _META_RULES[key](item):
                return False
    return True


_META_RULES: dict[str, Callable[[Any], bool]] = {
    # A longer timer than a definition takes overflows in the child, which would look like a crash.
    "_timeout": lambda value: type(value) in (int, float) and 0 <= value <= LONGEST,
    "_expires": lambda value: type(value) in (int, float) and value >= 0,
    "_singleInstance": lambda value: type(value) is bool,
    "_concurrencyKey": is_name,
}


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_identifier(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= LONGEST_IDENTIFIER and value.isprintable()


RULES = (
    Rule("job", True, is_name, f"a handler's name of 1 to {LONGEST_NAME} printable characters"),
    Rule("payload", True, lambda _: True, "a JSON value"),
    Rule("queue", True, _is_text, "text"),
    Rule("priority", True, lambda value: _is_count(value) and value <= 255, "a whole number from 0 to 255"),
    Rule("maxRetries", False, _is_count, "a whole number from 0, or null"),
    Rule("attempts", False, _is_count, "a whole number from 0, or null"),
    Rule("name", False, is_name, f"1 to {LONGEST_NAME} printable characters, or null"),
    Rule("identifier", True, _is_identifier, f"1 to {LONGEST_IDENTIFIER} printable characters"),
    Rule("idempotencyKey", False, _is_text, "text, or null"),
    Rule("schedule", False, _is_text, "text, or null"),
    Rule(
        "meta",
        False,
        is_meta,
        "an object whose v is a number from 1, _timeout and _expires seconds, _singleInstance true or false,"
        " _concurrencyKey a name",
    ),
)
"""In wire order. `_sig` may hold anything: `verify` refuses a bad signature."""
