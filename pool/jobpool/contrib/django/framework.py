"""Django's task framework: `django.tasks` of Django 6.0 or later, else its back-port `django_tasks`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from jobpool.errors import ConfigurationError

_ROOT = next(filter(find_spec, ("django.tasks", "django_tasks")), None)
if _ROOT is None:
    raise ConfigurationError("tasks need Django 6.0, or django-tasks before that: pip install django-tasks")

_tasks, _base, _backends, _exceptions, _signals = (
    import_module(_ROOT + part) for part in ("", ".base", ".backends.base", ".exceptions", ".signals")
)
BaseTaskBackend = _backends.BaseTaskBackend
Task, TaskError = _base.Task, _base.TaskError
TaskContext, TaskResult, TaskResultStatus = _tasks.TaskContext, _tasks.TaskResult, _tasks.TaskResultStatus
task_backends = _tasks.task_backends
InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist = _exceptions.TaskResultDoesNotExist
task_enqueued, task_finished, task_started = _signals.task_enqueued, _signals.task_finished, _signals.task_started
