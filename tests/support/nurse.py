"""A small stand-in for a master: starts a real fork server, asks for children, and tells what it heard."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from jobpool.ipc import packets
from jobpool.ipc.fork_client import ForkServerClient
from jobpool.ipc.frames import Exited, Frame, Ready, Result, Spawned, decode, run_packet
from jobpool.ipc.process_options import ChildOptions, ForkServerConfig
from jobpool.ipc.scoreboard import Scoreboard
from support.stalls import Stopwatch

LIMIT = 20.0
"""Seconds after which a test gives up waiting: far above what anything here takes."""

SUPPORT = str(Path(__file__).parent)
TESTS = Path(__file__).parents[1]
F = TypeVar("F")


class Watch:
    """Processes that are watched through pidfds, so that no other process can be taken for one of them."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._left = {os.pidfd_open(pid): pid for pid in pids}

    def wait(self, limit: float) -> list[int]:
        """The pids that are still alive after at most `limit` seconds, without those of the machine's own pauses."""
        watch = Stopwatch()
        left = limit
        while self._left and left > 0:
            left = limit - watch.seconds()  # if that is over, this look is the last
            poll = select.poll()
            for pidfd in self._left:
                poll.register(pidfd, select.POLLIN)
            for pidfd, _ in poll.poll(max(0.0, left) * 1000):
                del self._left[pidfd]
                os.close(pidfd)
        alive = list(self._left.values())
        packets.close_all(list(self._left))
        self._left.clear()
        return alive


@dataclass
class Child:
    """A child that was asked for."""

    serial: int
    work: Any
    work_reading: Any
    channel: Any
    trace: int
    output: int
    pid: int = 0
    pidfd: int = -1
    _nonce: int = 0

    def __post_init__(self) -> None:
        self.channel.settimeout(LIMIT)
        self._reader = packets.Reader(self.channel)

    def wait_ready(self) -> Self:
        frame = self.hear()
        assert isinstance(frame, Ready), frame
        return self

    def hear(self) -> Frame | None:
        """The next frame on its channel; None at the end."""
        try:
            packet = self._reader.read()
        except ConnectionResetError:  # it died with something unread
            return None
        return None if packet is None else decode(packet)

    def tell(self, command: str) -> None:
        """Have it do something."""
        self._nonce += 1
        packets.send(self.work, run_packet(self._nonce, 1, 0, 0, 0.0, command.encode()))

    def ask(self, command: str) -> Any:
        """What came of it."""
        self.tell(command)
        frame = self.hear()
        assert isinstance(frame, Result), frame
        return json.loads(frame.output)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        for sock in (self.work, self.work_reading, self.channel):
            sock.close()
        packets.close_all([fd for fd in (self.trace, self.output, self.pidfd) if fd >= 0])
        self.trace = self.output = self.pidfd = -1


class Nurse:
    """Use it in a `with`: it leaves no process and no descriptor behind.

    `app` and `main`: functions of `childmains`, or written as module:function.
    """

    kind: ClassVar[type[Child]] = Child

    def __init__(
        self,
        app: str = "plain",
        main: str = "obey",
        *,
        slots: int = 4,
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.board = Scoreboard.create(None, slots)
        main, app = (name if ":" in name else f"childmains:{name}" for name in (main, app))
        told: dict[str, Any] = {"sys_path": [SUPPORT]} | options
        config = ForkServerConfig(ChildOptions(**told), main, app, "test")
        environ = os.environ if environ is None else environ
        self.server = ForkServerClient(environ)
        self.server.tell(config, self.board.fd, environ)
        self.children: dict[int, Child] = {}
        self._heard: list[Frame] = []
        self._serial = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        try:
            self.server.wait(LIMIT)
        finally:
            self.server.kill()
            self.server.wait(LIMIT)
            for child in self.children.values():
                child.close()
            self.server.output.close()
            self.board.close()

    def spawn(self, slot: int = 0) -> Child:
        """Ask for a child; do not wait."""
        self._serial += 1
        work, work_reading = packets.pair()
        channel, channel_of_child = packets.pair()
        child = self.kind(self._serial, work, work_reading, channel, os.memfd_create("trace"), _appending("output"))
        self.children[child.serial] = child
        self.server.spawn(
            child.serial, slot, (work_reading.fileno(), channel_of_child.fileno(), child.trace, child.output)
        )
        channel_of_child.close()
        return child

    def bear(self, slot: int = 0) -> Child:
        """Ask for a child and wait until it is ready."""
        child = self.spawn(slot)
        self.hear(Spawned, child)
        child.wait_ready()
        return child

    def hear(self, kind: type[F], child: Child | None = None, limit: float = LIMIT) -> F:
        """The first frame of this kind, about this child; others are kept for later."""
        give_up = time.monotonic() + limit
        while True:
            for frame in self._heard:
                if isinstance(frame, kind) and (child is None or getattr(frame, "child", None) == child.serial):
                    self._heard.remove(frame)
                    return frame
            left = give_up - time.monotonic()
            assert left > 0, f"no {kind.__name__}; heard {self._heard}"
            assert not self.server.closed, f"the fork server has ended; heard {self._heard}"
            self._listen(left)

    def hear_end(self, limit: float = LIMIT) -> list[Frame]:
        """Everything until the fork server hangs up."""
        give_up = time.monotonic() + limit
        while not self.server.closed:
            assert time.monotonic() < give_up, "the fork server goes on"
            self._listen(1.0)
        heard, self._heard = self._heard, []
        return heard

    def _listen(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self.server, select.POLLIN)
        poll.poll(seconds * 1000)
        for frame, fds in self.server.receive():
            self._heard.append(frame)
            if isinstance(frame, Spawned):
                child = self.children[frame.child]
                child.pid, [child.pidfd] = frame.pid, fds

    def end(self, child: Child) -> Exited:
        """Kill it, hear of it, forget it."""
        child.kill()
        exited = self.hear(Exited, child)
        self.children.pop(child.serial).close()
        return exited


def _appending(name: str) -> int:
    """A memory file that is written to at its end, whoever writes."""
    memory = os.memfd_create(name)
    try:
        return os.open(f"/proc/self/fd/{memory}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    finally:
        os.close(memory)


def text_of(fd: int) -> str:
    """All that was written to a trace or an output."""
    return os.pread(fd, 1 << 20, 0).decode()
