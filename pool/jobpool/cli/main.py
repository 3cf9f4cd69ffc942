"""The command `jobpool`: the pool itself, and the verbs around it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from jobpool.cli import bulk, claims, cron, doctor, enqueue, health, history, init, messages, posts, queues, run, top
from jobpool.cli.arrange import arrange
from jobpool.cli.failures import guarded

DEFAULT_VERB = "run"
VERBS = "jobpool.verbs"
"""Entry-point group of verbs that other packages bring: each a click command."""

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
EPILOG = """\b
All options: jobpool run --help
Shell completion: eval "$(_JOBPOOL_COMPLETE=bash_source jobpool)" (or zsh_source, fish_source).
Exit codes: 0 done, 1 failed, 2 wrong usage or configuration; `health`: 1 degraded, 3 no pool."""

OFTEN_USED = (
    *("workers", "queues", "apps", "backend", "default_timeout", "retry", "stop_grace", "cron", "until_empty"),
    "log_level",
)
"""Options of the pool that `jobpool --help` lists; `jobpool run --help` has them all."""


class Verbs(click.Group):
    """A group whose verb may be left out, and whose verbs' options may stand before the verb."""

    default = "list"

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        completing = bool(extra.get("resilient_parsing"))
        return super().make_context(info_name, self._arranged(args, completing), parent, **extra)

    def _arranged(self, args: list[str], completing: bool) -> list[str]:
        if not completing:
            return arrange(self, args, self.default)
        try:
            return arrange(self, args, self.default, complete=True)
        except click.UsageError:
            return args


class Root(Verbs):
    """`jobpool`: errors become sentences here, and `--help` shows the options that matter most."""

    default = DEFAULT_VERB

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        open_standard_streams()
        words = list(sys.argv[1:] if args is None else args)
        if not words or words[0] not in self.commands:  # else the look at all that is installed is saved
            self._add_installed_verbs()
        extra["standalone_mode"] = False
        code = guarded(lambda: click.Group.main(self, words, prog_name or "jobpool", **extra), words)
        sys.exit(code)

    def _add_installed_verbs(self) -> None:
        from importlib.metadata import entry_points

        for point in entry_points(group=VERBS):
            self.add_command(point.load(), point.name)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return ["[OPTIONS]  |  VERB [OPTIONS] ..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        params = {param.name: param for param in self.commands[DEFAULT_VERB].get_params(ctx)}
        with formatter.section("Options that are often used"):
            formatter.write_dl([_brief(params[name], ctx) for name in OFTEN_USED])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        return found + self.commands[DEFAULT_VERB].shell_complete(ctx, incomplete) if incomplete[:1] == "-" else found


def _brief(param: click.Parameter, ctx: click.Context) -> tuple[str, str]:
    """Return what `get_help_record` does, with the first letter and the first word of the option only."""
    letters = [name for name in param.opts if not name.startswith("--")]
    words = [name for name in param.opts if name.startswith("--")]
    _, text = param.get_help_record(ctx) or ("", "")
    return f"{', '.join([*letters[:1], words[0]])} {param.metavar or ''}", text


def open_standard_streams() -> None:
    """Put /dev/null in the place of stdin, stdout and stderr, where the process was started without them.

    Else the next file or socket that is opened gets the number 2, and what is printed goes there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)  # the smallest number that is free: this one
            os.set_inheritable(nothing, True)
            setattr(sys, name, os.fdopen(nothing, "r" if name == "stdin" else "w", closefd=False))


def _version(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"jobpool {version('jobpool')}")
        ctx.exit()


@click.group(cls=Root, epilog=EPILOG, context_settings=CONTEXT)
@click.option("-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show it.")
def cli() -> None:
    """Run jobs from queues in a pool of worker processes; without a verb, run the pool itself."""


@cli.group(cls=Verbs)
def dead() -> None:
    """List, retry or purge dead letters."""


@cli.group(cls=Verbs)
def claim() -> None:
    """Check messages out by hand; renew, release and list claims."""


@cli.group("cron", cls=Verbs)
def schedules() -> None:
    """Run the app's schedules, and show when they are due."""


@cli.group(cls=Verbs)
def message() -> None:
    """Post, list, pop and delete messages by hand."""


for command in (claims.create, claims.show, claims.renew, claims.release, claims.list_):
    claim.add_command(command)
for command in (posts.post, posts.list_, posts.delete, posts.pop):
    message.add_command(command)
for command in (cron.run, cron.list_, cron.next_):
    schedules.add_command(command)
dead.add_command(bulk.dead_list)
dead.add_command(bulk.dead_retry)
dead.add_command(bulk.dead_purge)
for command in (
    *(run.run, enqueue.enqueue, queues.stats, messages.list_, messages.inspect, bulk.purge),
    *(queues.reap, top.top, health.health, history.history, doctor.doctor, init.init),
):
    cli.add_command(command)


def main() -> None:
    """Run the console script."""
    cli()


if __name__ == "__main__":
    main()
