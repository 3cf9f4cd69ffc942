"""A network between a client and one server that fails as it is told: lost packets, resets, lost replies, delay.

Each proxy is a process of its own (see `jobpool_torture.network_process`), so that it is as quick as a network however
busy its owner is. Every order is in force when its method returns. It carries the bytes of one TCP connection to one
server. So it can stand before a server whose address is only in the URL, and whose client does not check its name.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from jobpool.broker.opening import scheme_of
from jobpool.errors import ConfigurationError, JobpoolError
from jobpool_torture.network_process import Counts
from jobpool_torture.schedule import Fault

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?")
_ENDPOINT = re.compile(r"(?i)(?<=Endpoint=sb://)[^;/?]+")
_ONE_SERVER = {"redis": 6379, "beanstalk": 11300, "postgresql": 5432, "postgres": 5432}
"""Scheme → port of what is written as scheme://[login@]host[:port][/…][?…]."""

_EMULATOR_PORT = 5672
_NAMES_EACH_OTHER = "the servers name each other's addresses, which lead past a proxy"
_TLS = "the connection is by TLS, whose certificate names another host than a proxy's"
_REASONS = {
    "rediss": _TLS,
    **dict.fromkeys(("redis+cluster", "rediss+cluster"), f"in a cluster {_NAMES_EACH_OTHER}"),
    **dict.fromkeys(("redis+sentinel", "rediss+sentinel"), f"with sentinels {_NAMES_EACH_OTHER}"),
    "redis+unix": "a Unix socket is not a network",
    **{scheme: f"{scheme}:// has no network" for scheme in ("sqlite", "memory", "sync")},
}

ORDER_LIMIT_S = 10.0
CONNECT_LIMIT_S = 2.0  # seconds for one of several addresses to take a connection
PROGRAM = Path(__file__).with_name("network_process.py")
Direction = Literal["up", "down"]
"""`up`: from the clients to the server."""

BOTH: tuple[Direction, ...] = ("up", "down")
_HOLES: tuple[tuple[tuple[Direction, ...], bool], ...] = tuple(
    (directions, keep) for keep in (True, False) for directions in (BOTH, ("up",), ("down",))
)


@dataclass(frozen=True, slots=True)
class Route:
    """A URL, cut where its server stands."""

    before: str  # the text around the server's `host:port`, as `after`
    host: str  # of the server, as `port`; without the brackets of an IPv6 address
    port: int
    after: str

    def to(self, host: str, port: int) -> str:
        """Return the URL that leads there instead, and is the same otherwise."""
        return f"{self.before}{f'[{host}]' if ':' in host else host}:{port}{self.after}"


def find_route(url: str) -> Route | str:
    """Return where the server stands in the URL; or why no proxy can be put before it, without a piece of the URL."""
    try:
        scheme = scheme_of(url)
    except ConfigurationError:
        return "it is not a URL"
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
    """Return why not, or "". TLS is, where libpq compares the certificate's name with the host's."""
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


class NetworkFailed(JobpoolError):
    """The process of a proxy has ended, or does not answer: its connections are cut off."""


