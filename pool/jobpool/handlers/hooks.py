"""App-wide hooks: before and after each attempt, and on a job's death. Registered while the app is imported.

The functions that call hooks have the names of these: a stack then says that it was a hook which hung or died.
"""

from __future__ import annotations

import _thread
import inspect
import logging
import os
from collections.abc import Callable
from typing import Any

from jobpool.errors import ConfigurationError, Retry
from jobpool.handlers.binding import F, place_of
from jobpool.handlers.conversion import call_problem
from jobpool.handlers.ending import hook_failed, traceback_text
from jobpool.handlers.event_loop import awaited
from jobpool.handlers.handler import Handler
from jobpool.message.capped_text import DEFAULT_CAP
from jobpool.message.context import JobContext
from jobpool.message.dead_letters import ON_DEATH, DeadJob
from jobpool.message.outcome import ExecutionResult

DEATH_RETRIES = 5  # of the job that brings a death to its hooks
DEATH_PAUSE_S, DEATH_PAUSE_FACTOR = 1.0, 8.0  # before the first retry, and each other: over an hour in all
DEATH_TIMEOUT_S = 60.0  # of all `on_death` hooks of one death together
HANDLER = "handler"
GIVEN = {"before_attempt": ("ctx",), "after_attempt": ("ctx", "result"), "on_death": ("dead",)}

logger = logging.getLogger("jobpool.child")


class Hooks:
    """The hooks of one app, in the order of their registration.

    Attributes:
        mark: Takes a note that outlives a killed process: the kind and place of each hook before it runs, then
            `HANDLER`.
        running: The hook that runs, or raised last, as `before_attempt hook file:line (name)`; "" = none.
        threads: Threads that hooks have started so far, as exporters do: they are not left behind by an attempt.
        death_handler: The handler for `ON_DEATH`; None = no hook is registered.
    """

    def __init__(self) -> None:
        # Kind → hooks, with kind and place of each.
        self._hooks: dict[str, list[tuple[str, Any]]] = {kind: [] for kind in GIVEN}
        self.mark: Callable[[str], object] = str
        self.running = ""
        self.threads = 0
        self.death_handler: Handler[Any, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._hooks["before_attempt"] or self._hooks["after_attempt"])

    def add(self, kind: str, hook: F) -> F:
        """Add a hook, and return it. The same one from a module that is imported under two names takes its own place.

        Raises `ConfigurationError`: it cannot be called with what it is given, or is `async def` where that is not
        awaited.
        """
        if not callable(hook) or (inspect.iscoroutinefunction(hook) and kind != "on_death"):
            raise ConfigurationError(f"{kind} takes a plain function, not {hook!r}")
        if problem := call_problem(hook, *GIVEN[kind]):
            takes = ", ".join(GIVEN[kind])
            raise ConfigurationError(f"{kind} hook {place_of(hook)} must take ({takes}): {problem}")
        hooks = self._hooks[kind]
        place, module = f"{kind} hook {place_of(hook)}", getattr(hook, "__module__", None)
        for number, (known, other) in enumerate(hooks):
            if other is hook or (known == place and getattr(other, "__module__", None) != module):
                hooks[number] = place, hook
                break
        else:
            hooks.append((place, hook))
        if kind == "on_death":
            self.death_handler = Handler(self.on_death, ON_DEATH, max_retries=DEATH_RETRIES, timeout=DEATH_TIMEOUT_S)
        return hook

    def before_attempt(self, ctx: JobContext) -> None:
        """Call the hooks. Raises what one of them raises; those after it are left out, and it stays in `running`."""
        hooks, threads = self._hooks["before_attempt"], _thread._count()
        for place, hook in hooks:
            self._begin(place)
            hook(ctx)
        if hooks:
            self.running = ""
            self.mark(HANDLER)
        self.threads += max(0, _thread._count() - threads)

    def after_attempt(self, ctx: JobContext, result: ExecutionResult) -> None:
        """Call the hooks, the last one first, all of them; log their errors. Raises `HardTimeout` and its like."""
        threads, pid = _thread._count(), os.getpid()
        for place, hook in reversed(self._hooks["after_attempt"]):
            self._begin(place)
            try:
                hook(ctx, result)
            except (Exception, SystemExit):
                if os.getpid() != pid:  # the end of a process that the hook forked
                    raise
                logger.exception("the %s failed, after handler %r", place, result.handler)
        self.running = ""
        self.threads += max(0, _thread._count() - threads)

    def on_death(self, ctx: JobContext) -> None:
        """Call the hooks with the record in the payload: the handler of the jobs that bring one.

        All of them run, also if one fails. Raises `Retry`, because of the errors of those that did.
        """
        dead, errors = DeadJob.from_payload(ctx.payload), dict[str, BaseException]()
        threads, pid = _thread._count(), os.getpid()
        for place, hook in self._hooks["on_death"]:
            self.mark(place)
            try:
                awaited(hook(dead))
            except (Exception, SystemExit) as error:  # the other hooks run, and the attempt fails
                if os.getpid() != pid:
                    raise
                errors[place] = error
        self.threads += max(0, _thread._count() - threads)
        if errors:
            pause = DEATH_PAUSE_S * DEATH_PAUSE_FACTOR ** (ctx.attempt - 1)
            text = "\n".join(hook_failed(place, traceback_text(error, DEFAULT_CAP)) for place, error in errors.items())
            raise Retry(pause, text) from BaseExceptionGroup("on_death hooks", list(errors.values()))

    def _begin(self, place: str) -> None:
        self.running = place
        self.mark(place)
