"""A small Azure Service Bus for tests: an AMQP 1.0 broker on loopback that the unmodified azure-servicebus SDK uses.

    from servicebus_peer import Control, PeerProcess, PeerThread, QueueProperties

    with PeerThread() as peer:  # a thread and an event loop of its own; or PeerProcess(folder): a program of its own
        peer.control.create_queue("jobs", lock_duration=5.0, max_delivery_count=10)
        client = ServiceBusClient.from_connection_string(peer.connection_string)
        peer.control.drop_connections()
        peer.control.turn(6.0)
        assert peer.control.counts("jobs").ready == 1

Both have `connection_string`, `url` (sb://127.0.0.1:PORT), `host`, `port`, `control`, and after `stop` a `start` on the
same port, with no queues: the restart that keeps them is `control.restart()`. `PeerProcess` is a
`support.servers.Server` as well: `kill`, `pause`, `resume`, `restart`. `PeerThread.call(function)` runs
`function(broker)` on the peer's thread. A fork inherits the sockets of a `PeerThread`, and with them its port: where
the code under test forks, take a `PeerProcess`.

Both take the fields of `Settings` by keyword; the `standing_clock` is for a thread alone. What a peer can be asked for
is in `control`.

By hand: `python -m servicebus_peer --port 5672 --auto-create` with `tests` on the path.

Its rules come from the OASIS AMQP 1.0 standard ("AMQP" and a section number in the docstrings) and from Microsoft's
public pages on Service Bus: "AMQP 1.0 in Azure Service Bus and Event Hubs protocol guide" (the protocol guide),
"AMQP 1.0 in Azure Service Bus: request-response-based operations" (the operations guide), "Message browsing", "Message
sequencing and timestamps", "Message transfers, locks, and settlement", "Overview of Service Bus dead-letter queues",
"Service Bus quotas". It has what jobpool uses: no sessions, topics, transactions, deferral, duplicate detection, times
to live, receive-and-delete, TLS or web sockets. It keeps nothing on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servicebus_peer.control import Control as Control
from servicebus_peer.looks import Counts as Counts
from servicebus_peer.looks import MessageLook as MessageLook
from servicebus_peer.properties import QueueProperties as QueueProperties
from servicebus_peer.settings import Settings as Settings
from servicebus_peer.thread import PeerThread as PeerThread

if TYPE_CHECKING:
    from servicebus_peer.process import PeerProcess as PeerProcess


def __getattr__(name: str) -> Any:
    """`PeerProcess`, when it is asked for: with it come the other servers of the tests and their client libraries, and
    the program that it starts is this package too, and would start three times as slowly."""
    if name == "PeerProcess":
        from servicebus_peer.process import PeerProcess

        return PeerProcess
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
