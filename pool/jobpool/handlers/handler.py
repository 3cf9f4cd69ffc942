"""A handler: a function with a name, how its jobs are enqueued, and how they are run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from jobpool.errors import ConfigurationError, InvalidJob, check_seconds
from jobpool.handlers.binding import Bound, Parameters, bind, check_shape, place_of
from jobpool.handlers.conversion import Mismatch, call_problem, check_types, signature
from jobpool.ipc.frames import HandlerInfo
from jobpool.message.builder import JobBuilder
from jobpool.message.context import JobContext
from jobpool.message.definition import MOST_RETRIES, check_result_ttl
from jobpool.message.names import DEFAULT_QUEUE, check_name, check_queue, nearest_word
from jobpool.message.outcome import ExecutionResult
from jobpool.message.results import JobHandle
from jobpool.message.units import check_int

P = ParamSpec("P")
R = TypeVar("R")

BeforeRun = Callable[[JobContext], object]
AfterRun = Callable[[ExecutionResult], object]
Hook = TypeVar("Hook", BeforeRun | None, AfterRun | None)

CALLED_ELSEWHERE = {
    "delay": "enqueue(…)",
    "apply_async": "define(…).delay(seconds).dispatch()",
    "send": "enqueue(…)",
    "s": "define(…)",
    "si": "define(…)",
    "enqueue_in": "define(…).delay(seconds).dispatch()",
    "enqueue_at": "define(…).scheduled_at(moment).dispatch()",
}
"""The methods that enqueue tasks in Celery, Dramatiq and RQ → a handler's own."""

OPTIONS_ELSEWHERE = {
    "autoretry_for": "max_retries (every exception is retried)",
    "bind": "a first parameter ctx: jobpool.JobContext",
    "default_retry_delay": "backoff",
    "job_timeout": "timeout",
    "priority": "define(…).priority(…), for each job",
    "rate_limit": "the pool's setting rate_limits",
    "retries": "max_retries",
    "retry_backoff": "backoff",
    "soft_time_limit": "timeout",
    "time_limit": "timeout",
}
"""Options of tasks in Celery, Dramatiq and RQ → their replacements."""


