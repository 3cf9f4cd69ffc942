"""The Service Bus of the tests, in a process of its own: what the SDK costs is measured, not what a cloud does."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import IO

from bench.programs import ROOT, clean_environment
from bench.servers import LIMIT, Asked, Server, ServerMissing

TESTS = ROOT / "tests"


class ServiceBusPeer(Server):
    """A place is the whole of it; each sample has a queue of its own name, made as soon as it is named."""

    namespace = ""

    @contextmanager
    def fresh(self) -> Iterator[str]:
        yield self.url

    def settle_down(self, url: str) -> None:
        """Do nothing: it puts nothing off."""

    def asked(self, url: str) -> nullcontext[Asked]:
        """Count nothing."""
        raise NotImplementedError("the peer counts no commands")


@contextmanager
def servicebus() -> Iterator[ServiceBusPeer]:
    """Yield a peer that runs until the context ends."""
    words = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        sys.executable,
        "-m",
        "servicebus_peer",
        "--port",
        "0",
        "--auto-create",
    ]
    environment = clean_environment(PYTHONPATH=os.pathsep.join([str(TESTS), str(ROOT)]))
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield ServiceBusPeer(_connection_string(process.stdout), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()


def _connection_string(lines: IO[str]) -> str:
    """Read the connection string from the line that the peer prints when it is ready."""
    if not select.select([lines], [], [], LIMIT)[0]:
        raise ServerMissing(f"the Service Bus peer was not ready within {LIMIT:g} s")
    said: dict[str, str] = json.loads(lines.readline())
    return said["connection_string"]
