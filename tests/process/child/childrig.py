"""Real children of a real fork server, over real sockets, with the test as their master."""

from __future__ import annotations

import select
import socket
from pathlib import Path
from typing import Any

from support.nurse import LIMIT, Child, Nurse

from jobpool.ipc import packets
from jobpool.ipc.board_layout import ChildView
from jobpool.ipc.frames import Exited, Loaded, Reply, Result, Spawned, run_packet
from jobpool.ipc.scoreboard import SlotPages
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import encode
from jobpool.message.outcome import ResultKind
from jobpool.message.signing import EnvelopeSigner

HERE = str(Path(__file__).parent)
GRACE = 0.4
"""Seconds between the hard timeout and the kill, unless a test says otherwise."""
SLOTS = 512
"""Children of one server: each has a slot of its own, so that none finds the page of another."""


class ChildProcess(Child):
    """One child and the master's ends of its sockets."""

    server: Server

    @property
    def slot(self) -> SlotPages:
        return self.server.board.slot(self.serial - 1)

    @property
    def page(self) -> ChildView:
        return self.slot.child.read()

    @property
    def title(self) -> str:
        return Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()

    def send(self, handler: str, payload: Any = None, *, timeout: float = 10.0, attempts: int = 0, **more: Any) -> int:
        """Send an attempt; its nonce."""
        definition = JobDefinition(handler, {} if payload is None else payload, **more)
        body = encode(definition, identifier="0123456789abcdef", queue="default", signer=EnvelopeSigner(), now=0.0)
        return self.send_body(body, timeout=timeout, attempts=attempts)

    def send_body(self, body: bytes, *, timeout: float = 10.0, attempts: int = 0) -> int:
        self._nonce += 1
        packets.send(self.work, run_packet(self._nonce, 3, attempts, 1, timeout, body))
        return self._nonce

    def end_work(self) -> None:
        """As the master does, who keeps the reading end too."""
        self.work.shutdown(socket.SHUT_WR)

    def reply(self, reply: Reply) -> None:
        packets.send(self.channel, reply.encode())

    def result(self) -> Result:
        frame = self.hear()
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

    def exited(self) -> Exited:
        """Wait until the fork server has collected it."""
        return self.server.hear(Exited, self)

    def exit_status(self) -> int:
        exited = self.exited()
        return exited.code if exited.code is not None else -(exited.signal or 0)


class Server(Nurse):
    """A fork server that has imported the app, and the board of its children."""

    kind = ChildProcess

    def __init__(self, **options: Any) -> None:
        told: dict[str, Any] = {"apps": ["childhandlers"], "sys_path": [HERE], "kill_grace": GRACE} | options
        super().__init__("jobpool.handlers.app:load", "jobpool.child.main:run", slots=SLOTS, **told)
        self.loaded = self.hear(Loaded)

    def start_child(self) -> ChildProcess:
        """Have a child forked; it may not be ready yet."""
        child = self.spawn(self._serial)
        assert isinstance(child, ChildProcess)
        child.server = self
        self.hear(Spawned, child)
        return child

    def drop(self, child: ChildProcess) -> None:
        """Kill it, whether or not the test has heard of its end, and forget it."""
        child.kill()
        assert select.select([child.pidfd], [], [], LIMIT)[0], "it is dead"
        self.children.pop(child.serial).close()
