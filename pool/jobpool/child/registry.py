"""Handlers by name: the `@jobpool.handler` decorator and the table that a child resolves jobs with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from jobpool import producer
from jobpool.builder import JobBuilder
from jobpool.child.invoke import Bound, bind, check_shape
from jobpool.context import JobContext
from jobpool.definition import check_seconds
from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.mechanism.frames import HandlerInfo
from jobpool.names import check_name, check_queue
from jobpool.result import ExecutionResult

P = ParamSpec("P")
R = TypeVar("R")

BeforeRun = Callable[[JobContext], object]
AfterRun = Callable[[ExecutionResult], object]


class UnknownHandler(LookupError):
    """No handler of that name is registered here."""


class HandlerNotAllowed(LookupError):
    """The handler exists and is not on the queue's list of allowed handlers."""


class Handler(Generic[P, R]):
    """A function that runs jobs. Calling it calls the function, with no queue between.

    Attributes:
        name: What jobs call it by.
        function: What was decorated.
        queues: Where `enqueue` and `define` send (the first); () = the default queue. No restriction: see
            `HandlerRegistry.restrict`.
        max_retries: For jobs that set none; None = the pool's policy.
        timeout: Seconds, 0 = unlimited, for jobs that set none; None = the pool's default.
        before_run: Called with the context before the handler; what it raises fails the attempt.
        after_run: Called with the `ExecutionResult` after every attempt; what it raises is logged.
        allow_daemons: Processes that an attempt leaves behind are let live.
        ack_in_transaction: The function may end its message with `ctx.ack(connection)`.
    """

    def __init__(
        self,
        function: Callable[P, R],
        name: str | None = None,
        *,
        queue: str | Iterable[str] | None = None,
        max_retries: int | None = None,
        timeout: float | None = None,
        before_run: BeforeRun | None = None,
        after_run: AfterRun | None = None,
        allow_daemons: bool = False,
        ack_in_transaction: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)  # first: it copies the function's attributes, whatever they are called
        self.name = check_name(getattr(function, "__name__", "") if name is None else name, "handler name")
        self.function = function
        self.queues = _queues(queue)
        self.max_retries = _retries(max_retries, self.name)
        self.timeout = None if timeout is None else check_seconds(timeout, f"timeout of handler {self.name!r}")
        self.before_run = _hook(before_run, "before_run", self.name)
        self.after_run = _hook(after_run, "after_run", self.name)
        self.allow_daemons = allow_daemons
        self.ack_in_transaction = ack_in_transaction
        self._bound: Bound | None = None
        check_shape(function, self.name, self.place)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def define(self, **payload: Any) -> JobBuilder:
        """A builder for a job with this payload, on the handler's queue; ends with `dispatch()`.

        Raises:
            InvalidJob: JSON cannot carry the payload.
        """
        builder = JobBuilder(self.name, payload)
        return builder.queue(self.queues[0]) if self.queues else builder

    def enqueue(self, **payload: Any) -> str:
        """Enqueue a job with this payload through the process's default producer; the message's id.

        Raises:
            InvalidJob: JSON cannot carry the payload.
            BackendUnavailable: The broker did not answer.

        Blocks for one round trip to the broker.
        """
        return producer.default().enqueue(self.define(**payload).to_definition())

    @property
    def bound(self) -> Bound:
        """The function, called with a context alone: arguments come from the payload. Made at the first use.

        Raises:
            ConfigurationError: Its annotations cannot work; the text says which.
        """
        if self._bound is None:
            self._bound = bind(self.function, self.name)
        return self._bound

    @property
    def place(self) -> str:
        """Where the function was written, as `file:line (name)`."""
        function = inspect.unwrap(self.function)
        name = getattr(function, "__qualname__", repr(function))
        code = getattr(function, "__code__", None)
        if code is None:
            return f"{getattr(function, '__module__', '?')} ({name})"
        return f"{code.co_filename}:{code.co_firstlineno} ({name})"

    @property
    def info(self) -> HandlerInfo:
        """What the master is told of it."""
        return HandlerInfo(self.name, list(self.queues), self.max_retries, self.timeout, self.ack_in_transaction)

    def __repr__(self) -> str:
        return f"<Handler {self.name!r} at {self.place}>"


