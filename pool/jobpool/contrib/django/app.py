"""The app of a Django project's pool: `jobpool --app jobpool.contrib.django.app`, as `manage.py jobpool` has it.

Its import sets Django up, imports the `tasks` modules of all installed apps, and registers the handler of tasks.
"""

from __future__ import annotations

import os
from importlib import import_module

import django
from django.apps import apps
from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.cache import caches
from django.db import close_old_connections, connections, reset_queries
from django.utils.module_loading import autodiscover_modules

import jobpool
from jobpool.errors import ConfigurationError


def _set_up() -> None:
    """Call `django.setup`, unless that was done. Raises `ConfigurationError`: there are no settings."""
    if apps.ready:
        return
    if not settings.configured:
        name = os.environ.get(ENVIRONMENT_VARIABLE)
        if not name:
            raise ConfigurationError(
                f"{ENVIRONMENT_VARIABLE} is not set: start it as `python manage.py jobpool`, or set it,"
                f" such as {ENVIRONMENT_VARIABLE}=mysite.settings"
            )
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise ConfigurationError(
                f"there is no module {error.name!r} for {ENVIRONMENT_VARIABLE}={name}: start it in the folder of"
                " manage.py, or as `python manage.py jobpool`"
            ) from None
    for database in settings.DATABASES.values():
        # A process that runs one job at a time needs no pool of connections, whose threads would outlive each job.
        database.get("OPTIONS", {}).pop("pool", None)
    django.setup()


def _register() -> None:
    """Register the handler of tasks if TASKS names jobpool. Raises `ConfigurationError`: an option is wrong."""
    if not getattr(settings, "TASKS", None):
        return
    from jobpool.contrib.django import backend, running

    entries = backend.entries()
    wrong = [f"TASKS[{entry.alias!r}]: {found}" for entry in entries for found in entry.wrong()]
    if wrong:
        raise ConfigurationError("; ".join(wrong))
    if entries:
        running.register(sorted({queue for entry in entries for queue in entry.queues}))


def _begin_attempt(_: jobpool.JobContext) -> None:
    """Begin a job as Django begins a request: with connections that work."""
    reset_queries()
    close_old_connections()


def _end_attempt(_: jobpool.JobContext, __: object) -> None:
    close_old_connections()


_set_up()
autodiscover_modules("tasks")
_register()
jobpool.before_attempt(_begin_attempt)
jobpool.after_attempt(_end_attempt)
for _connection in connections.all(initialized_only=True):  # that the import has opened: no two children may share one
    if not _connection.in_atomic_block:
        _connection.close()
caches.all()  # made here, where all attempts see them: one made in an attempt is gone with its context
