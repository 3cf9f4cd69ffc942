"""Checks before a pool starts: its settings, its app's place, its broker."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from jobpool.cli.session import Session
from jobpool.errors import ConfigurationError
from jobpool.settings import Settings


def read_pool(session: Session, flags: dict[str, Any], **mode: Any) -> Settings:
    """Return the settings of a pool; `mode` are fields that no source sets. Raises `ConfigurationError`."""
    settings = session.settings(**flags)
    settings.signing_keys()  # before anything starts
    path = search_path(session.config_directory())
    return check_apps(replace(settings, log_level=session.log_level(settings.log_level), sys_path=path, **mode))


def check_apps(pool: Settings) -> Settings:
    """Return `pool` with absolute paths of app files. Only looks for modules: the fork server imports them.

    A pool that may run programs or call functions by the built-in handlers needs no app.

    Raises:
        ConfigurationError: There is no app, or one cannot be found; the text says where was looked.
    """
    if not (pool.apps or pool.allowed_callables or pool.allowed_shell_commands):
        raise ConfigurationError(
            "no application: name the module with your handlers, --app myapp.jobs or apps in jobpool.toml"
            " (`jobpool init` writes a first one)"
        )
    return replace(pool, apps=tuple(find_app(app, pool.sys_path) for app in pool.apps))


def find_app(app: str, sys_path: tuple[str, ...]) -> str:
    """Return `app`, a file as an absolute path; raise `ConfigurationError` if it is in none of these directories."""
    if app.endswith(".py") or os.sep in app:
        return _check_file(app, sys_path)
    top = app.partition(".")[0]
    if PathFinder.find_spec(top, [*sys_path, *sys.path]) is None:
        hint = f"; for a file write --app {app}.py" if Path(f"{app}.py").is_file() else ""
        raise ConfigurationError(f"app {app!r} cannot be found: no module {top!r} in {' or '.join(sys_path)}{hint}")
    return app


def _check_file(app: str, sys_path: tuple[str, ...]) -> str:
    for directory in sys_path:
        path = Path(directory, app)
        if path.is_file():
            return str(path)
    raise ConfigurationError(f"app {app!r} cannot be found: no such file in {' or '.join(sys_path)}")


def backlog(pool: Settings) -> int:
    """Count the messages that wait, are delayed or leased in the pool's queues. Raises `BackendUnavailable`."""
    from jobpool.broker.opening import open_backend

    backend = open_backend(pool.backend)
    try:
        return sum(backend.stats(queue).pending for queue in pool.queue_names)
    finally:
        backend.close()


def search_path(config_directory: Path) -> tuple[str, ...]:
    """Return the folders of apps: the working directory and that of the configuration file."""
    return tuple(dict.fromkeys(map(str, (Path.cwd(), config_directory))))


def key_caution(settings: Settings) -> str:
    """Return the warning that the file of signing keys deserves; "" = none."""
    from jobpool.broker.opening import judge_key_file

    found = None if settings.signing_key_file is None else judge_key_file(settings.signing_key_file)
    return "" if found is None else str(found)
