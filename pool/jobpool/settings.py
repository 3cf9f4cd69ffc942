"""All settings of a pool: their types, units and checks, and where they come from.

From the weakest to the strongest: the defaults below, the configuration file (config_file.py), JOBPOOL_* environment
variables, flags. A key that nobody knows is an error that names the nearest one. Every value is read from text as well
as from its TOML type, so that the three sources mean the same thing.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from jobpool.broker.config_file import ConfigFile, find_config
from jobpool.broker.opening import read_keys, sqlite_url
from jobpool.errors import ConfigurationError
from jobpool.master.settings import PoolSettings
from jobpool.message.allowances import (
    LARGEST_BODY,
    LONGEST_CALL,
    check_callable,
    check_event,
    check_network,
    check_shell_command,
)
from jobpool.message.guards import IDEMPOTENCY_TTL, LONGEST_KEPT
from jobpool.message.setting_types import (
    each,
    parse_count,
    parse_handlers,
    parse_limits,
    parse_names,
    parse_number,
    parse_pool_name,
    parse_queue_name,
    parse_queues,
    parse_share,
    parse_switch,
    parse_workers,
    usable_cpus,
)
from jobpool.message.units import parse_duration, parse_size
from jobpool.policy.retry import PRESETS
from jobpool.telemetry.history.places import check_keep as check_history_keep
from jobpool.telemetry.history.places import setting as parse_history

PREFIX = "JOBPOOL_"
NOT_SETTINGS = frozenset({"CONFIG", "DEBUG", "FAILPOINT", "LEDGER"})
"""JOBPOOL_* variables that are no settings."""

KUBERNETES = re.compile(r"(SERVICE_HOST|SERVICE_PORT|PORT)(_.*)?")
"""What Kubernetes puts into every container beside a service that is called `jobpool`."""

Duration = Annotated[float, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Count = Annotated[int, BeforeValidator(parse_count)]
Share = Annotated[float, BeforeValidator(parse_share)]
Number = Annotated[float, BeforeValidator(parse_number)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(parse_names)]
QueueName = Annotated[str, BeforeValidator(parse_queue_name)]
Queues = Annotated[tuple[tuple[str, float], ...], NoDecode, BeforeValidator(parse_queues)]
LimitTable = Annotated[dict[str, int], NoDecode, BeforeValidator(parse_limits)]
Handlers = Annotated[dict[str, list[str]], NoDecode, BeforeValidator(parse_handlers)]


class Settings(BaseSettings):
    """Durations in seconds, sizes in bytes; 0 means "no limit" where it says so. Made by `load`, not by hand."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, validate_default=False)

    name: Annotated[str, BeforeValidator(parse_pool_name)] = "jobpool"
    """Of the pool: in process titles, `top` and `health`."""
    backend: str = Field(min_length=1, repr=False)
    """URL of the broker; `jobpool.db` beside the configuration file when nothing is said."""
    broker_timeout: Duration | None = Field(default=None, gt=0)
    """How long one call to the broker may take; its backend's own limit when nothing is said."""
    broker_refusal_timeout: Duration = 1800.0
    """How long a running pool retries what its broker refuses (password, rights, a lost table); 0 = forever."""
    apps: Names = ()
    """Modules, or paths of Python files, that register handlers."""
    queues: Queues = (("default", 1.0),)
    """Queues to work on, with their weights."""
    queue_handlers: Handlers = Field(default_factory=dict)
    """Queue → the only handlers that may run there; a queue that is not named is free."""
    enqueue_to: Annotated[Names, AfterValidator(each(parse_queue_name))] = ()
    """The only queues that handlers of this pool may enqueue to; any when not set."""
    allowed_callables: Annotated[Names, AfterValidator(each(check_callable))] = ()
    """What the built-in handler `callable` may call, each exactly `module:function`; nothing when not set."""
    allowed_shell_commands: Annotated[Names, AfterValidator(each(check_shell_command))] = ()
    """What the built-in handler `shell` may start: names on PATH, or absolute paths; nothing when not set."""
    allow_all_shell_commands: Annotated[bool, BeforeValidator(parse_switch)] = False
    """The built-in handler `shell` may start any program."""
    allowed_events: Annotated[Names, AfterValidator(each(check_event))] = ()
    """What the built-in handler `event` may fire; nothing when not set."""
    allowed_url_networks: Annotated[Names, AfterValidator(each(check_network))] = ()
    """CIDR blocks that the built-in handler `url` may call beside public addresses; none when not set."""
    url_timeout: Duration = Field(default=30.0, gt=0, le=LONGEST_CALL)
    """How long one call of the built-in handler `url` may take in all; a job can ask for less."""
    url_max_bytes: Size = Field(default=1 << 20, ge=1, le=LARGEST_BODY)
    """Of a body that the built-in handler `url` sends or takes; a larger one is refused."""
    cron: Annotated[bool, BeforeValidator(parse_switch)] = False
    """The pool runs a scheduler beside it, which fires what the app has scheduled."""
    cron_environment: str | None = Field(default=None, min_length=1)
    """Schedules that name environments fire only if this is one of them; without it, none of those do."""
    cron_grace: Duration = Field(default=3600.0, le=12 * 3600)
    """For how long a firing that was missed is made up for; at most 12 hours."""
    workers: Annotated[int, BeforeValidator(parse_workers)] = Field(default_factory=usable_cpus)
    """Children; `auto` = one for each usable CPU."""

    ttl: Duration = Field(default=30.0, gt=0, lt=366 * 86400)
    """How long a lease holds, where the broker does not decide that; it is renewed every third of it."""
    default_timeout: Duration = 3600.0
    """Of jobs and handlers that name none; 0 = unlimited."""
    max_timeout: Duration = 0.0
    """The most that a job gets, whatever it or its handler asks for, unlimited ones too; 0 = no limit."""
    kill_grace: Duration = 1.0
    """Between the alarm in the handler and the kill of its process group."""
    stop_grace: Duration = 25.0
    """How long a stop lets running attempts go on."""
    boot_timeout: Duration = Field(default=60.0, gt=0)
    """How long the import of the app, or the start of a child, may take."""
    on_lease_lost: Literal["kill", "finish"] = "kill"
    """What becomes of a child whose lease is lost; its result is dropped either way."""

    max_crashes: Count = 5
    """Crashes of one message, within `crash_window`, beyond which it is dead; 0 = no limit."""
    crash_window: Duration = Field(default=72 * 3600.0, gt=0)
    """The previous crash is forgotten after this long."""
    crash_back_off: Duration = 1.0
    """Longest wait after the second crash of a message; doubles with each further one. None after the first."""
    crash_back_off_cap: Duration = 60.0
    """Where that doubling ends."""
    on_crash: Literal["forfeit", "expire"] = "forfeit"
    """A crashed message is recovered at once, or when its lease has run out."""
    on_crash_queue: QueueName | None = None
    """Queue in which a crashed message goes on, such as one whose pool has newer libraries; its own when not set."""
    on_memory_limit_queue: QueueName | None = None
    """Queue in which a message goes on that was killed for `memory_limit`, such as one of larger machines."""
    dead_letter_queue: QueueName | None = None
    """Queue that gets a copy of each payload that failed for good; none when not set."""
    retry: Literal["none", "fixed", "exponential"] = "none"
    """Strategy of retries. `exponential` alone is 0.2 s doubling to 5 s, jitter 0.2, 25 attempts."""
    retry_base: Duration | None = None
    """First delay."""
    retry_multiplier: Number | None = None
    """Growth of `exponential`."""
    retry_max_delay: Duration | None = None
    """Longest delay of `exponential`; 0 = no cap."""
    retry_jitter: Share | None = None
    """Share by which a delay is spread, up and down."""
    retry_max_attempts: Count | None = None
    """Attempts in all, whatever a job asks for; 0 = not limited by the pool."""
    unknown_handler_grace: Duration = 600.0
    """How long a message waits for its handler to be deployed, before it is dead."""

    idempotency_ttl: Duration = Field(default=IDEMPOTENCY_TTL, gt=0, le=LONGEST_KEPT)
    """How long a done idempotency key is remembered: its duplicates are skipped."""
    concurrency_limits: LimitTable = Field(default_factory=dict)
    """Queue → so many of its jobs run at a time, in all pools together; needs a broker that keeps keys."""
    concurrency_per_key: LimitTable = Field(default_factory=dict)
    """Queue → so many of its jobs with the same concurrency key run at a time."""
    rate_limits: LimitTable = Field(default_factory=dict)
    """Queue → so many of its jobs are started in any minute, in all pools together."""
    rate_per_key: LimitTable = Field(default_factory=dict)
    """Queue → so many of its jobs with the same concurrency key are started in any minute."""
    breaker_threshold: Count = 5
    """Fetches in a row that the broker did not answer, after which a queue is left alone; 0 = never."""
    breaker_cooldown: Duration = Field(default=2.0, gt=0)
    """For how long; doubled each time that the next fetch fails too."""
    breaker_max_cooldown: Duration = Field(default=60.0, gt=0)
    """And never for longer; at least `breaker_cooldown`."""

    output_cap: Size = Field(default=65536, ge=1024)
    """Captured output of one attempt; head and tail are kept."""
    memory_limit: Size = 0
    """A child above this is killed, as a failed attempt; 0 = no limit."""
    recycle_memory: Size = 0
    """A child above this after an attempt is replaced; 0 = never."""
    recycle_jobs: Count = 0
    """A child is replaced after this many attempts; 0 = never."""
    recycle_jitter: Share = 0.1
    """Share by which `recycle_jobs` varies from child to child, so that they do not all go at once."""
    recycle_on_failure: Literal["suspect", "always", "never"] = "suspect"
    """A child is replaced after a failed attempt: `suspect`, if that may have spoilt it; `always`; or `never`."""

    signing_key: Annotated[tuple[str, ...], NoDecode] = Field(default=(), repr=False)
    """Keys of the signatures: the first signs, all verify; none = unsigned."""
    signing_key_file: Path | None = None
    """A file with one key a line, in place of `signing_key`."""

    metrics_port: Count | None = Field(default=None, le=65535)
    """TCP port that serves `/metrics`, `/livez` and `/readyz`; 0 = any free one; not served when not set."""
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    """Address on which they are served."""
    rollups: Duration = Field(default=30 * 86400.0, le=LONGEST_KEPT)
    """How long the sums of each minute are kept in the broker, if it keeps keys; 0 = none are made."""
    history: Annotated[str, BeforeValidator(parse_history)] = "off"
    """Where attempts are recorded: `off`, `table` (in the broker) or `file:PATH` (JSON lines)."""
    history_keep: Annotated[Count, AfterValidator(check_history_keep)] = 100
    """How many attempts of each job's name are kept, the newest."""
    mask_keys: Names = ()
    """Keys whose values the history masks, besides `password`, `token`, `secret` and others that always are."""

    runtime_dir: Path | None = None
    """Where pools leave their files for `top` and `health`."""
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    """Of the pool's log."""
    log_format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object a line."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` passes: it has merged the sources itself, because its errors name where a value is from."""
        return (init_settings,)

    @field_validator("signing_key", mode="before")
    @classmethod
    def _keys(cls, value: object) -> tuple[object, ...]:
        if isinstance(value, str) and value.startswith("["):
            value = _json_list(value)
        keys = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not keys:
            raise ValueError("the list of signing keys is empty: leave the setting out to work unsigned")
        if any(not isinstance(key, str) or not key for key in keys):
            raise ValueError("a signing key must not be empty: leave the setting out to work unsigned")
        return keys

    @field_validator(
        "log_level", "log_format", "retry", "on_lease_lost", "on_crash", "recycle_on_failure", mode="before"
    )
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    def signing_keys(self) -> tuple[str, ...]:
        """The keys themselves, read from `signing_key_file` where that is set."""
        if self.signing_key_file is None:
            return self.signing_key
        return tuple(read_keys(self.signing_key_file))

    def pool(self, **mode: Any) -> PoolSettings:
        """What the master is started with; `mode` are fields of `PoolSettings` that are no settings.

        Raises:
            ConfigurationError: Settings that do not fit together.
        """
        self._check_breaker()
        same = {key: getattr(self, key) for key in SAME}
        retry = {f"retry_{key}": value for key, value in self._retry().items()}
        return PoolSettings(
            **same,
            **retry,
            max_jobs=self.recycle_jobs,
            max_jobs_jitter=self.recycle_jitter,
            signing_keys=self.signing_keys(),
            **mode,
        )

    def _check_breaker(self) -> None:
        if self.breaker_max_cooldown < self.breaker_cooldown:
            raise ConfigurationError(
                f"breaker_max_cooldown must be at least breaker_cooldown, {self.breaker_cooldown:g} seconds,"
                f" not {self.breaker_max_cooldown:g}"
            )

    def _retry(self) -> dict[str, Any]:
        preset = PRESETS.get(self.retry)
        values: dict[str, Any] = {}
        for key, fallback in RETRY_FALLBACK.items():
            own = getattr(self, f"retry_{key}")
            values[key] = own if own is not None else getattr(preset, key, fallback)
        return values


