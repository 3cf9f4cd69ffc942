"""The Service Bus of the tests, in a process of its own: what the SDK costs is measured, not what a cloud does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from servicebus_peer import PeerProcess

from bench.servers import Asked, Server


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
def servicebus(directory: Path) -> Iterator[ServiceBusPeer]:
    """Yield a peer that runs until the context ends."""
    with PeerProcess(directory, auto_create=True) as program:
        yield ServiceBusPeer(program, program.connection_string)
