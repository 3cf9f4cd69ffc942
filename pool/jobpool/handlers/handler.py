"""A handler: a function with a name, and what is known of how its jobs are to be run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, TypeVar

from jobpool.errors import InvalidJob
from jobpool.handlers.invocation import Bound, as_function, bind, check_shape, place_of
from jobpool.ipc.frames import HandlerInfo
from jobpool.message import producer
from jobpool.message.builder import JobBuilder
from jobpool.message.context import JobContext
from jobpool.message.definition import check_seconds
from jobpool.message.names import check_name, check_queue
from jobpool.message.outcome import ExecutionResult

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Callable[..., object])

BeforeRun = Callable[[JobContext], object]
AfterRun = Callable[[ExecutionResult], object]


class Handler(Generic[P, R]):
    """A function that runs jobs. Calling it calls the function, with no queue between.

    Attributes:
        name: Its name in jobs.
        function: The decorated function; of a class, a function that makes an instance and runs it.
        queues: The first is the queue of `enqueue` and `define`; () = the default queue. No restriction: see
            `HandlerRegistry.restrict`.
        max_retries: For jobs that set none; None = the pool's policy.
        timeout: Seconds, 0 = unlimited, for jobs that set none; None = the pool's default.
        before_run: Called with the context before the handler; its errors fail the attempt.
        after_run: Called with the `ExecutionResult` after every attempt; its errors are logged.
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
        if isinstance(function, type):
            function = as_function(function, name or function.__name__)
        functools.update_wrapper(self, function)  # first: it copies all attributes of the function
        self.name = check_name(getattr(function, "__name__", "") if name is None else name, "handler name")
        self.function = function
        self.queues = _queues(queue)
        self.max_retries = check_retries(max_retries, self.name)
        self.timeout = None if timeout is None else check_seconds(timeout, f"timeout of handler {self.name!r}")
        self.before_run = check_hook(before_run, "before_run", self.name)
        self.after_run = check_hook(after_run, "after_run", self.name)
        self.allow_daemons = allow_daemons
        self.ack_in_transaction = ack_in_transaction
        self._bound: Bound | None = None
        check_shape(function, self.name, self.place)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def define(self, **payload: Any) -> JobBuilder:
        """Return a builder for a job with this payload, on the handler's queue; ends with `dispatch()`.

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
        return place_of(self.function)

    @property
    def info(self) -> HandlerInfo:
        """Return the handler's description for the master."""
        return HandlerInfo(self.name, self.max_retries, self.timeout, self.ack_in_transaction)

    def __repr__(self) -> str:
        return f"<Handler {self.name!r} at {self.place}>"


AnyHandler = Handler[Any, Any]


def _queues(queue: str | Iterable[str] | None) -> tuple[str, ...]:
    if queue is None:
        return ()
    return tuple(check_queue(name) for name in ([queue] if isinstance(queue, str) else queue))


def check_retries(max_retries: int | None, name: str) -> int | None:
    """Return it, or raise `InvalidJob`: it is not a whole number >= 0. `name`: of the handler."""
    if max_retries is not None and (type(max_retries) is not int or max_retries < 0):
        raise InvalidJob(f"max_retries of handler {name!r} must be a whole number >= 0, not {max_retries!r}")
    return max_retries


def check_hook(hook: H | None, what: str, name: str) -> H | None:
    """Return it, or raise `InvalidJob`: it is not a plain function. `what`: which hook it is."""
    if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
        raise InvalidJob(f"{what} of handler {name!r} must be a plain function, not {hook!r}")
    return hook
