"""Handlers by name: the `@jobpool.handler` decorator and the table that a child resolves jobs with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, TypeVar, overload

from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.handlers import builtin as kinds
from jobpool.handlers.binding import F
from jobpool.handlers.handler import AfterRun, AnyHandler, BeforeRun, Handler, P, R, check_options
from jobpool.handlers.hooks import Hooks
from jobpool.ipc.frames import HandlerInfo
from jobpool.message.allowances import Allowances
from jobpool.message.context import JobContext
from jobpool.message.dead_letters import ON_DEATH
from jobpool.message.definition import JobDefinition
from jobpool.message.names import DEFAULT_QUEUE, nearest_or_all

if TYPE_CHECKING:
    from jobpool.handlers.handler import PlainHandler

R_co = TypeVar("R_co", covariant=True)


class UnknownHandler(LookupError):
    """No handler of that name is registered here."""


class HandlerNotAllowed(LookupError):
    """The handler exists and is not on the queue's list of allowed handlers."""


class _Open(Protocol[R_co]):
    """A function with `**fields`, which mypy takes for no `Concatenate[JobContext, P]`."""

    def __call__(self, ctx: JobContext, **fields: Any) -> R_co: ...


class _Decorator(Protocol):
    @overload
    def __call__(self, function: type[object], /) -> Handler[..., Any]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Handler[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, function: _Open[R], /) -> Handler[..., R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainHandler[P, R]: ...


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
        self.hooks = Hooks()

    def register(self, handler: AnyHandler) -> AnyHandler:
        """Add a handler, and return it. The same function again (a module imported under two names) replaces itself.

        Raises `ConfigurationError`: another function has this name; the text names both places.
        """
        known = self._handlers.setdefault(handler.name, handler)
        if known.place != handler.place:
            raise ConfigurationError(
                f"two handlers are named {handler.name!r}: {known.place} and {handler.place}: rename one of them"
            )
        self._handlers[handler.name] = handler
        return handler

    @overload
    def handler(self, name: type[object], /) -> Handler[..., Any]: ...  # type: ignore[overload-overlap]

    @overload
    def handler(self, name: Callable[Concatenate[JobContext, P], R], /) -> Handler[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def handler(self, name: _Open[R], /) -> Handler[..., R]: ...

    @overload
    def handler(self, name: Callable[P, R], /) -> PlainHandler[P, R]: ...

    @overload
    def handler(
        self,
        name: str | None = None,
        *,
        queue: str | Iterable[str] | None = None,
        max_retries: int | None = None,
        backoff: str | None = None,
        timeout: float | timedelta | None = None,
        before_run: BeforeRun | None = None,
        after_run: AfterRun | None = None,
        allow_daemons: bool = False,
        ack_in_transaction: bool = False,
        result_ttl: float | timedelta | None = None,
    ) -> _Decorator: ...

    def handler(self, name: Any = None, **options: Any) -> Any:
        """Make a function a handler.

        Bare (`@jobpool.handler`) the function's own name is used. The first parameter is the `JobContext`, unless its
        annotation is of a type that payloads are converted to. Others are filled from an object payload by name. A
        single one that is annotated with a dataclass or a pydantic model takes the whole payload. `async def` runs in
        an event loop of the child's own.

        A class will do if it can be made without arguments and has a method `run`, or `__call__`, with parameters like
        these after `self`. Each attempt gets an instance of its own.

        Args:
            name: Its name in jobs, unique in the app.
            queue: The queue of its `enqueue()`; of several, the first.
            max_retries: Runs after the first that fails, >= 0, for jobs that set none; None = the pool's policy.
            backoff: The waits before its retries, as the setting `retry` has them, such as `"exponential base=5s"`;
                None = the pool's.
            timeout: Seconds or a `timedelta`, 0 = unlimited, for jobs that set none; None = the pool's default.
            before_run: Called with the context before the handler; its errors fail the attempt.
            after_run: Called with the `ExecutionResult` after every attempt; its errors are logged.
            allow_daemons: Let processes and threads live that an attempt leaves behind, until its child ends.
            ack_in_transaction: Give the handler what `ctx.ack(connection)` needs. A pool refuses an app with such a
                handler on a backend that cannot do it.
            result_ttl: Seconds that the broker keeps what it returns, 30 days at most, for jobs that set none; None and
                0 = it is not kept.

        Raises:
            ConfigurationError: The name is taken, or the function's parameters cannot be filled.
            InvalidJob: An option is out of bounds.
        """
        if name is not None and not isinstance(name, str):
            return self.register(Handler(name))
        check_options(options)
        return lambda function: self.register(Handler(function, name, **options))

    @overload
    def command(self, name: F, /) -> F: ...

    @overload
    def command(self, name: str | None = None, /) -> Callable[[F], F]: ...

    def command(self, name: Any = None, /) -> Any:
        """Make a function a sub-command, which jobs of the built-in handler `command` call by name.

        The payload `"app:report --month 6"` is split as a shell would, and calls the function registered as
        `app:report`. The first parameter is the `JobContext`. One more parameter named `argv` gets the other words as a
        list. Otherwise each parameter is an option: `month: int` is `--month`, `dry_run: bool` is `--dry-run` and
        `--no-dry-run`, and a list is an option that may be repeated. Words that belong to no option fill those without
        a default, in order, then `*args`.

        Args:
            name: One word; None = the function's name.

        Raises:
            ConfigurationError: The name is taken, or is not a word, or the parameters cannot be filled; the text says
                where.
        """
        from jobpool.handlers.builtin.command import register

        if callable(name):
            return register(self._kit.commands, name, None)
        return lambda function: register(self._kit.commands, function, name)

    def listener(self, event: str, /) -> Callable[[F], F]:
        """Register a function for an event, which jobs of the built-in handler `event` fire.

        It takes the `JobContext`, whose payload is the event's `data`, and parameters that are filled from that as a
        handler's are. Several functions may listen to one event; they run in the order of their registration.

        Args:
            event: Its name. Jobs may fire it where `allowed_events` names it.

        Raises:
            ConfigurationError: The function's parameters cannot be filled.
            InvalidJob: The event's name is none.
        """
        from jobpool.handlers.builtin.event import register

        return lambda function: register(self._kit.listeners, function, event)

    def before_attempt(self, hook: F, /) -> F:
        """Call `hook(ctx)` in the child before every attempt of every handler; return it unchanged.

        Its exception fails the attempt, whose error names the hook, and the handler does not run. Hooks run in the
        order of their registration, within the attempt's timeout. Raises `ConfigurationError`: it is not a plain
        function.
        """
        return self.hooks.add("before_attempt", hook)

    def after_attempt(self, hook: F, /) -> F:
        """Call `hook(ctx, result)` in the child after every attempt that its process survives; return it unchanged.

        `result` is the `ExecutionResult`. Its exception is logged, and is never a verdict. Hooks run in the opposite
        order of their registration, also after a `before_attempt` hook that failed, within the attempt's timeout.
        Raises `ConfigurationError`: it is not a plain function.
        """
        return self.hooks.add("after_attempt", hook)

    def on_death(self, hook: F, /) -> F:
        """Call `hook(dead)` with a `DeadJob` for every job that ended for good; return it unchanged.

        It runs in a child, at least once, as a job of the handler `jobpool.on_death` in the queue where the job died.
        That has five retries, and a timeout of 60 s for all hooks together. It may be `async def`. Raises
        `ConfigurationError`: it cannot be called.
        """
        return self.hooks.add("on_death", hook)

    def builtin(
        self,
        name: str,
        /,
        *,
        max_retries: int | None = None,
        backoff: str | None = None,
        timeout: float | timedelta | None = None,
        before_run: BeforeRun | None = None,
        after_run: AfterRun | None = None,
    ) -> None:
        """Set options of a built-in handler, before and after hooks included.

        Args:
            name: `command`, `callable`, `shell`, `event` or `url`.
            max_retries, backoff, timeout, before_run, after_run: As of `jobpool.handler`.

        Raises:
            ConfigurationError: There is no such built-in handler, or it has other options already.
            InvalidJob: An option is out of bounds.
        """
        if name not in kinds.MAKERS:
            raise ConfigurationError(f"no built-in handler is named {name!r}: {', '.join(kinds.MAKERS)}")
        frame = sys._getframe(1)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        options: dict[str, Any] = {"max_retries": max_retries, "backoff": backoff, "timeout": timeout}
        options |= {"before_run": before_run, "after_run": after_run}
        options["timeout"] = Handler(lambda _: None, name, **options).timeout  # which has checked them all
        known = self._kit.set_at.setdefault(name, place)
        if known != place:  # not the same module, imported under two names
            raise ConfigurationError(f"jobpool.builtin({name!r}) is called twice, {known} and {place}: set all at one")
        self._kit.options[name] = options
        self._built_in.pop(name, None)

    def allow(self, allowances: Allowances) -> None:
        """Set what the built-in handlers may do, in place of what was set before."""
        self._kit.allowances = allowances
        self._built_in.clear()

    def with_rules(
        self, allowances: Allowances | None = None, queue_handlers: Mapping[str, Iterable[str]] | None = None
    ) -> HandlerRegistry:
        """Return a registry of the same handlers, those that are registered later too, under rules of its own.

        `allowances` of the built-in handlers, and `queue_handlers` as of `restrict`; None = as here, both = this one.
        Raises `ConfigurationError`: the allowances enable a built-in handler in whose place there is another.
        """
        if allowances is None and queue_handlers is None:
            return self
        made = copy(self)
        if allowances is not None:
            made._kit, made._built_in = replace(self._kit, allowances=allowances), {}
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
        if handler is None and name == ON_DEATH:
            handler = self.hooks.death_handler
        if handler is None and name not in kinds.MAKERS:
            raise UnknownHandler(f"no handler is named {name!r} here")
        allowed = self._allowed.get(queue) if self._allowed else None
        if allowed is not None and name not in allowed:
            raise HandlerNotAllowed(f"handler {name!r} is not allowed on queue {queue!r}")
        if handler is None and (handler := self._built_in.get(name)) is None:
            try:
                handler = self._built_in[name] = kinds.make(name, self._kit)
            except ImportError as error:
                raise ConfigurationError(f"the built-in handler {name!r} cannot be used here: {error}") from error
        return handler

    def find(self, name: str) -> AnyHandler | None:
        """Return the app's own handler of this name, if there is one."""
        return self._handlers.get(name)

    def fits(self, name: str, parameter: str, value: Any) -> bool:
        """Return whether a JSON value suits a parameter of a handler of the app's own. For any other, return True."""
        handler = self._handlers.get(name)
        return handler is None or handler.parameters.fits(parameter, value)

    def prepare(self) -> None:
        """Bind every handler now, so that children share the work and a mistake shows before the first job.

        Raises `ConfigurationError`: an annotation cannot work, or an own handler has the name of an enabled built-in
        one; the text names both.
        """
        self._check_names()
        for handler in self._handlers.values():
            _ = handler.bound
        for registered in (*self._kit.commands.values(), *chain(*self._kit.listeners.values())):
            _ = registered.bound

    def _check_names(self) -> None:
        for name in self._handlers.keys() & kinds.MAKERS.keys():
            if enabled_by := kinds.enabled_by(name, self._kit):
                raise ConfigurationError(
                    f"two handlers are named {name!r}: {self._handlers[name].place} and the built-in one, which is in"
                    f" use here by {enabled_by}: rename yours"
                )

    def why_empty(self) -> str:
        """Return why no job can do anything here, with the mend; "" if a handler is registered or enabled."""
        if self._handlers or any(kinds.enabled_by(name, self._kit) for name in kinds.MAKERS):
            return ""
        if events := ",".join(self._kit.listeners):
            return f"registers listeners alone: allow their events, --allowed-events {events}"
        return "registers no handler: decorate a function with @jobpool.handler"

    def names(self) -> list[str]:
        """Return the names of all that was registered, sorted; not of the built-in handlers."""
        return sorted(self._handlers)

    def infos(self) -> list[HandlerInfo]:
        """Return the descriptions of registered handlers for the master, in the order of the names; of hooks last."""
        infos = [self._handlers[name].info for name in self.names()]
        if hook := self.hooks.death_handler:
            infos.append(HandlerInfo(ON_DEATH, hook.max_retries, hook.timeout))
        return infos

    def infos_with_schedules(self) -> list[HandlerInfo]:
        """Return the descriptions of all handlers, built-in ones last, each with the app's schedules that run it.

        Schedules that are refused or switched off are left out. Imports no built-in handler.
        """
        infos = {info.name: info for info in (*self.infos(), *self.built_in_infos())}
        for scheduled in declared_schedules():
            if info := infos.get(scheduled.handler):
                info.schedules.append(scheduled.name or scheduled.handler)
                if scheduled.queue is not None and scheduled.queue not in info.queues:
                    info.queues.append(scheduled.queue)
        return list(infos.values())

    def unfit(self, schedule: JobDefinition) -> str:
        """Return why this app cannot run a schedule's jobs; "" = it can, or they go to a queue of another app's."""
        for job in (schedule, *(job.with_queue(job.queue or DEFAULT_QUEUE) for job in schedule.then)):
            if handler := self._handlers.get(job.handler):
                try:
                    handler.check(job.payload)
                except InvalidJob as error:
                    return str(error)
            elif job.handler not in kinds.MAKERS:
                ours = {None, *chain.from_iterable(info.queues for info in self.infos())}
                if job.queue in ours:
                    return no_handler(job.handler, self.names())
        return ""

    def built_in_infos(self) -> list[HandlerInfo]:
        """Return the descriptions, for the master, of built-in handlers that no other has replaced. Imports none."""
        infos = []
        for name in kinds.MAKERS:
            if name in self._handlers:
                continue
            options = self._kit.options.get(name, {})
            by = kinds.enabled_by(name, self._kit)
            known: Any = {option: options.get(option) for option in ("max_retries", "timeout", "backoff")}
            # `url` may call public addresses though nothing enables it, and names no queue then.
            enabled, queues = name == "url" or bool(by), [DEFAULT_QUEUE] if by else []
            infos.append(HandlerInfo(name, enabled=enabled, queues=queues, built_in=True, **known))
        return infos


DECLARED_SCHEDULES: list[Callable[[], list[JobDefinition]]] = []
"""One function for each `Scheduler` of the app, which is of a room above: its jobs that are not switched off."""


SCHEDULE_CHECKS: list[Callable[[], str]] = []
"""Functions of the room above that return why the app's schedules are refused together; "" = they are not."""


def declared_schedules() -> Iterator[JobDefinition]:
    """Yield the jobs that the app's schedules run, and that are not switched off."""
    return chain.from_iterable(declared() for declared in DECLARED_SCHEDULES)


def no_handler(name: str, known: Collection[str]) -> str:
    """Return the sentence about a name that no handler of the app has."""
    return f"the app has no handler {name!r}{nearest_or_all(name, known)}"


DEFAULT = HandlerRegistry()  # where `@jobpool.handler` registers, and what children run from

handler = DEFAULT.handler
command = DEFAULT.command
listener = DEFAULT.listener
builtin = DEFAULT.builtin
before_attempt = DEFAULT.before_attempt
after_attempt = DEFAULT.after_attempt
on_death = DEFAULT.on_death
