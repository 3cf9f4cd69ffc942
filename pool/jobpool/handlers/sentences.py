"""How a built-in handler fails: in one sentence. No traceback is kept of what jobpool itself raises."""

from __future__ import annotations

from typing import Any

from jobpool.errors import JobpoolError, Unrecoverable

_KINDS: dict[Any, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def kind_of(value: object) -> str:
    """Return the kind of a JSON value, for sentences about payloads. The value itself may be secret, and logs show
    these.
    """
    return _KINDS.get(type(value), type(value).__name__)


class Failure(JobpoolError):
    """The attempt failed; the next one may do better."""


class Refused(Unrecoverable):
    """The handler may not do this, or cannot take this payload: it never will, so the job is not tried again."""
