"""The things that a verb works with: the settings that apply, the place of the app, and the broker."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec.structs import asdict

from jobpool.broker.config_file import SQLITE, ConfigFile, find_config, working_directory
from jobpool.cli.output import note
from jobpool.errors import ENQUEUE_LATER, NO_APP, ConfigurationError, JobpoolError
from jobpool.settings import LOG_LEVELS, Settings, load
from jobpool.telemetry.logs import configure

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend
    from jobpool.handlers.registry import HandlerRegistry

OWN_THREADS: set[threading.Thread] = set()
"""Threads that ran before an app was imported; empty = none was."""

INTERRUPTED = 130  # exit code after Ctrl-C


def leave(status: int) -> NoReturn:
    """End the process; without the end of the interpreter if an imported app left threads, for which that waits."""
    if OWN_THREADS and any(not thread.daemon for thread in set(threading.enumerate()) - OWN_THREADS):
        leave_at_once(status)
    sys.exit(status)


def leave_at_once(status: int) -> NoReturn:
    """End the process without the end of the interpreter; what is left of logs and streams is written."""
    from jobpool.ipc.postfork import flush_streams

    logging.shutdown()
    flush_streams()
    os._exit(status)


class Session:
    """One call of the command line.

    `flags`: the common ones, as they were typed; None = not given. `louder`: how many `-v`, less how many `-q`.
    """

    def __init__(self, flags: Mapping[str, str | None], louder: int) -> None:
        self.flags = dict(flags)
        self._config = self.flags.pop("config", None)
        self._louder = louder

    @property
    def is_quiet(self) -> bool:
        return self._louder < 0

    def settings(self, **more: Any) -> Settings:
        """Return the settings that apply, with `more` flags, if they were given. Raises `ConfigurationError`."""
        flags = {key: value for key, value in more.items() if value != ()}
        return load({**self.flags, **flags}, config=self._config)

    def pool(self, flags: Mapping[str, Any], **mode: Any) -> Settings:
        """Return the settings of a pool; `mode` are fields that no source sets. Raises `ConfigurationError`."""
        settings = self.settings(**flags)
        settings.signing_keys()  # before anything starts
        path = search_path(self.config_file().directory)
        return check_apps(replace(settings, log_level=self.log_level(settings.log_level), sys_path=path, **mode))

    def config_file(self) -> ConfigFile:
        """Return the configuration file that applies. Raises `ConfigurationError`."""
        return find_config(self._config)

    def log_level(self, configured: str) -> str:
        """Return the level that -v and -q make of `configured`; -l is final."""
        if self.flags["log_level"] is not None:
            return configured
        place = LOG_LEVELS.index(configured) - self._louder
        return LOG_LEVELS[min(max(place, 0), len(LOG_LEVELS) - 1)]

    @contextlib.contextmanager
    def broker(self, *, makes: bool = False) -> Iterator[QueueBackend]:
        """Open the configured broker for the block, with a log for a command (warnings only, unless asked).

        Raises `ConfigurationError` too if it is a database that is not there yet, unless the verb `makes` one. Memory,
        which ends with the command, takes nothing from such a verb.
        """
        from jobpool.broker.opening import missing_database, open_backend
        from jobpool.message.signing import EnvelopeSigner

        settings = self.settings()
        asked = self.flags["log_level"] is not None
        configure(self.log_level(settings.log_level if asked else "warning"), settings.log_format)
        signer = EnvelopeSigner(settings.signing_keys() or None)
        missing = missing_database(settings.backend)
        if missing and not makes:
            raise ConfigurationError(missing)
        with contextlib.closing(open_backend(settings.backend, signer=signer)) as backend:
            if makes and backend.scheme == "memory":
                raise ConfigurationError("memory:// ends with this command, it is for tests: use sqlite:///jobpool.db")
            yield backend
        if missing and not (self.is_quiet or self.names_backend()):
            note(f"no backend is configured: made {settings.backend.removeprefix(SQLITE)}")

    def names_backend(self) -> bool:
        """Return whether a flag, a variable or the configuration file names the broker."""
        named = self.flags["backend"] or os.environ.get("JOBPOOL_BACKEND")
        return bool(named) or "backend" in self.config_file().values

    def app(self, **more: Any) -> HandlerRegistry | None:
        """Import the app of the settings and return its handlers; None = no app is named, or this is not Linux.

        It runs the app's code, which blocks; its output goes to stderr. Raises `ConfigurationError`: it cannot be
        found, or does not import.
        """
        settings = self.settings(**more)
        if not settings.apps:
            return None
        if sys.platform != "linux":
            note("the app is only looked at on Linux: nothing is checked")
            return None
        from jobpool.handlers.app import load
        from jobpool.handlers.registry import DEFAULT
        from jobpool.ipc.process_options import ChildOptions
        from jobpool.message import producer

        path = search_path(self.config_file().directory)
        apps = [find_app(app, path) for app in settings.apps]
        rules = {queue: list(names) for queue, names in settings.queue_handlers.items()}
        OWN_THREADS.update(threading.enumerate())
        with contextlib.redirect_stdout(sys.stderr):
            load(ChildOptions(apps, sys_path=list(path), queue_handlers=rules, allowances=asdict(settings.allowances)))
        if producer.process.was_used:
            note(f"the app enqueues at its import, and so this look at it did too: {ENQUEUE_LATER}")
        return DEFAULT

    def queues_served(self) -> Counter[str]:
        """Count the pools of this user on this machine that serve each queue of the configured broker."""
        served = Counter[str]()
        if sys.platform == "linux":  # elsewhere no pool runs
            from jobpool.ops.runtime_dir import runtime_dir, serving

            with contextlib.suppress(JobpoolError):  # no pool runs without such a directory unseen
                for pool in serving(runtime_dir(), self.settings().backend):
                    served.update(pool.queues)
        return served


def search_path(config_directory: Path) -> tuple[str, ...]:
    """Return the folders of apps: the working directory and that of the configuration file.

    Raises `ConfigurationError`: jobs could not run in the working directory, to which a child goes back after each.
    """
    here = working_directory()
    try:
        os.stat(".")
        os.getcwd()
    except OSError as error:
        trouble = "was removed" if isinstance(error, FileNotFoundError) else "cannot be entered by this user"
        mend = "start it in another (WorkingDirectory= in a systemd unit)"
        raise ConfigurationError(f"the working directory {here} {trouble}: {mend}") from None
    return tuple(dict.fromkeys(map(str, (here, config_directory))))


def check_apps(pool: Settings) -> Settings:
    """Return `pool` with absolute paths of app files. Only looks for modules: the fork server imports them.

    A pool that may run programs or call functions by the built-in handlers needs no app. Raises `ConfigurationError`:
    there is none, or one cannot be found; the text says where was looked.
    """
    if not (pool.apps or pool.allowed_callables or pool.allowed_shell_commands):
        raise ConfigurationError(f"{NO_APP} (`jobpool init` writes a first one)")
    return replace(pool, apps=tuple(find_app(app, pool.sys_path) for app in pool.apps))


def find_app(app: str, sys_path: tuple[str, ...]) -> str:
    """Return `app`, a file as an absolute path; raise `ConfigurationError` if it is in none of these directories."""
    looked = " or ".join(sys_path)
    is_file = app.endswith(".py") or os.sep in app or app.startswith(".")
    for directory in sys_path if is_file else ():
        path = Path(directory, app)
        if path.is_file():
            return str(path)
    if re.match(r"[A-Za-z]:[\\/]", app):
        raise ConfigurationError(f"app {app!r} cannot be found: it is a path of Windows; write the one on this machine")
    name, colon, _ = app.partition(":")
    if colon:  # as other tools write it
        raise ConfigurationError(f"app {app!r} cannot be found: name the module or file alone, {name!r}")
    if is_file:
        raise ConfigurationError(f"app {app!r} cannot be found: no such file in {looked}{_package_at(app, sys_path)}")
    top = app.partition(".")[0]
    if PathFinder.find_spec(top, [*sys_path, *sys.path]) is None:
        from jobpool.handlers.app import find_module

        hint = f"; for a file write --app {app}.py" if Path(f"{app}.py").is_file() else ""
        hint = hint or find_module(top, [Path(directory, "src") for directory in sys_path])
        raise ConfigurationError(f"app {app!r} cannot be found: no module {top!r} in {looked}{hint}")
    return app


def _package_at(app: str, sys_path: tuple[str, ...]) -> str:
    """Return a hint to name the package as a module, if `app` is its folder in one of these directories."""
    from jobpool.handlers.app import as_module

    folders = (Path(directory, app).resolve() for directory in sys_path)
    folder = next((one for one in folders if (one / "__init__.py").is_file()), None)
    return f"; for a package write {as_module(folder)}" if folder else ""


def warn_of_secrets(pool: Settings, config: ConfigFile) -> None:
    """Log a warning for a weak signing key, and for a file of keys or with secrets that others can read."""
    from jobpool.broker.finding import Level
    from jobpool.broker.opening import judge_key_file
    from jobpool.ops.doctor.configuration import judge_file, judge_strength

    log = logging.getLogger("jobpool.cli")
    if pool.signing_key_file is not None and (found := judge_key_file(pool.signing_key_file)):
        log.warning("others can use the signing keys", extra={"why": str(found)})
    for found in judge_strength(pool.signing_keys()):
        if found.level is Level.PROBLEM:
            log.warning("a signing key is weak", extra={"why": str(found)})
    for found in judge_file(config):
        if found.level is Level.PROBLEM:
            log.warning("others can read the configuration file", extra={"why": str(found)})
