"""Handlers by name: the `@jobpool.handler` decorator and the table that a child resolves jobs with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, overload

from jobpool.errors import ConfigurationError
from jobpool.handlers import builtin as kinds
from jobpool.handlers.handler import AfterRun, AnyHandler, BeforeRun, Handler, P, R, check_hook, check_retries
from jobpool.ipc.frames import HandlerInfo
from jobpool.message.allowances import Allowances
from jobpool.message.definition import check_seconds

__all__ = [
    "DEFAULT",
    "AnyHandler",
    "Handler",
    "HandlerNotAllowed",
    "HandlerRegistry",
    "UnknownHandler",
    "builtin",
    "command",
    "handler",
    "listener",
]

F = TypeVar("F", bound=Callable[..., Any])


class UnknownHandler(LookupError):
    """No handler of that name is registered here."""


class HandlerNotAllowed(LookupError):
    """The handler exists and is not on the queue's list of allowed handlers."""


class _Decorator(Protocol):
    @overload
    def __call__(self, function: type[object], /) -> Handler[..., Any]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R]: ...


class HandlerRegistry:
    """Handlers by name. Filled while the app is imported, then only read.

    The built-in handlers are there by themselves, and refuse what nothing allows. An app's own handler of such a name
    takes its place.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, AnyHandler] = {}
        self._allowed: dict[str, frozenset[str]] = {}
        self._kit = kinds.Kit()
        self._built_in: dict[str, AnyHandler] = {}

    def register(self, handler: AnyHandler) -> None:
        """Add a handler. The same function again (a module imported under two names) replaces itself.

        Raises:
            ConfigurationError: Another function has this name; the text names both places.
        """
        known = self._handlers.get(handler.name)
        if known is not None and known.place != handler.place:
            raise ConfigurationError(
                f"two handlers are named {handler.name!r}: {known.place} and {handler.place}: rename one of them"
            )
        self._handlers[handler.name] = handler

    @overload
    def handler(self, name: type[object], /) -> Handler[..., Any]: ...

    @overload
    def handler(self, name: Callable[P, R], /) -> Handler[P, R]: ...

    @overload
    def handler(
        self,
        name: str | None = None,
        /,
        *,
        queue: str | Iterable[str] | None = None,
        max_retries: int | None = None,
        timeout: float | None = None,
        before_run: BeforeRun | None = None,
        after_run: AfterRun | None = None,
        allow_daemons: bool = False,
        ack_in_transaction: bool = False,
    ) -> _Decorator: ...

    def handler(self, name: Any = None, /, **options: Any) -> Any:
        """Register a function or class as a handler; with or without arguments: see `jobpool.handler`."""
        if callable(name):
            return self._add(name, None, {})
        return lambda function: self._add(function, name, options)

    def _add(self, function: Callable[..., Any], name: str | None, options: dict[str, Any]) -> AnyHandler:
        handler: AnyHandler = Handler(function, name, **options)
        self.register(handler)
        return handler

    @overload
    def command(self, name: F, /) -> F: ...

    @overload
    def command(self, name: str | None = None, /) -> Callable[[F], F]: ...

    def command(self, name: Any = None, /) -> Any:
        """Register a function as a sub-command: see `jobpool.command`."""
        from jobpool.handlers.builtin.command import register

        if callable(name):
            return register(self._kit.commands, name, None)
        return lambda function: register(self._kit.commands, function, name)

    def listener(self, event: str, /) -> Callable[[F], F]:
        """Register a function for an event: see `jobpool.listener`."""
        from jobpool.handlers.builtin.event import register

        return lambda function: register(self._kit.listeners, function, event)

    def builtin(
        self,
        name: str,
        /,
        *,
        max_retries: int | None = None,
        timeout: float | None = None,
        before_run: BeforeRun | None = None,
        after_run: AfterRun | None = None,
    ) -> None:
        """Set options of a built-in handler: see `jobpool.builtin`."""
        if name not in kinds.MAKERS:
            raise ConfigurationError(f"no built-in handler is named {name!r}: {', '.join(kinds.MAKERS)}")
        options = {
            "max_retries": check_retries(max_retries, name),
            "timeout": None if timeout is None else check_seconds(timeout, f"timeout of handler {name!r}"),
            "before_run": check_hook(before_run, "before_run", name),
            "after_run": check_hook(after_run, "after_run", name),
        }
        self._kit.set_options(name, options, _caller())
        self._built_in.pop(name, None)

    def allow(self, allowances: Allowances) -> None:
        """Set what the built-in handlers may do, in place of what was set before."""
        self._kit.allowances = allowances
        self._built_in.clear()

    def with_rules(
        self, allowances: Allowances | None = None, queue_handlers: Mapping[str, Iterable[str]] | None = None
    ) -> HandlerRegistry:
        """Return a registry of the same handlers, those that are registered later too, under rules of its own.

        Args:
            allowances: Permissions of the built-in handlers there; None = as here.
            queue_handlers: As `restrict` takes it; None = as here.

        Raises:
            ConfigurationError: The allowances enable a built-in handler in whose place there is another.
        """
        made = HandlerRegistry()
        made._handlers = self._handlers
        made._allowed = self._allowed
        made._kit = replace(self._kit, allowances=self._kit.allowances if allowances is None else allowances)
        if allowances is not None:
            made._check_names()
        if queue_handlers is not None:
            made.restrict(queue_handlers)
        return made

    def restrict(self, queue_handlers: Mapping[str, Iterable[str]]) -> None:
        """Set which handlers may run on a queue: one that is absent is free, an empty list allows none."""
        self._allowed = {queue: frozenset(names) for queue, names in queue_handlers.items()}

    def resolve(self, name: str, queue: str) -> AnyHandler:
        """Return the handler that runs jobs called `name` on `queue`.

        Raises:
            UnknownHandler: There is none; a deploy may be rolling.
            HandlerNotAllowed: There is one, and the queue's list does not name it.
            ConfigurationError: A built-in one cannot be made here.
        """
        handler = self._handlers.get(name)
        if handler is None and name not in kinds.MAKERS:
            raise UnknownHandler(f"no handler is named {name!r} here")
        allowed = self._allowed.get(queue) if self._allowed else None
        if allowed is not None and name not in allowed:
            raise HandlerNotAllowed(f"handler {name!r} is not allowed on queue {queue!r}")
        return self._made(name) if handler is None else handler

    def _made(self, name: str) -> AnyHandler:
        """Return the built-in handler of that name."""
        handler = self._built_in.get(name)
        if handler is None:
            try:
                handler = self._built_in[name] = kinds.make(name, self._kit)
            except ImportError as error:
                raise ConfigurationError(f"the built-in handler {name!r} cannot be used here: {error}") from error
        return handler

    def prepare(self) -> None:
        """Bind every handler now, so that children share the work and a mistake shows before the first job.

        Raises:
            ConfigurationError: An annotation cannot work, or an own handler has the name of an enabled built-in one;
                the text names both.
        """
        self._check_names()
        for handler in self._handlers.values():
            _ = handler.bound
        for command in self._kit.commands.values():
            _ = command.bound
        for listeners in self._kit.listeners.values():
            _ = [listener.bound for listener in listeners]

    def _check_names(self) -> None:
        for name in self._handlers.keys() & kinds.MAKERS.keys():
            enabled_by = kinds.enabled_by(name, self._kit)
            if enabled_by:
                raise ConfigurationError(
                    f"two handlers are named {name!r}: {self._handlers[name].place} and the built-in one, which is in"
                    f" use here by {enabled_by}: rename yours"
                )

    @property
    def is_empty(self) -> bool:
        """True if no job can do anything here: no handler is registered, and nothing enables a built-in one."""
        return not self._handlers and not any(kinds.enabled_by(name, self._kit) for name in kinds.MAKERS)

    def names(self) -> list[str]:
        """Return the names of all that was registered, sorted; not of the built-in handlers."""
        return sorted(self._handlers)

    def infos(self) -> list[HandlerInfo]:
        """Return the descriptions of registered handlers for the master, in the order of the names."""
        return [self._handlers[name].info for name in self.names()]

    def built_in_infos(self) -> list[HandlerInfo]:
        """Return the descriptions, for the master, of built-in handlers that no other has replaced. Imports none of
        them.
        """
        return [self._built_in_info(name) for name in kinds.MAKERS if name not in self._handlers]

    def _built_in_info(self, name: str) -> HandlerInfo:
        options = self._kit.options.get(name, {})
        enabled = name in kinds.OPEN or bool(kinds.enabled_by(name, self._kit))
        return HandlerInfo(name, options.get("max_retries"), options.get("timeout"), enabled=enabled)


def _caller() -> str:
    """Return where the code is, as `file:line`, that called what calls this."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


