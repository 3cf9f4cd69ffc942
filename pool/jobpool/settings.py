"""Every setting of a pool, written down once: type, unit, bounds, default, section, flags and meaning.

Made from it: the flags and their help (cli/options.py), the JOBPOOL_* variables, the keys of the configuration file.
Also the table of the docs (scripts/tables.py), the file of `jobpool init`, and the master's settings. Sources, from the
weakest to the strongest: the defaults, the configuration file, the environment, flags. Each value is read from text as
well as from its TOML type, so that the three mean the same. An unknown key is an error that names the nearest one.
"""

# ruff: noqa: RUF009 -- `_setting` makes a field, as `dataclasses.field` does

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from jobpool.broker.config_file import ConfigFile, find_config
from jobpool.errors import ConfigurationError
from jobpool.message import setting_types
from jobpool.message.allowances import Allowances, check_allowed
from jobpool.message.guards import LONGEST_KEPT
from jobpool.message.names import check_queue, nearest_word
from jobpool.message.setting_types import (
    Address,
    History,
    MemoryLimit,
    OnCrash,
    Recycle,
    UrlLimits,
    choice,
    usable_cpus,
)
from jobpool.message.units import format_duration, parse_duration, parse_size
from jobpool.policy.retry import RetryPolicy, parse_retry

PREFIX = "JOBPOOL_"
NOT_SETTINGS = frozenset({"CONFIG", "DEBUG", "LEDGER", "RUNTIME_DIR"})  # JOBPOOL_* variables that are not settings
KUBERNETES = re.compile(
    r"(.+_)?(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?=|PORT=(tcp|udp|sctp)://)"
)
"""Variables that Kubernetes puts into every container beside a service that is called `jobpool` or `jobpool-…`."""

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

ANY_COMMAND = "*"  # among the allowed shell commands: any program


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of values."""

    read: Callable[[Any], Any]  # makes a value of a text or TOML value, or raises `ValueError` with a sentence
    metavar: str  # stands for a value in `--help`
    empty: Any = None  # the value of a setting that has no default
    repeats: bool = False  # its flag may be repeated
    is_switch: bool = False  # its flag takes no value


TIME = Kind(parse_duration, "TIME")
SIZE = Kind(parse_size, "SIZE")
COUNT = Kind(setting_types.parse_count, "N")
TEXT = Kind(lambda value: setting_types.parse_text(value).strip(), "TEXT")  # a secret of a cluster may end a line
PATH = Kind(lambda value: Path(setting_types.parse_text(value)), "FILE")
SWITCH = Kind(setting_types.parse_switch, "", is_switch=True)
QUEUE = Kind(check_queue, "QUEUE")
NAMES = Kind(setting_types.parse_names, "NAME,…", empty=(), repeats=True)
LIMITS = Kind(setting_types.parse_limits, "QUEUE=N", empty={}, repeats=True)
RESULT_TTLS = Kind(setting_types.parse_result_ttls, "QUEUE=TIME", empty={}, repeats=True)


def one_of(*words: str) -> Kind:
    """Return the kind of a setting that is one of these words."""
    return Kind(choice(*words), "|".join(words))


def names_of(check: Callable[[str], str], metavar: str) -> Kind:
    """Return the kind of a list of names, each of them checked."""
    return Kind(lambda value: tuple(map(check, setting_types.parse_names(value))), metavar, empty=(), repeats=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting. `above`, `least` and `most` are bounds in the unit of its kind; None = no bound."""

    key: str = ""  # in the configuration file; the variable is JOBPOOL_ and the key in capitals
    kind: Kind
    means: str  # one sentence
    default: str | None  # as a person writes it; None = not set
    section: str  # heading under which `--help` lists it
    flags: tuple[str, ...] | None = None  # () = it has none; None = one, of its key
    metavar: str = ""  # stands for a value in `--help`; "" = the kind's
    above: float | None = None
    least: float | None = None
    most: float | None = None
    is_secret: bool = False  # its value is never shown

    @property
    def flag(self) -> str:
        """The first long flag."""
        return next((flag for flag in self.flags or () if flag.startswith("--")), self.key)

    def read(self, given: object) -> Any:
        """Return the value that `given` means. Raises `ValueError` with a sentence."""
        value = self.kind.read(given)
        for bound, word, is_right in (
            (self.above, "greater than", operator.gt),
            (self.least, "greater than or equal to", operator.ge),
            (self.most, "less than or equal to", operator.le),
        ):
            if bound is not None and not is_right(value, bound):
                shown = f" s ({format_duration(bound)})" if self.kind is TIME and bound >= 60 else ""
                raise ValueError(f"must be {word} {bound:.12g}{shown}, not {given!r}")
        return value


