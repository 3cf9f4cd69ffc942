"""The built-in handlers: their names, and how each is made at its first use, so that a child holds only what it runs.

One module a kind, each with `make(kit: Kit) -> Handler`. What a kind may do is in `kit.allowances`
(`jobpool.Allowances`, which `Settings.allowances` makes for a pool). A built-in handler takes the context alone and
reads `ctx.payload`; what it may not do, and a payload that it cannot take, is `sentences.Refused`, a permanent failure
whose text is all that is kept; what may be better next time is `Failure`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobpool.errors import ConfigurationError
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
    "url": "jobpool.handlers.builtin.url:make",
}
"""Name of a built-in handler → "module:function" that makes it."""


OPEN = frozenset({"url"})
"""What does some jobs without being allowed any: calls of public addresses."""


@dataclass(slots=True)
class Kit:
    """What built-in handlers are made of.

    Attributes:
        allowances: What they may do.
        commands: What `@jobpool.command` has registered, by name.
        listeners: What `@jobpool.listener` has registered: event → listeners, in the order of their registration.
        options: What `jobpool.builtin` has set: name of a built-in handler → options of its `Handler`.
        set_at: Where that was, as `file:line`.
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
"""What enables a built-in handler, in words; "" = nothing does, so it refuses every job (`url`: every inward one)."""


def make(name: str, kit: Kit) -> AnyHandler:
    """The built-in handler of that name. Imports its module. Raises `KeyError`: there is none."""
    module, _, function = MAKERS[name].partition(":")
    return getattr(import_module(module), function)(kit)  # type: ignore[no-any-return]


def enabled_by(name: str, kit: Kit) -> str:
    """What in the app or the settings enables a built-in handler, in words; "" = nothing."""
    if name in kit.options:
        return f"jobpool.builtin({name!r}) of {kit.set_at[name]}"
    why = ENABLED_BY.get(name)
    return why(kit) if why else ""


def _may_start(allowances: Allowances) -> bool:
    return bool(allowances.allowed_shell_commands or allowances.allow_all_shell_commands)
