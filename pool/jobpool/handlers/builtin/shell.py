"""The built-in handler `shell`: starts an allowed program, and never a shell to start it with.

The program's name is resolved to a path without symbolic links. That path is what is started, so a link that is changed
after the check changes nothing.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from jobpool.handlers.builtin import Failure, Kit, Refused, kind_of, spawning, split_words
from jobpool.ipc.process_options import scrubbed
from jobpool.message.context import JobContext

LATE_S = 0.5
"""Seconds after the deadline at which a program is killed where no alarm did it: in a thread that is not the main one.

Late enough for the alarm to come first where there is one: then the attempt has timed out, and not failed.
"""


def make(kit: Kit) -> Callable[[JobContext], str]:
    """Return the handler. Its output is what the program printed; it fails when the program does."""
    allowed = kit.allowances

    def run(ctx: JobContext) -> str:
        words = _words(ctx.payload)
        search_path = os.environ.get("PATH", os.defpath)
        path, argv0 = choose(words[0], allowed.allowed_shell_commands, allowed.allow_all_shell_commands, search_path)
        give_up = None if ctx.deadline is None else ctx.deadline + LATE_S
        try:
            code, out, err = spawning.run(path, [argv0, *words[1:]], scrubbed(os.environ), allowed.output_cap, give_up)
        except UnicodeEncodeError:
            raise Refused(f"a word of the command line of {words[0][:200]!r} cannot be written as bytes") from None
        except OSError as error:
            raise Failure(f"program {words[0][:200]!r} cannot be started: {error.strerror}") from None
        kept, stream = (err, sys.stderr) if code == 0 else (out, sys.stdout)
        if kept:
            print(kept.rstrip("\n"), file=stream)  # into the captured output of the attempt
        if code != 0:
            raise Failure(f"program {words[0][:200]!r} {_how(code)}\n{err}".rstrip("\n"))
        return out.rstrip("\n")

    return run


def _words(payload: object) -> list[str]:
    words = split_words(payload, "the command line") if isinstance(payload, str) else payload
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


def _how(code: int | None) -> str:
    if code is None:
        return "ended, and its status could not be had"
    if code > 0:
        return f"exited with status {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-code}"


# --- which program ------------------------------------------------------------------------------------


def choose(word: str, allowed: Sequence[str], allow_all: bool, search_path: str) -> tuple[str, str]:
    """Return the program that `word` names: its path, and its first argument.

    That is the name under which it is allowed: one file with many programs (busybox, for one) chooses by it.

    Args:
        word: A name that is looked for on the search path, or an absolute path.
        allowed: Names and absolute paths.
        allow_all: Anything may be started.
        search_path: Folders with ':' between; those that are not absolute are passed over.

    Raises `Refused`: it is not allowed, or can never be started; `Failure`: it is allowed, and not there.
    """
    if not allowed and not allow_all:
        raise Refused("no program may be started here: allowed_shell_commands is empty")
    shown = f"program {word[:200]!r}"
    if not word:
        raise Refused("the program's name is empty")
    if "/" in word and not word.startswith("/"):
        raise Refused(f"{shown} is a relative path: write its name alone, or an absolute path")
    if allow_all:
        return _resolved(word, search_path), word
    denied = Refused(f"{shown} is not allowed here; allowed_shell_commands names {', '.join(allowed)}")
    try:
        path = _resolved(word, search_path)
    except Failure:
        if word in allowed:
            raise
        raise denied from None
    same = [entry for entry in allowed if _stands_for(entry, path, search_path)]
    if not same:
        raise denied
    name = os.path.basename(word)
    return path, next((entry for entry in same if os.path.basename(entry) == name), same[0])


def _stands_for(entry: str, path: str, search_path: str) -> bool:
    with suppress(Failure, Refused):
        return _resolved(entry, search_path) == path
    return False


def _resolved(word: str, search_path: str) -> str:
    """Return the file that is executed, an absolute path without symbolic links."""
    shown = f"program {word[:200]!r}"
    found = word if word.startswith("/") else _on_path(word, search_path)
    if found is None:
        raise Failure(f"there is no {shown} on PATH")
    try:
        path = os.path.realpath(found, strict=True)
        mode = os.stat(path).st_mode
    except OSError as error:
        raise Failure(f"there is no {shown}: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise Refused(f"{shown} is a directory")
    if not stat.S_ISREG(mode) or not os.access(path, os.X_OK):
        raise Refused(f"{shown} is not executable")
    return path


def _on_path(name: str, search_path: str) -> str | None:
    paths = [os.path.join(folder, name) for folder in search_path.split(":") if folder.startswith("/")]
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)
