"""The entry of `INSTALLED_APPS`."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings

from jobpool.message import producer


class JobpoolConfig(AppConfig):  # type: ignore[misc]
    """jobpool as an app of a Django project, without models."""

    name = "jobpool.contrib.django"
    label = "jobpool"

    def ready(self) -> None:
        if getattr(settings, "TASKS", None):
            producer.process.factory = _open_default


def _open_default() -> producer.Producer:
    """Return where the project's tasks go, so that `handler.enqueue()` of its other jobs sends to the same broker."""
    from jobpool.contrib.django.backend import entries, open_jobs

    return open_jobs(next((entry.url for entry in entries()), None))
