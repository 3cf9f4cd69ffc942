"""From a URL and options to an `Address`: which beanstalkd, and how to speak to it. Every slip is one clear sentence.

    beanstalk://host[:11300][?ttr=30&tube_prefix=shop.&timeout=5&connect_timeout=5]

beanstalkd has no users, no passwords and no TLS: anyone who reaches its port may do everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jobpool.errors import ConfigurationError
from jobpool_backends.options import Option, number, pattern, read_host, read_options, seconds, split_query

DEFAULT_PORT = 11300
DEFAULT_TTR = 30
DEFAULT_TIMEOUT = 5.0
LONGEST_TTR = 366 * 86400
"""Seconds; beanstalkd would take 136 years, but a lease lasts less than a year."""

OPTIONS = (
    Option(
        "ttr",
        DEFAULT_TTR,
        "more than 0 seconds and less than a year",
        lambda value: math.ceil(number(value, math.ulp(0.0), LONGEST_TTR - 1)),
    ),
    pattern(
        "tube_prefix",
        "",
        "up to 100 letters, digits or '-+/;.$_()', the first of them no '-'",
        "(?:[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,99})?",
    ),
    seconds("timeout", DEFAULT_TIMEOUT),
    seconds("connect_timeout", DEFAULT_TIMEOUT),
)
"""beanstalkd takes names of 200 bytes, of these characters, that begin with no '-'; a queue's name has up to 100."""


@dataclass(frozen=True, slots=True)
class Address:
    """The server's address and its options.

    Attributes:
        host: Name or address.
        port: 1 to 65535.
        ttr: Whole seconds for which a lease of what is enqueued here lasts, 1 or more.
        tube_prefix: Prefix of all tube names.
        timeout: Seconds for an answer.
        connect_timeout: Seconds for a connection, to each address that the host name has.
    """

    host: str
    port: int = DEFAULT_PORT
    ttr: int = DEFAULT_TTR
    tube_prefix: str = ""
    timeout: float = DEFAULT_TIMEOUT
    connect_timeout: float = DEFAULT_TIMEOUT

    @property
    def title(self) -> str:
        """Name of the server in error texts."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"beanstalkd at {host}:{self.port}"

    def tube(self, queue: str) -> str:
        """Return the tube that holds this queue."""
        return self.tube_prefix + queue

    def queue(self, tube: str) -> str | None:
        """Return the queue that this tube holds; None where its name does not begin with the prefix."""
        return tube[len(self.tube_prefix) :] if tube.startswith(self.tube_prefix) else None


def read_address(url: str, options: Mapping[str, object]) -> Address:
    """Return the address in `url` and `options` (by keyword: they win over the URL's).

    Raises:
        ConfigurationError: Something cannot be right; the text names it.
    """
    place, found = split_query(url)
    host, port = _read_host(place.partition("://")[2])
    return Address(host, port, **read_options("beanstalk", {**found, **options}, OPTIONS))


def _read_host(place: str) -> tuple[str, int]:
    host, _, path = place.partition("/")
    if "@" in place:
        raise _refuse("takes no user or password, for beanstalkd has none: leave what stands before '@' out")
    if path:
        raise _refuse("takes no path: queues are named elsewhere; write host, or host:11300, and options behind '?'")
    if "," in host:
        raise _refuse("takes one host: beanstalkd has no replicas")
    read = read_host(host, DEFAULT_PORT)
    if read is None:
        raise _refuse(f"has no valid host: write host, host:{DEFAULT_PORT} or [IPv6]:{DEFAULT_PORT}")
    return read


def _refuse(what: str) -> ConfigurationError:
    return ConfigurationError(f"beanstalk:// {what}")
