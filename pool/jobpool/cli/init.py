"""`jobpool init`: the first configuration and the first handler, which run as they are."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from jobpool.cli.options import Command, common, option
from jobpool.cli.output import note, say
from jobpool.cli.session import Session
from jobpool.errors import ConfigurationError

FILES = ("jobpool.toml", "jobs.py")


@click.command("init", cls=Command, short_help="Write a first configuration and a first handler.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=Path())
@option("--force", is_flag=True, help="Overwrite files that are there.")
@common
def init(session: Session, directory: Path, force: bool) -> None:
    """Write a commented jobpool.toml and a first handler, jobs.py, into DIRECTORY (default: this one)."""
    del session
    there = [directory / name for name in FILES if (directory / name).exists()]
    if there and not force:
        raise click.UsageError(f"{' and '.join(map(str, there))} exists already; --force overwrites")
    _write(directory)
    _next_steps(directory)


def _write(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (directory / name).write_text(_template(name))
    except OSError as error:
        raise ConfigurationError(f"{directory} cannot be written: {error.strerror}") from error
    note(f"wrote {' and '.join(str(directory / name) for name in FILES)}")


def _template(name: str) -> str:
    return files("jobpool.cli").joinpath("templates", name).read_text()


def _next_steps(directory: Path) -> None:
    note("\nNext, in " + ("this directory:" if directory == Path() else f"{directory}:"))
    say("  jobpool enqueue count_primes below=2000000   # put a job into the queue")
    say("  jobpool                                      # run a pool; Ctrl-C stops it")
    say("  jobpool top                                  # watch it, in another terminal")