COMMON = "Common options"


def _setting(section: str, kind: Kind, means: str, default: str | None = None, **about: Any) -> Any:
    """Return the field of a setting; `about` as in `Setting`. `factory` makes the default anew for each `Settings`."""
    factory = about.pop("factory", None)
    setting = Setting(kind=kind, means=means, default=default, section=section, **about)
    metadata = {"setting": setting}
    if factory is not None or isinstance(kind.empty, dict):
        return field(default_factory=factory or dict, metadata=metadata)
    value = kind.empty if default is None else setting.read(default)
    return field(default=value, repr=not setting.is_secret, metadata=metadata)


_pool = partial(_setting, "Pool")
_built_in = partial(_setting, "Built-in handlers  [default: url calls public addresses, others do nothing]")
_times = partial(_setting, "Times (seconds, or 90s, 5m, 1h)")
_failures = partial(_setting, "Failures")
_shared = partial(_setting, "Limits of a queue, in all pools together")
_child = partial(_setting, "Limits of a child (bytes, or 64K, 512M, 2G)")
_watch = partial(_setting, "Metrics and history")
_common = partial(_setting, COMMON)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a pool: durations in seconds, sizes in bytes. `load` makes one from its sources.

    The last five fields are the mode of a run, which no source sets.
    """

    workers: int = _pool(
        Kind(setting_types.parse_workers, "N|auto"),
        "Worker processes; `auto` = one a usable CPU.",
        "auto",
        flags=("-w", "--workers", "-c", "--concurrency"),
        factory=usable_cpus,
    )
    queues: tuple[tuple[str, float], ...] = _pool(
        Kind(setting_types.parse_queues, "NAME[=WEIGHT]", empty=(), repeats=True),
        "Queue to work on, and its weight; repeatable. If not set, those that the app's handlers name.",
        flags=("-Q", "--queue"),
    )
    apps: tuple[str, ...] = _pool(
        NAMES, "Module or .py file with handlers; repeatable.", flags=("-A", "--app"), metavar="MODULE"
    )
    preload: bool = _pool(
        SWITCH, "Import the app once and fork the children from it; else each child imports it.", "true"
    )
    queue_handlers: dict[str, list[str]] = _pool(
        Kind(setting_types.parse_handlers, "QUEUE=HANDLER,…", empty={}, repeats=True),
        "Handlers that may run on a queue; other queues are not restricted.",
    )
    enqueue_to: tuple[str, ...] = _pool(
        names_of(check_queue, "QUEUE,…"), "Queues that handlers may enqueue to; all if not set."
    )
    cron: bool = _pool(SWITCH, "Run a scheduler of the app beside the pool.", "false")
    cron_environment: str | None = _pool(
        TEXT,
        "Environment whose schedules fire too, beside those that name none.",
        flags=("--environment", "--cron-environment"),
        metavar="NAME",
    )
    cron_grace: float = _pool(TIME, "Time for which a missed firing is made up for; at most 12h.", "1h", most=12 * 3600)

    allowed_callables: tuple[str, ...] = _built_in(
        names_of(partial(check_allowed, "allowed_callables"), "MODULE:FUNCTION,…"),
        "Functions that the handler `callable` may run.",
    )
    allowed_shell_commands: tuple[str, ...] = _built_in(
        names_of(partial(check_allowed, "allowed_shell_commands"), "PROGRAM,…"),
        "Programs that the handler `shell` may start, by name or absolute path; `*` = any.",
    )
    allowed_events: tuple[str, ...] = _built_in(
        names_of(partial(check_allowed, "allowed_events"), "EVENT,…"), "Events that the handler `event` may fire."
    )
    allowed_url_networks: tuple[str, ...] = _built_in(
        names_of(partial(check_allowed, "allowed_url_networks"), "CIDR,…"),
        "Networks that the handler `url` may call, beside public addresses.",
    )
    url_limits: UrlLimits = _built_in(
        Kind(setting_types.parse_url_limits, "WORDS"),
        "Longest call of the handler `url`, and largest body that it sends or takes.",
        "timeout=30s body=1M",
    )

    ttl: float = _times(
        TIME, "Length of a lease; it is renewed after each third.", "30s", above=0, most=366 * 86400 - 1
    )
    default_timeout: float = _times(TIME, "Timeout of jobs that set none; 0 = unlimited.", "1h")
    max_timeout: float = _times(TIME, "Upper limit of every job's timeout; 0 = no limit.", "0")
    kill_grace: float = _times(
        TIME, "Time from the timeout's alarm in the handler to the kill; cleanup has half of it.", "1s"
    )
    stop_grace: float = _times(TIME, "Time that a stop gives running jobs to end.", "25s")
    boot_timeout: float = _times(TIME, "Time for the import of the app, and for the start of a child.", "60s", above=0)

    retry: RetryPolicy = _failures(
        Kind(parse_retry, "WORDS"),
        "Retries: `none`, `fixed` or `exponential`, with base=TIME max=TIME multiplier=X jitter=SHARE attempts=N.",
        "exponential base=1s max=5m jitter=15% attempts=0",
    )
    max_crashes: int = _failures(COUNT, "Number of crashes that a message survives; 0 = no limit.", "5")
    on_crash: OnCrash = _failures(
        Kind(setting_types.parse_on_crash, "WORDS"),
        "Recovery of a crashed message: at once (`forfeit`) or after its lease (`expire`); queue=NAME moves it.",
        "forfeit",
    )
    dead_letter_queue: str | None = _failures(
        QUEUE, "Queue for a copy of each payload that failed for good; none if not set."
    )
    unknown_handler_grace: float = _failures(
        TIME, "Time from a pool's first look at a job without a handler to its death.", "10m"
    )
    on_lease_lost: str = _failures(
        one_of("kill", "finish"), "Kill a job whose lease is lost, or let it finish; its result is dropped.", "kill"
    )

    concurrency_limits: dict[str, int] = _shared(
        LIMITS, "At most N jobs of a queue run at a time.", flags=("--concurrency-limit",)
    )
    concurrency_per_key: dict[str, int] = _shared(
        LIMITS, "At most N jobs of a queue with the same concurrency key run at a time."
    )
    rate_limits: dict[str, int] = _shared(
        LIMITS, "At most N jobs of a queue start in any minute.", flags=("--rate-limit",)
    )
    rate_per_key: dict[str, int] = _shared(
        LIMITS, "At most N jobs of a queue with the same concurrency key start in any minute."
    )
    idempotency_ttl: float = _shared(
        TIME,
        "Time that the key of a done job is remembered, and duplicates are skipped.",
        "24h",
        above=0,
        most=LONGEST_KEPT,
    )

    memory_limit: MemoryLimit = _child(
        Kind(setting_types.parse_memory_limit, "SIZE"),
        "Memory, shared memory included, above which a child is killed, as a failed attempt; 0 = no limit."
        " queue=NAME after it moves the job there.",
        "0",
    )
    output_cap: int = _child(
        SIZE, "Longest captured output of an attempt; beginning and end are kept.", "64K", least=1024
    )
    recycle: Recycle = _child(
        Kind(setting_types.parse_recycle, "WORDS"),
        "Replacement of a child: after jobs=N, above memory=SIZE (0 = never), after a failure=suspect, always, never.",
        "jobs=0 memory=0 failure=suspect",
    )

    metrics: Address | None = _watch(
        Kind(setting_types.parse_address, "[HOST:]PORT"),
        "Address of the pages /metrics, /livez and /readyz; host 127.0.0.1 by default, port 0 = any.",
    )
    rollups: float = _watch(
        TIME, "Time that sums of each minute are kept in the broker; 0 = off.", "30d", most=LONGEST_KEPT
    )
    history: History = _watch(
        Kind(setting_types.parse_history, "WHERE"),
        "History of attempts: `off`, `table` (in the broker) or `file:PATH`, with keep=N of each name, mask=KEY,….",
        "off",
    )
    result_ttl: dict[str, float] = _watch(
        RESULT_TTLS, "Time that results of a queue's jobs are kept, if neither job nor handler says; none if not set."
    )
    log_output: bool = _watch(SWITCH, "Write what handlers print and log to the pool's log, line by line.", "true")

    backend: str = _common(
        TEXT,
        "URL of the broker; the default lies beside the configuration file.",
        "sqlite:///jobpool.db",
        flags=("-b", "--backend", "--broker"),
        metavar="URL",
        is_secret=True,
    )
    name: str = _common(
        Kind(setting_types.parse_pool_name, "NAME"),
        "Name of the pool in process titles, `top` and `health`.",
        "jobpool",
        flags=("-n", "--name"),
    )
    signing_key: tuple[str, ...] = _common(
        Kind(setting_types.parse_keys, "KEY", empty=()),
        "Signing keys: the first signs, all verify; messages are unsigned if not set.",
        flags=(),  # a key on the command line can be read by everybody on the machine
        is_secret=True,
    )
    signing_key_file: Path | None = _common(PATH, "File with one signing key a line, in place of `signing_key`.")
    log_level: str = _common(
        one_of(*LOG_LEVELS),
        "Lowest level of log lines.",
        "info",
        flags=("-l", "--log-level"),
        metavar="LEVEL",
    )
    log_format: str = _common(one_of("text", "json"), "Format of the log: text, or one JSON object a line.", "text")
    max_total: int = 0  # stop after this many messages were settled, or lost by the child that had them; 0 = no limit
    until_empty: bool = False  # stop when nothing is left to do
    fail_on_dead: bool = False  # exit with 1 if a message became a dead letter
    board_path: str | None = None  # where the scoreboard lies; None = in memory only, invisible from outside
    sys_path: tuple[str, ...] = ()  # where apps are looked for

    @property
    def queue_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.queues)

    @property
    def allowances(self) -> Allowances:
        """The permissions of the built-in handlers."""
        return Allowances(
            allowed_callables=self.allowed_callables,
            allowed_shell_commands=tuple(name for name in self.allowed_shell_commands if name != ANY_COMMAND),
            allow_all_shell_commands=ANY_COMMAND in self.allowed_shell_commands,
            allowed_events=self.allowed_events,
            allowed_url_networks=self.allowed_url_networks,
            url_timeout=self.url_limits.timeout,
            url_max_bytes=self.url_limits.body,
            output_cap=self.output_cap,
        )

    def too_small_for(self, app: int) -> str:
        """Return what becomes of jobs whose app alone takes `app` bytes of a child; "" = nothing."""
        if 0 < self.memory_limit.size < app:
            return "jobs are killed for memory_limit"
        return "each job's child is replaced for recycle's memory=" if 0 < self.recycle.memory < app else ""

    def signing_keys(self) -> tuple[str, ...]:
        """Return the keys themselves, read from `signing_key_file` where that is set. Raises `ConfigurationError`."""
        if self.signing_key_file is None:
            return self.signing_key
        from jobpool.broker.opening import read_keys

        return tuple(read_keys(self.signing_key_file))


def _settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for part in fields(Settings):
        if "setting" in part.metadata:
            setting: Setting = part.metadata["setting"]
            flags = ("--" + part.name.replace("_", "-"),) if setting.flags is None else setting.flags
            found[part.name] = replace(
                setting, key=part.name, flags=flags, metavar=setting.metavar or setting.kind.metavar
            )
    return found


SETTINGS: Mapping[str, Setting] = _settings()  # key → setting, in the order of `--help` and of the docs

MEANT: Mapping[str, str] = {
    "broker": "backend",
    "concurrency": "workers",
    "timeout": "default_timeout",
    **dict.fromkeys(("attempts", "max_attempts", "max_retries", "retries"), "retry"),
}
"""Words of flags, of handlers' options and of other queues → the setting that they are likely to stand for."""