DEFAULT = HandlerRegistry()
"""Where `@jobpool.handler` registers, and what children run from."""

handler = DEFAULT.handler
"""Make a function a handler.

Bare (`@jobpool.handler`) the function's own name is used. The first parameter is the `JobContext`. Others are filled
from an object payload by name. A single one that is annotated with a dataclass or a pydantic model takes the whole
payload. `async def` runs in an event loop of the child's own.

A class will do if it can be made without arguments and has a method `run`, or `__call__`, with parameters like these
after `self`. Each attempt gets an instance of its own.

Args:
    name: Its name in jobs, unique in the app.
    queue: The queue of its `enqueue()`; of several, the first.
    max_retries: Runs after the first that fails, >= 0, for jobs that set none.
    timeout: Seconds, 0 = unlimited, for jobs that set none.
    before_run: Called with the context before the handler; its errors fail the attempt.
    after_run: Called with the `ExecutionResult` after every attempt; its errors are logged.
    allow_daemons: Let processes live that an attempt leaves behind.
    ack_in_transaction: Give the handler what `ctx.ack(connection)` needs. A pool refuses an app with such a handler
        on a backend that cannot do it.

Raises:
    ConfigurationError: The name is taken, or the function's parameters cannot be filled.
    InvalidJob: An option is out of bounds.
"""

