"""The ledger: the acts of handlers, producers and pools, one JSON object a line, in one file for all of them.

Every line, and every batch of lines, is one `write` to a descriptor that was opened with O_APPEND. So lines of many
processes never mix, and the file's order is the order of the writes. A writer may leave half a line, which the next one
follows. Linux heeds SIGKILL between two pages of one `write` (1 or 2 of 3,000 kills of busy writers), and a disk may be
full. The reader drops that half: its writer is dead, or has an `OSError`.

Events:

* Handlers write `start`, `end` (about to return), `fail` (about to raise), `effect`, and `left` (they leave a process).
  They also write `follow` (a follow-up: its id in `tag`), and `spoilt` (about to spoil its process, in the way `tag`).
  The callback of a batch writes `told` (its counts in `tag`).
* The producer writes `try` (before an enqueue) and `enq` (it was answered). `enq` of the callback of a batch says that
  the batch was closed. It writes `cancel` when a cancel has its answer.
* The witness (witness.py) writes the broker's answers to a pool: `fetched`, `lost` (a lease that was not renewed, or
  broke), `reaped`. For a settle call: `asked` before it, then `settled`, or `unknown` if it raised.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from jobpool.errors import JobpoolError

LEDGER = "JOBPOOL_LEDGER"  # the environment variable that holds the file's path
LASTS = "TORTURE_LASTS"  # the environment variable that says for how many seconds faults strike


class LedgerBroken(JobpoolError):
    """A line of the file is not an event, so the jobs cannot be counted."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One event of one message. Unknown fields keep their default, and are not written.

    Attributes:
        attempt: The number of the attempt that this delivery would be: failures so far, and 1. Of a `move` or an
            `abandon`: the failures that it adds.
    """

    event: str
    id: str
    fence: int = 0  # the delivery's number; 0 = of no delivery that is known
    pool: str = ""
    pid: int = 0  # of the child, the master or the producer
    at: float = 0.0  # CLOCK_MONOTONIC seconds, as `since`, which is just before a broker was asked
    wall: float = 0.0
    since: float = 0.0
    holds: float = 0.0  # of `fetched`: seconds after `since` for which the lease holds, at least; 0 = not known
    attempt: int = 0
    crashes: int = 0  # as the handler, or the pool, was told. Of a `move`: the crashes that it adds.
    owner: str = ""
    verb: str = ""  # of a settlement: `ack`, `nack`, …; how a lease was lost: `renew` or `connection`
    answer: str = ""  # to a settlement: a `Settled` value, or the error's name; of `reaped`: `dead` or `back`
    tag: str = ""  # other facts of the event: a follow-up's id, a cause of death, a queue


encode = msgspec.json.Encoder().encode_lines
_DECODER = msgspec.json.Decoder(Line)
_BEGINNING = b'{"event":'  # of each line, and of nothing inside one: a quote in a string is escaped


def open_ledger(path: str | os.PathLike[str]) -> int:
    """Return a descriptor to append to; the file is made where it is missing. Programs do not inherit it."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def append(target: int | str | os.PathLike[str], lines: Sequence[Line]) -> None:
    """Write these lines in one piece, to a descriptor of `open_ledger` or to a file. Raises `OSError`."""
    if lines:
        write(target, encode(lines))


def write(target: int | str | os.PathLike[str], text: bytes) -> None:
    """Append this text in one piece, as `append` does."""
    descriptor = target if isinstance(target, int) else open_ledger(target)
    try:
        if os.write(descriptor, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        if descriptor is not target:
            os.close(descriptor)


class Ledger:
    """A reader of the file; lines are only added, so each is read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[Line] = []
        self._read = 0

    def read(self) -> list[Line]:
        """Return all whole lines so far, in the order of the writes. Raises `LedgerBroken` for a line that is none."""
        return self.after(0)

    def after(self, lines: int) -> list[Line]:
        """Return the same without the first `lines` of them."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for text in whole.splitlines():
            try:
                self._lines.append(_DECODER.decode(text[max(text.rfind(_BEGINNING), 0) :]))
            except ValueError as error:
                raise LedgerBroken(f"{self.path} holds no line of a ledger: {text[:100]!r}") from error
        return self._lines[lines:]
