"""The output of an attempt, made of the value that the handler returned and the text that it printed."""

from __future__ import annotations

from typing import Any

import orjson

from jobpool.message.capped_text import cap_text

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def render(value: object, cap: int) -> str:
    """Return a returned value as text; "" for None. Runs code of the value's class, so it belongs under the alarm.

    A value that JSON does not know is shown as `repr` shows it: what a handler returns never fails its attempt.
    """
    if value is None:
        return ""
    return cap_text(value if isinstance(value, str) else _json(value), cap)


def join(returned: str, printed: str, cap: int) -> str:
    """Join returned text and printed text, each on lines of its own."""
    if not printed or not returned:
        return returned or printed
    return cap_text(f"{returned}\n{printed}", cap)


def _json(value: object) -> str:
    try:
        return orjson.dumps(value, _plain, _OPTIONS).decode("utf-8", "replace")
    except Exception:  # noqa: BLE001 - the value's own code runs here
        return _shown(value)


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if callable(getattr(value, "model_dump", None)):
        return value.model_dump()
    return _shown(value)


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - as above
        return f"<{type(value).__name__}>"
