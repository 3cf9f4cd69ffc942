"""The process of `jobpool_torture.network`: carries bytes between clients and one server, as a bad network would.

A *link* is one client's connection and the proxy's own to the server; a *flow* is one direction of it, and one task. An
order is one line of JSON on a socket, and so is its answer, which comes when the order is in force. Standard library
only: it is started as a script.

A connection to a network in which packets are lost is neither accepted nor refused. To imitate that, the process fills
the queue of its listening socket with connections of its own while a hole lasts. The kernel then drops every SYN.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import select
import socket
import struct
import sys
from collections.abc import Container
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

CHUNK_BYTES = 256 * 1024
BACKLOG = 128
FULL_PAUSE_S = 0.001  # between two attempts to write to a side that takes nothing
DRAIN_SILENCE_S = 0.2  # seconds of silence after which the rest of a dropped reply has surely come
RESET = struct.pack("ii", 1, 0)


@dataclass
class Counts:
    """The counts since the start; `open`: links now."""

    connections: int = 0
    open: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_lost: int = 0
    requests: int = 0
    dropped: int = 0


@dataclass
class Drops:
    """The replies to drop. `left`: how many more, -1 = no limit; `share` of the requests that `match`."""

    left: int = 0
    share: float = 1.0
    match: re.Pattern[bytes] | None = None
    cut: bool = True
    rng: random.Random = field(default_factory=random.Random)

    def choose(self, request: bytes) -> bool:
        if not self.left or (self.match and not self.match.search(request)) or self.rng.random() >= self.share:
            return False
        self.left -= 1
        return True


@dataclass(slots=True)
class Flow:
    """One direction."""

    direction: str
    source: socket.socket
    sink: socket.socket
    pending: bytes = b""  # read, and not written yet: meanwhile nothing more is read


class Link:
    """One client's way to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.up = Flow("up", client, server)
        self.down = Flow("down", server, client)
        self.gone = False  # half-open: all that either side says is lost, and neither hears that the other has closed
        self.dropping = False  # the reply to this request is to be lost
        self.answered = True  # the server has spoken: the client's next bytes are a new request
        self.cut = False  # the client was reset for a dropped reply: the server may be at work on the rest of it


