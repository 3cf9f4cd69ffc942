"""The ceiling of dispatch: the same frames over the same channels to the same children, and nothing else.

Same fork server, same children, same bodies, as many frames ahead as the pool holds. No broker, no lease, no decision,
no look at a deadline. `bare` leaves out this project's own encoding and packet functions too, and calls the sockets
with packed bytes. No master written in Python can be much faster.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.processes import total_cpu
from bench.programs import ROOT, answer
from jobpool.ipc import packets
from jobpool.ipc.fork_client import ForkServerClient
from jobpool.ipc.frames import RESULT_HEAD, RUN_HEAD, Frame, Loaded, Ready, Result, Spawned, decode, run_packet
from jobpool.ipc.process_options import ChildOptions, ForkServerConfig
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import encode
from jobpool.message.signing import EnvelopeSigner

TIMEOUT = 3600.0
"""Of each attempt, as the pool's default is: the children arm the same alarm."""

BOOT_LIMIT = 60.0


@dataclass(slots=True)
class Line:
    """The master's ends of one child's sockets."""

    work_in: socket.socket
    work: socket.socket
    channel: socket.socket
    pid: int = 0


Send = Callable[[Line, int, bytes], None]
Receive = Callable[[Line], int | None]


def run(workers: int, jobs: int, depth: int, bare: bool = False) -> dict[str, Any]:
    """Send `jobs` no-op attempts, `depth` at most to one child; what that took."""
    with Scoreboard.create(None, workers) as board:
        server = ForkServerClient(os.environ)
        try:
            server.tell(_config(), board.fd, os.environ)
            _await_loaded(server)
            lines = [_spawn(server, slot) for slot in range(workers)]
            _await_ready(server, lines)
            return _measure(lines, jobs, depth, bare)
        finally:
            server.close()
            server.wait(10.0)
            server.output.close()


def _config() -> ForkServerConfig:
    options = ChildOptions(apps=["bench.apps"], sys_path=[str(ROOT)])
    return ForkServerConfig(options, child_main="jobpool.child.main:run", app_loader="jobpool.handlers.app:load")


def _measure(lines: list[Line], jobs: int, depth: int, bare: bool) -> dict[str, Any]:
    send, receive = (_send_bare, _receive_bare) if bare else (_send, _receive)
    bodies = _bodies(jobs)
    pids = [line.pid for line in lines]
    children, own, begun = total_cpu(pids), time.process_time(), time.monotonic()
    _drive(lines, bodies, depth, send, receive)
    seconds = time.monotonic() - begun
    own = time.process_time() - own
    children = total_cpu(pids) - children
    thousands = jobs / 1000
    return {"seconds": seconds, "rate": jobs / seconds, "master": own / thousands, "children": children / thousands}


def _drive(lines: list[Line], bodies: list[bytes], depth: int, send: Send, receive: Receive) -> None:
    """Keep `depth` frames with each child until every body was sent and answered."""
    left = len(bodies)
    poll = select.epoll()
    by_fd = {line.channel.fileno(): line for line in lines}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    nonce = 0
    for _ in range(depth):
        for line in lines:
            if bodies:
                nonce += 1
                send(line, nonce, bodies.pop())
    while left:
        for fd, _ in poll.poll():
            line = by_fd[fd]
            while receive(line) is not None:
                left -= 1
                if bodies:
                    nonce += 1
                    send(line, nonce, bodies.pop())
    poll.close()


def _send(line: Line, nonce: int, body: bytes) -> None:
    packets.send(line.work, run_packet(nonce, 1, 0, 0, TIMEOUT, body))


def _receive(line: Line) -> int | None:
    try:
        got = packets.recv(line.channel)
    except BlockingIOError:
        return None
    frame = decode(got[0]) if got else None
    if not isinstance(frame, Result):
        raise RuntimeError(f"a child has sent {frame}")
    return frame.nonce


def _send_bare(line: Line, nonce: int, body: bytes) -> None:
    line.work.send(RUN_HEAD.pack(1, nonce, 1, 0, 0, TIMEOUT) + body)


def _receive_bare(line: Line) -> int | None:
    try:
        packet = line.channel.recv(4096)
    except BlockingIOError:
        return None
    nonce: int = RESULT_HEAD.unpack(packet)[1]
    return nonce


def _bodies(jobs: int) -> list[bytes]:
    definition = JobDefinition("noop", {}, queue="bench")
    signer = EnvelopeSigner()
    now = time.time()
    return [encode(definition, identifier=f"{n:016x}", queue="bench", signer=signer, now=now) for n in range(jobs)]


# --- getting there ----------------------------------------------------------------------------------------------------


def _spawn(server: ForkServerClient, slot: int) -> Line:
    work_in, work = packets.pair()
    channel, far = packets.pair()
    channel.setblocking(False)
    trace, (reading, output) = os.memfd_create("trace", os.MFD_CLOEXEC), os.pipe()
    server.spawn(slot + 1, slot, (work_in.fileno(), far.fileno(), trace, output))
    far.close()
    packets.close_all([trace, reading, output])
    return Line(work_in, work, channel)


def _await_loaded(server: ForkServerClient) -> None:
    frame = _frames(server)[0]
    if not isinstance(frame, Loaded):
        raise RuntimeError(f"the app does not load: {frame}")


def _await_ready(server: ForkServerClient, lines: list[Line]) -> None:
    waiting = len(lines)
    while waiting:
        for frame in _frames(server):
            if isinstance(frame, Spawned):
                lines[frame.child - 1].pid = frame.pid
                waiting -= 1
    for line in lines:
        _wait_for(line.channel.fileno())
        got = packets.recv(line.channel)
        if got is None or not isinstance(decode(got[0]), Ready):
            raise RuntimeError("a child is not ready")


def _frames(server: ForkServerClient) -> list[Frame]:
    """Return the next ones from the fork server; at least one."""
    frames: list[Frame] = []
    while not frames:
        _wait_for(server.fileno())
        for frame, fds in server.receive():
            packets.close_all(fds)
            frames.append(frame)
        if server.closed:
            raise RuntimeError("the fork server has ended")
    return frames


def _wait_for(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(BOOT_LIMIT * 1000):
        raise RuntimeError(f"nothing was heard for {BOOT_LIMIT:g} s")


if __name__ == "__main__":
    answer(run)
