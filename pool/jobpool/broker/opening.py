"""From a URL to an open backend: by its scheme, one of ours or through the entry-point group `jobpool.backends`.

A backend's module is imported only when its scheme is asked for, so that a broker's client library is needed only by
its users. Also here: the URL and the signing keys that apply when a program names none.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from jobpool.broker.backend import QueueBackend
from jobpool.broker.config_file import ConfigFile, find_config, sqlite_url
from jobpool.broker.finding import Finding, Level
from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.message.definition import JobDefinition
from jobpool.message.names import nearest_word
from jobpool.message.signing import EnvelopeSigner, Key

with suppress(RuntimeError):  # at the interpreter's exit, where it can no longer be imported
    import concurrent.futures.thread  # noqa: F401 - of the clients: early for those that are imported at the exit,
    # and not within `_importing`, as it has hooks of its own for forks

logger = logging.getLogger("jobpool")

GROUP = "jobpool.backends"
HOME = "jobpool_backends"  # the package of our own ones, with a table of their `PLACES`
AUTHORS = "see docs/backends.md#writing-your-own"

LOCAL = frozenset({"sqlite", "memory", "sync"})
"""Schemes of brokers that only this machine's users reach; on the others unsigned messages deserve a warning."""

Runner = Callable[[JobDefinition], object]
"""The runner of `sync://`: one attempt, in the calling thread; `enqueue` raises its errors."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BEHIND = {"sqlite": "/FILE", "memory": "", "sync": ""} | dict.fromkeys(("redis", "postgresql", "beanstalk"), "HOST")
"""Scheme → what follows it at least."""
_AZURE = re.compile(r"\s*Endpoint\s*=", re.IGNORECASE)
_BEFORE_COLON = re.compile(r"[A-Za-z0-9_./\\ -]*([:=]|$)")
_HOST = re.compile(r"(?:[^:@?#]*|\[[0-9A-Fa-f:.%\w]*\])(?::\d*)?")
_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,60}")
_STATE = re.compile(r"(?:(?<=\?)|[&;])state=([^&;]*)")  # also a part of an Azure connection string
_SECRET = re.compile(r"pass|pwd|secret|token|key(?!name)|sig|sas|cred|auth", re.IGNORECASE)
_PASTED = re.compile(r"((?:password|sharedaccesskey|sharedaccesssignature)\s*=).*", re.IGNORECASE | re.DOTALL)
"""A secret of a connection string or of libpq's words that were written after a scheme, as if they were a host."""
_OF_AZURE = frozenset({"endpoint", "sharedaccesskeyname", "entitypath", "usedevelopmentemulator"})
"""Parts of a connection string that are not secret."""

_importing = threading.RLock()
if hasattr(os, "register_at_fork"):  # Windows cannot fork
    # A fork waits for an import: in the child, the lock of a module that another thread imports is never released.
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
    )


def open_backend(
    url: str,
    *,
    signer: EnvelopeSigner | None = None,
    runner: Runner | None = None,
    clock: Clock | None = None,
    timeout: float | None = None,
    **options: Any,
) -> QueueBackend:
    """Find and open the backend for `url`. Blocks as long as the backend takes for that.

    Args:
        url: `scheme://…`, or an Azure connection string `Endpoint=sb://…`. The option `state=URL` lends a broker
            without a key store that of another, for pauses, pools and cancels (docs/control.md).
        signer: Signs what is enqueued; None = unsigned.
        runner: The runner of `sync://`; other backends ignore it.
        clock: For backends that keep time themselves; None = the machine's.
        timeout: Seconds, > 0, that one call may take; None = what the URL says, else the backend's own default.
        options: The backend's own, by keyword.

    Raises:
        ConfigurationError: The scheme is unknown, a package that it needs is missing, or the URL or an option is not
            what the backend takes. The text names the mend, and never a password.
        BackendUnavailable: The broker does not answer.
    """
    url, state = _split_state(url)
    with _importing:
        backend_class = _backend_class(url)
    if timeout is not None:
        options["timeout"] = timeout
    backend: QueueBackend = backend_class.from_url(url, signer=signer, clock=clock, runner=runner, **options)
    _check_parts(url, backend)  # one that lacks some may not even be able to close
    try:
        if state:
            backend.borrow = partial(open_backend, state, clock=clock)
            with suppress(BackendUnavailable):  # nobody needs it to enqueue
                backend.lend(backend.borrow())
    except BaseException:
        backend.close()
        raise
    return backend


