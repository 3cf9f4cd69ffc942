"""Finding and reading the configuration file, with nothing but the standard library.

`jobpool.toml`, or the table `[tool.jobpool]` of a `pyproject.toml`: in the working directory, else in the nearest
directory above it that has one. `--config FILE` (or JOBPOOL_CONFIG) names one and ends the search. Relative paths in it
count from its own directory, so that producers and pools started elsewhere mean the same database.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobpool.errors import ConfigurationError

FILE_NAME = "jobpool.toml"
PATHS = frozenset({"runtime_dir", "signing_key_file"})
SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a configuration file says. `path` None: there is none, and `directory` is the working directory."""

    path: Path | None
    directory: Path
    values: Mapping[str, Any] = field(default_factory=dict)


def find_config(named: str | os.PathLike[str] | None = None, start: Path | None = None) -> ConfigFile:
    """The configuration that applies; an empty one when there is no file.

    Args:
        named: The file to read, and no other; None = JOBPOOL_CONFIG, else search.
        start: Directory in which the search begins; None = the working directory.

    Raises:
        ConfigurationError: The file is missing, cannot be read, or is not TOML; the text says where.
    """
    named = named or os.environ.get("JOBPOOL_CONFIG") or None
    if named:
        return _named(Path(named))
    start = (start or Path.cwd()).absolute()
    for directory in (start, *start.parents):
        found = _in(directory)
        if found:
            return found
    return ConfigFile(None, start)


def _named(path: Path) -> ConfigFile:
    if not path.is_file():
        raise ConfigurationError(f"configuration file {path} does not exist; `jobpool init` writes one")
    values = _read(path)
    if path.name == "pyproject.toml":
        values = _table(values, path) or {}
    return _config(path.absolute(), values)


def _in(directory: Path) -> ConfigFile | None:
    own = directory / FILE_NAME
    if own.is_file():
        return _config(own, _read(own))
    shared = directory / "pyproject.toml"
    table = _table(_read(shared), shared) if shared.is_file() else None
    return _config(shared, table) if table is not None else None


def _config(path: Path, values: dict[str, Any]) -> ConfigFile:
    for key in PATHS & values.keys():
        if isinstance(values[key], str):
            values[key] = str(path.parent / values[key])
    if isinstance(values.get("backend"), str):
        values["backend"] = _anchor(values["backend"], path.parent)
    return ConfigFile(path, path.parent, values)


def _anchor(url: str, directory: Path) -> str:
    rest = url.removeprefix(SQLITE)
    if rest == url or rest.startswith(("/", ":memory:")):
        return url
    return f"{SQLITE}{directory}/{rest}"


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _table(values: dict[str, Any], path: Path) -> dict[str, Any] | None:
    tool = values.get("tool")
    table = tool.get("jobpool") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigurationError(f"{path}: tool.jobpool must be a table, [tool.jobpool]")
    return table
