"""`jobpool init`: the first configuration and the first handler, which run as they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import click

from jobpool.broker.config_file import SHARED_FILE_NAME, find_config, from_directory
from jobpool.broker.opening import redact
from jobpool.cli.options import Command, as_json, option, refuse
from jobpool.cli.output import answered, note
from jobpool.cli.session import Session
from jobpool.errors import ConfigurationError
from jobpool.settings import SETTINGS

FILES = ("jobpool.toml", "jobs.py")

DEFAULT_BACKEND = 'backend = "sqlite:///jobpool.db"'


@click.command("init", cls=Command)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=Path())
@option("--force", is_flag=True, help="Overwrite existing files.")
@option("--broker-only", is_flag=True, help="Only prepare the configured broker (make its tables), and write no files.")
@as_json
def init(session: Session, directory: Path, force: bool, broker_only: bool) -> None:
    """Write a commented jobpool.toml and a first handler, jobs.py, into DIRECTORY (default: this one).

    A jobs.py that is there already is left as it is.
    With --backend URL the file names that broker, whose tables are made.
    """
    if broker_only:
        refuse("and --broker-only exclude each other: it writes no files", "directory", "force")
        answered({"files": [], "broker": _prepare(session)})
        return
    there = [name for name in FILES if (directory / name).exists() and not force]
    if FILES[0] in there:
        raise click.UsageError(
            f"{' and '.join(str(directory / name) for name in there)}: already there; --force overwrites"
        )
    shared = directory / SHARED_FILE_NAME
    if not force and shared.is_file() and find_config(shared).values:
        raise click.UsageError(f"{shared} has a table [tool.jobpool], which {FILES[0]} would hide; --force writes it")
    url, scheme = session.flags["backend"], None
    if url is not None and url.encode(errors="replace").decode() != url:
        raise click.UsageError("--backend has bytes that are not UTF-8, which no TOML file can hold: write them as %XX")
    with _written_to(directory):
        directory.mkdir(parents=True, exist_ok=True)
    if url is not None:  # first: a URL that does not work must not be written down
        session.flags["backend"] = from_directory(url, directory.absolute())  # as the file will mean it
        scheme = _prepare(session)
    names = [name for name in FILES if name not in there]
    with _written_to(directory):
        _write(directory, names, url)
    if url is None and os.environ.get("JOBPOOL_BACKEND"):
        note(f"JOBPOOL_BACKEND wins over backend in {FILES[0]}: unset it, or write it there by `jobpool init -b URL`")
    for name in there:
        note(f"{directory / name} is there already, and is left as it is")
    if answered({"files": [str(directory / name) for name in names], "broker": scheme}):
        return
    note("\nNext, in " + ("this directory:" if directory == Path() else f"{directory}:"))
    job = "HANDLER key=value           " if there else "count_primes below=2000000"
    note(f"  jobpool enqueue {job}   # put a job into the queue")
    note("  jobpool                                      # run a pool; Ctrl-C stops it")
    note("  jobpool top                                  # watch it, in another terminal")


def _prepare(session: Session) -> str:
    """Make what the broker needs, and return its scheme."""
    with session.broker(makes=True) as broker:
        broker.prepare()
        note(f"the {broker.scheme}:// broker is ready")
        return broker.scheme


def _write(directory: Path, names: Sequence[str], url: str | None) -> None:
    new = {path for name in names if not os.path.lexists(path := directory / name)}
    for name in names:
        text = files("jobpool.cli").joinpath("templates", name).read_text()
        path = directory / name
        if name == FILES[0]:
            text += _defaults(text)
            if url is not None:
                # A string of TOML is one of JSON, but that an escape is never half of a character, and DEL has one.
                quoted = json.dumps(url, ensure_ascii=False).replace("\x7f", "\\u007f")
                text = text.replace(DEFAULT_BACKEND, f"backend = {quoted}")
                if redact(url) != url:  # a password is for its owner's eyes
                    path.touch(mode=0o600)
                    path.chmod(0o600)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError:  # such as a full disk: half a file would be in the way of the next call
            for half in new:
                half.unlink(missing_ok=True)
            raise
    note(f"wrote {' and '.join(str(directory / name) for name in names)}")


@contextmanager
def _written_to(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{directory.absolute()} cannot be written: {error.strerror}") from error


def _defaults(text: str) -> str:
    """Return the settings that have a default and are not in `text`, commented out, below their headings."""
    lines, section = [], ""
    for key, setting in SETTINGS.items():
        if setting.default is None or f"\n{key} = " in text:
            continue
        if setting.section != section:
            section = setting.section
            lines += ["", f"# --- {section} ".ljust(100, "-")]
        default = setting.default
        shown = default if default.isdigit() or default in ("true", "false") else json.dumps(default)
        lines += ["", f"# {setting.means}", f"# {key} = {shown}"]
    return "\n".join(lines) + "\n"
