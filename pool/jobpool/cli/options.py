"""The flags: which exist, their letters and help. Every setting has one; its value reaches the settings as typed.

Checks and units live in settings.py, once for the file, the environment and the flags; that module is imported when a
verb runs, not for `--help` or completion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from jobpool.cli.session import Session

Function = Callable[..., Any]

COMMON = ("config", "backend", "broker_timeout", "name", "runtime_dir", "signing_key_file")
LOGGING = ("log_level", "log_format", "verbose", "quiet")


class Option(click.Option):
    """An option that knows under which heading `--help` lists it."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class Command(click.Command):
    """A command whose `--help` lists options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(self.get_params(ctx), ctx, formatter)


def write_sections(params: list[click.Parameter], ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options among `params`, by section, in the order in which they were declared."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for param in params:
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record is not None:
            sections.setdefault(getattr(param, "section", "Common options"), []).append(record)
    for section in sorted(sections, key=lambda name: name == "Common options"):
        with formatter.section(section):
            formatter.write_dl(sections[section])


def option(*names: str, **kwargs: Any) -> Callable[[Function], Function]:
    """As `click.option`, with `section`."""
    return click.option(*names, cls=Option, **kwargs)


def common(function: Function) -> Function:
    """The options of every verb. The function gets a `Session` first, in place of their values."""

    @functools.wraps(function)
    def with_session(**params: Any) -> Any:
        flags = {key: params.pop(key) for key in COMMON}
        logs = {key: params.pop(key) for key in LOGGING}
        return function(Session(flags, **logs), **params)

    return _stack(with_session, COMMON_OPTIONS)


def settings(function: Function) -> Function:
    """The options of the pool, each a setting."""
    return _stack(function, SETTING_OPTIONS)


def as_json(function: Function) -> Function:
    """`--json`, for every verb that reads."""
    return option("--json", "json_", is_flag=True, help="Answer with one JSON document.")(function)


def confirmed(function: Function) -> Function:
    """`--yes` and `--dry-run`, for every verb that destroys."""
    function = option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")(function)
    return option("-y", "--yes", is_flag=True, help="Do not ask.")(function)


def _stack(function: Function, options: list[Callable[[Function], Function]]) -> Function:
    for decorate in reversed(options):
        function = decorate(function)
    return function


def _common(*names: str, **kwargs: Any) -> Callable[[Function], Function]:
    return option(*names, section="Common options", **kwargs)


COMMON_OPTIONS = [
    _common(
        *("-b", "--backend", "--broker"),
        metavar="URL",
        help="sqlite:///FILE, postgresql://, redis://, beanstalk:// or servicebus://…  [default: SQLite in jobpool.db]",
    ),
    _common("-C", "--config", metavar="FILE", help="[default: the nearest jobpool.toml or pyproject.toml]"),
    _common("-n", "--name", metavar="NAME", help="Of the pool.  [default: jobpool]"),
    _common("--broker-timeout", metavar="TIME", help="How long a call to the broker may take.  [default: its own]"),
    _common("--runtime-dir", metavar="DIR", help="Where pools leave their files for `top` and `health`."),
    _common("--signing-key-file", metavar="FILE", help="Keys of signatures, one a line; the first one signs."),
    _common("-l", "--log-level", metavar="LEVEL", help="debug, info, warning, error or critical.  [default: info]"),
    _common("--log-format", metavar="FORMAT", help="text or json.  [default: text]"),
    _common("-v", "--verbose", count=True, help="Log more; twice: tracebacks of errors too."),
    _common("-q", "--quiet", count=True, help="Log less."),
]


def _pool(*names: str, **kwargs: Any) -> Callable[[Function], Function]:
    return option(*names, section="Pool", **kwargs)


def _allow(*names: str, **kwargs: Any) -> Callable[[Function], Function]:
    return option(*names, section="Built-in handlers  [default: they may do nothing]", **kwargs)


def _time(*names: str, **kwargs: Any) -> Callable[[Function], Function]:
    return option(*names, section="Times (seconds, or 90s, 5m, 1h)", metavar="TIME", **kwargs)


def _failure(*names: str, **kwargs: Any) -> Callable[[Function], Function]:
    return option(*names, section="Failures", **kwargs)


def _limit(*names: str, **kwargs: Any) -> Callable[[Function], Function]:
    return option(*names, section="Limits of a child (bytes, or 64K, 512M, 2G)", **kwargs)


def _watch(*names: str, **kwargs: Any) -> Callable[[Function], Function]:
    return option(*names, section="Metrics and history", **kwargs)


def _shared(*names: str, **kwargs: Any) -> Callable[[Function], Function]:
    return option(*names, section="Limits of a queue, in all pools together", **kwargs)


def _each(*names: str, help: str) -> Callable[[Function], Function]:
    return _shared(*names, multiple=True, metavar="QUEUE=N", help=f"{help}; repeat it, or use commas.")


SETTING_OPTIONS = [
    _pool("-w", "--workers", "-c", "--concurrency", metavar="N|auto", help="Children.  [default: one for each CPU]"),
    _pool(
        *("-Q", "--queue", "queues"),
        multiple=True,
        metavar="NAME[=WEIGHT]",
        help="A queue to work on; repeat it, or use commas.  [default: default]",
    ),
    _pool("-A", "--app", "apps", multiple=True, metavar="MODULE", help="Module or .py file with handlers; repeat it."),
    _pool(
        "--queue-handlers",
        multiple=True,
        metavar="QUEUE=HANDLER,…",
        help="Allow only these handlers on a queue; repeat it.",
    ),
    _pool("--enqueue-to", multiple=True, metavar="QUEUE,…", help="Let handlers enqueue to these queues only."),
    _allow("--allowed-callables", multiple=True, metavar="MODULE:FUNCTION,…", help="What `callable` may call."),
    _allow("--allowed-shell-commands", multiple=True, metavar="PROGRAM,…", help="What `shell` may start."),
    _allow("--allow-all-shell-commands", is_flag=True, default=None, help="`shell` may start any program."),
    _allow("--allowed-events", multiple=True, metavar="EVENT,…", help="What `event` may fire."),
    _allow("--allowed-url-networks", multiple=True, metavar="CIDR,…", help="What `url` may call that is not public."),
    _allow("--url-timeout", metavar="TIME", help="How long a call of `url` may take.  [default: 30s]"),
    _allow("--url-max-bytes", metavar="SIZE", help="Of a body that `url` sends or takes.  [default: 1M]"),
    _pool("--cron/--no-cron", default=None, help="Run a scheduler beside the pool, for what the app has scheduled."),
    _pool("--environment", "--cron-environment", "cron_environment", metavar="NAME", help="Of the schedules to fire."),
    _time("--cron-grace", help="How long a missed firing is made up for; at most 12h.  [default: 1h]"),
    _time("--ttl", help="How long a lease is asked to hold, between renewals.  [default: 30s]"),
    _time("--default-timeout", help="Of jobs that name none; 0 = unlimited.  [default: 1h]"),
    _time("--max-timeout", help="The most that a job may ask for; 0 = no limit.  [default: 0]"),
    _time("--kill-grace", help="Between the timeout and the kill.  [default: 1s]"),
    _time("--stop-grace", help="How long a stop lets jobs go on.  [default: 25s]"),
    _time("--broker-refusal-timeout", help="How long a broker's refusals are retried; 0 = forever.  [default: 30m]"),
    _time("--boot-timeout", help="For importing the app, and for starting a child.  [default: 60s]"),
    _failure("--retry", metavar="STRATEGY", help="none, fixed or exponential.  [default: none]"),
    _failure("--retry-base", metavar="TIME", help="First delay."),
    _failure("--retry-multiplier", metavar="X", help="Growth of exponential."),
    _failure("--retry-max-delay", metavar="TIME", help="Longest delay of exponential; 0 = no cap."),
    _failure("--retry-jitter", metavar="SHARE", help="Spread of a delay, 0 to 1."),
    _failure("--retry-max-attempts", metavar="N", help="Attempts in all, whatever a job asks for; 0 = no limit."),
    _failure("--max-crashes", metavar="N", help="Crashes beyond which a message is dead; 0 = no limit.  [default: 5]"),
    _failure("--crash-window", metavar="TIME", help="After this long a crash is forgotten.  [default: 72h]"),
    _failure("--crash-back-off", metavar="TIME", help="Longest wait after the second crash; doubles.  [default: 1s]"),
    _failure("--crash-back-off-cap", metavar="TIME", help="Where that doubling ends.  [default: 60s]"),
    _failure("--on-crash", metavar="forfeit|expire", help="Recover at once, or after the lease.  [default: forfeit]"),
    _failure("--on-crash-queue", metavar="QUEUE", help="Where a crashed job goes on.  [default: its own queue]"),
    _failure("--on-memory-limit-queue", metavar="QUEUE", help="The same after a kill for the memory limit."),
    _failure("--dead-letter-queue", metavar="QUEUE", help="Copies of failed payloads go there.  [default: nowhere]"),
    _failure("--unknown-handler-grace", metavar="TIME", help="How long a job waits for its handler.  [default: 10m]"),
    _failure("--on-lease-lost", metavar="kill|finish", help="What becomes of the child.  [default: kill]"),
    _failure("--breaker-threshold", metavar="N", help="Failed fetches that shut a queue; 0 = never.  [default: 5]"),
    _failure("--breaker-cooldown", metavar="TIME", help="For so long, and then doubling.  [default: 2s]"),
    _failure("--breaker-max-cooldown", metavar="TIME", help="Where that doubling ends.  [default: 60s]"),
    _each("--concurrency-limit", "concurrency_limits", help="At most N jobs at a time"),
    _each("--concurrency-per-key", help="At most N at a time that share a concurrency key"),
    _each("--rate-limit", "rate_limits", help="At most N jobs started in a minute"),
    _each("--rate-per-key", help="At most N a minute that share a concurrency key"),
    _shared("--idempotency-ttl", metavar="TIME", help="How long a done idempotency key is kept.  [default: 24h]"),
    _limit("--memory-limit", metavar="SIZE", help="Kill above this, as a failed attempt; 0 = never.  [default: 0]"),
    _limit("--output-cap", metavar="SIZE", help="Captured output of an attempt.  [default: 64K]"),
    _limit("--recycle-memory", metavar="SIZE", help="Replace above this, after an attempt; 0 = never.  [default: 0]"),
    _limit("--recycle-jobs", metavar="N", help="Replace after N attempts; 0 = never.  [default: 0]"),
    _limit("--recycle-jitter", metavar="SHARE", help="Spread of --recycle-jobs.  [default: 0.1]"),
    _limit("--recycle-on-failure", metavar="WHEN", help="suspect, always or never.  [default: suspect]"),
    _watch("--metrics-port", metavar="PORT", help="Serve /metrics, /livez and /readyz; 0 = any free port."),
    _watch("--metrics-host", metavar="HOST", help="On this address.  [default: 127.0.0.1]"),
    _watch("--rollups", metavar="TIME", help="Keep each minute's sums for so long; 0 = none.  [default: 30d]"),
    _watch("--history", metavar="WHERE", help="Record attempts: off, table or file:PATH.  [default: off]"),
    _watch("--history-keep", metavar="N", help="The newest of each job's name.  [default: 100]"),
    _watch("--mask-keys", multiple=True, metavar="KEY,…", help="Mask the values of these keys too; repeat it."),
]
