"""A handler: a function with a name, how its jobs are run, and how it gets its arguments.

Models of a payload are known by their `model_validate`: pydantic is never imported here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from jobpool.errors import ConfigurationError, InvalidJob, Unrecoverable
from jobpool.handlers.conversion import Mismatch, converter, fill, is_data, is_model, resolve_hints
from jobpool.handlers.event_loop import awaited
from jobpool.ipc.frames import HandlerInfo
from jobpool.message import producer
from jobpool.message.builder import JobBuilder
from jobpool.message.context import JobContext
from jobpool.message.definition import check_seconds
from jobpool.message.names import check_name, check_queue
from jobpool.message.outcome import ExecutionResult

P = ParamSpec("P")
R = TypeVar("R")

Bound = Callable[[JobContext], Any]
BeforeRun = Callable[[JobContext], object]
AfterRun = Callable[[ExecutionResult], object]

_SETS = (set, frozenset)
FILLED_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class PayloadMismatch(Unrecoverable, ValueError):
    """A payload can never fit its handler's parameters. The text names the handler and the field."""


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

    def __init__(
        self,
        function: Callable[..., R],
        name: str | None = None,
        *,
        queue: str | Iterable[str] | None = None,
        max_retries: int | None = None,
        backoff: str | None = None,
        timeout: float | None = None,
        before_run: BeforeRun | None = None,
        after_run: AfterRun | None = None,
        allow_daemons: bool = False,
        ack_in_transaction: bool = False,
    ) -> None:
        if isinstance(function, type):
            function = _as_function(function, name or function.__name__)
        functools.update_wrapper(self, function)  # first: it copies all attributes of the function,
        for cached in ("bound", "parameters"):  # and a cached property would give way to one of its name
            self.__dict__.pop(cached, None)
        self.name = check_name(getattr(function, "__name__", "") if name is None else name, "handler name")
        self.function = function
        self.queues = tuple(map(check_queue, [queue] if isinstance(queue, str) else queue or ()))
        if max_retries is not None and (type(max_retries) is not int or max_retries < 0):
            raise InvalidJob(f"max_retries of handler {self.name!r} must be a whole number >= 0, not {max_retries!r}")
        self.max_retries = max_retries
        self.backoff = None if backoff is None else _check_backoff(backoff, self.name)
        self.timeout = None if timeout is None else check_seconds(timeout, f"timeout of handler {self.name!r}")
        for what, hook in (("before_run", before_run), ("after_run", after_run)):
            if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
                raise InvalidJob(f"{what} of handler {self.name!r} must be a plain function, not {hook!r}")
        self.before_run = before_run
        self.after_run = after_run
        self.allow_daemons = allow_daemons
        self.ack_in_transaction = ack_in_transaction
        check_shape(function, self.name)

    if TYPE_CHECKING:

        def __call__(self, ctx: JobContext, *args: P.args, **kwargs: P.kwargs) -> R: ...

    else:

        def __call__(self, *args: Any, **kwargs: Any) -> R:
            return self.function(*args, **kwargs)

    def define(self, *args: P.args, **kwargs: P.kwargs) -> JobBuilder:
        """Return a builder for a job with these arguments, on the handler's queue; ends with `dispatch()`.

        They are those of the function without its context: JSON values, and what its annotations read from them. That
        is a date, a `UUID`, a path, an enum member, a dataclass, a pydantic model, and their like. For a handler of one
        model they may also be the model's fields. One that reads `ctx.payload` itself gets all keyword arguments there.

        Raises `InvalidJob`: the arguments do not fit the function, or JSON cannot carry them; the text names which.
        """
        parameters = self.parameters
        builder = JobBuilder(self.name, parameters.payload(self.name, args, kwargs))
        if parameters.read is not None:
            self.check(builder.payload)
        return builder.queue(self.queues[0]) if self.queues else builder

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Enqueue a job with these arguments through the process's default producer; the message's id.

        Raises:
            InvalidJob: The arguments do not fit the function, or JSON cannot carry them, as of `define`.
            BackendUnavailable: The broker did not answer.

        Blocks for one round trip to the broker.
        """
        return producer.default().enqueue(self.define(*args, **kwargs).to_definition())

    def check(self, payload: Any) -> None:
        """Raise `InvalidJob` if this JSON value cannot fill the function's parameters; the text names the field."""
        read = self.parameters.read
        if read is not None:
            try:
                read(payload)
            except Mismatch as mismatch:
                raise InvalidJob(f"handler {self.name!r} cannot take these arguments: {mismatch}") from None

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
        return HandlerInfo(self.name, self.max_retries, self.timeout, self.ack_in_transaction, backoff=self.backoff)

    def __repr__(self) -> str:
        return f"<Handler {self.name!r} at {self.place}>"


AnyHandler = Handler[..., Any]

