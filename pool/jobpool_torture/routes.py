"""How the URL of a broker leads through a proxy instead: by rules of its scheme, without the broker's library. Pure.

A proxy carries the bytes of one TCP connection to one server. So it can stand before a server whose address is only in
the URL, and whose client does not check the host's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from jobpool.broker.opening import scheme_of
from jobpool.errors import ConfigurationError

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?")
_ENDPOINT = re.compile(r"(?i)(?<=Endpoint=sb://)[^;/?]+")

_ONE_SERVER = {"redis": 6379, "beanstalk": 11300, "postgresql": 5432, "postgres": 5432}
"""Scheme → port of what is written as scheme://[login@]host[:port][/…][?…]."""

_EMULATOR_PORT = 5672
_NAMES_EACH_OTHER = "the servers name each other's addresses, which lead past a proxy"
_TLS = "the connection is by TLS, whose certificate names another host than a proxy's"
_REASONS = {
    "rediss": _TLS,
    "redis+cluster": f"in a cluster {_NAMES_EACH_OTHER}",
    "rediss+cluster": f"in a cluster {_NAMES_EACH_OTHER}",
    "redis+sentinel": f"with sentinels {_NAMES_EACH_OTHER}",
    "rediss+sentinel": f"with sentinels {_NAMES_EACH_OTHER}",
    "redis+unix": "a Unix socket is no network",
    "sqlite": "sqlite:// has no network",
    "memory": "memory:// has no network",
    "sync": "sync:// has no network",
}


@dataclass(frozen=True, slots=True)
class Route:
    """A URL, cut where its server stands.

    Attributes:
        before, after: The text around the server's `host:port`.
        host, port: Of the server; without the brackets of an IPv6 address.
    """

    before: str
    host: str
    port: int
    after: str

    def to(self, host: str, port: int) -> str:
        """Return the URL that leads there instead, and is the same otherwise."""
        return f"{self.before}{f'[{host}]' if ':' in host else host}:{port}{self.after}"


def through(url: str, host: str, port: int) -> tuple[str, str]:
    """Return the URL of the same broker, reached at another address.

    Args:
        url: `scheme://…`, or an Azure connection string.
        host, port: Where a proxy listens.

    Returns:
        The URL, and ""; or "", and why that broker cannot be had through a proxy, as half a sentence.
    """
    route = find_route(url)
    return ("", route) if isinstance(route, str) else (route.to(host, port), "")


def find_route(url: str) -> Route | str:
    """Return where the server stands in the URL; or why no proxy can be put before it. No text holds a piece of the
    URL.
    """
    try:
        scheme = scheme_of(url)
    except ConfigurationError:
        return "it is no URL"
    if scheme == "servicebus":
        return _service_bus(url)
    if scheme in _ONE_SERVER:
        return _one_server(url, scheme)
    return _REASONS.get(scheme, f"how a {scheme}:// URL names its server is not known here")


def _one_server(url: str, scheme: str) -> Route | str:
    start = url.index("://") + 3
    place = re.split(r"[/?#]", url[start:], maxsplit=1)[0]
    hosts = place.rpartition("@")[2]
    end = start + len(place)
    if scheme.startswith("postgres") and (why := _postgres(url[end:], hosts)):
        return why
    if "," in hosts:
        return "the URL names several servers, and a proxy leads to one"
    match = _HOST.fullmatch(hosts)
    if match is None:
        return "the URL names no host"
    return Route(url[: end - len(hosts)], match[1] or match[2], int(match[3] or _ONE_SERVER[scheme]), url[end:])


def _postgres(rest: str, hosts: str) -> str:
    """Return why not; "" = nothing is against it. TLS is, where libpq compares the certificate's name with the
    host's.
    """
    options = dict(parse_qsl(rest.partition("?")[2]))
    if not hosts or hosts.lower().startswith(("%2f", ":")):
        return "the URL names no host, so the connection is by a Unix socket, or to what PGHOST names"
    if named := sorted({"host", "hostaddr", "port", "service"}.intersection(options)):
        return f"the server's address is in the option {named[0]}: write it as postgresql://host:port/…"
    if options.get("sslmode") == "verify-full":
        return _TLS
    return ""


def _service_bus(url: str) -> Route | str:
    emulated = re.search(r"(?i);\s*UseDevelopmentEmulator\s*=\s*true\s*(?:[;?]|$)", f";{url}")
    match = _ENDPOINT.search(url)
    found = match and _HOST.fullmatch(match[0])
    if not (emulated and match and found):
        return _TLS
    return Route(url[: match.start()], found[1] or found[2], int(found[3] or _EMULATOR_PORT), url[match.end() :])