def _check_parts(url: str, backend: QueueBackend) -> None:
    """Raise `ConfigurationError`: the author of this backend has left out something that has no default."""
    lacking = {name for name in QueueBackend.__annotations__ if not hasattr(backend, name)}
    if "capabilities" in lacking or not backend.capabilities.transactions:
        lacking.discard("_enqueue_in")
    if not hasattr(backend, "signer"):
        lacking.add("super().__init__(…)")
    if lacking:
        place, parts = f"{type(backend).__module__}:{type(backend).__qualname__}", ", ".join(sorted(lacking))
        raise ConfigurationError(f"backend {scheme_of(url)}:// ({place}) lacks {parts}: {AUTHORS}")


def faulty_package(error: BaseException) -> str:
    """Return the package to which an error that nobody foresaw is to be reported.

    That of a backend that is not ours, if its code is on the way to the error; else `jobpool`.
    """
    kinds: list[type] = [QueueBackend]
    for kind in kinds:
        kinds += kind.__subclasses__()
    foreign = {kind.__module__.partition(".")[0] for kind in kinds} - {"jobpool", HOME}
    frames = traceback.walk_tb(error.__traceback__)
    passed = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames]
    return next((package for package in passed if package in foreign), "jobpool")


def _split_state(url: str) -> tuple[str, str]:
    """Return the URL without its option `state`, and the URL that this names; "" = it has none."""
    found = _STATE.search(url)
    if found is None:
        return url, ""
    return url[: found.start()] + url[found.end() :], unquote(found[1])


def missing_database(url: str) -> str:
    """Return the sentence that there is no database at `url` yet, for those who only read; "" = open it.

    Raises `ConfigurationError` as `open_backend`.
    """
    missing: Callable[[str], str] = getattr(_backend_class(url), "missing", lambda _: "")  # a wrapper may lack it
    return missing(url)


def check_url(url: str) -> str:
    """Return `url`, or raise `ConfigurationError`: its scheme is unknown. Imports and opens nothing."""
    _place(url)
    return url


def scheme_of(url: str) -> str:
    """Return the scheme of a backend URL, in lower case; `servicebus` for an Azure connection string.

    Raises `ConfigurationError`: there is none.
    """
    if _AZURE.match(url):
        return "servicebus"
    match = _SCHEME.match(url)
    if match is None:
        scheme = url.partition(":")[0].lower()
        meant = f"{scheme}://{_BEHIND[scheme]}" if scheme in _BEHIND else _as_sqlite(url)
        mend = f"did you mean {meant!r}?" if meant else f"write scheme://…, with one of {_list_schemes()}"
        raise ConfigurationError(f"backend {redact(url)!r} is not a URL: {mend}")
    return match[1].lower()


def _as_sqlite(text: str) -> str:
    """Return the URL of what looks like the path of a database; "" = it does not, or may hold a password."""
    is_path = "/" in text or Path(text).suffix in (".db", ".sqlite", ".sqlite3")
    return f"sqlite:///{os.path.normpath(text)}" if is_path and redact(text) == text else ""


def redact(url: str) -> str:
    """Return `url` with every password and key in it replaced by `***`, fit for a log line or an error text.

    Takes any text given as a URL. Parts that cannot be read for certain are not shown: a password may hold an unescaped
    '@', '/', '?' or '&'.
    """
    if _AZURE.match(url):
        return ";".join(map(_redact_part, url.split(";")))
    if _SCHEME.match(url):
        scheme, found, rest = url.partition("://")
        return scheme + found + _redact_rest(rest, lone_user="***" if scheme.lower().startswith("redis") else None)
    start = _BEFORE_COLON.match(url)  # of a path, of `user:password@host`, of libpq's `host=… password=…`
    if start is None:
        return "***"
    return f"{start[0]}***" if start[1] else url


