"""The child as the pool has it: forked by the real fork server, the app preloaded."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from childrig import HERE, LIMIT

from jobpool.ipc import packets
from jobpool.ipc.fork_client import ForkServerClient
from jobpool.ipc.frames import Exited, Frame, Loaded, Ready, Result, Run, Spawned, decode
from jobpool.ipc.process_options import ChildOptions, ForkServerConfig
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import encode
from jobpool.message.outcome import ResultKind
from jobpool.message.signing import EnvelopeSigner


class Pool:
    """A fork server and one child at a time."""

    def __init__(self) -> None:
        options = ChildOptions(apps=["childhandlers"], sys_path=[HERE], kill_grace=0.4)
        config = ForkServerConfig(options, "jobpool.child.main:run", "jobpool.handlers.app:load", "test")
        self.board = Scoreboard.create(None, 1)
        self.server = ForkServerClient.start(config, self.board.fd, os.environ)
        self.pid = 0
        self._fds: list[int] = []
        self._heard: list[tuple[Frame, list[int]]] = []
        self._nonce = 0

    def close(self) -> None:
        self.server.close()
        self.server.wait(LIMIT)
        packets.close_all(self._fds)
        self.board.close()

    def hear(self, kind: type) -> Frame:
        give_up = time.monotonic() + LIMIT
        while time.monotonic() < give_up:
            for frame, fds in self._heard:
                if isinstance(frame, kind):
                    self._heard.remove((frame, fds))
                    self._fds += fds
                    return frame
            poll = select.poll()
            poll.register(self.server, select.POLLIN)
            poll.poll(1000)
            self._heard += self.server.receive()
        raise AssertionError(f"no {kind.__name__}")

    def bear(self) -> None:
        self.work, work = packets.pair()
        self.channel, channel = packets.pair()
        trace, (reading, output) = os.memfd_create("trace"), os.pipe()
        self.server.spawn(1, 0, (work.fileno(), channel.fileno(), trace, output))
        spawned = self.hear(Spawned)
        self.pid = spawned.pid  # type: ignore[attr-defined]
        self._fds += [trace, reading, output, *(sock.detach() for sock in (work, channel))]
        assert isinstance(self.answer(), Ready)

    def answer(self) -> Frame:
        self.channel.settimeout(LIMIT)
        packet = packets.Reader(self.channel).read()
        assert packet is not None
        return decode(packet)

    def run(self, handler: str, payload: object = None, timeout: float = 10.0) -> Result:
        self._nonce += 1
        definition = JobDefinition(handler, payload or {})
        body = encode(definition, identifier="a1", queue="default", signer=EnvelopeSigner(), now=0.0)
        packets.send(self.work, Run(self._nonce, 1, 0, 0, timeout, body).encode())
        result = self.answer()
        assert isinstance(result, Result)
        return result


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    try:
        yield pool
    finally:
        if pool.pid:
            pool.work.close()
            pool.channel.close()
        pool.close()


def test_the_fork_server_tells_the_handlers_and_its_child_runs_them(pool: Pool) -> None:
    loaded = pool.hear(Loaded)
    assert isinstance(loaded, Loaded)
    assert loaded.preloaded
    assert "sum_up" in [info.name for info in loaded.handlers]

    pool.bear()
    assert pool.run("sum_up", {"customer": 7}).output == "7 2026-06\nadding\n"
    assert pool.run("add_async", {"a": 1, "b": 2}).output == "3"
    assert "to descriptor 1" in pool.run("print_everywhere").output
    for handler in ("fail", "leave_ended_process", "fork_and_return", "steal_streams"):
        assert pool.run(handler, {}).leaving == ""

    late = pool.run("hang_sleep", timeout=0.2)
    assert (late.kind, late.leaving) == (ResultKind.TIMEOUT, "timeout")
    exited = pool.hear(Exited)
    assert isinstance(exited, Exited)
    assert (exited.code, exited.signal, exited.strays) == (0, None, 0)


def test_a_child_costs_little_memory_of_its_own(pool: Pool) -> None:
    pool.hear(Loaded)
    pool.bear()
    for _ in range(200):
        pool.run("noop")
    rollup = Path(f"/proc/{pool.pid}/smaps_rollup").read_text().split("\n")
    private = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_")) / 1024
    print(f"private: {private:.1f} MiB")
    assert private <= 8.0
