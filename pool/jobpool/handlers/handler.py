"""A handler: a function with a name, how its jobs are run, and how it gets its arguments.

Models of a payload are known by their `model_validate`: pydantic is never imported here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from functools import cached_property
from inspect import Parameter
from typing import Any, Generic, ParamSpec, TypeVar

from jobpool.errors import ConfigurationError, InvalidJob, JobpoolError
from jobpool.handlers.conversion import Mismatch, converter, fill, is_model, resolve_hints
from jobpool.handlers.event_loop import awaited
from jobpool.ipc.frames import HandlerInfo
from jobpool.message import producer
from jobpool.message.builder import JobBuilder
from jobpool.message.context import JobContext
from jobpool.message.definition import check_seconds
from jobpool.message.names import DEFAULT_QUEUE, check_name, check_queue
from jobpool.message.outcome import ExecutionResult

P = ParamSpec("P")
R = TypeVar("R")

Bound = Callable[[JobContext], Any]
BeforeRun = Callable[[JobContext], object]
AfterRun = Callable[[ExecutionResult], object]

FILLED_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class PayloadMismatch(JobpoolError, ValueError):
    """A payload does not fit its handler's parameters. The text names the handler and the field."""


class Handler(Generic[P, R]):
    """A function that runs jobs. Calling it calls the function, with no queue between.

    Attributes:
        name: Its name in jobs.
        function: The decorated function; of a class, a function that makes an instance and runs it.
        queues: The first is the queue of `enqueue` and `define`; () = the default queue. No restriction: see
            `HandlerRegistry.restrict`.

    The other attributes are the options of `jobpool.handler`.
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
        if isinstance(function, type):
            function = _as_function(function, name or function.__name__)
        functools.update_wrapper(self, function)  # first: it copies all attributes of the function,
        self.__dict__.pop("bound", None)  # and a cached property would give way to one of this name
        self.name = check_name(getattr(function, "__name__", "") if name is None else name, "handler name")
        self.function = function
        self.queues = tuple(map(check_queue, [queue] if isinstance(queue, str) else queue or ()))
        if max_retries is not None and (type(max_retries) is not int or max_retries < 0):
            raise InvalidJob(f"max_retries of handler {self.name!r} must be a whole number >= 0, not {max_retries!r}")
        self.max_retries = max_retries
        self.timeout = None if timeout is None else check_seconds(timeout, f"timeout of handler {self.name!r}")
        for what, hook in (("before_run", before_run), ("after_run", after_run)):
            if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
                raise InvalidJob(f"{what} of handler {self.name!r} must be a plain function, not {hook!r}")
        self.before_run = before_run
        self.after_run = after_run
        self.allow_daemons = allow_daemons
        self.ack_in_transaction = ack_in_transaction
        check_shape(function, self.name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def define(self, **payload: Any) -> JobBuilder:
        """Return a builder for a job with this payload, on the handler's queue; ends with `dispatch()`.

        Raises `InvalidJob`: JSON cannot carry the payload.
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

    def check(self, payload: Any) -> None:
        """Raise `InvalidJob` if this JSON value cannot fill the function's parameters; the text names the field."""
        if self._read is not None:
            try:
                self._read(payload)
            except Mismatch as mismatch:
                raise InvalidJob(f"handler {self.name!r} cannot take these arguments: {mismatch}") from None

    @cached_property
    def _read(self) -> Callable[[Any], object] | None:
        return _reader(self.function)

    @cached_property
    def bound(self) -> Bound:
        """The function, called with a context alone: arguments come from the payload. Made at the first use.

        Raises `ConfigurationError`: its annotations cannot work; the text says which.
        """
        return bind(self.function, self.name)

    @property
    def place(self) -> str:
        """Where the function was written, as `file:line (name)`."""
        return place_of(self.function)

    @property
    def info(self) -> HandlerInfo:
        """Return the handler's description for the master."""
        queues = list(self.queues or (DEFAULT_QUEUE,))
        return HandlerInfo(self.name, self.max_retries, self.timeout, self.ack_in_transaction, queues=queues)

    def __repr__(self) -> str:
        return f"<Handler {self.name!r} at {self.place}>"


AnyHandler = Handler[Any, Any]


# --- functions ----------------------------------------------------------------------------------------


def place_of(function: Callable[..., Any]) -> str:
    """Return where a function was written, as `file:line (name)`."""
    function = inspect.unwrap(function)
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{getattr(function, '__module__', '?')} ({name})"
    return f"{code.co_filename}:{code.co_firstlineno} ({name})"


def check_shape(function: Callable[..., Any], name: str, kind: str = "handler") -> None:
    """Refuse, where it is written, a function that no job could call. `kind`: what the text calls it.

    Raises `ConfigurationError`: a class, a generator, no context, or parameters that no name can fill.
    """
    shown = f"{kind} {name!r}, {place_of(function)}"
    if isinstance(function, type):
        raise ConfigurationError(f"{shown}, is a class: decorate a function")
    plain = _annotated(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ConfigurationError(f"{shown}, is a generator and would never run: take the yield out")
    parameters = parameters_of(function)
    if parameters is None:
        return
    if not parameters or parameters[0].kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD):
        raise ConfigurationError(f"{shown}, must take the job's context as its first parameter")
    for parameter in parameters[1:]:
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            raise ConfigurationError(f"{shown}: parameter {parameter.name!r} cannot be filled by name: drop the '/'")


