"""From a URL and options to an `Address`: where the servers are, and how to get in. Every slip is one clear sentence.

    redis://[[user]:password@]host[:6379][/db]                       rediss://… the same with TLS
    redis+unix:///path/to/redis.sock[?db=0]
    redis+sentinel://[[user]:password@]host[:26379],…/service[/db]   rediss+sentinel://…
    redis+cluster://[[user]:password@]host[:6379],…                  rediss+cluster://…

User and password are those of the Redis servers; the sentinels' are the options `sentinel_username` and
`sentinel_password`. No error repeats what stands in the URL, for a piece of it may be a password that was cut in two.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from jobpool.errors import ConfigurationError
from jobpool_backends import options as url_options
from jobpool_backends.redis.connection import Endpoint
from jobpool_backends.shared import DeadCaps

DEFAULT_PREFIX = "jobpool"

_TLS = (
    url_options.path("ssl_ca_certs"),
    url_options.choice("ssl_cert_reqs", "required", {word: word for word in ("required", "optional", "none")}),
    url_options.path("ssl_certfile"),
    url_options.path("ssl_keyfile"),
    url_options.choice("ssl_check_hostname", True, {"yes": True, "no": False, "true": True, "false": False}),
)
_TLS_OPTIONS = [option.name for option in _TLS]

URL_OPTIONS = (
    url_options.text("username"),
    url_options.text("password", secret=True),
    url_options.text("sentinel_username"),
    url_options.text("sentinel_password", secret=True),
    url_options.whole("db", None, 0, 10**8 - 1),
    url_options.seconds("timeout", 2.0),
    url_options.seconds("connect_timeout", 2.0),
    *_TLS,
    url_options.pattern(
        "prefix",
        DEFAULT_PREFIX,
        "1 to 100 letters, digits, '.', '_', ':' or '-', starting with a letter or digit",
        "[A-Za-z0-9][A-Za-z0-9._:-]{0,99}",
    ),
    *url_options.DEAD_CAPS,
)


@dataclass(frozen=True, slots=True)
class Address:
    """The servers' address, and how to connect to them."""

    seeds: tuple[Endpoint, ...]  # one at least: the server, the sentinels of a service, or nodes of a cluster
    node: Endpoint  # how to get into a server that the seeds name: credentials, TLS, time limits; it has no host
    service: str = ""  # name of the master at the sentinels
    cluster: bool = False
    prefix: str = DEFAULT_PREFIX  # of all key names
    caps: DeadCaps = field(default_factory=DeadCaps)  # on the dead letters of a queue


def read_address(url: str, options: Mapping[str, object]) -> Address:
    """Return the address in `url` and `options` (by keyword: they win over the URL's).

    Raises `ConfigurationError`: something cannot be right; the text names it, and never a password.
    """
    return _Reader(url, options).address()


