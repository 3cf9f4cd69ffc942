"""Counts of a run so far, for its watchers: from the ledger as it grows. No judgement (see `oracle`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jobpool_torture.ledger import Ledger, Line
from jobpool_torture.message_history import ACCEPTED


@dataclass(slots=True)
class Tally:
    """Counts of events.

    Attributes:
        enqueued: Jobs whose enqueue was answered.
        runs: Begun by handlers.
        done: Acked.
        failed: Given back as failed attempts.
        crashed: Taken back by a reaper.
        dead: Made dead letters.
        refused: Settlements that came too late.
        unknown: Settlements to which no answer came.
        written: Lines of the ledger.
    """

    enqueued: int = 0
    runs: int = 0
    done: int = 0
    failed: int = 0
    crashed: int = 0
    dead: int = 0
    refused: int = 0
    unknown: int = 0
    written: int = 0

    def add(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self.written += 1
            match line.event:
                case "enq":
                    self.enqueued += 1
                case "start":
                    self.runs += 1
                case "unknown":
                    self.unknown += 1
                case "reaped":
                    self.crashed += 1
                    self.dead += line.answer == "dead"
                case "settled":
                    self._settled(line.verb, line.answer)

    def _settled(self, verb: str, answer: str) -> None:
        if answer not in ACCEPTED:
            self.refused += 1
            return
        self.done += verb == "ack"
        self.failed += verb == "nack"
        self.dead += verb == "abandon"


class LedgerTally:
    """A tally that follows a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tally = Tally()

    def look(self) -> Tally:
        """Read up to the newest line; return the same object each time."""
        self._tally.add(self._ledger.after(self._tally.written))
        return self._tally
