"""How a pool runs a Django task: one handler for all of them, which finds a task by its module and name."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from traceback import format_exception
from typing import Any

from django.apps import apps
from django.conf import settings
from django.utils import timezone

import jobpool
from jobpool.broker.values import Message
from jobpool.contrib.django import framework
from jobpool.contrib.django.framework import TaskResultStatus
from jobpool.handlers.conversion import call_problem
from jobpool.message.envelope import decode
from jobpool.message.masking import Masker
from jobpool.message.results import JobState, JobStatus

HANDLER = "django.task"
KEPT = {"task", "args", "kwargs", "backend", "value", "began", "workers"}  # fields of a result that `run_task` returns
_NAMED = re.compile(r"([A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt|Timeout|Unrecoverable))\b")
FORMER_WORKER = "unknown"  # for attempts before this one: their workers are not recorded


def register(queues: Iterable[str] = ()) -> None:
    """Make `run_task` a handler of this process. A pool of it serves `queues`, or `default` if there are none."""
    jobpool.handler(HANDLER, queue=list(queues))(run_task)


def find(path: str) -> Any:
    """Return the task at `module.name`. Imports the module, if it is of an installed app or of the project's package.

    Raises `LookupError`: nothing has this name, or the module is of another package; `TypeError`: it is not a task.
    """
    module, _, name = path.rpartition(".")
    if module == "__main__" or (module not in sys.modules and not _is_of_project(module)):
        raise LookupError(f"no task {path}: its module is of no app in INSTALLED_APPS")
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        found = None
    if found is None:
        raise LookupError(f"no task {path}: nothing has this name")
    if not isinstance(found, framework.Task):
        raise TypeError(f"{path} is not a task: decorate the function with @task, under its own name")
    return found


def _is_of_project(module: str) -> bool:
    package = (settings.SETTINGS_MODULE or "").partition(".")[0]  # None: of settings.configure()
    return module.partition(".")[0] == package != "" or apps.get_containing_app_config(module) is not None


def check_arguments(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `TypeError` if the task's function cannot be called with these arguments; the text names the task."""
    context = (None,) if task.takes_context else ()
    if problem := call_problem(task.func, *context, *args, **kwargs):
        raise TypeError(f"{task.module_path}: {problem}")


def new_result(task: Any, identifier: str, args: Sequence[Any], kwargs: Mapping[str, Any], alias: str) -> Any:
    """Return the `TaskResult` of a run that has not begun. Raises `TypeError`: JSON cannot carry the arguments."""
    about = {"task": task, "id": identifier, "args": args, "kwargs": kwargs, "backend": alias}
    times = dict.fromkeys(("enqueued_at", "started_at", "last_attempted_at", "finished_at"))
    return framework.TaskResult(status=TaskResultStatus.READY, errors=[], worker_ids=[], **about, **times)


def run_task(
    ctx: jobpool.JobContext, task: str, args: list[Any], kwargs: dict[str, Any], backend: str, keep: bool = False
) -> Any:
    """Run a task, and send the signals of Django's framework; the value that the task returns.

    `keep`: return all that `get_result` is to know, in place of the value alone.

    Raises `Unrecoverable` if `task` is not a task or cannot take the arguments, else what the task raises.
    """
    try:
        found = find(task)
        check_arguments(found, args, kwargs)
    except TypeError as error:
        raise jobpool.Unrecoverable(str(error)) from None
    result = new_result(found, ctx.id, args, kwargs, backend)
    result.worker_ids.extend([FORMER_WORKER] * (ctx.attempt - 1) + [f"{socket.gethostname()}:{os.getpid()}"])
    now = timezone.now()
    _change(result, status=TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now)
    sender = type(found.get_backend())
    framework.task_started.send(sender, task_result=result)
    context = (framework.TaskContext(task_result=result),) if found.takes_context else ()
    try:
        value = found.call(*context, *args, **kwargs)
    except (jobpool.Retry, jobpool.Snooze):
        raise
    except Exception as error:
        kind = type(error)
        text = "".join(format_exception(error))
        result.errors.append(
            framework.TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text)
        )
        _change(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        framework.task_finished.send(sender, task_result=result)
        raise
    _change(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
    framework.task_finished.send(sender, task_result=result)
    if not keep:
        return value
    asked = {"task": task, "args": args, "kwargs": kwargs, "backend": backend, "value": value}
    return asked | {"began": now.timestamp(), "workers": result.worker_ids}


def done_result(identifier: str, kept: Mapping[str, Any], ended_at: float | None) -> Any:
    """Return the `TaskResult` of a task that has succeeded, from what `run_task` has returned."""
    result = new_result(find(kept["task"]), identifier, kept["args"], kept["kwargs"], kept["backend"])
    began, fields = _moment(kept["began"]), {"status": TaskResultStatus.SUCCESSFUL, "worker_ids": kept["workers"]}
    times = {"started_at": began, "last_attempted_at": began, "finished_at": _moment(ended_at)}
    _change(result, **fields, **times, _return_value=kept["value"])
    return result


def live_result(message: Message, status: JobStatus) -> Any:
    """Return the `TaskResult` of a task that waits, runs or has failed for good."""
    payload = Masker().result(decode(message.body, attempts=message.attempts).payload)  # as of one that is done
    result = new_result(find(payload["task"]), message.id, payload["args"], payload["kwargs"], payload["backend"])
    state = TaskResultStatus.RUNNING if status.state is JobState.RUNNING else TaskResultStatus.READY
    began, workers = _moment(status.since), [FORMER_WORKER] * message.attempts
    if state is TaskResultStatus.RUNNING:
        workers.append(status.where or FORMER_WORKER)
    if status.has_ended:
        state = TaskResultStatus.FAILED
        error = status.error or status.state.value
        result.errors.append(framework.TaskError(exception_class_path=_class_of(error), traceback=error))
    times = {"started_at": began, "last_attempted_at": began, "finished_at": _moment(status.ended_at)}
    _change(result, status=state, worker_ids=workers, enqueued_at=_moment(message.enqueued_at), **times)
    return result


def _moment(unix_time: float | None) -> datetime | None:
    return None if unix_time is None else datetime.fromtimestamp(unix_time, UTC)


def _class_of(error: str) -> str:
    """Return the path of the class of the exception that a traceback ends with; `Exception` if none can be read."""
    lines = [line for line in error.splitlines() if line and not line[0].isspace()]
    named = _NAMED.match(lines[-1]) if lines else None
    name = named[1] if named else "Exception"
    return name if "." in name else f"builtins.{name}"


def _change(result: Any, **fields: Any) -> None:
    """Set fields of a frozen result, as Django's own backends do."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)
