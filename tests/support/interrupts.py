"""Interrupts at exact points of a call, as a signal's handler that raises causes them."""

from __future__ import annotations

import contextlib
import dis
import functools
import math
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import jobpool
import jobpool_backends

_OURS = (*jobpool.__path__, *jobpool_backends.__path__, contextlib.__file__)
"""Beginnings of the paths of the files in which calls are interrupted, and in `threading` where these call it."""

_CHECKED = {number for name, number in dis.opmap.items() if name.startswith("CALL") or "BACKWARD" in name}
"""At the end of these instructions the interpreter looks for signals, and where a function or generator is entered."""


class Interrupt(BaseException):
    """What a signal's handler raises."""


@functools.cache
def _handlers(code: CodeType) -> list[Any]:
    return list(dis._parse_exception_table(code))  # type: ignore[attr-defined]


def _handler(code: CodeType, offset: int) -> int | None:
    return next((entry.target for entry in _handlers(code) if entry.start <= offset < entry.end), None)


def _is_ours(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_OURS)


class _Trap:
    """A trace function that raises at the `point`-th instruction before which the interpreter looks for signals.

    The interpreter would raise at the end of the instruction before. So this leaves out those with other handlers.
    """

    def __init__(self, point: float) -> None:
        self.where = ""
        self.passed = 0
        self._point = point
        self._last: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            if not _is_ours(frame):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._pass(frame)
        elif event == "return":
            self._last.pop(frame, None)
        elif event == "opcode":
            code, last, self._last[frame] = frame.f_code, self._last.get(frame, -1), frame.f_lasti
            looks = last >= 0 and code.co_code[last] in _CHECKED
            if looks and _handler(code, last) == _handler(code, frame.f_lasti):
                self._pass(frame)
        return self

    def _pass(self, frame: FrameType) -> None:
        if self.passed == self._point:
            sys.settrace(None)
            self._last.clear()  # it keeps frames, and what they have, alive
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            raise Interrupt(self.where)
        self.passed += 1


def interrupted(call: Callable[[], object], point: int) -> str:
    """Call it, and interrupt it at this point, from 0. Return where that was; "" if it had ended before."""
    return _trapped(call, point).where


def points(call: Callable[[], object]) -> range:
    """Call it; return the points at which it can be interrupted."""
    return range(_trapped(call, math.inf).passed)


def _trapped(call: Callable[[], object], point: float) -> _Trap:
    trap = _Trap(point)
    outer = sys.gettrace()
    sys.settrace(trap)
    try:
        call()
    except Interrupt:
        pass
    finally:
        sys.settrace(outer)
    return trap
