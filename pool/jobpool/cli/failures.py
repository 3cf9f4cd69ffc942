"""How a failure looks: one sentence on stderr and an exit code. A traceback only with -vv or JOBPOOL_DEBUG.

0 done, 1 failed, 2 wrong usage or configuration, 3 no pool (health only), 130 interrupted.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence

import click

from jobpool.errors import ConfigurationError, JobpoolError
from jobpool.message.printable import printable
from jobpool.settings import REMOVED, removed

FAILED = 1
USAGE = 2
INTERRUPTED = 130


def guarded(run: Callable[[], object], words: Sequence[str]) -> int:
    """Run it and return the exit code. An exception becomes a sentence on stderr."""
    try:
        result = run()
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return FAILED
    except Exception as error:  # noqa: BLE001 -- the last one to catch it; the alternative is a traceback for the user
        if wants_traceback(words):
            click.echo(printable(traceback.format_exc()), err=True, nl=False)
        return _report(error)
    return result if isinstance(result, int) else 0


def wants_traceback(words: Sequence[str]) -> bool:
    """Return True if the person asked for tracebacks: -vv, or JOBPOOL_DEBUG set to anything."""
    letters = sum(word.count("v") for word in words if re.fullmatch(r"-[vq]+", word))
    return bool(os.environ.get("JOBPOOL_DEBUG")) or letters + list(words).count("--verbose") >= 2


def _report(error: Exception) -> int:
    if isinstance(error, click.NoSuchOption) and (key := error.option_name.strip("-").replace("-", "_")) in REMOVED:
        _say(removed(error.option_name, key))
        return USAGE
    if isinstance(error, click.ClickException):
        usage = isinstance(error, click.UsageError)
        _say(error.format_message(), _help_hint(error) if usage else "")
        return USAGE if usage else error.exit_code
    if isinstance(error, JobpoolError):
        _say(str(error))
        return USAGE if isinstance(error, ConfigurationError | ValueError) else FAILED
    if isinstance(error, OSError) and error.filename:
        _say(f"{error.filename}: {error.strerror}")
        return FAILED
    _say(f"unexpected {type(error).__name__}: {error}", "A fault in jobpool; -vv shows where: please report it.")
    return FAILED


def _help_hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "jobpool"
    return f"`{path} --help` lists what there is."


def _say(sentence: str, hint: str = "") -> None:
    click.echo(printable(f"jobpool: {sentence}"), err=True)
    if hint:
        click.echo(hint, err=True)


def _silence_stdout() -> None:
    # The reader has gone (`jobpool list | head`): keep the interpreter from complaining at its last flush.
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
