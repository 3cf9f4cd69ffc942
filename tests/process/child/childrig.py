"""A real child, child as the fork server bears it, over real sockets, with the test as its master.

As a module: `ChildProcess`. As a program, `python childrig.py WORK CHANNEL BOARD TRACE OUTPUT OPTIONS`: the child
itself, started by exec and not forked from the test, which may have threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from jobpool.ipc import packets
from jobpool.ipc.board_layout import ChildView
from jobpool.ipc.frames import BootFailed, Frame, Ready, Reply, Result, Run, Spawn, decode
from jobpool.ipc.process_options import ChildOptions
from jobpool.ipc.scoreboard import ChildPages, Scoreboard
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import encode
from jobpool.message.outcome import ResultKind
from jobpool.message.signing import EnvelopeSigner

HERE = str(Path(__file__).parent)
LIMIT = 20.0
"""Seconds after which a test gives up waiting: far above what anything here takes."""


def wait_until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    give_up = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < give_up, f"not true within {limit} s"
        time.sleep(0.002)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class ChildProcess:
    """One child and the master's ends of its sockets."""

    def __init__(self, **options: Any) -> None:
        options = {"apps": ["childhandlers"], "sys_path": [HERE], "preload": False, "kill_grace": 0.4} | options
        self._work, work = packets.pair()
        self.channel, channel = packets.pair()
        self.board = Scoreboard.create(None, 1)
        self.trace = os.memfd_create("trace")
        self.output, output = os.pipe()
        fds = [work.fileno(), channel.fileno(), self.board.fd, self.trace, output]
        arguments = [*map(str, fds), json.dumps(structs.asdict(ChildOptions(**options)))]
        self.process = subprocess.Popen([sys.executable, __file__, *arguments], pass_fds=fds, process_group=0)
        self._nonce = 0
        self._reader = packets.Reader(self.channel)
        # As the master does, the test keeps the reading end of `work`.
        self.work_reading = work
        channel.close()
        os.close(output)

    @property
    def page(self) -> ChildView:
        return self.board.slot(0).child.read()

    @property
    def title(self) -> str:
        return Path(f"/proc/{self.process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()

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

    def send_packet(self, packet: bytes) -> None:
        packets.send(self._work, packet)

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

    def run(self, handler: str, payload: Any = None, **more: Any) -> Result:
        """Run one job to its result."""
        nonce = self.send(handler, payload, **more)
        result = self.receive()
        assert isinstance(result, Result), result
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
            os.killpg(self.process.pid, signal.SIGKILL)

    def exit_status(self) -> int:
        return self.process.wait(LIMIT)

    def close(self) -> None:
        self.kill()
        self.process.wait(LIMIT)
        for sock in (self._work, self.work_reading, self.channel):
            sock.close()
        self.board.close()
        packets.close_all([self.trace, self.output])


def main(work: str, channel: str, board: str, trace: str, output: str, options: str) -> None:
    from jobpool.child.main import run
    from jobpool.ipc.inheritance import Inheritance
    from jobpool.ipc.postfork import live, settle_in

    fds = (int(work), int(channel), int(trace), int(output))
    for fd in (*fds, int(board)):
        os.set_inheritable(fd, False)
    with ChildPages(int(board)).mapped(0) as page:
        boot = (Spawn(7, 0), fds, page, ChildOptions(**json.loads(options)), os.getppid(), Inheritance())
        live(lambda: run(settle_in(*boot)))


if __name__ == "__main__":
    main(*sys.argv[1:])
