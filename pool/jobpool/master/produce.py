"""What a child asks of the broker through its master: to enqueue jobs, or only to sign them."""

from __future__ import annotations

from jobpool.broker.backend import QueueBackend
from jobpool.errors import JobpoolError
from jobpool.ipc.frames import Ask
from jobpool.master.events import Produced
from jobpool.message.definition import JobDefinition


def produce(backend: QueueBackend, child: int, ask: Ask) -> Produced:
    """Carry it out; an error is part of the answer. With `ask.pack` there is no I/O, else one call of the backend."""
    try:
        definitions = [JobDefinition.from_dict(item) for item in ask.definitions]
        if not ask.pack:
            return Produced(child, backend.enqueue_many(definitions))
        packed = [backend.pack(definition) for definition in definitions]
        return Produced(child, [message.id for message in packed], packed=[m.to_dict() for m in packed])
    except (JobpoolError, TypeError, KeyError, ValueError) as error:
        return Produced(child, [], type(error).__name__, str(error))