class _Reader:
    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        scheme, _, rest = url.partition("://")
        rest, found = url_options.split_query(rest)
        place, _, path = rest.partition("/")
        login, _, self._hosts = place.rpartition("@")
        self._scheme = scheme.lower()
        self._login = login
        self._path = unquote(path)
        if "#" in rest or "@" in path or "@" in login or any("@" in name or "#" in name for name in found):
            raise self._refuse("cannot be read: write '/', '?', '#', '@' in a password as %2F, %3F, %23, %40")
        found |= options
        self._options = url_options.read_options(self._scheme, found, URL_OPTIONS)
        self._tls_given = [name for name in _TLS_OPTIONS if name in found]

    def address(self) -> Address:
        node = self._node()
        match self._scheme.partition("+")[2]:
            case "sentinel":
                place = self._sentinels(node)
            case "cluster":
                if self._db(self._path) != 0:
                    raise self._refuse("has database 0 only: leave the number out")
                place = Address(self._read_hosts(node), node, cluster=True)
            case "unix":
                if self._hosts or not self._path:
                    raise self._refuse("names no socket: write redis+unix:///path/to/redis.sock, with three slashes")
                server = replace(node, path="/" + self._path, db=self._db(""))
                place = Address((server,), server)
            case _:
                place = self._server(node)
        return replace(place, prefix=self._options["prefix"], caps=url_options.take_caps(self._options))

    def _server(self, node: Endpoint) -> Address:
        hosts = self._read_hosts(node)
        if len(hosts) > 1:
            raise self._refuse("takes one host: write redis+sentinel:// or redis+cluster:// for several")
        server = replace(hosts[0], db=self._db(self._path))
        return Address((server,), server)

    def _sentinels(self, node: Endpoint) -> Address:
        service, _, db = self._path.partition("/")
        if not service:
            raise self._refuse("names no service: write redis+sentinel://host:26379/SERVICE, its name there")
        username, password = self._options["sentinel_username"], self._options["sentinel_password"]
        seeds = self._read_hosts(replace(node, port=26379, username=username, password=password))
        return Address(seeds, replace(node, db=self._db(db)), service)

    def _node(self) -> Endpoint:
        username, colon, password = self._login.partition(":")
        node = Endpoint(
            username=self._options["username"] or unquote(username) or None,
            password=self._options["password"] or unquote(password) or None,
            timeout=self._options["timeout"],
            connect_timeout=self._options["connect_timeout"],
            tls=self._tls(),
        )
        if (node.username or colon) and not node.password:
            raise self._refuse("has no password beside its user: write user:password@host, or :password@host")
        return node

    def _read_hosts(self, node: Endpoint) -> tuple[Endpoint, ...]:
        """Return the servers that the URL names; `node` has all but their hosts, and the usual port."""
        found = [url_options.read_host(host, node.port) for host in self._hosts.split(",")]
        hosts = [host for host in found if host]
        if len(hosts) < len(found):
            raise self._refuse(
                f"has no valid host: write host, host:{node.port} or [IPv6]:{node.port}; and '/', '?', '#', '@' in a"
                " password as %2F, %3F, %23, %40"
            )
        return tuple(replace(node, host=host, port=port) for host, port in hosts)

    def _db(self, in_path: str) -> int:
        if self._options["db"] is not None:
            return int(self._options["db"])
        text = in_path.strip("/") or "0"
        if not (text.isascii() and text.isdigit() and len(text) < 9):
            raise self._refuse("has no valid database: its number is 0, 1, 2, … behind the host")
        return int(text)

    def _tls(self) -> dict[str, Any] | None:
        if self._scheme.startswith("rediss"):
            options = {name: self._options[name] for name in _TLS_OPTIONS if self._options[name] is not None}
            self._check_files(options.get("ssl_ca_certs"), options.get("ssl_certfile"), options.get("ssl_keyfile"))
            return options
        if self._tls_given:
            secure = "rediss" if self._scheme == "redis+unix" else self._scheme.replace("redis", "rediss", 1)
            raise self._refuse(f"speaks no TLS: write {secure}://, or leave {', '.join(self._tls_given)} out")
        return None

    def _check_files(self, authority: str | None, certificate: str | None, key: str | None) -> None:
        """Load the files once, so that a wrong one is named now, and not as a broken connection later."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if key and not certificate:
            raise self._refuse("has the option ssl_keyfile without ssl_certfile: give both")
        try:
            if authority:
                context.load_verify_locations(authority)
        except OSError as error:
            raise self._refuse(f"cannot use ssl_ca_certs {authority}: {_why(error)}") from None
        try:
            if certificate:
                context.load_cert_chain(certificate, key, password=lambda: "")  # else OpenSSL asks at the terminal
        except OSError as error:
            what = "an unencrypted key and its certificate are needed"
            raise self._refuse(f"cannot use ssl_certfile and ssl_keyfile: {_why(error)}; {what}") from None

    def _refuse(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"{self._scheme}:// {what}")


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"it does not hold what it should ({error.reason or 'no PEM'})"
    return error.strerror or str(error)