if TYPE_CHECKING:

    class PlainHandler(Handler[P, R]):
        """A handler whose function takes no context, as type checkers see it."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...  # type: ignore[override]


def _check_backoff(value: str, name: str) -> str:
    from jobpool.policy.retry import parse_backoff  # only here: a child decides about no retries

    try:
        parse_backoff(value)
    except ValueError as error:
        raise InvalidJob(f"backoff of handler {name!r}: {error}") from None
    return value


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
    takes_context = _takes_context(parameters, hints := hints_of(function))
    needs_context = kind != "handler" or JobContext in [hints.get(part.name) for part in parameters]
    if needs_context and not takes_context:
        raise ConfigurationError(f"{shown}, must take the job's context as its first parameter")
    for parameter in parameters[takes_context:]:
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            raise ConfigurationError(f"{shown}: parameter {parameter.name!r} cannot be filled by name: drop the '/'")


def bind(function: Callable[..., Any], name: str, kind: str = "handler", parameters: Parameters | None = None) -> Bound:
    """Return a function of the context alone that calls `function` with what the payload says and awaits it if need be.

    Calling it raises `PayloadMismatch`, whose text calls the function `kind` and `name`, or what `function` raises.
    """
    known = parameters or Parameters(function)
    read = known.read
    if read is None:
        return lambda ctx: awaited(function(ctx))

    def without_context(_: JobContext, /, *model: Any, **fields: Any) -> Any:
        return function(*model, **fields)

    call = function if known.context else without_context

    def run(ctx: JobContext) -> Any:
        try:
            model, fields = read(ctx.payload)
        except Mismatch as mismatch:
            raise PayloadMismatch(f"the payload does not fit {kind} {name!r}: {mismatch}") from None
        return awaited(call(ctx, *model, **fields))

    return run


class Parameters:
    """A function's parameters: how a payload fills them, and how a producer's call makes that payload.

    Worked out once per handler and not once per job.

    Attributes:
        context: Name of the first one, if it gets the job's context; "" = none does.
        read: Makes arguments of a payload, by position and by name, or raises `Mismatch`; None = the function takes
            its context alone, and any payload.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        known = parameters_of(function)
        every = [Parameter("ctx", Parameter.POSITIONAL_ONLY)] if known is None else known
        hints = hints_of(function)
        takes_context = _takes_context(every, hints)
        self.context = every[0].name if takes_context else ""
        self._rest = every[1:] if takes_context else every
        self._positions = [part.name for part in self._rest if part.kind is Parameter.POSITIONAL_OR_KEYWORD]
        self._model: type | None = None
        self.read: Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]] | None = None
        if len(self._rest) == 1 and is_model(hint := hints.get(self._rest[0].name)):
            self._model = hint
            self.read = self._read_model(self._rest[0], hint)
        elif not takes_context or any(part.kind is not Parameter.VAR_POSITIONAL for part in self._rest):
            self.read = self._read_fields(hints)
        self._by_field = self.read is not None and self._model is None

    def payload(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the payload of a call; what JSON does not know is in it still. `name`: the handler's, for texts.

        Raises `InvalidJob`: too many arguments by position, or the context is given.
        """
        if args or (self._by_field and self.context in kwargs):
            kwargs = self._by_name(name, args, kwargs)
        if self._model is not None and len(kwargs) == 1:
            wanted, value = self._rest[0].name, kwargs.get(self._rest[0].name)
            if isinstance(value, self._model):
                return value
            if args:
                got = f"{wanted!r} must be {self._model.__name__}, not {type(value).__name__}"
                raise InvalidJob(f"handler {name!r} cannot take these arguments: {got}")
        for key, value in kwargs.items():
            if type(value) in _SETS:  # refused elsewhere, because JSON has none: here a parameter says how it is read
                kwargs[key] = list(value)
        return kwargs

    def _by_name(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        given = dict(zip(self._positions, args, strict=False))
        wrong = ""
        if len(args) > len(self._positions):
            wrong = f"it takes {len(self._positions)} by position, not {len(args)}"
        elif twice := given.keys() & kwargs.keys():
            wrong = f"{min(twice)!r} is given twice"
        if wrong or self.context in kwargs:
            context = f"; its first parameter {self.context!r} is the job's context, given by the pool"
            raise InvalidJob(
                f"handler {name!r} cannot take these arguments: {wrong or 'leave out the context'}"
                f"{context if self.context else ''}"
            )
        return given | kwargs

    @staticmethod
    def _read_model(only: Parameter, hint: Any) -> Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]:
        convert = converter(hint)
        if only.kind is Parameter.KEYWORD_ONLY:
            return lambda payload: ((), {only.name: convert(payload, "")})
        return lambda payload: ((convert(payload, ""),), {})

    def _read_fields(self, hints: dict[str, Any]) -> Callable[[Any], tuple[tuple[()], dict[str, Any]]]:
        named = [parameter for parameter in self._rest if parameter.kind in FILLED_BY_NAME]
        converters = {parameter.name: converter(hints.get(parameter.name, Any)) for parameter in named}
        required = [parameter.name for parameter in named if parameter.default is Parameter.empty]
        # A function with `**fields` takes any other name, but not that of its context, or of its method's `self`.
        takes_others = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in self._rest)
        taken = {self.context, "self"} if takes_others else None

        def read(payload: Any) -> tuple[tuple[()], dict[str, Any]]:
            if type(payload) is not dict:
                raise Mismatch(f"it must be an object with the handler's parameters, not {type(payload).__name__}")
            return (), fill(payload, "", converters, required, "it takes", taken)

        return read


def _takes_context(parameters: list[Parameter], hints: dict[str, Any]) -> bool:
    """Return whether the first parameter gets the job's context: by position, and not annotated as data."""
    if not parameters or parameters[0].kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD):
        return False
    return not is_data(hints.get(parameters[0].name))


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
        raise ConfigurationError(f"{shown} has neither a method run(self, …) nor __call__(self, …)")
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
    def function(*args: Any, **fields: Any) -> Any:
        return getattr(cls(), method)(*args, **fields)

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