SAME = (
    *("name", "backend", "broker_timeout", "broker_refusal_timeout", "apps", "queues", "queue_handlers", "workers"),
    *("ttl", "default_timeout", "max_timeout"),
    *("kill_grace", "stop_grace", "boot_timeout", "on_lease_lost", "max_crashes", "crash_window", "retry"),
    *(
        "unknown_handler_grace",
        "output_cap",
        "memory_limit",
        "recycle_memory",
        "recycle_on_failure",
        "crash_back_off",
        "crash_back_off_cap",
    ),
    *("on_crash", "on_crash_queue", "on_memory_limit_queue", "dead_letter_queue"),
    *("enqueue_to", "allowed_callables", "allowed_shell_commands", "allow_all_shell_commands", "allowed_events"),
    *("allowed_url_networks", "url_timeout", "url_max_bytes"),
    *("cron", "cron_environment", "cron_grace", "log_level", "log_format"),
    *("idempotency_ttl", "concurrency_limits", "concurrency_per_key", "rate_limits", "rate_per_key"),
    *("breaker_threshold", "breaker_cooldown", "breaker_max_cooldown"),
    *("metrics_port", "metrics_host", "rollups", "history", "history_keep", "mask_keys"),
)
RETRY_FALLBACK = {"base": 5.0, "multiplier": 2.0, "max_delay": 300.0, "jitter": 0.15, "max_attempts": 0}
KEYS = frozenset(Settings.model_fields)


