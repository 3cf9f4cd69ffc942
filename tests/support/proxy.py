"""A network between a client and one server that fails as the test says: lost packets, resets, lost replies, delay.

Each proxy is a process of its own (see `support.proxy_process`), so that it is as quick as a network however busy the
test is. Every order is in force when its method returns. Use as a context manager, or `close` it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from support.proxy_process import Counts

LIMIT = 10.0
"""Seconds for an order to be carried out."""

PROGRAM = Path(__file__).with_name("proxy_process.py")
Direction = Literal["up", "down"]
"""`up`: from the clients to the server."""


class Proxy:
    """Listens on `host`:`port`, a free one of loopback, and carries what comes to the server and back."""

    host = "127.0.0.1"

    def __init__(self, host: str, port: int) -> None:
        """`host`, `port`: of the server, which need not run yet."""
        ours, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, "-ISs", str(PROGRAM), str(theirs.fileno()), host, str(port)]
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0
            )
        ours.settimeout(LIMIT)
        self._socket = ours
        self._orders = ours.makefile("rw")
        self.port = int(self._answer()["port"])

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what the network does ----------------------------------------------------------------------

    def black_hole(self, *directions: Direction, keep: bool = True) -> None:
        """Let nothing through in these directions, both if none is named, and close nothing. New connections hang.

        With `keep`, what is sent meanwhile arrives after `restore`, as TCP sends it again. Else it is lost, and the
        connections that have lost something never work again, without either side being told: half-open.
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

    def delay(self, seconds: float) -> None:
        """Let everything that is sent from now on arrive so much later, in each direction; 0 = at once."""
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
        """Lose the replies to the next requests: the server does what it is asked, and the client does not hear of it.

        A request is what a client sends after the server's last word. Its connection is then reset, or left half-open.

        Args:
            count: How many; -1 = no limit, 0 = no more.
            share: Of the requests that match, at random.
            seed: Of that choice.
            match: A regular expression that is searched in the request's bytes, as Latin-1; "" = all.
            then: What becomes of the connection.
        """
        self._order("drop_replies", count=count, share=share, seed=seed, match=match, cut=then == "cut")

    # --- looking ------------------------------------------------------------------------------------

    def counts(self) -> Counts:
        """Of connections, requests and bytes, since the start."""
        return self._order("counts")

    # --- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """End it, and every connection through it. Safe to call twice."""
        self._orders.close()
        self._socket.close()
        self._process.wait(LIMIT)

    def _order(self, order: str, **options: Any) -> Counts:
        self._orders.write(json.dumps({"order": order, **options}) + "\n")
        self._orders.flush()
        return Counts(**self._answer())

    def _answer(self) -> dict[str, int]:
        answer = self._orders.readline()
        assert answer, f"the proxy has ended with status {self._process.wait(LIMIT)}"
        return json.loads(answer)  # type: ignore[no-any-return]


def close_all(proxies: Sequence[Proxy]) -> None:
    """`close` each."""
    for proxy in proxies:
        proxy.close()