def _redact_rest(rest: str, lone_user: str | None = None) -> str:
    """Redact what follows `://`. `lone_user`: shown for a user without a password, as which some write a password."""
    place, asked, query = rest.partition("?")
    if "@" in query:  # it may end a password that holds a '?'
        user = re.split("[:@/]", place, maxsplit=1)[0]
        return (user if place.startswith(f"{user}:") else lone_user or user) + ":***"
    login, at, place = place.rpartition("@")
    place = _PASTED.sub(r"\1***", place)
    user, colon, secret = re.sub("%3a", ":", login, flags=re.IGNORECASE).partition(":")
    user = user if secret else user and (lone_user or user)
    shown = user + (":***" if colon else "") + at
    hosts = place.partition("/")[0]
    if not all(map(_HOST.fullmatch, hosts.split(","))):  # the text after a colon is a password, not a port
        return f"{shown}{hosts.partition(':')[0]}:***"
    return shown + place + asked + "".join(map(_redact_option, re.split("([&;])", query)))


def _redact_option(option: str) -> str:
    """Return a piece of the query, or what stands between two; one without a value may be the rest of a password."""
    name, equals, value = option.partition("=")
    if unquote(name) == "state":  # another URL
        return f"state={redact(unquote(value))}"
    if option in ("", "&", ";"):
        return option
    if not equals or not _OPTION.fullmatch(unquote(name)):
        return "***"
    return f"{name}=***" if _SECRET.search(unquote(name)) else option


def _redact_part(part: str) -> str:
    name, equals, value = part.partition("=")
    if not part.strip() or part.startswith("?"):  # behind the last semicolon
        return _redact_rest(part)
    if not equals or name.strip().lower() not in _OF_AZURE:
        return f"{name}=***" if name.strip().lower() in ("sharedaccesskey", "sharedaccesssignature") else "***"
    scheme, found, rest = value.rpartition("://")
    return f"{name}={scheme}{found}{_redact_rest(rest)}"


def default_url(config: ConfigFile | None = None) -> str:
    """Return the URL that applies when a program names none.

    JOBPOOL_BACKEND, else `backend` in the nearest configuration file, else SQLite in `jobpool.db` beside that file, or
    in the working directory when there is none. Raises `ConfigurationError`: the file cannot be read, its `backend` is
    not a text, or a variable or key is nearly `backend`.
    """
    from_environment = os.environ.get("JOBPOOL_BACKEND")
    if from_environment:
        return from_environment.strip()
    config = config or find_config()
    named = config.values.get("backend")
    _check_spelling(config, of_keys=named is None)
    if named is None:
        return sqlite_url(config.directory / "jobpool.db")
    if not isinstance(named, str) or not named:
        raise ConfigurationError(f"{config.path}: backend must be a URL in quotes, not {type(named).__name__}")
    return named.strip()


def _check_spelling(config: ConfigFile, *, of_keys: bool) -> None:
    """Raise `ConfigurationError` if a misspelt `backend` is there: jobs would go where no pool looks for them."""
    given = {key: (f"{config.path}: {key!r}", "backend") for key in config.values if of_keys}
    for variable in os.environ:
        if variable.startswith("JOBPOOL_") and variable != "JOBPOOL_BACKEND":
            source = f"environment variable {variable}"
            given[variable.removeprefix("JOBPOOL_").lower()] = source, "JOBPOOL_BACKEND"
    if given:
        import difflib  # few programs need it

        near = difflib.get_close_matches("backend", given, n=1, cutoff=0.8)
        if key := "broker" if "broker" in given else next(iter(near), ""):
            source, meant = given[key]
            raise ConfigurationError(f"{source} is not a setting of jobpool; did you mean {meant!r}?")