class Handler(Generic[P, R]):
    """A function that runs jobs. Calling it calls the function, with no queue between.

    `P`: the function's parameters without its context, which are those of `define` and `enqueue`.

    Attributes:
        name: Its name in jobs.
        function: The decorated function; of a class, a function that makes an instance and runs it.
        queues: The first is the queue of `enqueue` and `define`; () = the default queue. No restriction: see
            `HandlerRegistry.restrict`.

    The other attributes are the options of `jobpool.handler`.
    """

    __name__: str  # the function's, as all that `functools.wraps` copies

    def __init__(
        self,
        function: Callable[..., R],
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
    ) -> None:
        if not callable(function):
            raise ConfigurationError(f"a handler is a function, or a class with a method run, and not {function!r}")
        if isinstance(function, type):
            function = _as_function(function, name or function.__name__)
        functools.update_wrapper(self, function)  # first: it copies all attributes of the function,
        for cached in ("bound", "parameters"):  # and a cached property would give way to one of its name
            self.__dict__.pop(cached, None)
        self.name = check_name(getattr(function, "__name__", "") if name is None else name, "handler name")
        self.function = function
        self.queues = _check_queues(queue, self.name)
        of = f"of handler {self.name!r}"
        self.max_retries = None if max_retries is None else check_int(max_retries, f"max_retries {of}", 0, MOST_RETRIES)
        self.backoff = None if backoff is None else _check_backoff(backoff, self.name)
        self.timeout = None if timeout is None else check_seconds(timeout, f"timeout {of}")
        self.before_run = _check_hook(before_run, f"before_run {of}")
        self.after_run = _check_hook(after_run, f"after_run {of}")
        self.allow_daemons = allow_daemons
        self.ack_in_transaction = bool(ack_in_transaction)
        self.result_ttl = None if result_ttl is None else check_result_ttl(result_ttl or 0.0, f"result_ttl {of}")
        if self.result_ttl and ack_in_transaction:
            raise InvalidJob(
                f"handler {self.name!r} acks its job before it returns: no result can be kept with the ack"
            )
        check_shape(function, self.name)

    if TYPE_CHECKING:

        def __call__(self, ctx: JobContext, *args: P.args, **kwargs: P.kwargs) -> R: ...

    else:

        def __call__(self, *args: Any, **kwargs: Any) -> R:
            return self.function(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            hint = f"; use .{CALLED_ELSEWHERE[name]}" if name in CALLED_ELSEWHERE else ""
            raise AttributeError(f"a handler has no attribute {name!r}{hint}", name=name, obj=self)

    def define(self, /, *args: P.args, **kwargs: P.kwargs) -> JobBuilder:
        """Return a builder for a job with these arguments, on the handler's queue; ends with `dispatch()`.

        They are those of the function without its context: JSON values, and what its annotations read from them. That
        is a date, a `UUID`, a path, an enum member, a dataclass, a pydantic model, and their like. For a handler of one
        model they may also be the model's fields. One that reads `ctx.payload` itself gets all keyword arguments there.

        Raises `InvalidJob`: the arguments do not fit the function, or JSON cannot carry them; the text names which.
        """
        parameters = self.parameters
        try:
            given = parameters.payload(args, kwargs)
            builder = JobBuilder(self.name, given)
            if parameters.read is not None:
                model, fields = parameters.read(builder.payload)
                check_types(given, model[0] if model else fields, parameters.hints)
        except Mismatch as mismatch:
            raise self._refused(mismatch) from None
        return builder.queue(self.queues[0]) if self.queues else builder

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Enqueue a job with these arguments through the process's default producer; the message's id, as a handle.

        Raises:
            InvalidJob: The arguments do not fit the function, or JSON cannot carry them, as of `define`.
            BackendUnavailable: The broker did not answer.

        Blocks for one round trip to the broker.
        """
        return self.define(*args, **kwargs).dispatch()

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Enqueue a job with these arguments and leave the event loop free meanwhile; the message's id.

        Raises as `enqueue`. A cancelled one may have been enqueued or not, as after `BackendUnavailable`.
        """
        return await self.define(*args, **kwargs).adispatch()

    def check(self, payload: Any) -> None:
        """Raise `InvalidJob` if this JSON value cannot fill the function's parameters; the text names the field."""
        if self.parameters.read is not None:
            try:
                self.parameters.read(payload)
            except Mismatch as mismatch:
                raise self._refused(mismatch) from None

    def _refused(self, mismatch: Mismatch) -> InvalidJob:
        return InvalidJob(f"handler {self.name!r} cannot take these arguments: {mismatch}")

    @cached_property
    def parameters(self) -> Parameters:
        """The function's parameters, looked at once, when they are first needed: by then all annotations are there."""
        return Parameters(self.function)

    @cached_property
    def bound(self) -> Bound:
        """The function, called with a context alone: arguments come from the payload. Made at the first use.

        Raises `ConfigurationError`: its annotations cannot work; the text says which.
        """
        return bind(self.function, self.name, parameters=self.parameters)

    @property
    def place(self) -> str:
        """Where the function was written, as `file:line (name)`."""
        return place_of(self.function)

    @property
    def info(self) -> HandlerInfo:
        """Return the handler's description for the master."""
        queues = list(self.queues or (DEFAULT_QUEUE,))
        return HandlerInfo(
            self.name,
            self.max_retries,
            self.timeout,
            self.ack_in_transaction,
            backoff=self.backoff,
            queues=queues,
            result_ttl=self.result_ttl,
        )

    def __repr__(self) -> str:
        return f"<Handler {self.name!r} at {self.place}>"


AnyHandler = Handler[..., Any]

if TYPE_CHECKING:

    class PlainHandler(Handler[P, R]):
        """A handler whose function takes no context, as type checkers see it."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...  # type: ignore[override]


def check_options(names: Iterable[str]) -> None:
    """Raise `TypeError` if one of these is not an option of `jobpool.handler`; the text names what is meant."""
    known = [*inspect.signature(Handler).parameters][2:]
    for name in names:
        if name not in known:
            meant = OPTIONS_ELSEWHERE.get(name) or nearest_word(name, known)
            hint = f"; write {meant}" if meant else f"; there are {', '.join(known)}"
            raise TypeError(f"a handler has no option {name!r}{hint}")


def _check_queues(queue: str | Iterable[str] | None, handler: str) -> tuple[str, ...]:
    queues = [queue] if isinstance(queue, str) else () if queue is None else queue
    if not isinstance(queues, Iterable):
        raise InvalidJob(f"queue of handler {handler!r} must be a queue's name, or some, not {queue!r}")
    return tuple(map(check_queue, queues))


def _check_hook(hook: Hook, what: str) -> Hook:
    if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
        raise InvalidJob(f"{what} must be a plain function, not {hook!r}")
    return hook


def _check_backoff(value: str, name: str) -> str:
    from jobpool.policy.retry import parse_backoff  # only here: a child decides about no retries

    try:
        parse_backoff(value)
    except ValueError as error:
        raise InvalidJob(f"backoff of handler {name!r}: {error}") from None
    return value


# --- classes as handlers ------------------------------------------------------------------------------


def _as_function(cls: type, name: str) -> Callable[..., Any]:
    """Return a function that makes an instance of `cls` and calls its `run`, or `__call__`. `name`: the handler's.

    Raises `ConfigurationError`: the class does not fit; the text says where it is and why.
    """
    shown = f"handler {name!r}: class {cls.__module__}.{cls.__qualname__}"
    method = next((known for known in ("run", "__call__") if _is_plain(cls, known)), None)
    if method is None:
        raise ConfigurationError(f"{shown} has neither a method run(self, …) nor __call__(self, …)")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))  # type: ignore[attr-defined]
        raise ConfigurationError(f"{shown} is abstract: {missing} is not written")
    if problem := call_problem(cls):
        raise ConfigurationError(f"{shown} is made anew for each attempt, without arguments: {problem}")

    @functools.wraps(getattr(cls, method))
    def function(*args: Any, **fields: Any) -> Any:
        return getattr(cls(), method)(*args, **fields)

    found = signature(getattr(cls, method))
    own, *others = found.parameters.values()
    kept = [own] if own.kind is Parameter.VAR_POSITIONAL else []
    function.__signature__ = found.replace(parameters=[*kept, *others])  # type: ignore[attr-defined]
    function.__name__, function.__doc__ = cls.__name__, cls.__doc__
    return function


def _is_plain(cls: type, method: str) -> bool:
    """Return whether it is a method of instances, with a place for one."""
    found = inspect.getattr_static(cls, method, None)
    own = signature(found).parameters.values() if inspect.isfunction(found) else ()
    return any(part.kind not in (Parameter.VAR_KEYWORD, Parameter.KEYWORD_ONLY) for part in own)
