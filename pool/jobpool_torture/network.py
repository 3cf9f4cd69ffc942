"""A network between a client and one server that fails as it is told: lost packets, resets, lost replies, delay.

Each proxy is a process of its own (see `jobpool_torture.network_process`), so that it is as quick as a network however
busy its owner is. Every order is in force when its method returns. Use as a context manager, or `close` it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from jobpool.errors import JobpoolError
from jobpool_torture.network_process import Counts
from jobpool_torture.schedule import Fault

ORDER_LIMIT_S = 10.0
"""Seconds for an order to be carried out."""

CONNECT_LIMIT_S = 2.0
"""Seconds for one of several addresses to take a connection."""

PROGRAM = Path(__file__).with_name("network_process.py")
Direction = Literal["up", "down"]
"""`up`: from the clients to the server."""

BOTH: tuple[Direction, ...] = ("up", "down")
_HOLES: tuple[tuple[tuple[Direction, ...], bool], ...] = tuple(
    (directions, keep) for keep in (True, False) for directions in (BOTH, ("up",), ("down",))
)


class NetworkFailed(JobpoolError):
    """The process of a proxy has ended, or does not answer: what it carried is cut off."""


class Proxy:
    """A proxy on `host`:`port`, a free one of loopback, that carries bytes to the server and back."""

    host = "127.0.0.1"

    def __init__(self, host: str, port: int) -> None:
        """Start the proxy's process. `host`, `port`: of the server, which need not run yet. A name is looked up now,
        once.

        Of several addresses it is the first that takes a connection now, as a client would have found; else the first.

        Raises:
            OSError: The name cannot be found, or there is no process or socket to be had.
            NetworkFailed: The proxy's process did not come up within `ORDER_LIMIT_S`.
        """
        address = _address(host, port)
        ours, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, "-ISs", str(PROGRAM), str(theirs.fileno()), address, str(port)]
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0
            )
        ours.settimeout(ORDER_LIMIT_S)
        self._socket = ours
        self._orders = ours.makefile("rw")
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

    # --- the network's faults -----------------------------------------------------------------------

    def black_hole(self, *directions: Direction, keep: bool = True) -> None:
        """Let nothing through in these directions, both if none is named, and close nothing. New connections hang.

        With `keep`, what is sent meanwhile arrives after `restore`, as TCP sends it again. Else it is lost, and the
        connections that have lost something never work again, without either side being told: half-open.

        A second hole adds its directions; where one keeps and the other loses, it is lost.
        """
        self._order("black_hole", directions=directions or ("up", "down"), keep=keep)

    def refuse(self) -> None:
        """Refuse new connections; those that are open go on."""
        self._order("refuse")

    def restore(self) -> None:
        """Undo `black_hole` and `refuse`."""
        self._order("restore")

    def cut(self) -> None:
        """Reset every open connection, on both sides. New ones are taken as before."""
        self._order("cut")

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Let everything that is sent from now on in these directions arrive so much later; 0 = at once.

        Both directions if none is named; the other one keeps the delay that it had.
        """
        self._order("delay", seconds=seconds, directions=directions or ("up", "down"))

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

        A request is the bytes that a client sends after the server's last word. Its connection is then reset, or left
        half-open.

        Args:
            count: How many; -1 = no limit, 0 = no more.
            share: Of the requests that match, at random.
            seed: Of that choice.
            match: A regular expression that is searched in the request's bytes, as Latin-1; "" = all.
            then: The end of the connection.
        """
        self._order("drop_replies", count=count, share=share, seed=seed, match=match, cut=then == "cut")

    # --- looking ------------------------------------------------------------------------------------

    def counts(self) -> Counts:
        """Return the counts of connections, requests and bytes, since the start."""
        return self._order("counts")

    # --- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """End it, and every connection through it. Safe to call twice, and when its process has died."""
        with suppress(OSError):  # unsent bytes are flushed again, to nobody
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
    found = list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
    if len(found) == 1:
        return found[0]
    return next((address for address in found if _takes_connections(address, port)), found[0])


def _takes_connections(address: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((address, port), CONNECT_LIMIT_S):
        return True
    return False


def close_all(proxies: Sequence[Proxy]) -> None:
    """Close each."""
    for proxy in proxies:
        proxy.close()


def hole_of(pick: int) -> tuple[tuple[Direction, ...], bool]:
    """Return which directions nothing gets through in, and whether it is kept till later."""
    return _HOLES[pick % len(_HOLES)]


def is_silent(pick: int) -> bool:
    """Return whether a dropped reply leaves its connection half-open, instead of cutting it."""
    return pick % 2 == 1


class NetworkState:
    """The faults that are in force on one proxy. Every method blocks for the proxy's answer, some milliseconds.

    All of them raise `NetworkFailed` when the proxy is not there any more.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._active: dict[int, Fault] = {}
        self._cleared_at = 0.0
        self._begin: dict[str, Callable[[Fault], str]] = {
            "net.cut": self._cut,
            "net.hole": self._hole,
            "net.refuse": self._refuse,
            "net.delay": self._delay,
            "net.drop": self._drop,
        }

    def was_bad_since(self, moment: float) -> bool:
        """Return whether any fault was in force at or after `moment` (CLOCK_MONOTONIC)."""
        return bool(self._active) or self._cleared_at >= moment

    def begin(self, fault: Fault) -> str:
        """Put it in force; what it does."""
        told = self._begin[fault.kind](fault)
        if fault.kind != "net.cut":
            self._active[fault.number] = fault
        self._cleared_at = time.monotonic()
        return told

    def end(self, number: int) -> None:
        """End that fault; the others go on."""
        ended = self._active.pop(number, None)
        if ended is None:
            return
        self._cleared_at = time.monotonic()
        self._proxy.restore()  # of holes and refusals; those that go on are put in force again
        self._proxy.delay(0.0)
        self._proxy.drop_replies(0)
        for fault in self._active.values():
            self._begin[fault.kind](fault)

    def clear(self) -> None:
        """End all faults."""
        for number in list(self._active):
            self.end(number)

    # --- kinds ----------------------------------------------------------------------------------------

    def _cut(self, _: Fault) -> str:
        links = self._proxy.counts().open
        self._proxy.cut()
        return f"{links} connections reset"

    def _hole(self, fault: Fault) -> str:
        directions, keep = hole_of(fault.pick)
        self._proxy.black_hole(*directions, keep=keep)
        what = {BOTH: "nothing gets through", ("up",): "nothing reaches the broker"}.get(
            directions, "nothing comes back"
        )
        return f"{what}, and is {'held back' if keep else 'lost'}"

    def _refuse(self, _: Fault) -> str:
        self._proxy.refuse()
        return "new connections are refused"

    def _delay(self, fault: Fault) -> str:
        self._proxy.delay(fault.amount)
        return f"everything comes {fault.amount * 1000:.0f} ms later"

    def _drop(self, fault: Fault) -> str:
        silent = is_silent(fault.pick)
        self._proxy.drop_replies(share=fault.amount, seed=fault.pick, then="silent" if silent else "cut")
        return f"{fault.amount:.0%} of the replies lost, the connection {'left silent' if silent else 'cut'}"
