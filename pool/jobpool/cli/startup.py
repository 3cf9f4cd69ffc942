"""What must be known and well before a pool starts: its settings, its app's place, its broker."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jobpool.errors import ConfigurationError
from jobpool.ipc import linux
from jobpool.master.settings import PoolSettings

if TYPE_CHECKING:
    from jobpool.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Start:
    """Settings of the command line besides the pool's own. `caution`: what deserves a warning."""

    pool: PoolSettings
    log_level: str
    log_format: str
    runtime_dir: str | None
    caution: str = ""


def apart(work: Callable[[], T]) -> T:
    """Do `work` in a short-lived fork and return its result, or raise its `ConfigurationError`.

    For work that imports much and is needed once: the master of a pool lives for months, and would carry 20 MB of
    settings machinery with it. With more than one thread, when forking is not safe, it is done here. The result must be
    picklable.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        return work()
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        linux.die_with_parent(parent)
        os.close(reading)
        _answer(work, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not answer:
        raise ConfigurationError(f"the settings could not be read: the reader ended with status {status}")
    result = pickle.loads(answer)
    if isinstance(result, BaseException):
        raise result
    return result  # type: ignore[no-any-return]


def _answer(work: Callable[[], object], writing: int) -> None:
    """In the fork: write the result, or what was raised, and end without the parent's exit handlers."""
    try:
        try:
            answer = pickle.dumps(work())
        except Exception as error:  # noqa: BLE001 -- whatever it is, the parent tells the person
            answer = pickle.dumps(error if isinstance(error, ConfigurationError) else ConfigurationError(repr(error)))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)


def check_apps(pool: PoolSettings) -> PoolSettings:
    """`pool` with absolute paths of app files. Only looks for modules; importing them is the fork server's work.

    A pool that may run programs or call functions by the built-in handlers needs no app.

    Raises:
        ConfigurationError: There is no app, or one cannot be found; the text says where was looked.
    """
    if not (pool.apps or pool.allowed_callables or pool.allowed_shell_commands or pool.allow_all_shell_commands):
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


def backlog(pool: PoolSettings) -> int:
    """How many messages wait, are delayed or leased in the pool's queues. Raises `BackendUnavailable`."""
    from jobpool.broker.opening import open_backend

    backend = open_backend(pool.backend, timeout=pool.broker_timeout)
    try:
        return sum(backend.stats(queue).pending for queue in pool.queue_names)
    finally:
        backend.close()


def search_path(config_directory: Path) -> tuple[str, ...]:
    """Where apps are looked for: the working directory and that of the configuration file."""
    return tuple(dict.fromkeys(map(str, (Path.cwd(), config_directory))))


def read_start(settings: Settings, **mode: Any) -> Start:
    """What a pool is started with, from loaded settings."""
    directory = None if settings.runtime_dir is None else str(settings.runtime_dir)
    return Start(settings.pool(**mode), settings.log_level, settings.log_format, directory, key_caution(settings))


def key_caution(settings: Settings) -> str:
    """Return the warning that the file of signing keys deserves; "" = none."""
    from jobpool.broker.opening import judge_key_file

    found = None if settings.signing_key_file is None else judge_key_file(settings.signing_key_file)
    return "" if found is None else str(found)
