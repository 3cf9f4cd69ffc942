"""jobpool for Django: a backend for its tasks, `manage.py jobpool`, and the app of a project's pool.

An entry of `INSTALLED_APPS`, so this imports nothing of Django.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobpool.contrib.django.backend import JobpoolBackend as JobpoolBackend

__all__ = ["JobpoolBackend"]


def __getattr__(name: str) -> Any:
    if name != "JobpoolBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jobpool.contrib.django.backend import JobpoolBackend

    return JobpoolBackend
