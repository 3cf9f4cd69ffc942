"""The command `jobpool`: the pool itself, and the verbs around it.

Options may stand before the verb, and `jobpool` alone means `jobpool run`:

    jobpool -w 4 -Q reports        →  run -w 4 -Q reports
    jobpool -C prod.toml dead list →  dead list -C prod.toml

Options only move; click parses them after their verb, and says which of them take a value (`-Q stats` is a queue).

A failure is one sentence on stderr, with a traceback only by -vv or JOBPOOL_DEBUG. Exit codes: 0 done, 1 failed,
2 wrong usage or configuration, 130 interrupted; of some verbs 3, 4 and 5, as `EPILOG` says.
"""

from __future__ import annotations

import codecs
import difflib
import getopt
import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import click

from jobpool.cli.session import INTERRUPTED, leave
from jobpool.errors import PASSING, ConfigurationError, JobpoolError, is_debugging
from jobpool.message.printable import escaped, printable
from jobpool.settings import REMOVED, SETTINGS, removed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FAILED = 1
USAGE = 2

FAULT = "A fault in {}; -vv shows where: please report it."
OUT_OF_THREADS = (
    "the system refuses a thread or memory: raise the limit of processes and threads (TasksMax= under systemd,"
    " --pids-limit of a container, `ulimit -u`) or of memory (`ulimit -v`)"
)

log = logging.getLogger("jobpool.cli")

DEFAULT_VERB = "run"
OTHERS = "jobpool.verbs"  # entry-point group of verbs that other packages bring: each a click command

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
FOR_THE_GROUP = frozenset({"-h", "--help", "-V", "--version"})
EPILOG = """\b
All options: jobpool run --help
Completion: eval "$(_JOBPOOL_COMPLETE=bash_source jobpool)" (or zsh_, fish_)
Exit codes: 0 done, 1 failed, 2 wrong usage or configuration;
`health`: 1 degraded, 3 no pool; `result`: 3 none, 4 not ended;
`cancel`, `edit`: 4 left as it is; also `pools drain`: 5 not yet."""

OFTEN_USED = (
    *("workers", "queues", "apps", "backend", "default_timeout", "retry", "stop_grace", "cron", "until_empty"),
    "log_level",
)
"""Options of the pool that `jobpool --help` lists; `jobpool run --help` has them all."""

NEEDS_LINUX = frozenset({"run", "top", "health", "doctor", "cron", "run-one", "torture"})
MEANT = dict.fromkeys(("start", "work", "worker", "serve"), "run") | {
    "add": "enqueue",
    "beat": "run --cron",
    "control": "pause",
    "empty": "purge",
    "flower": "top",
    "help": "--help",
    "info": "stats",
    "ls": "list",
    "ps": "top",
    "push": "enqueue",
    "requeue": "dead retry",
    "retry": "dead retry",
    "revoke": "cancel",
    "show": "inspect",
    "version": "--version",
}
"""Words that others have for a verb of ours."""

SIGNALS = dict.fromkeys(("quit", "stop"), "Ctrl-C, or the signal TERM, stops a pool") | dict.fromkeys(
    ("reload", "restart"), "the signal HUP loads a pool's app anew"
)
"""Words that others have for what a signal does here."""

MEANT_OPTIONS = {"-n": "--limit", "--name": "--job-name"}
"""Options that mean the pool's name, and what they are taken for where they do not."""

INSTEAD = {  # of options that others have
    "--reload": "`--watch` reloads a pool when a file of its app is saved",
    "--wait": "`jobpool result ID --timeout 30s` waits for the result of a job that has a --result-ttl",
}

NEAR = 0.7
"""How alike a word and a verb must be (difflib) for a hint. A verb is only named for its own misspelling: `remove` does
not mean `resume`, nor `pause` `purge`."""


