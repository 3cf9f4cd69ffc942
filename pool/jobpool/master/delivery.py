"""One lease in the master's hands, from its fetch to the answer of its settlement."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from jobpool.message.lease import JobLease
from jobpool.message.outcome import Outcome

_NONCES_AT_ONCE = 512


def nonces() -> Iterator[int]:
    """Yield numbers for attempts: 64 bits, random, never 0.

    A child knows the number of an attempt once it has taken the attempt's frame, and no sooner: so a handler cannot
    answer for the jobs that wait in its child's socket. Drawn by the hundred, for one costs a system call.
    """
    while True:
        yield from filter(None, struct.unpack(f"={_NONCES_AT_ONCE}Q", os.urandom(_NONCES_AT_ONCE * 8)))


@dataclass(slots=True, eq=False)
class Delivery:
    """Mutable on purpose: the lease is replaced when it is renewed.

    Attributes:
        nonce: Names this attempt in every frame and kill; of `nonces`.
        timeout: Seconds for the handler; 0 = unlimited.
        leased_at: CLOCK_MONOTONIC seconds.
        lasts: Seconds for which its lease holds each time it is renewed; 0 = not known yet. The renew thread's alone.
        slot: Index of the slot whose socket holds it, or -1.
        outcome: How it ended, once it has.
        refused_at: CLOCK_MONOTONIC seconds at which the broker first refused its settlement; 0 = it has not.
        lost: Its lease has ended: whatever comes of it, nothing is settled.
        acks_itself: Its handler may ack in a transaction of its own, and is given the ticket to do so.
        settling: A settlement is under way: its verdict is fixed, "lost" is ignored.
        began: CLOCK_MONOTONIC seconds at which its handler began, once `ran` is known.
        ran: Seconds for which it ran; None = it has not ended, or never ran.
        output, error: What its child said of it at the end. Kept as plain values, not in a `Result`: many deliveries
            wait for their settlement at once, and the garbage collector would look through all of their results.
    """

    lease: JobLease
    nonce: int
    timeout: float
    handler: str
    leased_at: float
    lasts: float = 0.0
    slot: int = -1
    acks_itself: bool = False
    settling: bool = False
    refused_at: float = 0.0
    lost: bool = False
    outcome: Outcome | None = None
    began: float = 0.0
    ran: float | None = None
    output: str = ""
    error: str = ""

    def end(self, began: float, ran: float, output: str, error: str) -> None:
        """What its child said, or what is known without it."""
        self.began, self.ran, self.output, self.error = began, ran, output, error
