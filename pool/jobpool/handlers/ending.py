"""How user code ended, as a value: what it returned or raised, told apart and put into words.

Everything here may run code of the user's (an exception's `__str__`, a value's `__repr__`), so it is called under the
alarm. Its results are plain texts.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from traceback import StackSummary, TracebackException
from types import TracebackType

import jobpool.errors
from jobpool.errors import JobpoolError, Retry, Snooze, Unrecoverable
from jobpool.message.capped_text import cap_text
from jobpool.message.outcome import ResultKind

_OURS = os.path.dirname(os.path.abspath(jobpool.errors.__file__)) + os.sep
_MAX_CHAIN_LINKS = 100

_OF_THE_PROCESS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG, errno.EPERM, errno.EBADF, errno.ENOTSOCK}
"""Errors of system calls that tell of this process more than of what it asked for."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the handler.

    `after`: seconds that `Retry` or `Snooze` asked for. `suspect`: it failed in a way that may have spoilt its process.
    """

    kind: ResultKind
    output: str = ""
    error: str = ""
    after: float = 0.0
    suspect: bool = False


SUCCEEDED = Ending(ResultKind.SUCCEEDED)


def of_error(error: BaseException, cap: int) -> Ending:
    """Return the end of an attempt that raised this. `Unrecoverable` counts anywhere in the chain."""
    links = list(chain(error))
    suspect = any(map(is_suspect, links))
    if any(isinstance(link, Unrecoverable) for link in links):
        return Ending(ResultKind.UNRECOVERABLE, error=told(error, cap), suspect=suspect)
    if isinstance(error, Retry):
        return Ending(ResultKind.RETRY, error=told(error, cap), after=error.after, suspect=suspect)
    if isinstance(error, Snooze):
        return Ending(ResultKind.SNOOZE, error=cap_text(str(error), cap), after=error.after, suspect=suspect)
    return Ending(ResultKind.FAILED, error=told(error, cap), suspect=suspect)


def is_suspect(error: BaseException) -> bool:
    """Tell if the process itself may be the cause, or may have come to harm: it lacks memory, descriptors or rights.

    A part of Python's own library that cannot be imported any more counts too. Everyday errors of handlers do not.
    """
    if isinstance(error, OSError):
        return error.errno in _OF_THE_PROCESS
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0] in sys.stdlib_module_names
    return isinstance(error, MemoryError | RecursionError | SystemError)


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, what caused it, what it was raised in the handling of, and the members of groups; each once.

    A context that was cut off with `raise … from None` is not followed.
    """
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo and len(seen) < _MAX_CHAIN_LINKS:
        link = todo.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        todo.append(link.__cause__)
        if not link.__suppress_context__:
            todo.append(link.__context__)
        if isinstance(link, BaseExceptionGroup):
            todo.extend(link.exceptions)


def told(error: BaseException, cap: int) -> str:
    """Return the traceback, without jobpool's own frames at its top; of an error that jobpool has raised, the
    sentence.
    """
    try:
        below = below_ours(error.__traceback__)
        if below is None and isinstance(error, JobpoolError):
            return cap_text(str(error), cap)
        trace = None if isinstance(error, BaseExceptionGroup) else error.__traceback__  # its members have their own
        lines = TracebackException(type(error), error, below or trace).format()
        return cap_text("".join(lines).rstrip("\n"), cap)
    except Exception:  # noqa: BLE001 - an error that cannot be told is still a failed attempt
        return named(error)


def named(error: BaseException) -> str:
    """Return no more than the name of its class: runs no code of the error's."""
    return f"{type(error).__name__} (it cannot be shown)"


def timeout_text(name: str, seconds: float, stack: StackSummary | None, cap: int) -> str:
    """Return the text of a timeout: the sentence, and the place where the alarm met the handler."""
    text = f"Job '{name}' exceeded maximum execution time of {_number(seconds)} seconds."
    if not stack:
        return text
    while len(stack) > 1 and stack[0].filename.startswith(_OURS):
        del stack[0]
    return cap_text(f"{text}\n" + "".join(traceback.format_list(stack)).rstrip("\n"), cap)


def _number(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def below_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins below jobpool's own frames at its top; None when there is no other."""
    below = trace
    while below is not None and below.tb_frame.f_code.co_filename.startswith(_OURS):
        below = below.tb_next
    return below