def bind(function: Callable[..., Any], name: str, kind: str = "handler") -> Bound:
    """Return a function of the context alone that calls `function` with what the payload says and awaits it if need be.

    Calling it raises `PayloadMismatch`, whose text calls the function `kind` and `name`, or what `function` raises.
    """
    read = _reader(function)
    if read is None:
        return lambda ctx: awaited(function(ctx))

    def run(ctx: JobContext) -> Any:
        try:
            model, fields = read(ctx.payload)
        except Mismatch as mismatch:
            raise PayloadMismatch(f"the payload does not fit {kind} {name!r}: {mismatch}") from None
        return awaited(function(ctx, *model, **fields))

    return run


def _reader(function: Callable[..., Any]) -> Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]] | None:
    """Return what makes arguments of a payload, by position and by name; None = the function takes its context alone.

    Worked out once per handler and not once per job. Raises `Mismatch` when called.
    """
    parameters = parameters_of(function) or []
    rest = parameters[1:]
    if all(parameter.kind is Parameter.VAR_POSITIONAL for parameter in rest):
        return None
    hints = hints_of(function)
    if len(rest) == 1 and is_model(hints.get(rest[0].name)):
        name, convert = rest[0].name, converter(hints[rest[0].name])
        if rest[0].kind is Parameter.KEYWORD_ONLY:
            return lambda payload: ((), {name: convert(payload, "")})
        return lambda payload: ((convert(payload, ""),), {})
    named = [parameter for parameter in rest if parameter.kind in FILLED_BY_NAME]
    converters = {parameter.name: converter(hints.get(parameter.name, Any)) for parameter in named}
    required = [parameter.name for parameter in named if parameter.default is Parameter.empty]
    # A function with `**fields` takes any other name, but not that of its context, or of its method's `self`.
    takes_others = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in rest)
    taken = {parameters[0].name, "self"} if takes_others else None

    def read(payload: Any) -> tuple[tuple[()], dict[str, Any]]:
        if type(payload) is not dict:
            raise Mismatch(f"it must be an object with the handler's parameters, not {type(payload).__name__}")
        return (), fill(payload, "", converters, required, "it takes", taken)

    return read


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's parameters, of whatever it is made."""
    return resolve_hints(_annotated(function))


def _annotated(function: Any) -> Any:
    """Return the function written with `def`: of a decorated function, a `partial`, or an object that is called."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if isinstance(function, type) or hasattr(function, "__code__"):
        return function
    return inspect.unwrap(getattr(type(function), "__call__", function))  # noqa: B004 - the method itself is wanted


def parameters_of(function: Callable[..., Any]) -> list[Parameter] | None:
    """Return the parameters; None for a builtin that does not tell, which is then called with the context alone."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


# --- classes as handlers ------------------------------------------------------------------------------


def _as_function(cls: type, name: str) -> Callable[..., Any]:
    """Return a function that makes an instance of `cls` and calls its `run`, or `__call__`. `name`: the handler's.

    Raises `ConfigurationError`: the class does not fit; the text says where it is and why.
    """
    shown = f"handler {name!r}: class {cls.__module__}.{cls.__qualname__}"
    method = next((known for known in ("run", "__call__") if _is_plain(cls, known)), None)
    if method is None:
        raise ConfigurationError(f"{shown} has neither a method run(self, ctx, …) nor __call__(self, ctx, …)")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))  # type: ignore[attr-defined]
        raise ConfigurationError(f"{shown} is abstract: {missing} is not written")
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise ConfigurationError(f"{shown} is made anew for each attempt, without arguments: {error}") from None
    except ValueError:
        pass  # a builtin that does not tell

    @functools.wraps(getattr(cls, method))
    def function(ctx: Any, /, *args: Any, **fields: Any) -> Any:
        return getattr(cls(), method)(ctx, *args, **fields)

    signature = inspect.signature(getattr(cls, method))
    own, *others = signature.parameters.values()
    kept = [own] if own.kind is Parameter.VAR_POSITIONAL else []
    function.__signature__ = signature.replace(parameters=[*kept, *others])  # type: ignore[attr-defined]
    function.__name__, function.__doc__ = cls.__name__, cls.__doc__
    return function


def _is_plain(cls: type, method: str) -> bool:
    """Return whether it is a method of instances, with a place for one."""
    found = inspect.getattr_static(cls, method, None)
    if not inspect.isfunction(found):
        return False
    kinds = (parameter.kind for parameter in inspect.signature(found).parameters.values())
    return any(kind not in (Parameter.VAR_KEYWORD, Parameter.KEYWORD_ONLY) for kind in kinds)