class Verbs(click.Group):
    """A group of verbs, each imported when it is asked for. A verb may be left out, and its options stand before it.

    `places`: name → module of `jobpool.cli`, the command in it, and for the root what `--help` says of it. `others`:
    the entry-point group of verbs that other packages bring. It is read for a name that is not known, and for a list.
    """

    default = "list"

    def __init__(self, name: str | None, places: Mapping[str, str], others: str = "", **more: Any) -> None:
        super().__init__(name, **more)
        self._places = places
        self._others = others

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._places:
            place, _, means = self._places[cmd_name].partition(" ")
            module, _, command = place.partition(":")
            found: click.Command = getattr(import_module(f"jobpool.cli.{module}"), command)
            found.short_help = found.short_help or means
            return found
        if cmd_name not in self.commands:
            self._load_others()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        self._load_others()
        return sorted({*self._places, *self.commands})

    def _load_others(self) -> None:
        group, self._others = self._others, ""
        if group:
            from importlib.metadata import entry_points

            for point in entry_points(group=group):
                self.add_command(point.load(), point.name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        completing = ctx.resilient_parsing
        try:
            args = arrange(self, args, self.default, complete=completing)
        except click.UsageError:
            if not completing:
                raise
        return super().parse_args(ctx, args)


class Root(Verbs):
    """`jobpool`: errors become sentences here, and `--help` shows the options that matter most."""

    default = DEFAULT_VERB

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        open_standard_streams()
        words = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        leave(_guarded(lambda: click.Group.main(self, words, prog_name or "jobpool", **extra), words))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if sys.platform != "linux" and args[0] in NEEDS_LINUX and not FOR_THE_GROUP & set(args):
            raise ConfigurationError(
                f"`jobpool {args[0]}` needs Linux: here, enqueue and look (enqueue, stats, list, inspect, dead), and"
                " run the pool in a container"
            )
        return super().resolve_command(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return ["[OPTIONS]  |  VERB [OPTIONS] ..."]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the verbs without an import of all their modules."""
        self._load_others()
        means = {name: place.partition(" ")[2] for name, place in self._places.items()}
        others = self.commands.items()
        means |= {name: command.get_short_help_str(100) for name, command in others if not command.hidden}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(means.items()))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        params = {param.name: param for param in _verb(self, DEFAULT_VERB).get_params(ctx)}
        with formatter.section("Options that are often used"):
            formatter.write_dl([_brief(params[name]) for name in OFTEN_USED])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        return found + _verb(self, DEFAULT_VERB).shell_complete(ctx, incomplete) if incomplete[:1] == "-" else found


def _verb(group: click.Group, name: str) -> click.Command:
    found = group.get_command(click.Context(group), name)
    assert found is not None, name
    return found


def _brief(param: click.Parameter) -> tuple[str, str]:
    """Return the first letter and the first word of an option, and the beginning of its help, without the default."""
    letters = [name for name in param.opts if not name.startswith("--")]
    words = [name for name in param.opts if name.startswith("--")]
    text = re.split(r"; |, with |  \[default", getattr(param, "help", ""))[0].rstrip(".")
    return f"{', '.join([*letters[:1], words[0]])} {param.metavar or ''}", f"{text}."


def open_standard_streams() -> None:
    """Put /dev/null in the place of stdin, stdout and stderr, where the process was started without them.

    Else the next file or socket that is opened gets the number 2, and what is printed goes there. Characters
    that the encoding of an output lacks are written as JSON's escapes, so a JSON document stays one.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)  # the smallest number that is free: this one
            os.set_inheritable(nothing, True)
            setattr(sys, name, os.fdopen(nothing, "r" if name == "stdin" else "w", closefd=False))
    codecs.register_error("jobpool", escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="jobpool")


# --- the order of words -----------------------------------------------------------------------------------------------


def arrange(
    group: click.Group,
    words: Sequence[str],
    default: str,
    *,
    complete: bool = False,
    above: click.Context | None = None,
) -> list[str]:
    """Return `words` with the verb (or `default`) in front, and options that preceded it after it.

    `complete`: the words are an unfinished line; where nothing is written yet, any verb may follow. `above`: of the
    group that this one is a verb of. Raises `click.UsageError`: the first word after the options is not a verb.
    """
    takes = _values_taken(_verb(group, default))
    options, rest = _parted(words, takes)
    if options is None:  # one of another verb
        takes = _values_taken(group)
        options, rest = _parted(words, takes)
    if options is None or not rest:
        for_group = [word for word in words if word in FOR_THE_GROUP]
        return for_group if for_group or (complete and not words) else [default, *words]
    (verb, *rest), ctx = rest, click.Context(group, above, group.name)
    command = group.get_command(ctx, verb)
    if command is None:
        raise click.UsageError(f"{verb!r} is not a verb of {ctx.command_path}; {_hint(ctx, group, verb)}", ctx)
    rest = [*_meant_for(command, options, takes), *rest]
    _, plain = _parted(rest, takes)
    if plain and command.name == "run" and above is None:
        own = click.Context(command, ctx, verb)
        raise click.UsageError(f"`jobpool run` takes options only; for an app write --app {plain[0]}", own)
    if isinstance(command, click.Group):
        rest = arrange(command, rest, "list", complete=complete, above=ctx)
    return [verb, *rest]


def _hint(ctx: click.Context, group: click.Group, verb: str) -> str:
    """Return what was meant by a word that is not a verb of this group, or which verbs there are."""
    verbs = group.list_commands(ctx)
    if ctx.parent is None and verb in SIGNALS:
        return SIGNALS[verb]
    meant = f"--app {verb}" if verb.endswith(".py") else MEANT.get(verb)
    if ctx.parent is not None:
        meant = f"jobpool {verb}" if verb in VERBS or verb in GROUPS else None
    meant = meant or next(iter(difflib.get_close_matches(verb, verbs, cutoff=NEAR)), None)
    return f"did you mean {meant!r}?" if meant else f"the verbs are {', '.join(verbs)}"


def _meant_for(command: click.Command, options: Sequence[tuple[str, str]], takes: dict[str, bool]) -> list[str]:
    """Return the options that stood before the verb, less settings that it has no use for, as those of a file are.

    So `jobpool --app myapp.jobs` may be an alias, and any verb follow it.
    """
    knows = _values_taken(command)
    flags = (flag for one in SETTINGS.values() for flag in (*(one.flags or ()), f"--no-{one.flag[2:]}"))
    useless = set(flags) - knows.keys()
    meant = ([name, value] if takes[name] else [name] for name, value in options if name not in useless)
    return list(chain.from_iterable(meant))


def _parted(words: Sequence[str], takes: dict[str, bool]) -> tuple[list[tuple[str, str]] | None, list[str]]:
    """Return the options before the first plain word, with their values, and the words from that one on.

    None, and no words: an option is unknown, abbreviated or without its value.
    """
    letters = [name[1:] + ":" * takes_value for name, takes_value in takes.items() if name[1] != "-"]
    names = [name[2:] + "=" * takes_value for name, takes_value in takes.items() if name[1] == "-"]
    try:
        options, rest = getopt.getopt(list(words), "".join(letters), names)
    except getopt.GetoptError:
        return None, []
    whole = {word.partition("=")[0] for word in words}
    return (options, rest) if all(name in whole for name, _ in options if name[1] == "-") else (None, [])


def _values_taken(group: click.Command) -> dict[str, bool]:
    """Return every option of a verb, or of all verbs of a group, and whether it takes a value."""
    takes = dict.fromkeys(FOR_THE_GROUP, False)
    for command in walk(group) if isinstance(group, click.Group) else [group]:
        for option in command.params:
            if isinstance(option, click.Option):
                takes_value = not (option.is_flag or option.count)
                takes.update(dict.fromkeys([*option.opts, *option.secondary_opts], takes_value))
    return takes


def walk(group: click.Group) -> Iterator[click.Command]:
    """Yield the group, its commands, and theirs."""
    yield group
    for command in [_verb(group, name) for name in group.list_commands(click.Context(group))]:
        yield from walk(command) if isinstance(command, click.Group) else [command]


# --- failures ---------------------------------------------------------------------------------------------------------


def _guarded(run: Callable[[], object], words: Sequence[str]) -> int:
    """Run it and return the exit code. An exception becomes a sentence on stderr."""
    try:
        result = run()
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`jobpool list | head`): keep the interpreter from complaining at its last flush.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 -- the last one to catch it; the alternative is a traceback for the user
        letters = sum(word.count("v") for word in words if re.fullmatch(r"-[vq]+", word))
        if is_debugging() or letters + words.count("--verbose") >= 2:
            click.echo(printable(traceback.format_exc()), err=True, nl=False)
        return _report(error)
    return result if isinstance(result, int) else 0


def _report(error: Exception) -> int:
    if isinstance(error, JobpoolError):
        for stack in getattr(error, "__notes__", ()):  # of an app that does not import
            click.echo(printable(stack), err=True)
    code, sentence, hint = explained(error)
    click.echo(printable(f"jobpool: {sentence}"), err=True)
    if hint:
        click.echo(hint, err=True)
    return code


def explained(error: Exception) -> tuple[int, str, str]:
    """Return the exit code for an error, the sentence, and a hint; "" = there is none."""
    if isinstance(error, click.NoSuchOption) and (key := error.option_name.strip("-").replace("-", "_")) in REMOVED:
        return USAGE, removed(error.option_name, key), ""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        error = _hinted(error, error.ctx)
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else "jobpool"
        return USAGE, error.format_message(), f"`{path} --help` lists what there is."
    if isinstance(error, click.ClickException):
        return error.exit_code, error.format_message(), ""
    if isinstance(error, JobpoolError):
        return USAGE if isinstance(error, ConfigurationError | ValueError) else FAILED, str(error), ""
    if isinstance(error, OSError) and (error.filename or error.errno in PASSING):  # a full disk, say
        return FAILED, f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror), ""
    if isinstance(error, MemoryError) or "can't start new thread" in str(error):
        return FAILED, OUT_OF_THREADS, ""
    from jobpool.broker.opening import faulty_package  # a verb that does not fail may have no use for it

    return FAILED, f"unexpected {type(error).__name__}: {error}", FAULT.format(faulty_package(error))


