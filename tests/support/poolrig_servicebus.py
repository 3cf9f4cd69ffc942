"""Service Bus for the rig: a peer in a process of its own.

Its queues are made anew for each test, and a connection string leads to all of them: a test has the whole peer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from servicebus_peer import Control, PeerProcess
from servicebus_peer.settings import connection_string

from support.peers import make_queues, rig_peer
from support.poolrig_brokers import Broker

LOCK = 5.0
"""Seconds that its queues lock a message for: the shortest that the service has."""

QUEUES = ("default", "reports", "mails", "failed-payloads")


class ServiceBusBroker(Broker):
    """A peer keeps nothing on disk: `server.kill` and `server.stop` lose its messages, `restart` does not."""

    settle_calls = r"\x00S\x15"
    """The performative `disposition`. Settlements by a management link, and renewals, are transfers as others are."""

    fetch_calls = r"\x00S\x13"
    """The performative `flow`: the reply that is lost is the messages."""

    server: PeerProcess
    lasts = LOCK

    @classmethod
    def on_shared_server(cls) -> Self:
        peer = rig_peer()
        peer.control.heal()
        _make_queues(peer.control)
        return cls(peer)

    @classmethod
    def on_its_own(cls, folder: Path) -> Self:
        peer = PeerProcess(folder)
        _make_queues(peer.control)
        return cls(peer, shared=False)

    def url_at(self, host: str, port: int) -> str:
        return f"{connection_string(host, port)}?lock={LOCK:g}"

    @property
    def control(self) -> Control:
        """For its clock and its faults."""
        return self.server.control

    def restart(self, *, keep_locks: bool = True) -> None:
        """As a failover of the service looks to its clients: all connections break, no message is lost."""
        self.control.restart(keep_locks)

    def commands(self) -> int:
        """Messages that came, went, or were settled or renewed, in all queues."""
        return sum(sum(self.control.counts(name).tally.values()) for name in self.control.queues())

    def disconnect_all(self) -> int:
        return self.control.close_connections()


def _make_queues(control: Control) -> None:
    for name in control.queues():
        control.delete_queue(name)
    make_queues(control, QUEUES, LOCK)