command = DEFAULT.command
"""Make a function a sub-command, which jobs of the built-in handler `command` call by name.

The payload `"app:report --month 6"` is split as a shell would, and calls the function registered as `app:report`. The
first parameter is the `JobContext`. One more parameter named `argv` gets the other words as a list. Otherwise each
parameter is an option: `month: int` is `--month`, `dry_run: bool` is `--dry-run` and `--no-dry-run`, and a list is an
option that may be repeated. Words that belong to no option fill those without a default, in order, then `*args`.

Args:
    name: One word; None = the function's name.

Raises:
    ConfigurationError: The name is taken, or is not a word, or the parameters cannot be filled; the text says where.
"""

listener = DEFAULT.listener
"""Register a function for an event, which jobs of the built-in handler `event` fire.

It takes the `JobContext`, whose payload is the event's `data`, and parameters that are filled from that as a handler's
are. Several functions may listen to one event; they run in the order of their registration.

Args:
    event: Its name. Jobs may fire it where `allowed_events` names it.

Raises:
    ConfigurationError: The function's parameters cannot be filled.
    InvalidJob: The event's name is none.
"""

builtin = DEFAULT.builtin
"""Set options of a built-in handler, before and after hooks included.

Args:
    name: `command`, `callable`, `shell`, `event` or `url`.
    max_retries, timeout, before_run, after_run: As of `jobpool.handler`.

Raises:
    ConfigurationError: There is no such built-in handler, or it has other options already.
    InvalidJob: An option is out of bounds.
"""
