"""Which file a program's name stands for, and whether it is one of those that may be started.

The answer is a path without symbolic links: that path is what is started, so a link that is changed after the check
changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from jobpool.handlers.builtin import Failure, Refused

_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start.

    Attributes:
        path: Absolute, without symbolic links.
        argv0: Its first argument, the name under which it is allowed: one file with many programs (busybox, for one)
            chooses by that name.
    """

    path: str
    argv0: str


def choose(word: str, allowed: Sequence[str], allow_all: bool, search_path: str) -> Program:
    """Return the program that `word` names.

    Args:
        word: A name that is looked for on the search path, or an absolute path.
        allowed: Names and absolute paths.
        allow_all: Anything may be started.
        search_path: Folders with ':' between; those that are not absolute are passed over.

    Raises:
        Refused: It is not allowed, or can never be started.
        Failure: It is allowed, and not there.
    """
    if not allowed and not allow_all:
        raise Refused("no program may be started here: allowed_shell_commands is empty")
    _check_word(word)
    if allow_all:
        return Program(_resolved(word, search_path), word)
    return _allowed(word, allowed, search_path)


def _allowed(word: str, allowed: Sequence[str], search_path: str) -> Program:
    try:
        path = _resolved(word, search_path)
    except Failure:
        if word in allowed:
            raise
        raise Refused(_denied(word, allowed)) from None
    same = [entry for entry in allowed if _stands_for(entry, path, search_path)]
    if not same:
        raise Refused(_denied(word, allowed))
    name = os.path.basename(word)
    return Program(path, next((entry for entry in same if os.path.basename(entry) == name), same[0]))


def _stands_for(entry: str, path: str, search_path: str) -> bool:
    try:
        return _resolved(entry, search_path) == path
    except (Failure, Refused):
        return False


def _check_word(word: str) -> None:
    if not word:
        raise Refused("the program's name is empty")
    if "/" in word and not word.startswith("/"):
        raise Refused(f"program {word[:_SHOWN_CHARS]!r} is a relative path: write its name alone, or an absolute path")


def _resolved(word: str, search_path: str) -> str:
    """Return the file that is executed, an absolute path without symbolic links."""
    found = word if word.startswith("/") else _on_path(word, search_path)
    try:
        path = os.path.realpath(found, strict=True)
        mode = os.stat(path).st_mode
    except OSError as error:
        raise Failure(f"there is no program {word[:_SHOWN_CHARS]!r}: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise Refused(f"program {word[:_SHOWN_CHARS]!r} is a directory")
    if not stat.S_ISREG(mode) or not os.access(path, os.X_OK):
        raise Refused(f"program {word[:_SHOWN_CHARS]!r} is not executable")
    return path


def _on_path(name: str, search_path: str) -> str:
    for folder in search_path.split(":"):
        path = os.path.join(folder, name)
        if folder.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise Failure(f"there is no program {name[:_SHOWN_CHARS]!r} on PATH")


def _denied(word: str, allowed: Sequence[str]) -> str:
    return f"program {word[:_SHOWN_CHARS]!r} is not allowed here; allowed_shell_commands names {', '.join(allowed)}"
