"""`Jobs()` inside a child: its producer asks the master, which holds the broker's credentials and the signing key."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jobpool import errors
from jobpool.errors import FORKED, BackendUnavailable, InvalidJob, JobpoolError, Unsupported
from jobpool.ipc import frames, packets
from jobpool.ipc.frames import Ask, Reply, to_raw
from jobpool.message.batches import BatchCall, BatchStatus
from jobpool.message.definition import JobDefinition

if TYPE_CHECKING:
    from jobpool.broker.values import NewMessage

_FRAME_BYTES = 1024  # more than a question has beside its jobs
PACKED_AT_ONCE = 250  # jobs: some 5 ms of the master's loop


class ChannelProducer:
    """A `Producer` over the child's channel. From any thread; one question at a time."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._owed = 0

    def enqueue(self, definition: JobDefinition, /) -> str:
        """Enqueue one job now, even if this attempt fails later; return its id. See `enqueue_many`."""
        return self.enqueue_many([definition])[0]

    def enqueue_many(self, definitions: Iterable[JobDefinition], /) -> list[str]:
        """Enqueue jobs now, all or none; return their ids, in order.

        Raises:
            BackendUnavailable: The broker did not answer, or the master is gone. Nothing is known.
            InvalidJob: More than 8 MiB at once, or refused by the backend.
            Unsupported: In a process that the handler forked.

        Blocks until the master has the broker's answer.
        """
        return self._request(Ask(to_raw(definitions))).ids

    def call_batch(self, call: BatchCall, jobs: Sequence[JobDefinition] = ()) -> BatchStatus | None:
        """Carry out a call about a batch. See `QueueBackend.call_batch`; raises and blocks as `enqueue_many`."""
        return self._request(Ask(to_raw(jobs), batch=call)).batch

    def pack(self, definitions: Iterable[JobDefinition]) -> list[NewMessage]:
        """Return signed messages for these jobs, for the caller to enqueue. Raises and blocks as `enqueue_many`."""
        from jobpool.broker.values import NewMessage  # rarely needed, and dear to import

        jobs, packed = [*definitions], list[dict[str, Any]]()
        for start in range(0, len(jobs), PACKED_AT_ONCE):
            packed += self._request(Ask(to_raw(jobs[start : start + PACKED_AT_ONCE]), pack=True)).packed
        return [NewMessage.from_dict(fields) for fields in packed]

    def _request(self, ask: Ask) -> Reply:
        if os.getpid() != self._pid:
            raise Unsupported(FORKED)
        packet = ask.encode()
        if len(packet) > frames.MAX_ENQUEUED_BYTES + _FRAME_BYTES:
            raise InvalidJob(
                f"these jobs have {len(packet)} bytes together, and at most {frames.MAX_ENQUEUED_BYTES} go at once:"
                " enqueue them in several calls"
            )
        with self._lock:
            reply = self._ask(packet)
        if not reply.kind:
            return reply
        kind: Any = getattr(errors, reply.kind, None)
        known = isinstance(kind, type) and issubclass(kind, JobpoolError)
        raise (kind if known else BackendUnavailable)(reply.error)

    def _ask(self, packet: bytes) -> Reply:
        try:
            # Counted before the question is out: the alarm may end this attempt's wait, and the answer still comes.
            self._owed += 1
            packets.send_announced(self._channel, packet)
            while True:
                received = packets.recv(self._channel)
                if received is None:
                    raise BackendUnavailable("the pool's master is gone")
                packets.close_all(received[1])
                reply = frames.decode(received[0])
                if not isinstance(reply, Reply):
                    raise frames.BadFrame(f"a {type(reply).__name__} is not an answer")
                self._owed -= 1
                if not self._owed:
                    return reply
        except (OSError, frames.BadFrame, packets.PacketTooLarge) as error:  # not sent, or its answer was taken
            self._owed -= 1
            raise BackendUnavailable(f"the pool's master does not answer: {error}") from error