def load(
    flags: Mapping[str, Any] | None = None, *, config: str | os.PathLike[str] | None = None, start: Path | None = None
) -> Settings:
    """The settings that apply. `flags` with the value None count as not given.

    Args:
        flags: Keys of `Settings`, from the command line; text or typed.
        config: The configuration file; None = JOBPOOL_CONFIG, else search (see `find_config`).
        start: Where the search begins; None = the working directory.

    Raises:
        ConfigurationError: A key is unknown, or a value cannot be used; one sentence for each, with its source.
    """
    file = find_config(config, start)
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    layers: list[tuple[Mapping[str, Any], Mapping[str, str]]] = [
        _default_backend(file),
        _file_layer(file),
        _environment_layer(file),
        (given, {key: _flag(key) for key in given}),
    ]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer, names in layers:
        values.update(layer)
        sources.update(names)
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigurationError("; ".join(_sentence(found, sources) for found in error.errors())) from None


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known word, or nothing when none is near."""
    found = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def _default_backend(file: ConfigFile) -> tuple[dict[str, Any], dict[str, str]]:
    return {"backend": sqlite_url(file.directory / "jobpool.db")}, {"backend": "backend"}


def _file_layer(file: ConfigFile) -> tuple[dict[str, Any], dict[str, str]]:
    for key in file.values:
        if key not in KEYS:
            raise ConfigurationError(f"{file.path}: {key!r} is no setting of jobpool{nearest(key, KEYS)}")
    return dict(file.values), {key: f"{file.path}: {key}" for key in file.values}


def _environment_layer(file: ConfigFile) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for variable, text in os.environ.items():
        if variable.startswith(PREFIX):
            key = _environment_key(variable)
            # An empty variable is how compose files spell "not set"; an empty key would silently switch signing off.
            if key and (text or key == "signing_key"):
                values[key], names[key] = text, variable
    if "JOBS_SIGNING_KEY" in os.environ:
        values.setdefault("signing_key", os.environ["JOBS_SIGNING_KEY"])
        names.setdefault("signing_key", "JOBS_SIGNING_KEY")
    if "signing_key" in file.values:
        # Of the keys the first that is set decides, and the file's setting comes before the environment's.
        values.pop("signing_key", None)
        names.pop("signing_key", None)
    return values, names


def _environment_key(variable: str) -> str | None:
    word = variable.removeprefix(PREFIX)
    if word.lower() in KEYS:
        return word.lower()
    if word in NOT_SETTINGS or KUBERNETES.fullmatch(word):
        return None
    variables = [PREFIX + key.upper() for key in KEYS]
    raise ConfigurationError(f"environment variable {variable} is no setting of jobpool{nearest(variable, variables)}")


def _json_list(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError("starts with '[' and is no JSON list of keys") from None


def _flag(key: str) -> str:
    singular = {
        "queues": "queue",
        "apps": "app",
        "concurrency_limits": "concurrency-limit",
        "rate_limits": "rate-limit",
    }
    return "--" + singular.get(key, key).replace("_", "-")


def _sentence(error: ErrorDetails, sources: Mapping[str, str]) -> str:
    key = str(error["loc"][0])
    message = error["msg"].removeprefix("Value error, ")
    given = "" if key in ("backend", "signing_key") else f", not {error['input']!r}"  # those may hold a password
    if message.startswith("Input should be "):
        message = f"must be {message.removeprefix('Input should be ')}{given}"
    elif error["type"] != "value_error":
        message = f"{message}{given}"
    source = sources.get(key, key)
    return f"{source} {message}" if message.startswith("must") else f"{source}: {message}"
