"""The working state of one call of the claim store."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from jobpool_backends.sqlite.moment import Moment
from jobpool_backends.sqlite.tally import Tally


@dataclass(slots=True)
class Step:
    """A write transaction that serves one queue. Its end writes the tally.

    Attributes:
        frees_jobs: Somebody who waits for jobs should look.
    """

    connection: sqlite3.Connection
    queue: str
    now: Moment
    tally: Tally = field(default_factory=Tally)
    frees_jobs: bool = False
