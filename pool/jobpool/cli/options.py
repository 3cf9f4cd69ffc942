"""The options of the verbs. Options of settings are made from settings.py; their values reach `load` as typed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import click
from click.core import ParameterSource

from jobpool.cli.session import Session
from jobpool.message.units import parse_duration
from jobpool.settings import COMMON, SETTINGS

Function = Callable[..., Any]

COMMON_KEYS = tuple(key for key, setting in SETTINGS.items() if setting.section == COMMON and setting.flags)
"""Keys of the settings that are options of more verbs than the pool."""

BROKER = "backend", "log_level"  # of them, those of a verb that asks the broker
SIGNER = "signing_key_file", *BROKER  # of one that signs or verifies, too


class Option(click.Option):
    """An option that knows under which heading `--help` lists it."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class Command(click.Command):
    """A verb, with the options of all verbs and those of `COMMON_KEYS` that it has a use for: `common`.

    Its function gets a `Session` first, in place of their values, and no `--json`: `output.answered` knows that. Its
    `--help` lists options under their headings, in the order in which they were declared.
    """

    def __init__(
        self, *, callback: Function, params: list[click.Parameter], common: Collection[str] = BROKER, **kwargs: Any
    ) -> None:
        @functools.wraps(callback)
        def with_session(**params: Any) -> Any:
            params.pop("json_", None)  # `output.asks_json` tells it
            flags = {key: params.pop(key, None) for key in ("config", *COMMON_KEYS)}
            return callback(Session(flags, params.pop("verbose") - params.pop("quiet")), **params)

        _stack(with_session, [*(setting(key) for key in COMMON_KEYS if key in common), *_OTHERS])
        added: list[click.Parameter] = with_session.__click_params__[::-1]  # type: ignore[attr-defined]
        super().__init__(callback=with_session, params=params + added, **kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(param, "section", COMMON), []).append(record)
        for section in sorted(sections, key=lambda name: name == COMMON):
            with formatter.section(section):
                formatter.write_dl(sections[section])


option: Callable[..., Callable[[Function], Function]] = functools.partial(click.option, cls=Option)


def time_option(*names: str, **about: Any) -> Callable[[Function], Function]:
    """Return an option that takes `90`, `5m` or `1h`, and gives seconds; None = not given."""
    return option(*names, metavar="TIME", callback=_seconds, **about)


def _seconds(_ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"{param.opts[-1]}: {error}") from None


def queue_option(about: str) -> Callable[[Function], Function]:
    """Return the option `-Q` of a verb for one queue: given twice, it must not silently mean the last."""
    return option("-Q", "--queue", multiple=True, callback=_only, metavar="NAME", help=about)


def _only(_ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]) -> str | None:
    if len(names) > 1:
        raise click.UsageError(f"-Q names one queue here, not {' and '.join(names)}")
    return next(iter(names), None)


as_json = option("--json", "json_", is_flag=True, help="Answer with one JSON document.")


def settings(function: Function) -> Function:
    """Add the options of the pool, each a setting."""
    return _stack(function, [setting(key) for key, one in SETTINGS.items() if one.flags and key not in COMMON_KEYS])


def setting(key: str, section: str = "") -> Callable[[Function], Function]:
    """Return the option of a setting, below its own heading or this one."""
    one = SETTINGS[key]
    default = f"  [default: {one.default}]" if one.default is not None and not one.kind.is_switch else ""
    kwargs: dict[str, Any] = {"section": section or one.section, "help": one.means + default}
    if one.kind.is_switch:
        return option(f"{one.flag}/--no-{one.flag[2:]}", key, default=None, **kwargs)
    return option(*one.flags or (), key, metavar=one.metavar, multiple=one.kind.repeats, **kwargs)


def confirmed(function: Function) -> Function:
    """Add `--yes`, `--dry-run` and `--json` to a verb that destroys."""
    dry_run = option("--dry-run", is_flag=True, help="Show the effect, and change nothing.")
    return _stack(function, [option("-y", "--yes", is_flag=True, help="Do not ask."), dry_run, as_json])


def refuse(why: str, *names: str) -> None:
    """Raise `click.UsageError` if one of these parameters is given: in this mode of the verb it would do nothing."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if param.name in names and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{param.opts[0]} {why}")


def _stack(function: Function, options: list[Callable[[Function], Function]]) -> Function:
    for decorate in reversed(options):
        function = decorate(function)
    return function


_CONFIG = "Configuration file.  [default: the nearest jobpool.toml or pyproject.toml]"
_OTHERS = [
    option("-C", "--config", section=COMMON, metavar="FILE", help=_CONFIG),
    option("-v", "--verbose", section=COMMON, count=True, help="Log more; -vv tracebacks of jobpool's errors too."),
    option("-q", "--quiet", section=COMMON, count=True, help="Log less."),
]


def bare_id(ident: str) -> str:
    """Return an id that may be written `id:ID`, as in a filter."""
    return ident.removeprefix("id:")
