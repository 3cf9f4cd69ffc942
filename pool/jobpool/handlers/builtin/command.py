"""The built-in handler `command`: its payload is a line of words, the first of which names a function of the app."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from jobpool.errors import ConfigurationError
from jobpool.handlers.builtin import Refused, kind_of
from jobpool.handlers.builtin.words import Call, reader
from jobpool.handlers.event_loop import run_coroutine
from jobpool.handlers.handler import Handler
from jobpool.handlers.invocation import check_shape, place_of
from jobpool.message.context import JobContext
from jobpool.message.names import LONGEST_NAME, is_name

if TYPE_CHECKING:
    from jobpool.handlers.builtin import Kit

F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"[^\s'\"\\-][^\s'\"\\]*")
"""A word that needs no quotes in the payload, and that is not an option."""


class Command:
    """A function that jobs call by a name and words.

    Attributes:
        name: The first word.
        place: Where the function was written.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.place: str = place_of(function)
        self._function = function
        self._call: Call | None = None
        check_shape(function, name, self.place, "command")

    @property
    def bound(self) -> Call:
        """The function, called with a context and words. Made at the first use.

        Raises:
            ConfigurationError: Words cannot fill its parameters.
        """
        if self._call is None:
            self._call = reader(self._function, f"command {self.name!r}", self.place)
        return self._call


def register(commands: dict[str, Command], function: F, name: str | None) -> F:
    """Add a function to `commands`, and return it. The same again (a module imported twice) replaces itself.

    Raises:
        ConfigurationError: The name is none, or another function has it; the text names both places.
    """
    name = getattr(function, "__name__", "") if name is None else name
    if not isinstance(name, str) or not is_name(name) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"the name {name!r} of the command {place_of(function)} must be one word, 1 to {LONGEST_NAME} printable"
            " characters without quotes, and no '-' first"
        )
    command = Command(name, function)
    known = commands.get(name)
    if known is not None and known.place != command.place:
        raise ConfigurationError(
            f"two commands are named {name!r}: {known.place} and {command.place}: rename one of them"
        )
    commands[name] = command
    return function


def make(kit: Kit) -> Handler[[JobContext], Any]:
    """Return the handler `command`."""

    def run(ctx: JobContext) -> Any:
        name, *words = _split(ctx.payload)
        command = kit.commands.get(name)
        if command is None:
            known = ", ".join(sorted(kit.commands)) or "none: decorate a function with @jobpool.command"
            raise Refused(f"no command is named {name!r:.200} here; there are {known}")
        value = command.bound(ctx, words)
        return run_coroutine(value) if type(value) is CoroutineType else value

    return Handler(run, "command", **kit.options.get("command", {}))


def _split(payload: object) -> list[str]:
    if not isinstance(payload, str):
        raise Refused(f"the payload of a command must be a text such as 'app:report --month 6', not {kind_of(payload)}")
    try:
        words = shlex.split(payload)
    except ValueError as error:  # the line is not shown: passwords stand in such lines
        raise Refused(f"the payload of a command cannot be split into words: {error}") from None
    if not words:
        raise Refused("the payload of a command must not be empty: it begins with the command's name")
    return words
