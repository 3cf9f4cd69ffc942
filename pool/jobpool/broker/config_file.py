"""Finding and reading the configuration file, with nothing but the standard library.

`jobpool.toml`, or the table `[tool.jobpool]` of a `pyproject.toml`, in the working directory. Else in the nearest
directory above it that has one, up to the home directory or the edge of the file system. `--config FILE` (or
JOBPOOL_CONFIG) names one and ends the search. Relative paths in it count from its own directory, so that producers and
pools started elsewhere mean the same database.

The file names the broker and the code that runs. So a file that was found, not named, must be writable only by this
user or root, and so must its directories.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from jobpool.errors import ConfigurationError

FILE_NAME, SHARED_FILE_NAME = "jobpool.toml", "pyproject.toml"
SQLITE = "sqlite:///"


class ConfigFile(Struct, frozen=True):
    """The content of a configuration file. `path` None: there is none, and `directory` is the working directory."""

    path: Path | None
    directory: Path
    values: Mapping[str, Any] = field(default_factory=dict)


def find_config(named: str | os.PathLike[str] | None = None, start: Path | None = None) -> ConfigFile:
    """Return the configuration that applies; an empty one when there is no file.

    `named` is read, and no other; None = JOBPOOL_CONFIG, else search from `start` (None = the working directory) on.
    Raises `ConfigurationError`: the file is missing, cannot be read, or is not TOML; or it was found, and somebody else
    could have written it. The text says where, and the mend.
    """
    named = named or os.environ.get("JOBPOOL_CONFIG")
    if named:
        path = Path(named)
        return _config(path.absolute(), _read(path) or {})
    start = (start or working_directory()).absolute()
    return _search(start) or ConfigFile(None, start)


def working_directory() -> Path:
    """Return the working directory; of one that was removed the path in the kernel's words, which leads nowhere."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path(os.readlink("/proc/self/cwd"))


def _search(start: Path) -> ConfigFile | None:
    try:
        home: os.stat_result | None = Path.home().stat()
    except (OSError, RuntimeError):  # a user without an entry in the password file has none
        home = None
    device = None
    for directory in (start, *start.parents):
        try:
            status = directory.stat()
        except OSError:
            return None
        if device not in (None, status.st_dev):
            return None
        device = status.st_dev
        found = _in(directory, status)
        if found or (home is not None and os.path.samestat(status, home)):
            return found
    return None


def _in(directory: Path, status: os.stat_result) -> ConfigFile | None:
    for path in (directory / FILE_NAME, directory / SHARED_FILE_NAME):
        values = _read(path) if os.path.isfile(path) else None  # in a directory that may not be entered, there is none
        if values is not None:
            _check_trust(path, status)
            return _config(path, values)
    return None


def hidden_beside(config: ConfigFile) -> Path | None:
    """Return the `pyproject.toml` with settings beside a `jobpool.toml`: they are not read."""
    if config.path is None or config.path.name != FILE_NAME:
        return None
    shared = config.path.with_name(SHARED_FILE_NAME)
    try:
        return shared if _read(shared) else None
    except ConfigurationError:
        return None


def _check_trust(path: Path, folder: os.stat_result) -> None:
    for place, status in ((path, path.stat()), (path.parent, folder)):
        if doubt := _doubt(status):
            raise ConfigurationError(
                f"configuration file {path} was found, but is not read: {place} {doubt}, so another user may have"
                f" written it. If it is right, name it: --config {path}, or JOBPOOL_CONFIG"
            )


def _doubt(status: os.stat_result) -> str:
    """Return why somebody other than this user and root could have written it; "" = nobody else could."""
    if sys.platform == "win32":  # producers run there too; its permissions are not in these bits
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to {_user(status.st_uid)}, not to you or root"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody (chmod o-w)"
    if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid, status.st_uid):
        return "can be written by its group (chmod g-w)"
    return ""


def _is_private(gid: int, uid: int) -> bool:
    """Return whether the group is the user's own, as many systems make one for each user, with files writable by it."""
    import grp  # there is none on Windows

    user = _user(uid)
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


def _user(uid: int) -> str:
    import pwd  # there is none on Windows

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _config(path: Path, values: dict[str, Any]) -> ConfigFile:
    url, history, keys = map(values.get, ("backend", "history", "signing_key_file"))
    if isinstance(keys, str) and keys:
        values["signing_key_file"] = str(path.parent / keys)
    if isinstance(url, str):
        values["backend"] = from_directory(url, path.parent)
    if isinstance(history, str):
        kind, _, place = history.strip().partition(":")
        if kind.lower() == "file" and place:
            values["history"] = f"file:{path.parent / Path(place).expanduser()}"
    return ConfigFile(path, path.parent, values)


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file. Escape '%' and '?' in its path, which mean something else in a URL."""
    return SQLITE + str(path.absolute()).replace("%", "%25").replace("?", "%3F")


def from_directory(url: str, directory: Path) -> str:
    """Return `url`; with a whole path, if it is that of a SQLite file whose path counts from `directory`."""
    rest = url[len(SQLITE) :]
    if not url.lower().startswith(SQLITE) or rest.startswith(("/", ":memory:")):
        return url
    return f"{sqlite_url(directory)}/{rest}"


def _read(path: Path) -> dict[str, Any] | None:
    """Return the settings in a file; None where a `pyproject.toml` has none."""
    import tomllib  # a program whose URL comes from elsewhere has no file, and never pays for its regular expressions

    try:
        values = tomllib.loads(path.read_bytes().decode("utf-8-sig"))  # Windows' editors put a mark at the beginning
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from None
    except FileNotFoundError:
        raise ConfigurationError(f"configuration file {path} does not exist; `jobpool init` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    tool = values.get("tool")
    table = tool.get("jobpool") if isinstance(tool, dict) else None
    is_shared = path.name == SHARED_FILE_NAME
    wrong = "tool.jobpool" if table is not None and not is_shared else ""
    if wrong := "jobpool" if isinstance(values.get("jobpool"), dict) else wrong:
        mend = "write [tool.jobpool]" if is_shared else "take the heading away: its settings stand at the top level"
        raise ConfigurationError(f"{path} has a table [{wrong}], which is not read: {mend}")
    if not is_shared:
        return values
    if table is not None and not isinstance(table, dict):
        raise ConfigurationError(f"{path}: tool.jobpool must be a table, [tool.jobpool]")
    return table
