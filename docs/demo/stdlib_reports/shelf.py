"""Where the reports lie, and the ledger of what the handlers did.

Both stand a handler that runs twice: a report is written beside its place and moved there in one step, so that a
second run overwrites the first with the same; a line of the ledger is one `write` on a file opened for appending, so
that lines of several processes never mix.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from stdlib_reports.measure import Totals


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger: a handler began. `at` is Unix time in seconds; `fence` names the delivery."""

    job: str
    handler: str
    attempt: int
    fence: int
    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class Shelf:
    """The demo's folder."""

    folder: Path

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    def prepare(self) -> None:
        """Make the folders."""
        self.reports.mkdir(parents=True, exist_ok=True)

    def put(self, totals: Totals, page: str) -> Path:
        """Write one report and the numbers that the index needs."""
        self._write(f"{totals.subject}.json", json.dumps(asdict(totals)))
        return self._write(f"{totals.subject}.html", page)

    def put_index(self, page: str) -> Path:
        return self._write("index.html", page)

    def totals(self) -> list[Totals]:
        """The numbers of every report on the shelf."""
        return [Totals(**json.loads(path.read_text("utf-8"))) for path in sorted(self.reports.glob("*.json"))]

    def note(self, job: str, handler: str, attempt: int, fence: int) -> None:
        """Add a line to the ledger."""
        entry = Entry(job, handler, attempt, fence, os.getpid(), time.time())
        line = json.dumps(asdict(entry)) + "\n"
        with self.ledger.open("ab", buffering=0) as ledger:
            ledger.write(line.encode())

    def entries(self) -> list[Entry]:
        """The ledger, oldest line first; empty when nothing ran."""
        if not self.ledger.exists():
            return []
        return [Entry(**json.loads(line)) for line in self.ledger.read_text("utf-8").splitlines()]

    def _write(self, name: str, text: str) -> Path:
        place = self.reports / name
        beside = self.reports / f".{name}.{os.getpid()}"
        beside.write_text(text, "utf-8")
        return beside.replace(place)
