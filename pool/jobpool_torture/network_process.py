"""The process of `jobpool_torture.network`: carries bytes between clients and one server, as a bad network would.

A *link* is one client's connection and the proxy's own to the server; a *flow* is one direction of it. One epoll loop
carries all of them. An order is one line of JSON on a socket, and so is its answer, which comes when the order is in
force. Standard library only: it is started as a script.

A connection to a network in which packets are lost is neither accepted nor refused. To imitate that, the process fills
the queue of its listening socket with connections of its own while a hole lasts. The kernel then drops every SYN.
"""

from __future__ import annotations

import json
import random
import re
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

CHUNK_BYTES = 256 * 1024
MAX_PENDING_BYTES = 1 << 20
"""Bytes that wait for a slow reader before its writer is no longer read."""

BACKLOG = 128
DRAIN_SILENCE_S = 0.2
"""Seconds of silence after which the rest of a dropped reply has surely come."""

FATAL = select.EPOLLHUP | select.EPOLLERR
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
    """One direction. `ended`: the source has said that it is done; `told`: so has the sink been."""

    direction: str
    source: socket.socket
    sink: socket.socket
    pending: deque[tuple[float, bytes]] = field(default_factory=deque)
    size: int = 0
    ended: bool = False
    told: bool = False

    def is_due(self, now: float) -> bool:
        return bool(self.pending) and self.pending[0][0] <= now

    def write(self, now: float) -> None:
        """Send what is due, as far as the sink takes it. Raises OSError."""
        with suppress(BlockingIOError):
            while self.is_due(now):
                due, data = self.pending[0]
                sent = self.sink.send(data)
                self.size -= sent
                if sent == len(data):
                    self.pending.popleft()
                else:
                    self.pending[0] = (due, data[sent:])
        if self.ended and not self.pending and not self.told:
            self.told = True
            self.sink.shutdown(socket.SHUT_WR)


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
        self.drained_at = 0.0  # when the server's side is closed, unless it goes on speaking; 0 = not at all


