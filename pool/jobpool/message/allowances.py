"""Permissions of the built-in handlers: `Allowances`, the same in a pool, in `QueueWorker` and under `sync://`."""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_network
from types import UnionType

from msgspec import Struct
from msgspec.structs import force_setattr

from jobpool.errors import ConfigurationError
from jobpool.message.names import is_name

_WORD = r"(?!__\w*__)[A-Za-z_][A-Za-z0-9_]*"
CALLABLE = re.compile(rf"{_WORD}(?:\.{_WORD})*:{_WORD}")
"""`module:function`: one name behind the colon, and nothing like `__this__` anywhere."""

LONGEST_CALL = 86400
LARGEST_BODY = 1 << 30
_LEAST_KEPT = 2


class Allowances(Struct, frozen=True):
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

    Raises `ConfigurationError`: a value cannot be used; the text names it.
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
        for name in _CHECKS:
            given = getattr(self, name)
            if not isinstance(given, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in given):
                raise ConfigurationError(f"{name}: it must be a list of texts, not {given!r}")
            try:
                checked = tuple(check_allowed(name, value) for value in given)
            except ValueError as error:
                raise ConfigurationError(f"{name}: {error}") from None
            force_setattr(self, name, checked)
        if not isinstance(self.allow_all_shell_commands, bool):
            raise ConfigurationError(
                f"allow_all_shell_commands must be True or False, not {self.allow_all_shell_commands!r}"
            )
        if not (_is_number(self.url_timeout, int | float) and 0 < self.url_timeout <= LONGEST_CALL):
            raise ConfigurationError(
                f"url_timeout must be above 0, and at most {LONGEST_CALL} seconds, not {self.url_timeout!r}"
            )
        if not (_is_number(self.output_cap, int) and self.output_cap >= _LEAST_KEPT):
            raise ConfigurationError(f"output_cap must be {_LEAST_KEPT} bytes or more, not {self.output_cap!r}")
        if not (_is_number(self.url_max_bytes, int) and 1 <= self.url_max_bytes <= LARGEST_BODY):
            raise ConfigurationError(f"url_max_bytes must be 1 to {LARGEST_BODY} bytes, not {self.url_max_bytes!r}")


_CHECKS: dict[str, tuple[Callable[[str], object], str]] = {
    "allowed_callables": (CALLABLE.fullmatch, "is not written module:function"),
    "allowed_shell_commands": (
        re.compile(r"/[^\0]*|[^\0/]+").fullmatch,
        "is neither a program's name nor an absolute path",
    ),
    "allowed_events": (is_name, "is not 1 to 255 printable characters"),
    "allowed_url_networks": (ip_network, "write it like 10.1.2.0/24"),
}


def check_allowed(name: str, value: str) -> str:
    """Return `value`, or raise `ValueError`: it cannot stand in the list of this name."""
    check, wrong = _CHECKS[name]
    try:
        is_good = check(value)
    except ValueError as error:
        raise ValueError(f"{error}: {wrong}") from None
    if not is_good:
        raise ValueError(f"{value!r} {wrong}")
    return value


def _is_number(value: object, kind: type | UnionType) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
