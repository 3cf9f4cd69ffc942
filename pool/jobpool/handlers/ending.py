"""The end of an attempt, in plain texts: its value and its output, or its error.

Everything here may run code of the user's (an exception's `__str__`, a value's `__repr__`), so it is called under the
alarm.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from traceback import StackSummary, TracebackException
from types import TracebackType
from typing import Any

import orjson
from msgspec import Struct

import jobpool.errors
from jobpool.errors import JobpoolError, Retry, Snooze, Unrecoverable, check_seconds
from jobpool.message.capped_text import cap_text
from jobpool.message.definition import JobDefinition
from jobpool.message.masking import Masker
from jobpool.message.outcome import ExecutionResult, ResultKind
from jobpool.message.payload import json_form
from jobpool.message.printable import headline
from jobpool.message.results import capped

_OURS = os.path.dirname(os.path.abspath(jobpool.errors.__file__)) + os.sep
_MAX_CHAIN_LINKS = 100
_JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY

AT_A_BREAKPOINT = (
    "the handler met a breakpoint, and a job of a pool has no terminal: `jobpool run-one HANDLER key=value` runs it in"
    " yours"
)

_OF_THE_PROCESS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG, errno.EPERM, errno.EBADF, errno.ENOTSOCK}
"""Errors of system calls that tell of this process more than of what it asked for."""

_OF_CUT_DESCRIPTORS = os.strerror(errno.EBADF), os.strerror(errno.ENOTSOCK), "disk I/O error", "socket closed"
"""Words of an error whose cause may be a descriptor that was cut off; SQLite and psycopg say the last ones."""


class Attempt(Struct):
    """The end of an attempt. Its runner fills in from `handler` on what user code cannot tell."""

    kind: ResultKind
    output: str = ""  # captured text and return value, capped
    kept: str = ""  # its value as the broker is to keep it (`results.capped`); "" = it is not to be kept
    error: str = ""  # traceback, stack or reason; "" on success
    after: float = 0.0  # seconds that `Retry` or `Snooze` asked for
    suspect: bool = False  # it failed in a way that may have spoilt its process
    exception: BaseException | None = None  # until `after_attempt` hooks have seen it; a `KeyboardInterrupt` stays
    handler: str = ""  # its name
    started: float = 0.0  # CLOCK_MONOTONIC seconds; `duration` counts from here
    duration: float = 0.0  # seconds, hooks included
    follow_ups: Sequence[JobDefinition] = ()  # from `ctx.enqueue`; empty unless it succeeded
    started_at: float = 0.0  # Unix time
    daemons: bool = False  # the handler may leave processes and threads behind
    left_open: bool = False  # the handler acked in a transaction that it neither committed nor rolled back
    hook_threads: int = 0  # that app-wide hooks of this process have started, in this and earlier attempts

    @property
    def result(self) -> ExecutionResult:
        """The result for hooks and histories."""
        ended_at = self.started_at + self.duration
        succeeded = self.kind is ResultKind.SUCCEEDED
        error, kind = None if succeeded else self.error, self.kind.name.lower()
        return ExecutionResult(
            succeeded, self.output, error, self.started_at, ended_at, self.handler, kind, self.exception
        )


def of_error(error: BaseException, cap: int) -> Attempt:
    """Return the end of an attempt that raised this. `Unrecoverable` counts anywhere in the chain."""
    links = list(chain(error))
    kind, after, more = ResultKind.FAILED, 0.0, ""
    if any(isinstance(link, Unrecoverable) for link in links):
        kind = ResultKind.UNRECOVERABLE
    elif isinstance(error, Retry | Snooze):
        try:
            after = check_seconds(error.after, "after")
            kind = ResultKind.RETRY if isinstance(error, Retry) else ResultKind.SNOOZE
        except Exception as refused:  # noqa: BLE001 - the handler has put there what it liked
            more = f" ({refused})"
    text = cap_text(str(error), cap) if kind is ResultKind.SNOOZE else traceback_text(error, cap)
    if kind is ResultKind.RETRY:
        more = _because(error)
    if more:
        text = cap_text(text + more, cap)
    interrupt = error if isinstance(error, KeyboardInterrupt) else None
    return Attempt(kind, error=text, after=after, suspect=any(map(is_suspect, links)), exception=interrupt)


def _because(error: BaseException) -> str:
    """Return the error that made a handler raise `Retry`, in brackets: logs and lists show the last line alone."""
    why = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if why is None:
        return ""
    *_, last = TracebackException(type(why), why, None).format_exception_only()
    return f" ({last.strip()})"


def of_hook(error: BaseException, cap: int, hook: str) -> Attempt:
    """Return the end of an attempt with app-wide hooks that raised this. `hook`: the one that did; "" = the handler."""
    attempt = of_error(error, cap)
    attempt.exception = error
    if hook:
        attempt.error = cap_text(hook_failed(hook, attempt.error), cap)
    return attempt


def hook_failed(hook: str, error: str) -> str:
    """Return the text for a hook that failed. Its first line says why: logs and lists show that alone."""
    return f"the {hook} failed: {headline(error)}\n{error}"


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
    """Yield the error, its causes, the errors in whose handling it was raised, and the members of groups; each once.

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


