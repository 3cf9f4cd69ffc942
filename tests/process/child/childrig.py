"""Real children of a real fork server, over real sockets, with the test as their master."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any, TypeVar

from jobpool.ipc import packets
from jobpool.ipc.board_layout import ChildView
from jobpool.ipc.fork_client import ForkServerClient
from jobpool.ipc.frames import BootFailed, Exited, Frame, Loaded, Ready, Reply, Result, Run, Spawned, decode
from jobpool.ipc.process_options import ChildOptions, ForkServerConfig
from jobpool.ipc.scoreboard import Scoreboard, SlotPages
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import encode
from jobpool.message.outcome import ResultKind
from jobpool.message.signing import EnvelopeSigner

HERE = str(Path(__file__).parent)
LIMIT = 20.0
"""Seconds after which a test gives up waiting: far above what anything here takes."""
GRACE = 0.4
"""Seconds between the hard timeout and the kill, unless a test says otherwise."""
SLOTS = 512
"""Children of one server: each has a slot of its own, so that none finds the page of another."""
Kind = TypeVar("Kind", Spawned, Exited, Loaded)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class Server:
    """A fork server that has imported the app, and the board of its children."""

    def __init__(self, **options: Any) -> None:
        told: dict[str, Any] = {"apps": ["childhandlers"], "sys_path": [HERE], "kill_grace": GRACE} | options
        config = ForkServerConfig(ChildOptions(**told), "jobpool.child.main:run", "jobpool.handlers.app:load")
        self.board = Scoreboard.create(None, SLOTS)
        self.children = 0
        self._heard: list[tuple[Frame, list[int]]] = []
        self._client = ForkServerClient(os.environ)
        self._client.tell(config, self.board.fd, os.environ)
        self.loaded = self.hear(Loaded)[0]

    def spawn(self, fds: tuple[int, int, int, int]) -> tuple[int, int, int]:
        """Have a child forked with these descriptors; its slot, pid and pidfd."""
        slot = self.children
        self.children += 1
        self._client.spawn(slot, slot, fds)
        spawned, [pidfd] = self.hear(Spawned, slot)
        return slot, spawned.pid, pidfd

    def hear(self, kind: type[Kind], child: int = 0) -> tuple[Kind, list[int]]:
        """Wait for the frame of this kind, about this child, and what came with it."""
        give_up = time.monotonic() + LIMIT
        while time.monotonic() < give_up and not self._client.closed:
            for frame, fds in self._heard:
                if isinstance(frame, kind) and getattr(frame, "child", child) == child:
                    self._heard.remove((frame, fds))
                    return frame, fds
            select.select([self._client], [], [], 1.0)
            self._heard += self._client.receive()
        raise AssertionError(f"no {kind.__name__}")

    def close(self) -> None:
        self._client.close()
        self._client.wait(LIMIT)
        self._client.output.close()
        self.board.close()


class ChildProcess:
    """One child and the master's ends of its sockets."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._work, work = packets.pair()
        self.channel, channel = packets.pair()
        trace, (self._output, output) = os.memfd_create("trace"), os.pipe()
        self.number, self.pid, self._pidfd = server.spawn((work.fileno(), channel.fileno(), trace, output))
        self._nonce = 0
        self._reader = packets.Reader(self.channel)
        # As the master does, the test keeps the reading end of `work`.
        self.work_reading = work
        channel.close()
        packets.close_all([trace, output])

    @property
    def slot(self) -> SlotPages:
        return self._server.board.slot(self.number)

    @property
    def page(self) -> ChildView:
        return self.slot.child.read()

    @property
    def title(self) -> str:
        return Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()

    def ready(self) -> ChildProcess:
        frame = self.receive()
        if isinstance(frame, BootFailed):
            raise AssertionError(frame.error)
        assert isinstance(frame, Ready)
        return self

    def send(self, handler: str, payload: Any = None, *, timeout: float = 10.0, attempts: int = 0, **more: Any) -> int:
        """Send a `Run` frame; its nonce."""
        definition = JobDefinition(handler, {} if payload is None else payload, **more)
        body = encode(definition, identifier="0123456789abcdef", queue="default", signer=EnvelopeSigner(), now=0.0)
        return self.send_body(body, timeout=timeout, attempts=attempts)

    def send_body(self, body: bytes, *, timeout: float = 10.0, attempts: int = 0) -> int:
        self._nonce += 1
        packets.send(self._work, Run(self._nonce, 3, attempts, 1, timeout, body).encode())
        return self._nonce

    def end_work(self) -> None:
        """As the master does, who keeps the reading end too."""
        self._work.shutdown(socket.SHUT_WR)

    def receive(self, limit: float = LIMIT) -> Frame | None:
        """The next frame on the channel; None at its end."""
        self.channel.settimeout(limit)
        try:
            packet = self._reader.read()
        except ConnectionResetError:  # it died with something unread
            return None
        return None if packet is None else decode(packet)

    def reply(self, reply: Reply) -> None:
        packets.send(self.channel, reply.encode())

    def result(self) -> Result:
        frame = self.receive()
        assert isinstance(frame, Result), frame
        return frame

    def run(self, handler: str, payload: Any = None, **more: Any) -> Result:
        """Run one job to its result."""
        nonce = self.send(handler, payload, **more)
        result = self.result()
        assert result.nonce == nonce
        return result

    def succeed(self, handler: str = "noop", payload: Any = None, **more: Any) -> Result:
        result = self.run(handler, payload, **more)
        assert result.kind is ResultKind.SUCCEEDED, result.error
        return result

    def silent(self, seconds: float) -> bool:
        """Whether nothing comes on the channel for so long."""
        return not select.select([self.channel], [], [], seconds)[0]

    def kill(self) -> None:
        """What the master does at deadline + grace."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def exited(self) -> Exited:
        """Wait until the fork server has collected it."""
        return self._server.hear(Exited, self.number)[0]

    def exit_status(self) -> int:
        exited = self.exited()
        return exited.code if exited.code is not None else -(exited.signal or 0)

    def close(self) -> None:
        self.kill()
        assert select.select([self._pidfd], [], [], LIMIT)[0], "it is dead"
        for sock in (self._work, self.work_reading, self.channel):
            sock.close()
        packets.close_all([self._output, self._pidfd])
