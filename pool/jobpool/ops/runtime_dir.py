"""Notes of running pools, and how `top` and `health` find them.

One JSON file a pool, mode 0600, in the runtime directory: JOBPOOL_RUNTIME_DIR, else `$XDG_RUNTIME_DIR/jobpool`, else
`/run/jobpool` for root, else `jobpool-<uid>` below the temporary directory. The last lies where everybody may write, so
it is made 0700 and refused when another user owns it.

The master keeps its note open and locked (`flock`); no other process inherits that. A note without a lock is one of a
dead pool, whatever has its pid now and whatever /proc hides. The next reader removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import MsgspecError, convert

from jobpool.broker.config_file import from_directory, working_directory
from jobpool.broker.opening import redact
from jobpool.errors import PASSING, ConfigurationError, JobpoolError

VARIABLE = "JOBPOOL_RUNTIME_DIR"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PLACE_OPTIONS = frozenset({"db", "dbname", "host", "hostaddr", "port", "prefix", "schema", "service", "tube_prefix"})
"""Options of URLs that name a store, or a part of one with queues of its own."""


@dataclass(frozen=True, slots=True)
class PoolFile:
    """A pool's note about itself."""

    name: str  # several pools may share one
    pid: int  # of its master
    machine: tuple[str, str]  # id of its boot, host name; one with neither of ours (a shared directory) is left alone
    version: str  # of jobpool
    queues: tuple[str, ...]  # () = those of its app, which is being imported
    workers: int  # children asked for at the start
    backend: str  # URL of the broker, without its secrets
    board: str  # path of the scoreboard, beside the note; "" when it cannot be seen from outside
    since: float  # Unix time of the start
    scheduler: bool = False  # it runs one beside it