REMOVED: Mapping[str, str] = {
    key: instead
    for keys, instead in {
        "allow_all_shell_commands": 'write allowed_shell_commands = "*"',
        "breaker_cooldown breaker_max_cooldown breaker_threshold": (
            "leave it out: after 5 fetches without an answer a queue is left alone for 2 s, doubling to 60 s; a broker"
            " that answers ends that at once"
        ),
        "broker_timeout": 'write its seconds into backend, such as "redis://localhost/0?timeout=5"',
        "crash_back_off crash_back_off_cap": (
            "leave it out: after a second crash a message waits for up to 1 s, doubling to 60 s"
        ),
        "crash_window": "leave it out: a crash is forgotten after 72 hours",
        "history_keep mask_keys": 'write it after the place, history = "table keep=100 mask=iban,ssn"',
        "metrics_host metrics_port": 'write metrics = "9100", or "0.0.0.0:9100" for all addresses',
        "on_crash_queue": 'write on_crash = "queue=NAME"',
        "on_memory_limit_queue": 'write it after the size, memory_limit = "512M queue=NAME"',
        "recycle_jitter": "leave it out: recycle varies jobs by 10 % from child to child",
        "recycle_jobs recycle_memory recycle_on_failure": (
            'write it into recycle, such as "jobs=1000 memory=512M failure=suspect"'
        ),
        "retry_base retry_jitter retry_max_attempts retry_max_delay retry_multiplier": (
            'write it into retry, such as "exponential base=5s multiplier=2 max=5m jitter=15% attempts=25"'
        ),
        "runtime_dir": "set the variable JOBPOOL_RUNTIME_DIR, for the pool and for those who look at it",
        "url_max_bytes url_timeout": 'write it into url_limits, such as "timeout=30s body=1M"',
    }.items()
    for key in keys.split()
}
"""Settings of former versions → what to write in place of each."""


