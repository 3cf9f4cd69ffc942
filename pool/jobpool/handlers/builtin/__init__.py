"""The built-in handlers: their names, and how each is made at its first use, so that a child holds only what it runs.

One module for each kind, with `make(kit: Kit)`, which returns a function of the context alone that reads `ctx.payload`.
`kit.allowances` limits it. A forbidden or unusable payload raises `Refused`, a permanent failure of which only the text
is kept; an error that may pass raises `Failure`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any

from jobpool.errors import JobpoolError, Unrecoverable
from jobpool.handlers.binding import check_shape, place_of
from jobpool.handlers.handler import AnyHandler, Handler
from jobpool.message.allowances import Allowances

Function = Callable[..., Any]

MAKERS = {
    "callable": "jobpool.handlers.builtin.callables",
    "command": "jobpool.handlers.builtin.command",
    "event": "jobpool.handlers.builtin.event",
    "shell": "jobpool.handlers.builtin.shell",
    "url": "jobpool.handlers.builtin.url.call",
}
"""Name of a built-in handler → the module that makes it."""


class Registered:
    """A function of the app that a built-in handler calls: its name, and the place where it was written.

    `bind` makes `bound` of it at its first use. Texts call it `kind` and `shown`.
    """

    def __init__(self, function: Function, shown: str, kind: str, bind: Callable[[], Function]) -> None:
        check_shape(function, shown, kind)
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.place = place_of(function)
        self._bind = bind

    @cached_property
    def bound(self) -> Function:
        """Return the function, called with a context, and words if it is a command. Raises `ConfigurationError`."""
        return self._bind()


@dataclass(slots=True)
class Kit:
    """The parts that built-in handlers are made of."""

    allowances: Allowances = field(default_factory=Allowances)
    commands: dict[str, Registered] = field(default_factory=dict)  # of `@jobpool.command`, by name
    listeners: dict[str, list[Registered]] = field(default_factory=dict)  # event → in the order of their registration
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # of `jobpool.builtin`, for each `Handler`
    set_at: dict[str, str] = field(default_factory=dict)  # the place of that call, as `file:line`


def make(name: str, kit: Kit) -> AnyHandler:
    """Return the built-in handler of that name. Imports its module."""
    return Handler(import_module(MAKERS[name]).make(kit), name, **kit.options.get(name, {}))


def enabled_by(name: str, kit: Kit) -> str:
    """Return what enables a built-in handler, in words; "" = nothing: it refuses all jobs (`url`: all inward ones)."""
    if name in kit.options:
        return f"jobpool.builtin({name!r}) of {kit.set_at[name]}"
    if name == "command":
        return f"@jobpool.command of {next(iter(kit.commands.values())).place}" if kit.commands else ""
    allowed = kit.allowances
    settings = {
        "callable": ("allowed_callables", allowed.allowed_callables),
        "event": ("allowed_events", allowed.allowed_events),
        "shell": ("allowed_shell_commands", allowed.allowed_shell_commands or allowed.allow_all_shell_commands),
        "url": ("allowed_url_networks", allowed.allowed_url_networks),
    }
    setting, value = settings[name]
    return setting if value else ""


# --- how they fail: in one sentence; no traceback is kept of what jobpool itself raises ---------------


class Failure(JobpoolError):
    """The attempt failed; the next one may do better."""


class Refused(Unrecoverable):
    """The handler may not do this, or cannot take this payload: it never will, so the job is not tried again."""


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
    """Return the kind of a JSON value, for texts about payloads, which logs show: the value itself may be secret."""
    return _KINDS.get(type(value), type(value).__name__)


def split_words(line: str, what: str) -> list[str]:
    """Return the words of a command line, split as a shell would. Raises `Refused`; `what`: which line it is."""
    try:
        return shlex.split(line)
    except ValueError as error:  # the line is not shown: passwords stand in such lines
        raise Refused(f"{what} cannot be split into words: {error}") from None