def runtime_dir() -> Path:
    """Return the runtime directory that the environment names, made if missing.

    Raises `ConfigurationError`: it cannot be made, or others could tamper with it; the text names the mend.
    `JobpoolError`: it cannot be made now.
    """
    directory = _choose()
    try:
        for place in (*reversed(directory.parents), directory):  # `parents=True` makes those as the umask says
            place.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise _error_for(error)(
            f"runtime directory {directory} cannot be made: {error.strerror}; set JOBPOOL_RUNTIME_DIR to one that can"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigurationError(f"runtime directory {directory} is not a directory; set JOBPOOL_RUNTIME_DIR")
    if found.st_uid != os.geteuid():  # for root too: its pool would write where somebody else may
        raise ConfigurationError(
            f"runtime directory {directory} belongs to another user (uid {found.st_uid}): be that user, or set"
            " JOBPOOL_RUNTIME_DIR to a folder of yours, such as one below it"
        )
    if found.st_mode & 0o022:
        raise ConfigurationError(
            f"runtime directory {directory} can be written by others; chmod 700 it, or set JOBPOOL_RUNTIME_DIR to a"
            " folder below it"
        )
    return directory


def register(directory: Path, pool: PoolFile) -> int:
    """Leave the note of `pool`, in one atomic step. The pool counts as alive until the returned descriptor is closed.

    Raises `ConfigurationError`: the directory cannot be written. `JobpoolError`: it cannot be written now.
    """
    path = note_path(directory, pool.name, pool.pid)
    draft = path.with_suffix(".new")
    try:
        with contextlib.ExitStack() as undo:
            note = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            undo.callback(os.close, note)
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(note, "wb", closefd=False) as file:
                file.write(_text(pool))
            draft.replace(path)
            undo.pop_all()
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise _error_for(error)(
            f"runtime directory {directory} cannot be written: {error.strerror}; set JOBPOOL_RUNTIME_DIR to a folder"
            " that only you can write"
        ) from error
    return note


def rewrite(directory: Path, pool: PoolFile) -> None:
    """Change what the note of `pool` tells, in place: one that was removed does not come back. Raises `OSError`."""
    path = note_path(directory, pool.name, pool.pid)
    with path.open("r+b", buffering=0) as note:
        # One write. A look that meets it half done does not see the pool, for some microseconds.
        note.write(_text(pool).ljust(path.stat().st_size))


def _text(pool: PoolFile) -> bytes:
    return json.dumps(asdict(pool)).encode()


def _error_for(error: OSError) -> type[JobpoolError]:
    return JobpoolError if error.errno in PASSING else ConfigurationError


def unregister(path: Path) -> None:
    """Remove a note, its scoreboard and its socket; fine when they are gone already."""
    for suffix in (".json", ".new", ".board", ".sock"):
        with contextlib.suppress(OSError):
            path.with_suffix(suffix).unlink()


def discover(directory: Path, name: str | None = None) -> list[PoolFile]:
    """Return the pools that run on this machine, oldest first; remove notes of dead ones. `name` None = all names."""
    pools = []
    for path in sorted(directory.glob("*.json")):
        # A note that has gone, is not ours to read, or is not of this version, is left alone.
        with contextlib.suppress(OSError, ValueError, MsgspecError), path.open("rb") as file:
            pool = convert(json.load(file), PoolFile)
            if set(pool.machine).isdisjoint(_machine()):
                continue
            if not _is_held(file):
                unregister(path)
            elif name in (None, pool.name):
                pools.append(pool)
    return sorted(pools, key=lambda pool: (pool.since, pool.pid))


def _is_held(note: BinaryIO) -> bool:
    try:
        fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: readers do not take each other for the pool
    except BlockingIOError:
        return True
    return False


def serving(directory: Path, backend: str) -> list[PoolFile]:
    """Return the pools of this user on this machine that serve the broker at the URL `backend`, as far as is seen.

    A broker that goes by two names (`localhost`, `127.0.0.1`) counts as two. Notes of dead pools are removed.
    """
    return [pool for pool in discover(directory) if _place_of(pool.backend) == _place_of(backend)]


def _place_of(url: str) -> tuple[str, ...]:
    """Return a broker's URL without login, and those of its options that say where its queues are, sorted.

    Of a SQLite file, return the real path.
    """
    place, _, query = redact(from_directory(url, working_directory())).partition("?")
    scheme, sign, rest = place.partition("://")
    if scheme.lower() == "sqlite":
        return (os.path.realpath(rest[1:]),)
    options = [option for option in query.split("&") if option.partition("=")[0] in _PLACE_OPTIONS]
    return (scheme + sign + rest.rpartition("@")[2], *sorted(options))


def note_path(directory: Path, name: str, pid: int) -> Path:
    return directory / f"{name}.{pid}.json"


def this_pool(*, name: str, backend: str, directory: Path, **about: Any) -> PoolFile:
    """Return the note of a pool whose master is the calling process and whose files lie in `directory`.

    `about`: `version`, `queues`, `workers`, `since` and `scheduler`, as in `PoolFile`.
    """
    pid = os.getpid()
    about |= {"board": str(note_path(directory, name, pid).with_suffix(".board")), "machine": _machine()}
    return PoolFile(name=name, pid=pid, backend=redact(from_directory(backend, working_directory())), **about)


def _machine() -> tuple[str, str]:
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return boot, socket.gethostname()


def _choose() -> Path:
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and _is_own(session):  # `sudo -E` and `su` hand on that of another user
        return Path(session).absolute() / "jobpool"
    if os.geteuid() == 0:
        return Path("/run/jobpool")
    # Not `tempfile.gettempdir()`, which tries to write a file: on a full disk no probe would find the pool any more.
    places = [*(os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")), "/tmp", "/var/tmp"]
    place = next((place for place in places if os.access(place, os.W_OK)), "/tmp")
    return Path(place).absolute() / f"jobpool-{os.geteuid()}"


def _is_own(directory: str) -> bool:
    try:
        return os.stat(directory).st_uid == os.geteuid() and os.access(directory, os.W_OK)
    except OSError:
        return False
