"""The built-in handler `shell`: starts an allowed program, and never a shell to start it with."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING

from jobpool.handlers.builtin import Failure, Refused, kind_of, spawning
from jobpool.handlers.builtin.programs import Program, choose
from jobpool.handlers.builtin.spawning import Ended
from jobpool.handlers.handler import Handler
from jobpool.ipc.process_options import scrubbed
from jobpool.message.context import JobContext

if TYPE_CHECKING:
    from jobpool.handlers.builtin import Kit

LATE_S = 0.5
"""Seconds after the deadline at which a program is killed where no alarm did it: in a thread that is not the main one.

Late enough for the alarm to come first where there is one: then the attempt has timed out, and not failed.
"""


def make(kit: Kit) -> Handler[[JobContext], str]:
    """Return the handler `shell`. Its output is what the program printed; it fails when the program does."""
    allowances = kit.allowances

    def run(ctx: JobContext) -> str:
        words = _words(ctx.payload)
        search_path = os.environ.get("PATH", os.defpath)
        program = choose(words[0], allowances.allowed_shell_commands, allowances.allow_all_shell_commands, search_path)
        return _told(words[0], _run(program, words, allowances.output_cap, ctx.deadline))

    return Handler(run, "shell", **kit.options.get("shell", {}))


def _words(payload: object) -> list[str]:
    words = _split(payload) if isinstance(payload, str) else payload
    if not isinstance(words, list):
        raise Refused(f"the payload must be a command line, as a text or a list of texts, not {kind_of(payload)}")
    for word in words:
        if not isinstance(word, str):
            raise Refused(f"every word of a command line must be a text, not {kind_of(word)}")
        if "\0" in word:
            raise Refused("a word of the command line holds a NUL byte, which no program can be given")
    if not words:
        raise Refused("the command line is empty: it begins with a program's name")
    return words


def _split(payload: str) -> list[str]:
    try:
        return shlex.split(payload)
    except ValueError as error:  # the line is not shown: passwords stand in such lines
        raise Refused(f"the command line cannot be split into words: {error}") from None


def _run(program: Program, words: list[str], cap: int, deadline: float | None) -> Ended:
    argv = [program.argv0, *words[1:]]
    give_up = None if deadline is None else deadline + LATE_S
    try:
        return spawning.run(program.path, argv, scrubbed(os.environ), cap, give_up)
    except UnicodeEncodeError:
        raise Refused(f"a word of the command line of {words[0]!r:.80} cannot be written as bytes") from None
    except OSError as error:
        raise Failure(f"program {words[0]!r:.80} cannot be started: {error.strerror}") from None


def _told(word: str, ended: Ended) -> str:
    """Return the output, with what the program said on its error stream beside it, or the failure."""
    if ended.code == 0:
        _keep(ended.err, sys.stderr)
        return ended.out.rstrip("\n")
    _keep(ended.out, sys.stdout)
    raise Failure(f"program {word[:200]!r} {_how(ended.code)}\n{ended.err}".rstrip("\n"))


def _keep(text: str, stream: object) -> None:
    """Keep the text with the captured output of the attempt."""
    if text:
        print(text.rstrip("\n"), file=stream)  # type: ignore[call-overload]


def _how(code: int | None) -> str:
    if code is None:
        return "ended, and its status could not be had"
    if code > 0:
        return f"exited with status {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-code}"
