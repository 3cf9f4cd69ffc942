"""From a URL and options to an `Address`: which beanstalkd, and how to speak to it. Every slip is one clear sentence.

    beanstalk://host[:11300][?ttr=30&tube_prefix=shop.&timeout=5&connect_timeout=5]

beanstalkd has no users, no passwords and no TLS: anyone who reaches its port may do everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from jobpool.errors import ConfigurationError
from jobpool_backends.options import Option, number, pattern, read_host, read_options, seconds, split_query

DEFAULT_PORT = 11300
LONGEST_TTR = 366 * 86400  # seconds; beanstalkd would take 136 years, but a lease lasts less than a year


class Address(Struct, frozen=True):
    """The server's address and its options."""

    host: str
    port: int = DEFAULT_PORT
    ttr: int = 30  # whole seconds for which a lease of what is enqueued here lasts, 1 or more
    tube_prefix: str = ""
    timeout: float = 5.0  # seconds for an answer
    connect_timeout: float = 5.0  # seconds for a connection, to each address that the host name has

    @property
    def title(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"beanstalkd at {host}:{self.port}"

    def tube(self, queue: str) -> str:
        """Return the tube that holds this queue."""
        return self.tube_prefix + queue

    def queue(self, tube: str) -> str | None:
        """Return the queue that this tube holds; None where its name does not begin with the prefix."""
        return tube[len(self.tube_prefix) :] if tube.startswith(self.tube_prefix) else None


_DEFAULT = Address("")
# beanstalkd takes names of 200 bytes, of these characters, that begin with no '-'; a queue's name has up to 100.
URL_OPTIONS = (
    Option(
        "ttr",
        _DEFAULT.ttr,
        "more than 0 seconds and less than a year",
        lambda value: math.ceil(number(value, math.ulp(0.0), LONGEST_TTR - 1)),
    ),
    pattern(
        "tube_prefix",
        "",
        "up to 100 letters, digits or '-+/;.$_()', the first of them no '-'",
        "(?:[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,99})?",
    ),
    seconds("timeout", _DEFAULT.timeout),
    seconds("connect_timeout", _DEFAULT.connect_timeout),
)


def read_address(url: str, options: Mapping[str, object]) -> Address:
    """Return the address in `url` and `options`, which win. Raises ConfigurationError, which names what is wrong."""
    place, found = split_query(url)
    place = place.partition("://")[2]
    host, _, path = place.partition("/")
    if "@" in place:
        wrong = "takes no user or password, for beanstalkd has none: leave what stands before '@' out"
    elif path:
        wrong = "takes no path: queues are named elsewhere; write host, or host:11300, and options behind '?'"
    elif "," in host:
        wrong = "takes one host: beanstalkd has no replicas"
    elif (read := read_host(host, DEFAULT_PORT)) is None:
        wrong = f"has no valid host: write host, host:{DEFAULT_PORT} or [IPv6]:{DEFAULT_PORT}"
    else:
        return Address(*read, **read_options("beanstalk", {**found, **options}, URL_OPTIONS))
    raise ConfigurationError(f"beanstalk:// {wrong}")
