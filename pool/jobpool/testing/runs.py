"""The result of one delivery, with the details that a test wants."""

from __future__ import annotations

from dataclasses import dataclass

from jobpool.message.result import WorkerResult


@dataclass(frozen=True, slots=True)
class Run(WorkerResult):
    """One delivery of one message, in the order in which they happened.

    Attributes:
        id: The message's.
        queue: Where it was fetched from.
        handler: Its handler's name; "" for a body that is not a wire object.
        output: The handler's result and printed text, as the pool keeps it; "" when it did not come to its end.
        at: Unix time, in virtual seconds, at which it was fetched.
    """

    id: str = ""
    queue: str = ""
    handler: str = ""
    output: str = ""
    at: float = 0.0