def load(flags: Mapping[str, Any] | None = None, *, config: str | os.PathLike[str] | None = None) -> Settings:
    """Return the settings that apply. `flags` with the value None count as not given.

    Args:
        flags: Keys of `Settings`, from the command line; text or typed.
        config: The configuration file; None = JOBPOOL_CONFIG, else search (see `find_config`).

    Raises:
        ConfigurationError: A key is unknown, or a value cannot be used; one sentence for each, with its source.
    """
    file = find_config(config)
    for key in file.values:
        _check_key(key, f"{file.path}: {key!r}")
    given = {key: (f"{file.path}: {key}", value) for key, value in file.values.items()} | _environment(file)
    for key, value in (flags or {}).items():
        _check_key(key, repr(key))
        if value is not None:
            given[key] = (SETTINGS[key].flag, value)
    if "signing_key_file" in given:  # its keys apply, so that `signing_key` is not read
        given.pop("signing_key", None)
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for key, (source, value) in given.items():
        try:
            values[key] = SETTINGS[key].read(value)
        except ValueError as error:
            wrong.append(f"{source}{' ' if str(error).startswith('must') else ': '}{error}")
    if wrong:
        raise ConfigurationError("; ".join(wrong))
    if "backend" not in values:
        from jobpool.broker.config_file import sqlite_url

        values["backend"] = sqlite_url(file.directory / "jobpool.db")
    return Settings(**values)