class Carrier:
    """All links, and what the network does to them now."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.counts = Counts()
        self.drops = Drops()
        self._loop = asyncio.get_running_loop()
        self._place = _bound(0)  # never listens: it keeps the port while connections are refused
        self.port: int = self._place.getsockname()[1]
        self._listener: socket.socket | None = None
        self._fillers: list[socket.socket] = []
        self._passes = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._losing: set[str] = set()
        self._delay = 0.0
        self._links: dict[asyncio.Task[None], Link] = {}
        self._let_through()

    def _accept(self, strangers: Container[Any] = ()) -> None:
        assert self._listener is not None
        with suppress(BlockingIOError):
            while True:
                client, address = self._listener.accept()
                if address in strangers:
                    client.close()
                else:
                    self._join(client)

    def _join(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_INET6 if ":" in self.upstream[0] else socket.AF_INET)
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(client, server)
        task = self._loop.create_task(self._serve(link))
        self._links[task] = link
        task.add_done_callback(self._links.pop)
        self.counts.connections += 1

    async def _serve(self, link: Link) -> None:
        """Carry what both sides say until both have ended, or one has failed: then the other is reset."""
        with link.client, link.server:
            try:
                await self._loop.sock_connect(link.server, self.upstream)
                async with asyncio.TaskGroup() as tasks:
                    for flow in (link.up, link.down):
                        tasks.create_task(self._carry(link, flow))
            except* OSError:
                _reset_at_close(link.client, *(() if link.cut else (link.server,)))
            if link.cut:
                link.client.close()
                with suppress(OSError):
                    while data := await asyncio.wait_for(self._receive(link.server), DRAIN_SILENCE_S):
                        self.counts.bytes_lost += len(data)

    async def _receive(self, source: socket.socket) -> bytes:
        return await self._loop.sock_recv(source, CHUNK_BYTES)

    def _loses(self, link: Link, flow: Flow) -> bool:
        return link.gone or flow.direction in self._losing

    async def _carry(self, link: Link, flow: Flow) -> None:
        """Carry one direction until its source has ended, whatever becomes of it."""
        while data := await self._read(link, flow):
            if self._loses(link, flow):
                self._lose(link, data)
            elif flow is link.down and link.dropping:
                self._drop(link, data)
            else:
                self._count(link, flow, data)
                flow.pending = data
                await asyncio.sleep(self._delay)
                await self._write(link, flow)
        if self._loses(link, flow):
            link.gone = True
        await self._passes[flow.direction].wait()
        if not link.gone:
            flow.sink.shutdown(socket.SHUT_WR)

    async def _read(self, link: Link, flow: Flow) -> bytes:
        try:
            return await self._receive(flow.source)
        except OSError:
            if self._loses(link, flow):  # a reset is as any end then: nobody is told
                return b""
            await self._passes[flow.direction].wait()
            raise

    async def _write(self, link: Link, flow: Flow) -> None:
        """Write what is pending, as far as the network lets it through."""
        while flow.pending:
            await self._passes[flow.direction].wait()
            if link.gone:
                self.counts.bytes_lost += len(flow.pending)
                flow.pending = b""
                return
            try:
                flow.pending = flow.pending[flow.sink.send(flow.pending) :]
            except BlockingIOError:
                await asyncio.sleep(FULL_PAUSE_S)

    def _lose(self, link: Link, data: bytes) -> None:
        link.gone = True
        self.counts.bytes_lost += len(data)

    def _count(self, link: Link, flow: Flow, data: bytes) -> None:
        if flow is link.down:
            link.answered = True
            self.counts.bytes_down += len(data)
        else:
            self.counts.bytes_up += len(data)
            if link.answered:
                link.answered = False
                self.counts.requests += 1
                link.dropping = self.drops.choose(data)

    def _drop(self, link: Link, data: bytes) -> None:
        """Drop the reply: the server has done its work, and the client shall not hear of it."""
        self.counts.dropped += 1
        self._lose(link, data)
        if self.drops.cut:
            link.cut = True
            raise ConnectionAbortedError

    def _listen(self) -> None:
        strangers = {filler.getsockname() for filler in self._fillers}
        for filler in self._fillers:
            filler.close()
        self._fillers.clear()
        if self._listener is None:
            self._listener = _bound(self.port)
        self._listener.listen(BACKLOG)
        self._loop.add_reader(self._listener, self._accept)
        self._accept(strangers)

    def _ignore_new(self) -> None:
        """Fill the queue of the listening socket."""
        if self._listener is None or self._fillers:
            return
        self._accept()
        self._loop.remove_reader(self._listener)
        self._listener.listen(0)
        while not self._fillers or _connects(self._fillers[-1]):
            self._fillers.append(socket.socket())
            self._fillers[-1].setblocking(False)
            self._fillers[-1].connect_ex(("127.0.0.1", self.port))

    async def obey(self, order: str, **options: Any) -> dict[str, int]:
        """Carry out one order; the counts after it."""
        await getattr(self, f"do_{order}")(**options)
        return asdict(self.counts) | {"open": len(self._links)}

    async def do_counts(self) -> None:
        pass

    async def do_cut(self) -> None:
        for task, link in self._links.items():
            _reset_at_close(link.client, link.server)
            task.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def do_black_hole(self, directions: list[str], keep: bool) -> None:
        for direction in directions:
            self._passes[direction].clear()
        self._ignore_new()
        if not keep:
            self._losing |= set(directions)
            for link in self._links.values():
                under_way = [flow for flow in (link.up, link.down) if flow.pending and flow.direction in self._losing]
                link.gone = link.gone or bool(under_way)

    async def do_restore(self) -> None:
        self._delay, self.drops = 0.0, Drops()
        self._let_through()

    def _let_through(self) -> None:
        self._losing.clear()
        for passes in self._passes.values():
            passes.set()
        self._listen()

    async def do_refuse(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def do_delay(self, seconds: float) -> None:
        self._delay = seconds

    async def do_drop_replies(self, count: int, share: float, seed: int, match: str, cut: bool) -> None:
        pattern = re.compile(match.encode("latin-1"), re.DOTALL) if match else None
        self.drops = Drops(count, share, pattern, cut, random.Random(seed))


def _reset_at_close(*ends: socket.socket) -> None:
    for end in ends:
        if end.fileno() >= 0:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    bound.setblocking(False)
    return bound


def _connects(filler: socket.socket) -> bool:
    """Return whether the kernel has completed the connection: within the machine that is at once or never."""
    poll = select.poll()
    poll.register(filler, select.POLLOUT)
    return bool(poll.poll(20))


async def serve(control: int, host: str, port: int) -> None:
    """Serve until its starter closes its end of the control socket."""
    carrier = Carrier((host, port))
    orders, answers = await asyncio.open_connection(sock=socket.socket(fileno=control))
    answers.write(json.dumps({"port": carrier.port}).encode() + b"\n")
    with suppress(ConnectionError):
        while order := await orders.readline():
            answers.write(json.dumps(await carrier.obey(**json.loads(order))).encode() + b"\n")


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