AnyHandler = Handler[Any, Any]


class _Decorator(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R]: ...


class HandlerRegistry:
    """Handlers by name. Filled while the app is imported, then only read."""

    def __init__(self) -> None:
        self._handlers: dict[str, AnyHandler] = {}
        self._allowed: dict[str, frozenset[str]] = {}

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
        """Register a function as a handler; with or without arguments: see `jobpool.handler`."""
        if callable(name):
            return self._add(name, None, {})
        return lambda function: self._add(function, name, options)

    def _add(self, function: Callable[..., Any], name: str | None, options: dict[str, Any]) -> AnyHandler:
        handler: AnyHandler = Handler(function, name, **options)
        self.register(handler)
        return handler

    def restrict(self, queue_handlers: Mapping[str, Iterable[str]]) -> None:
        """Set which handlers may run on a queue: one that is absent is free, an empty list allows none."""
        self._allowed = {queue: frozenset(names) for queue, names in queue_handlers.items()}

    def resolve(self, name: str, queue: str) -> AnyHandler:
        """The handler that runs jobs called `name` on `queue`.

        Raises:
            UnknownHandler: There is none; a deploy may be rolling.
            HandlerNotAllowed: There is one, and the queue's list does not name it.
        """
        handler = self._handlers.get(name)
        if handler is None:
            raise UnknownHandler(f"no handler is named {name!r} here")
        allowed = self._allowed.get(queue) if self._allowed else None
        if allowed is not None and name not in allowed:
            raise HandlerNotAllowed(f"handler {name!r} is not allowed on queue {queue!r}")
        return handler

    def prepare(self) -> None:
        """Bind every handler now, so that children share the work and a mistake shows before the first job.

        Raises:
            ConfigurationError: An annotation cannot work.
        """
        for handler in self._handlers.values():
            _ = handler.bound

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._handlers)

    def infos(self) -> list[HandlerInfo]:
        """What the master is told, in the order of the names."""
        return [self._handlers[name].info for name in self.names()]


DEFAULT = HandlerRegistry()
"""Where `@jobpool.handler` registers, and what children run from."""

handler = DEFAULT.handler
"""Make a function a handler.

Bare (`@jobpool.handler`) the function's own name is used. The first parameter is the `JobContext`; then come either
nothing, or parameters filled from an object payload by name, or one parameter annotated with a dataclass or a pydantic
model, which becomes the whole payload. `async def` runs in an event loop of the child's own.

Args:
    name: What jobs call it by, unique in the app.
    queue: Where its `enqueue()` sends; several: the first.
    max_retries: Runs after the first that fails, >= 0, for jobs that set none.
    timeout: Seconds, 0 = unlimited, for jobs that set none.
    before_run: Called with the context before the handler; what it raises fails the attempt.
    after_run: Called with the `ExecutionResult` after every attempt; what it raises is logged.
    allow_daemons: Let processes live that an attempt leaves behind.
    ack_in_transaction: Give the handler what `ctx.ack(connection)` needs. A pool refuses an app with such a handler
        on a backend that cannot do it.

Raises:
    ConfigurationError: The name is taken, or the function's parameters cannot be filled.
    InvalidJob: An option is out of bounds.
"""


def _queues(queue: str | Iterable[str] | None) -> tuple[str, ...]:
    if queue is None:
        return ()
    return tuple(check_queue(name) for name in ([queue] if isinstance(queue, str) else queue))


def _retries(max_retries: int | None, name: str) -> int | None:
    if max_retries is not None and (type(max_retries) is not int or max_retries < 0):
        raise InvalidJob(f"max_retries of handler {name!r} must be a whole number >= 0, not {max_retries!r}")
    return max_retries


H = TypeVar("H", bound=Callable[..., object])


def _hook(hook: H | None, what: str, name: str) -> H | None:
    if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
        raise InvalidJob(f"{what} of handler {name!r} must be a plain function, not {hook!r}")
    return hook