class Carrier:
    """All links, and what the network does to them now."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.counts = Counts()
        self.drops = Drops()
        self._place = _bound(0)  # never listens: it keeps the port while connections are refused
        self.port: int = self._place.getsockname()[1]
        self._listener: socket.socket | None = None
        self._fillers: list[socket.socket] = []
        self._strangers: set[Any] = set()
        self._stopped: set[str] = set()
        self._losing: set[str] = set()
        self._delay = 0.0
        self._links: set[Link] = set()
        self._masks: dict[int, int] = {}
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[int], None]] = {}
        self._listen()

    def watch(self, fd: int, call: Callable[[int], None], mask: int = select.EPOLLIN) -> None:
        """Call `call` with the mask of what happened on `fd`; mask 0 = no longer."""
        had = self._masks.get(fd, 0)
        if mask == had:
            return
        if not mask:
            self._epoll.unregister(fd)
            del self._masks[fd], self._calls[fd]
            return
        (self._epoll.modify if had else self._epoll.register)(fd, mask)
        self._masks[fd] = mask
        self._calls[fd] = call

    def turn(self) -> None:
        """Wait for something and carry it."""
        timeout = self._timeout()
        for fd, mask in self._epoll.poll(timeout):
            if fd in self._calls:
                self._calls[fd](mask)
        if timeout < 0:
            return
        now = time.monotonic()
        for link in list(self._links):
            if link.drained_at and now >= link.drained_at:
                self._close(link)
            else:
                self._move(link)

    def _timeout(self) -> float:
        """Return seconds until something is due; negative = forever. Only delays and drains wait for a time."""
        now, due = time.monotonic(), []
        for link in self._links:
            due += [flow.pending[0][0] for flow in (link.up, link.down) if flow.pending and flow.pending[0][0] > now]
            due += [link.drained_at] if link.drained_at else []
        return max(0.0, min(due) - now) if due else -1

    def _accept(self, _: int) -> None:
        assert self._listener is not None
        with suppress(BlockingIOError):
            while True:
                client, address = self._listener.accept()
                if address in self._strangers:
                    client.close()
                else:
                    self._join(client)

    def _join(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_INET6 if ":" in self.upstream[0] else socket.AF_INET)
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.connect_ex(self.upstream)  # a refusal is met by the first read
        link = Link(client, server)
        self._links.add(link)
        self.counts.connections += 1
        self._arm(link)

    def _arm(self, link: Link) -> None:
        """Listen for what can be done: read what may travel, write what could not be written yet."""
        now = time.monotonic()
        masks = {link.client: 0, link.server: 0}
        for flow in (link.up, link.down):
            if self._may_read(link, flow):
                masks[flow.source] |= select.EPOLLIN
            if self._may_write(link, flow) and flow.is_due(now):
                masks[flow.sink] |= select.EPOLLOUT
        for end, mask in masks.items():
            if end.fileno() >= 0:
                self.watch(end.fileno(), lambda mask, end=end: self._happened(link, end, mask), mask)  # type: ignore[misc]

    def _may_read(self, link: Link, flow: Flow) -> bool:
        """Return whether to read; lost bytes are read, and a link that has lost some is read forever."""
        is_held = flow.direction in self._stopped - self._losing and not link.gone
        return not (flow.ended or flow.size >= MAX_PENDING_BYTES or is_held)

    def _may_write(self, link: Link, flow: Flow) -> bool:
        return not (link.gone or flow.direction in self._stopped)

    def _happened(self, link: Link, end: socket.socket, mask: int) -> None:
        flow = link.up if end is link.client else link.down
        try:
            if mask & (select.EPOLLIN | FATAL):
                self._read(link, flow)
        except BlockingIOError:
            pass
        except OSError:
            self._fail(link, flow)
        self._move(link)

    def _move(self, link: Link) -> None:
        """Write what can be written, and wait for the rest."""
        if link not in self._links:
            return
        now = time.monotonic()
        try:
            for flow in (link.up, link.down):
                if self._may_write(link, flow):
                    flow.write(now)
        except OSError:
            self._close(link, reset=True)
            return
        if all(flow.told or (flow.ended and link.gone) for flow in (link.up, link.down)):
            self._close(link)
        else:
            self._arm(link)

    def _read(self, link: Link, flow: Flow) -> None:
        data = flow.source.recv(CHUNK_BYTES)
        if not data:
            flow.ended = True
            link.gone = link.gone or flow.direction in self._losing
        elif link.gone or flow.direction in self._losing:
            self._lose(link, data)
        elif flow is link.down and link.dropping:
            link.answered = True
            self._drop(link, data)
        else:
            self._carry(link, flow, data)

    def _lose(self, link: Link, data: bytes) -> None:
        link.gone = True
        self.counts.bytes_lost += len(data)
        if link.drained_at:
            link.drained_at = time.monotonic() + DRAIN_SILENCE_S

    def _carry(self, link: Link, flow: Flow, data: bytes) -> None:
        if flow is link.down:
            link.answered = True
            self.counts.bytes_down += len(data)
        else:
            self.counts.bytes_up += len(data)
            if link.answered:
                link.answered = False
                self.counts.requests += 1
                link.dropping = self.drops.choose(data)
        flow.pending.append((time.monotonic() + self._delay, data))
        flow.size += len(data)

    def _drop(self, link: Link, data: bytes) -> None:
        """Drop the reply: the server has done its work, and the client shall not hear of it."""
        self.counts.dropped += 1
        self._lose(link, data)
        if self.drops.cut:
            self._end(link.client, reset=True)
            link.up.ended = True
            # Until then it may be at work on the rest of its reply.
            link.drained_at = time.monotonic() + DRAIN_SILENCE_S

    def _fail(self, link: Link, flow: Flow) -> None:
        """Reset the other side too, after one side has reset its connection, unless nothing travels between them."""
        if link.gone or flow.direction in self._losing:
            flow.ended = link.gone = True
        else:
            self._close(link, reset=True)

    def _close(self, link: Link, reset: bool = False) -> None:
        self._links.discard(link)
        for end in (link.client, link.server):
            self._end(end, reset)

    def _end(self, end: socket.socket, reset: bool) -> None:
        if end.fileno() < 0:
            return
        self.watch(end.fileno(), self._accept, 0)
        if reset:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        end.close()

    def _listen(self) -> None:
        self._strangers = {filler.getsockname() for filler in self._fillers}
        for filler in self._fillers:
            filler.close()
        self._fillers.clear()
        if self._listener is None:
            self._listener = _bound(self.port)
        self._listener.listen(BACKLOG)
        self.watch(self._listener.fileno(), self._accept)
        self._accept(0)
        self._strangers.clear()

    def _ignore_new(self) -> None:
        """Fill the queue of the listening socket."""
        if self._listener is None or self._fillers:
            return
        self._accept(0)
        self.watch(self._listener.fileno(), self._accept, 0)
        self._listener.listen(0)
        while not self._fillers or _connects(self._fillers[-1]):
            self._fillers.append(socket.socket())
            self._fillers[-1].setblocking(False)
            self._fillers[-1].connect_ex(("127.0.0.1", self.port))

    def obey(self, order: str, **options: Any) -> dict[str, int]:
        """Carry out one order; the counts after it."""
        getattr(self, f"do_{order}")(**options)
        for link in list(self._links):
            self._move(link)
        return asdict(self.counts) | {"open": len(self._links)}

    def do_counts(self) -> None:
        pass

    def do_black_hole(self, directions: list[str], keep: bool) -> None:
        self._stopped |= set(directions)
        self._ignore_new()
        if not keep:
            self._losing |= set(directions)
            for link in self._links:
                under_way = [flow for flow in (link.up, link.down) if flow.pending and flow.direction in self._losing]
                link.gone = link.gone or bool(under_way)

    def do_restore(self) -> None:
        self._stopped, self._losing = set(), set()
        self._listen()

    def do_cut(self) -> None:
        for link in list(self._links):
            self._close(link, reset=True)

    def do_refuse(self) -> None:
        if self._listener is not None:
            self._end(self._listener, reset=False)
            self._listener = None

    def do_delay(self, seconds: float) -> None:
        self._delay = seconds

    def do_drop_replies(self, count: int, share: float, seed: int, match: str, cut: bool) -> None:
        pattern = re.compile(match.encode("latin-1"), re.DOTALL) if match else None
        self.drops = Drops(count, share, pattern, cut, random.Random(seed))


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


def main(control: int, host: str, port: int) -> None:
    """Serve until its starter closes its end of the control socket."""
    carrier = Carrier((host, port))
    ended = []
    with socket.socket(fileno=control) as owner, owner.makefile("rw") as orders:

        def obey(_: int) -> None:
            order = orders.readline()
            if not order:
                ended.append(True)
                return
            orders.write(json.dumps(carrier.obey(**json.loads(order))) + "\n")
            orders.flush()

        orders.write(json.dumps({"port": carrier.port}) + "\n")
        orders.flush()
        carrier.watch(owner.fileno(), obey)
        while not ended:
            carrier.turn()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