def default_signer(keys: Key | Sequence[Key] | None = None, config: ConfigFile | None = None) -> EnvelopeSigner:
    """Return the signer of `keys`, else of the configuration file's, JOBPOOL_SIGNING_KEY or JOBS_SIGNING_KEY.

    In the configuration file (or its JOBPOOL_* variable) `signing_key_file`, one key a line, goes before `signing_key`.
    Raises `ConfigurationError`: the first that is set is empty, cannot be read, or is not a key.
    """
    if keys is not None:
        return EnvelopeSigner(keys)
    config = config or find_config()
    given = {"JOBPOOL_SIGNING_KEY_FILE": os.environ.get("JOBPOOL_SIGNING_KEY_FILE")}
    given |= {f"{config.path}: {key}": config.values.get(key) for key in ("signing_key_file", "signing_key")}
    given |= {variable: os.environ.get(variable) for variable in ("JOBPOOL_SIGNING_KEY", "JOBS_SIGNING_KEY")}
    source, value = next(((source, value) for source, value in given.items() if value is not None), ("", None))
    if value is None:
        return EnvelopeSigner()
    from jobpool.message.setting_types import parse_keys, parse_text  # who does not sign need not wait for it

    try:
        if not source.lower().endswith("signing_key_file"):
            return EnvelopeSigner(parse_keys(value))
        path = Path(parse_text(value))
    except ValueError as error:
        raise ConfigurationError(f"{source}: {error}") from None
    found = read_keys(path)
    if exposed := judge_key_file(path):
        logger.warning("%s", exposed)
    return EnvelopeSigner(found)


def judge_key_file(path: Path) -> Finding | None:
    """Return what is wrong with the permissions of a file of signing keys; None = only its user and group read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None
    if not mode & 0o007:
        return None
    found = f"signing_key_file {path} can be used by everybody on this machine (mode {mode:04o})"
    mend = f"chmod 600 {path}, and put a new key first if others work on this machine"
    return Finding("signing-key", Level.PROBLEM, found, "who has the key can have any handler run", mend)


def read_keys(path: Path) -> list[str]:
    """Return the signing keys in a file, one a line. Raises `ConfigurationError`: it cannot be read, or holds none."""
    try:
        keys = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"signing_key_file cannot be read: {error}") from None
    if not keys:
        raise ConfigurationError(f"signing_key_file {path} holds no key: write one a line")
    return keys


def _installed() -> dict[str, str]:
    from importlib.metadata import entry_points  # costs tens of milliseconds, which not every process must pay

    return {point.name: point.value for point in entry_points(group=GROUP)}


def _list_schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in sorted(_installed()))


def _place(url: str) -> str:
    """Return "module:class" of its backend. Only for one that is not ours, all that is installed is looked through."""
    scheme = scheme_of(url)
    place = import_module(HOME).PLACES.get(scheme) or _installed().get(scheme)
    if place is None:
        near = "Endpoint=sb" if scheme == "sb" else nearest_word(scheme, _installed())
        hint = f"; did you mean '{near}://…'?" if near else ""
        raise ConfigurationError(f"no backend for {scheme}:// is installed; known are {_list_schemes()}{hint}")
    return place


def _backend_class(url: str) -> Any:
    place = _place(url)
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
    except ImportError as error:
        raise ConfigurationError(f"the backend for {redact(url)} {_what_is_wrong(error)}") from None
    except Exception as error:  # its module's own
        told = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"the backend for {redact(url)} ({place}) cannot be imported: {told}") from error
    if not hasattr(found, "from_url"):
        raise ConfigurationError(f"the backend for {redact(url)} ({place}) is not a QueueBackend: {AUTHORS}")
    return found


CLIENTS = {
    "redis": "redis[hiredis]>=8,<9",
    "psycopg": "psycopg[binary]>=3.2",
    "greenstalk": "greenstalk>=2.1,<3",
} | dict.fromkeys(("azure", "azure.servicebus", "azure.core"), "azure-servicebus>=7.15,<7.16")
"""Package → what to install for it, as in pyproject.toml: an extra of jobpool is known to pip in its sources alone."""


def _what_is_wrong(error: ImportError) -> str:
    words = (error.name or "").split(".")
    package = ".".join(words[: 2 if words[0] == "azure" else 1])  # many distributions share `azure`
    if not isinstance(error, ModuleNotFoundError) or not package or package in sys.modules:
        return f"cannot be imported: {error}"
    mend = f": pip install '{CLIENTS[package]}'" if package in CLIENTS else ""
    return f"needs the package {package!r}, which is not installed{mend}"
