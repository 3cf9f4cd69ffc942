"""From a URL and options to libpq's parameters and our own settings; a clear sentence for each mistake.

libpq's own parameters (`sslmode`, `target_session_attrs`, several hosts, …) pass through; libpq itself names them.
Other options that are not ours are refused by name. No text here holds a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

import psycopg
from psycopg import conninfo, pq

from jobpool.broker.opening import redact
from jobpool.errors import ConfigurationError
from jobpool_backends.options import DEAD_CAPS, choice, pattern, read_options, seconds, split_query, take_caps, whole
from jobpool_backends.shared import DeadCaps

SCHEME = "postgresql"
DEFAULT_TIMEOUT = 3.0
DEFAULT_SCHEMA = "jobpool"

OPTIONS = (
    seconds("timeout", DEFAULT_TIMEOUT),
    # psycopg waits for whole seconds, and for 2 at least, for each host in turn.
    whole("connect_timeout", 2, 2, 3600, "seconds"),
    pattern(
        "schema",
        DEFAULT_SCHEMA,
        "1 to 50 letters, digits or '_', starting with no digit and not with 'pg_'",
        "(?!(?i:pg_))[A-Za-z_][A-Za-z0-9_]{0,49}",
    ),
    choice("listen", True, {"auto": True, "no": False}),
    *DEAD_CAPS,
)
"""Beside those of libpq. The schema's name becomes an SQL identifier and part of a channel's name."""

_SCHEME = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_PORTS = re.compile(r"[0-9,]*")
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
        """Host, port and database as somebody wrote them, for texts; else as libpq takes them from PGHOST and so on."""
        options = pq.Conninfo.get_defaults()
        defaults = {option.keyword.decode(): option.val.decode() for option in options if option.val}
        known = defaults | self.parameters
        hosts = (known.get("host") or known.get("hostaddr") or "the local socket").split(",")
        ports = known.get("port", "").split(",")
        if len(ports) != len(hosts):
            ports = ports[:1] * len(hosts)
        usual = defaults.get("port", "5432")
        places = (f"{host}:{port or usual}" for host, port in zip(hosts, ports, strict=True))
        database = self.parameters.get("dbname")
        return ", ".join(places) + (f" (database {database!r})" if database else "")


def read_address(url: str, options: dict[str, object] | None = None) -> Address:
    """Return the address that a URL names; options in its query, or by keyword, which win.

    Raises:
        ConfigurationError: It is not a URL of libpq's, or an option is unknown or out of range.
    """
    place, found = split_query(url.strip())
    found |= options or {}
    parsed = _parse(place)
    passed = _libpq_knows() - {option.name for option in OPTIONS}
    named = {name: str(found.pop(name)) for name in list(found) if name in passed}
    values = read_options(SCHEME, found, OPTIONS)
    named["connect_timeout"] = str(values.pop("connect_timeout"))
    return Address(_defaults(values["timeout"]) | parsed | named, caps=take_caps(values), **values)


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


def _defaults(timeout: float) -> dict[str, str]:
    """Return our own defaults for libpq, above all timers that notice a dead network.

    `timeout` bounds the wait for an answer (see `Connection`). The kernel ends other connections: idle ones, and
    those closed with data still to be sent.
    """
    return {
        "tcp_user_timeout": str(round(timeout * 1000)),
        "keepalives_idle": "10",
        "keepalives_interval": "3",
        "keepalives_count": "3",
        "client_encoding": "UTF8",
        "fallback_application_name": "jobpool",
    }
