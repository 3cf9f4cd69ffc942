"""Permissions of the built-in handlers: `Allowances`, the same in a pool, in `QueueWorker` and under `sync://`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_network
from types import UnionType

from jobpool.errors import ConfigurationError
from jobpool.message.names import is_name

_WORD = r"(?!__\w*__)[A-Za-z_][A-Za-z0-9_]*"
CALLABLE = re.compile(rf"{_WORD}(?:\.{_WORD})*:{_WORD}")
"""`module:function`: one name behind the colon, and nothing like `__this__` anywhere."""

LONGEST_CALL = 86400
LARGEST_BODY = 1 << 30
LEAST_KEPT = 2


@dataclass(frozen=True, slots=True)
class Allowances:
    """Allowlists and limits of the built-in handlers. By default they deny everything. Lists become tuples.

    Attributes:
        allowed_callables: Functions that `callable` may call, each exactly `module:function`; empty = none.
        allowed_shell_commands: Programs that `shell` may start: names found on PATH, or absolute paths; empty = none.
        allow_all_shell_commands: `shell` may start any program.
        allowed_events: Events that `event` may fire, each exactly; empty = none.
        allowed_url_networks: CIDR blocks that `url` may call beside public addresses; empty = none.
        url_timeout: Seconds, > 0 and at most a day, that one call of `url` may take; a job can ask for less.
        url_max_bytes: Bytes, 1 to 1 GiB, of a body that `url` sends or takes.
        output_cap: Bytes, >= 2, that are kept of what a program prints; half of it, of a body that `url` gets.

    Raises:
        ConfigurationError: A value cannot be used; the text names it.
    """

    allowed_callables: tuple[str, ...] = ()
    allowed_shell_commands: tuple[str, ...] = ()
    allow_all_shell_commands: bool = False
    allowed_events: tuple[str, ...] = ()
    allowed_url_networks: tuple[str, ...] = ()
    url_timeout: float = 30.0
    url_max_bytes: int = 1 << 20
    output_cap: int = 65536

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            try:
                checked = tuple(check(value) for value in _texts(getattr(self, name)))
            except ConfigurationError as error:
                raise ConfigurationError(f"{name}: {error}") from None
            object.__setattr__(self, name, checked)
        if not isinstance(self.allow_all_shell_commands, bool):
            raise ConfigurationError(
                f"allow_all_shell_commands must be True or False, not {self.allow_all_shell_commands!r}"
            )
        if not (_is_number(self.url_timeout, int | float) and 0 < self.url_timeout <= LONGEST_CALL):
            raise ConfigurationError(
                f"url_timeout must be above 0, and at most {LONGEST_CALL} seconds, not {self.url_timeout!r}"
            )
        if not (_is_number(self.output_cap, int) and self.output_cap >= LEAST_KEPT):
            raise ConfigurationError(f"output_cap must be {LEAST_KEPT} bytes or more, not {self.output_cap!r}")
        if not (_is_number(self.url_max_bytes, int) and 1 <= self.url_max_bytes <= LARGEST_BODY):
            raise ConfigurationError(f"url_max_bytes must be 1 to {LARGEST_BODY} bytes, not {self.url_max_bytes!r}")


def check_callable(value: str) -> str:
    """Return `value`, or raise `ConfigurationError`: it is not `module:function`."""
    if not CALLABLE.fullmatch(value):
        raise ConfigurationError(f"{value!r} is not written module:function")
    return value


def check_shell_command(value: str) -> str:
    """Return `value`, or raise `ConfigurationError`: it is neither a program's name nor an absolute path."""
    if not value or "\0" in value or ("/" in value and not value.startswith("/")):
        raise ConfigurationError(f"{value!r} is neither a program's name nor an absolute path")
    return value


def check_event(value: str) -> str:
    """Return `value`, or raise `ConfigurationError`: it is not a name."""
    if not is_name(value):
        raise ConfigurationError(f"{value!r} is not 1 to 255 printable characters")
    return value


def check_network(value: str) -> str:
    """Return `value`, or raise `ConfigurationError`: it is not a CIDR block."""
    try:
        ip_network(value)
    except ValueError as error:
        raise ConfigurationError(f"{error}: write it like 10.1.2.0/24") from None
    return value


_CHECKS = {
    "allowed_callables": check_callable,
    "allowed_shell_commands": check_shell_command,
    "allowed_events": check_event,
    "allowed_url_networks": check_network,
}


def _is_number(value: object, kind: type | UnionType) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _texts(values: Iterable[object]) -> list[str]:
    if not isinstance(values, list | tuple | set | frozenset):
        raise ConfigurationError(f"it must be a list of texts, not {values!r}")
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        raise ConfigurationError(f"it must be a list of texts, and holds {values!r}")
    return texts
