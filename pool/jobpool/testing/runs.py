"""What became of one delivery, with what a test wants to look at."""

from __future__ import annotations

from dataclasses import dataclass

from jobpool.message.result import WorkerResult


@dataclass(frozen=True, slots=True)
class Run(WorkerResult):
    """One delivery of one message, in the order in which they happened.

    Attributes:
        id: The message's.
        queue: Where it was fetched from.
        handler: What it asked for; "" for a body that is no wire object.
        output: What the handler returned and printed, as the pool keeps it; "" when it did not come to its end.
        at: Unix time, in virtual seconds, at which it was fetched.
    """

    id: str = ""
    queue: str = ""
    handler: str = ""
    output: str = ""
    at: float = 0.0
