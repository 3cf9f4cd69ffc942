"""From a URL and options to libpq's parameters and our own settings; a clear sentence for each mistake.

libpq's own parameters (`sslmode`, `target_session_attrs`, several hosts, …) pass through; libpq itself names them.
Other options that are not ours are refused by name. No text here holds a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import parse_qsl

import psycopg
from psycopg import conninfo, pq

from jobpool.broker.opening import redact
from jobpool.errors import ConfigurationError
from jobpool_backends.shared import DeadCaps, read_caps, refuse_options

SCHEME = "postgresql"
DEFAULT_TIMEOUT = 3.0
DEFAULT_CONNECT_TIMEOUT = 2
"""Seconds; psycopg waits for whole ones, and for 2 at least, for each host in turn."""
DEFAULT_SCHEMA = "jobpool"

_OURS = ("timeout", "schema", "listen")
_SCHEME = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_PORTS = re.compile(r"[0-9,]*")
_SCHEMA = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,49}", re.IGNORECASE)
_MENDED = (
    "write postgresql://user:password@host:5432/database, with '@', '/', ':', '?' and '%' in the user or the password"
    " as %40, %2F, %3A, %3F and %25"
)


@dataclass(frozen=True, slots=True)
class Address:
    """The server's address, and the options of connections to it.

    Attributes:
        parameters: libpq's, for `psycopg.connect`; they may hold a password.
        timeout: Seconds, > 0, for a statement to be answered.
        schema: Of our tables; checked, not quoted.
        listen: True if LISTEN may be used.
        caps: On the dead letters of a queue.
    """

    parameters: dict[str, str] = field(repr=False)
    timeout: float = DEFAULT_TIMEOUT
    schema: str = DEFAULT_SCHEMA
    listen: bool = True
    caps: DeadCaps = field(default_factory=DeadCaps)

    @property
    def where(self) -> str:
        """Host, port and database as somebody wrote them, for texts."""
        return _where(self.parameters)


def read_address(url: str, options: dict[str, object] | None = None) -> Address:
    """Return the address that a URL names; options in its query, or by keyword, which win.

    Raises:
        ConfigurationError: It is not a URL of libpq's, or an option is unknown or out of range.
    """
    place, _, query = url.strip().partition("?")
    found: dict[str, object] = dict(parse_qsl(query, keep_blank_values=True)) | (options or {})
    caps = read_caps(SCHEME, found)
    ours = {name: found.pop(name) for name in _OURS if name in found}
    parsed = _parse(place)
    refuse_options(SCHEME, {name: value for name, value in found.items() if name not in _libpq_knows()})
    timeout = _read_timeout(ours.get("timeout", DEFAULT_TIMEOUT))
    named = parsed | {name: str(value) for name, value in found.items()}
    if "connect_timeout" in named:
        named["connect_timeout"] = _read_connect_timeout(named["connect_timeout"])
    return Address(
        parameters=_defaults(timeout) | named,
        timeout=timeout,
        schema=check_schema(str(ours.get("schema", DEFAULT_SCHEMA))),
        listen=_read_listen(ours.get("listen", "auto")),
        caps=caps,
    )


def check_schema(schema: str) -> str:
    """Return `schema`, or raise `ConfigurationError`: it becomes an SQL identifier and part of a channel's name."""
    if not _SCHEMA.fullmatch(schema):
        raise ConfigurationError(
            f"postgresql:// option schema must be 1 to 50 letters, digits or '_', starting with no digit and not with"
            f" 'pg_', not {schema!r}"
        )
    return schema


def _parse(place: str) -> dict[str, str]:
    """Return libpq's parameters in a URL without its query."""
    try:
        parsed = conninfo.conninfo_to_dict(_SCHEME.sub(f"{SCHEME}://", place, count=1))
    except psycopg.Error:
        parsed = None  # its text is left out: it repeats parts of the URL, and so of a password that holds an '@'
    host_holds_at = parsed is not None and "@" in str(parsed.get("host", ""))[1:]  # a first one: an abstract socket
    if parsed is None or host_holds_at or not _PORTS.fullmatch(str(parsed.get("port", ""))):
        raise ConfigurationError(f"{redact(place)!r} cannot be read: {_MENDED}")
    return {name: str(value) for name, value in parsed.items()}


@cache
def _libpq_knows() -> frozenset[str]:
    return frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults())


def _environment() -> dict[str, str]:
    """Return libpq's defaults: those of PGHOST and its like, and its built-in ones."""
    return {option.keyword.decode(): option.val.decode() for option in pq.Conninfo.get_defaults() if option.val}


def _defaults(timeout: float) -> dict[str, str]:
    """Return our own defaults for libpq, above all timers that notice a dead network.

    `timeout` bounds the wait for an answer (see `Connection`). The kernel ends other connections: idle ones, and
    those closed with data still to be sent.
    """
    return {
        "connect_timeout": str(DEFAULT_CONNECT_TIMEOUT),
        "tcp_user_timeout": str(round(timeout * 1000)),
        "keepalives_idle": "10",
        "keepalives_interval": "3",
        "keepalives_count": "3",
        "client_encoding": "UTF8",
        "fallback_application_name": "jobpool",
    }


def _read_timeout(value: object) -> float:
    timeout = _number(value)
    if not 0 < timeout <= 3600:
        raise ConfigurationError(
            f"postgresql:// option timeout must be more than 0 and at most 3600 seconds, not {value!r}"
        )
    return timeout


def _read_connect_timeout(value: str) -> str:
    seconds = _number(value)
    if not (2 <= seconds <= 3600 and seconds.is_integer()):
        raise ConfigurationError(
            f"postgresql:// option connect_timeout must be a whole number of seconds, 2 to 3600, not {value!r}"
        )
    return str(int(seconds))


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0


def _read_listen(value: object) -> bool:
    if value not in ("auto", "no"):
        raise ConfigurationError(f"postgresql:// option listen must be 'auto' or 'no', not {value!r}")
    return value == "auto"


def _where(parameters: dict[str, str]) -> str:
    known = _environment() | parameters
    hosts = (known.get("host") or known.get("hostaddr") or "the local socket").split(",")
    ports = known.get("port", "").split(",")
    if len(ports) != len(hosts):
        ports = ports[:1] * len(hosts)
    usual = _environment().get("port", "5432")
    places = (f"{host}:{port or usual}" for host, port in zip(hosts, ports, strict=True))
    database = parameters.get("dbname")
    return ", ".join(places) + (f" (database {database!r})" if database else "")
