"""The working state of one call of the claim store."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from jobpool_backends.sqlite.clock import Moment
from jobpool_backends.sqlite.counts import Counts


@dataclass(slots=True)
class Step:
    """A write transaction that serves one queue. Its end writes the counts.

    Attributes:
        frees_jobs: Somebody who waits for jobs should look.
    """

    connection: sqlite3.Connection
    queue: str
    now: Moment
    counts: Counts = field(default_factory=Counts)
    frees_jobs: bool = False