@contextmanager
def logged_failure(log_format: str, event: str) -> Iterator[None]:
    """Log an error that ends the block, if the log is JSON. Its reader expects no sentence in between."""
    try:
        yield
    except (click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        if log_format != "json":
            raise
        code, sentence, hint = explained(error)
        stacks = "\n".join(getattr(error, "__notes__", ()))
        is_fault = hint and code == FAILED
        trace = stacks or (traceback.format_exc() if is_fault else "")
        fields = {"error": sentence} | ({"trace": trace} if trace else {})
        log.critical("the app does not load" if stacks else event, extra={"fields": fields})
        raise click.exceptions.Exit(code) from None


def _hinted(error: click.NoSuchOption, ctx: click.Context) -> click.UsageError:
    """Say what was meant by an option that this verb has no use for: a setting, or one that others have."""
    name = error.option_name
    if name in INSTEAD:
        return click.UsageError(f"No such option {name!r}; {INSTEAD[name]}", ctx)
    one = next((one for one in SETTINGS.values() if name in (one.flags or ())), None)
    if one is None:
        return error
    refused = f"`{ctx.command_path}` has no use for {name} (elsewhere: {one.means.rstrip('.')})."
    meant = MEANT_OPTIONS.get(name)
    return click.UsageError(refused + (f" Did you mean {meant!r}?" if meant in _values_taken(ctx.command) else ""), ctx)


# --- the verbs --------------------------------------------------------------------------------------------------------


VERBS = {
    "run": "run:run Run a pool; the same as `jobpool` without a verb.",
    "run-one": "run_one:run_one Run one job here and now, and print its result.",
    "enqueue": "enqueue:enqueue Enqueue a job, or a file of jobs, and print the ids.",
    "stats": "messages:stats Count the messages of queues.",
    "list": "messages:list_ List messages.",
    "inspect": "messages:inspect Show everything about one message.",
    "status": "tracking:status Tell what became of jobs.",
    "result": "tracking:result Print what a job returned.",
    "purge": "bulk:purge Delete messages.",
    "cancel": "control:cancel Cancel jobs that wait, are delayed or run.",
    "edit": "control:edit Change when waiting jobs run, their priority or queue.",
    "pause": "control:pause Pause queues for all pools.",
    "resume": "control:resume Resume paused queues.",
    "reap": "messages:reap Give back messages whose lease has expired.",
    "top": "top:top Watch the pools of this machine, slot by slot.",
    "health": "top:health Check the pools of this machine.",
    "history": "history:history Show recorded attempts.",
    "doctor": "doctor:doctor Find settings that lose jobs.",
    "init": "init:init Write a first configuration and a first handler.",
}
GROUPS = {
    "dead": ("List, retry or purge dead letters.", "bulk:dead_list bulk:dead_retry bulk:dead_purge"),
    "claim": (
        "Check messages out by hand; renew, release and list claims.",
        "claims:create claims:show claims:renew claims:release claims:list_claims",
    ),
    "cron": ("Run the app's schedules, and show when they are due.", "cron:run cron:list_ cron:next_"),
    "pools": (
        "List the pools of all hosts; drain or resume one.",
        "control:pools_list control:pools_drain control:pools_resume",
    ),
    "message": (
        "Post, list, pop and delete messages by hand.",
        "claims:post claims:list_messages claims:delete claims:pop",
    ),
}


@click.group("jobpool", cls=Root, places=VERBS, others=OTHERS, epilog=EPILOG, context_settings=CONTEXT)
@click.version_option(None, "-V", "--version", package_name="jobpool", message="jobpool %(version)s", help="Show it.")
def cli() -> None:
    """Run jobs from queues in a pool of worker processes; without a verb, run the pool itself."""


for name, (means, places) in GROUPS.items():
    # A function's name holds its verb's: `dead_list`, `list_claims` and `list_` are `list`.
    verbs = {place.partition(":")[2].replace(f"{name}_", "").partition("_")[0]: place for place in places.split()}
    cli.add_command(Verbs(name, verbs, help=means))