class Proxy:
    """A proxy on `host`:`port`, a free one of loopback, that carries bytes to the server and back."""

    host = "127.0.0.1"

    def __init__(self, host: str, port: int) -> None:
        """Start the proxy's process. `host`, `port`: of the server, which need not run yet.

        A name is looked up once. Of several addresses it is the first that takes a connection now, else the first.
        Raises OSError: the name cannot be found; `NetworkFailed`: the process did not come up.
        """
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(ORDER_LIMIT_S)
        with theirs:
            words = [sys.executable, "-ISs", str(PROGRAM), str(theirs.fileno()), _address(host, port), str(port)]
            quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], start_new_session=True, **quiet)
        self._orders = self._socket.makefile("rw")
        self.port = 0
        try:
            self.port = int(self._answer()["port"])
        except NetworkFailed:
            self.close()
            raise

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def black_hole(self, *directions: Direction, keep: bool = True) -> None:
        """Let nothing through in these directions, both if none is named, and close nothing. New connections hang.

        With `keep`, bytes sent meanwhile arrive after `restore`, as TCP sends them again. Else it is lost, and the
        connections that have lost something are half-open: they never work again, and neither side is told. A second
        hole adds its directions; where one keeps and the other loses, it is lost.
        """
        self._order("black_hole", directions=directions or BOTH, keep=keep)

    def refuse(self) -> None:
        """Refuse new connections; those that are open go on."""
        self._order("refuse")

    def restore(self) -> None:
        """Undo everything but a cut."""
        self._order("restore")

    def cut(self) -> None:
        """Reset every open connection, on both sides. New ones are taken as before."""
        self._order("cut")

    def delay(self, seconds: float) -> None:
        """Let everything that is sent from now on arrive later."""
        self._order("delay", seconds=seconds)

    def drop_replies(
        self,
        count: int = -1,
        *,
        share: float = 1.0,
        seed: int = 0,
        match: str = "",
        then: Literal["cut", "silent"] = "cut",
    ) -> None:
        """Lose the replies to the next requests: the server obeys them, and the client does not hear of it.

        A request is the bytes that a client sends after the server's last word. Its connection is `then` reset, or left
        half-open.

        Args:
            count: How many; -1 = no limit, 0 = no more.
            share: Of the requests that match, at random by `seed`.
            match: A regular expression that is searched in the request's bytes, as Latin-1; "" = all.
        """
        self._order("drop_replies", count=count, share=share, seed=seed, match=match, cut=then == "cut")

    def counts(self) -> Counts:
        """Return the counts of connections, requests and bytes, since the start."""
        return self._order("counts")

    def close(self) -> None:
        """End it, and every connection through it. Safe to call twice, and when its process has died."""
        with suppress(OSError):  # unsent bytes are flushed again, without a reader
            self._orders.close()
        self._socket.close()
        try:
            self._process.wait(ORDER_LIMIT_S)
        except subprocess.TimeoutExpired:  # it is stopped, or hangs: there is nothing in it to lose
            self._process.kill()
            self._process.wait()

    def _order(self, order: str, **options: Any) -> Counts:
        try:
            self._orders.write(json.dumps({"order": order, **options}) + "\n")
            self._orders.flush()
        except OSError as error:
            raise NetworkFailed(f"the proxy on port {self.port} takes no orders: {error}") from error
        return Counts(**self._answer())

    def _answer(self) -> dict[str, int]:
        try:
            answer = self._orders.readline()
        except TimeoutError as error:
            raise NetworkFailed(f"the proxy on port {self.port} does not answer within {ORDER_LIMIT_S:g} s") from error
        except OSError as error:  # its end, or a late answer to an order that was given up
            raise NetworkFailed(f"the proxy on port {self.port} cannot be heard: {error}") from error
        if not answer:
            raise NetworkFailed(f"the proxy on port {self.port} has ended")
        return json.loads(answer)  # type: ignore[no-any-return]


def _address(host: str, port: int) -> str:
    first, *others = [info[4] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if others:
        with suppress(OSError), socket.create_connection((host, port), CONNECT_LIMIT_S) as taken:
            first = taken.getpeername()
    return str(first[0])


def put_in_force(proxy: Proxy, fault: Fault) -> str:
    """Let the network fail so, beside what is in force already; return the effect, in words."""
    match fault.kind:
        case "net.cut":
            links = proxy.counts().open
            proxy.cut()
            return f"{links} connections reset"
        case "net.hole":
            directions, keep = _HOLES[fault.pick % len(_HOLES)]
            proxy.black_hole(*directions, keep=keep)
            what = {BOTH: "nothing gets through", ("up",): "nothing reaches the broker"}
            return f"{what.get(directions, 'nothing comes back')}, and is {'held back' if keep else 'lost'}"
        case "net.refuse":
            proxy.refuse()
            return "new connections are refused"
        case "net.delay":
            proxy.delay(fault.amount)
            return f"everything comes {fault.amount * 1000:.0f} ms later"
    silent = fault.pick % 2 == 1
    proxy.drop_replies(share=fault.amount, seed=fault.pick, then="silent" if silent else "cut")
    return f"{fault.amount:.0%} of the replies lost, the connection {'left silent' if silent else 'cut'}"