def removed(source: str, key: str) -> str:
    """Return the sentence for a setting of former versions, which `source` gives."""
    return f"{source} is not a setting any more: {REMOVED[key]}"


def _check_key(key: str, source: str, prefix: str = "") -> None:
    """Raise `ConfigurationError` unless it is a setting. `prefix`: of variables, which are in capitals."""
    if key in REMOVED:
        raise ConfigurationError(removed(source, key))
    if key not in SETTINGS:
        # Without the prefix, which makes any two alike.
        near = MEANT.get(key.replace("-", "_")) or nearest_word(key, SETTINGS)
        near = f"{prefix}{near.upper()}" if near and prefix else near
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigurationError(f"{source} is not a setting of jobpool{hint}")


def _environment(file: ConfigFile) -> dict[str, tuple[str, Any]]:
    """Return key → variable and value."""
    found: dict[str, tuple[str, Any]] = {}
    for variable, text in os.environ.items():
        word = variable.removeprefix(PREFIX)
        key = word.lower()
        if word == variable or (key not in SETTINGS and (word in NOT_SETTINGS or KUBERNETES.match(f"{word}={text}"))):
            continue
        _check_key(key, f"environment variable {variable}", PREFIX)
        # An empty variable is how compose files spell "not set"; without its keys signing would silently be off.
        if text or key in ("signing_key", "signing_key_file"):
            found[key] = (variable, text)
    if "JOBS_SIGNING_KEY" in os.environ:
        found.setdefault("signing_key", ("JOBS_SIGNING_KEY", os.environ["JOBS_SIGNING_KEY"]))
    if "signing_key" in file.values:
        # Of the keys the first that is set decides, and the file's setting comes before the environment's.
        found.pop("signing_key", None)
    return found
