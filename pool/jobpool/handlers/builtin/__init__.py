"""The built-in handlers: their names, and how each is made at its first use, so that a child holds only what it runs.

One module for each kind, each with `make(kit: Kit) -> Handler`. `kit.allowances` (`jobpool.Allowances`) limits it;
`Settings.allowances` makes them for a pool. A built-in handler takes the context alone and reads `ctx.payload`. A
forbidden or unusable payload raises `Refused`, a permanent failure of which only the text is kept; an error
that may pass raises `Failure`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobpool.errors import ConfigurationError, JobpoolError, Unrecoverable
from jobpool.message.allowances import Allowances

if TYPE_CHECKING:
    from jobpool.handlers.builtin.command import Command
    from jobpool.handlers.builtin.event import Listener
    from jobpool.handlers.handler import AnyHandler

MAKERS = {
    "callable": "jobpool.handlers.builtin.callables:make",
    "command": "jobpool.handlers.builtin.command:make",
    "event": "jobpool.handlers.builtin.event:make",
    "shell": "jobpool.handlers.builtin.shell:make",
    "url": "jobpool.handlers.builtin.url.call:make",
}
"""Name of a built-in handler → "module:function" that makes it."""


OPEN = frozenset({"url"})
"""Built-in handlers that do some jobs without an allowance: calls of public addresses."""


@dataclass(slots=True)
class Kit:
    """The parts that built-in handlers are made of.

    Attributes:
        allowances: Their permissions.
        commands: Functions of `@jobpool.command`, by name.
        listeners: Functions of `@jobpool.listener`: event → listeners, in the order of their registration.
        options: Options set by `jobpool.builtin`: name of a built-in handler → options of its `Handler`.
        set_at: The place of that call, as `file:line`.
    """

    allowances: Allowances = field(default_factory=Allowances)
    commands: dict[str, Command] = field(default_factory=dict)
    listeners: dict[str, list[Listener]] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    set_at: dict[str, str] = field(default_factory=dict)

    def set_options(self, name: str, options: dict[str, Any], place: str) -> None:
        """Set the options of a built-in handler, once. The same place again (a module imported twice) sets them anew.

        Raises:
            ConfigurationError: Another place has set them; the text names both.
        """
        known = self.set_at.setdefault(name, place)
        if known != place:
            raise ConfigurationError(f"jobpool.builtin({name!r}) is called twice, {known} and {place}: set all at one")
        self.options[name] = options


ENABLED_BY: dict[str, Callable[[Kit], str]] = {
    "callable": lambda kit: "allowed_callables" if kit.allowances.allowed_callables else "",
    "command": lambda kit: f"@jobpool.command of {next(iter(kit.commands.values())).place}" if kit.commands else "",
    "event": lambda kit: "allowed_events" if kit.allowances.allowed_events else "",
    "shell": lambda kit: "allowed_shell_commands" if _may_start(kit.allowances) else "",
    "url": lambda kit: "allowed_url_networks" if kit.allowances.allowed_url_networks else "",
}
"""The settings or decorators that enable a built-in handler, in words; "" = none, so it refuses every job (`url`: every
inward one).
"""


def make(name: str, kit: Kit) -> AnyHandler:
    """Return the built-in handler of that name. Imports its module. Raises `KeyError`: there is none."""
    module, _, function = MAKERS[name].partition(":")
    return getattr(import_module(module), function)(kit)  # type: ignore[no-any-return]


def enabled_by(name: str, kit: Kit) -> str:
    """Return what in the app or the settings enables a built-in handler, in words; "" = nothing."""
    if name in kit.options:
        return f"jobpool.builtin({name!r}) of {kit.set_at[name]}"
    why = ENABLED_BY.get(name)
    return why(kit) if why else ""


def _may_start(allowances: Allowances) -> bool:
    return bool(allowances.allowed_shell_commands or allowances.allow_all_shell_commands)


# --- how they fail: in one sentence; no traceback is kept of what jobpool itself raises ---------------

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