def traceback_text(error: BaseException, cap: int) -> str:
    """Return the traceback, without jobpool's own frames at its top; of an error of jobpool's own, the sentence."""
    if type(error).__name__ == "BdbQuit":  # of the module bdb, which only `breakpoint()` imports
        return AT_A_BREAKPOINT
    try:
        below = below_ours(error.__traceback__)
        if below is None and isinstance(error, JobpoolError):
            return cap_text(str(error), cap)
        trace = None if isinstance(error, BaseExceptionGroup) else error.__traceback__  # its members have their own
        lines = TracebackException(type(error), error, below or trace).format()
        quoted = "\nTraceback (most"  # by a message: indented, so that nobody takes it for the error's own
        text = "".join(line.replace(quoted, quoted.replace("\n", "\n  ")) for line in lines)
        return cap_text(text.rstrip("\n"), cap)
    except Exception:  # noqa: BLE001 - an error that cannot be told is still a failed attempt
        return named(error)


def named(error: BaseException) -> str:
    """Return no more than the name of its class: runs no code of the error's."""
    return f"{type(error).__name__} (it cannot be shown)"


def with_cut_hint(error: str, cut: Collection[str]) -> str:
    """Return the error; if a descriptor that the child does not have may explain it, its headline says so."""
    if not any(words in error for words in _OF_CUT_DESCRIPTORS):
        return error
    end = error.find("\n", error.rfind(headline(error) or ""))
    head, notes = (error, "") if end < 0 else (error[:end], error[end:])
    hint = (
        f"the app's import opened what its children do not have: {', '.join(cut)}; open it in the handler, or anew"
        " in a hook of os.register_at_fork(after_in_child=…): docs/forking.md"
    )
    return f"{head} ({hint}){notes}"


def below_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins below jobpool's own frames at its top; None when there is no other."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def where_met(text: str, stack: StackSummary | None, cap: int, hook: str = "") -> str:
    """Return the text, and the place where the alarm met the handler, or `hook`."""
    if hook:
        text += f"\nIt was in the {hook}."
    if not stack:
        return text
    while len(stack) > 1 and stack[0].filename.startswith(_OURS):
        del stack[0]
    return cap_text(f"{text}\n" + "".join(traceback.format_list(stack)).rstrip("\n"), cap)


# --- output -------------------------------------------------------------------------------------------


def plain(value: object) -> Any:
    """Return a returned value as JSON values alone, as `rendered` writes it; values unknown to JSON as their text."""
    try:
        return orjson.loads(orjson.dumps(value, _plain, _JSON_OPTIONS))
    except Exception:  # noqa: BLE001 - the value's own code runs here
        return _shown(value)


def rendered(value: object, masker: Masker | None, cap: int) -> tuple[str, str]:
    """Return a returned value as text ("" for None), and as the broker is to keep it: JSON, its secrets masked.

    Without a masker nothing is kept. A value that JSON does not know is shown by its `repr`: none fails its attempt.
    """
    text, json = "", b""
    if isinstance(value, str):
        text = value
    elif value is not None:
        try:
            json = orjson.dumps(value, _plain, _JSON_OPTIONS)
            text = json.decode()
        except Exception:  # noqa: BLE001 - the value's own code runs here
            text = _shown(value)
    shown = cap_text(text, cap)
    if masker is None:
        return shown, ""
    json = json or _json(None if value is None else str(text))
    if len(json) <= cap:  # else it is not kept, and a large one would take long
        json = _json(masker.result(orjson.loads(json)))
    return shown, capped(json, cap)


def join(returned: str, printed: str, cap: int) -> str:
    """Return the output of an attempt, of about `cap` bytes at most: returned text, then printed text below it."""
    if not printed or not returned:
        return returned or printed
    return cap_text(f"{returned}\n{printed}", cap)


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # lone surrogates
        return orjson.dumps(ascii(value))


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, bytes | bytearray):
        with suppress(UnicodeDecodeError):
            return value.decode()
    known = json_form(value)
    return _shown(value) if known is value else known


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - as above
        return f"<{type(value).__name__}>"
