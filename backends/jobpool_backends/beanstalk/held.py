"""A lease as the line that owns it knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobpool.lease import JobLease
from jobpool_backends.beanstalk.records import Record

if TYPE_CHECKING:
    from jobpool_backends.beanstalk.line import Line


@dataclass(slots=True, eq=False)
class Held:
    """A lease, and all that is needed to settle it.

    Attributes:
        job: The server's number.
        line: The owner.
        lease: As it was handed out, or renewed last.
        record: The header of the job.
        priority: The server's.
        ttr: Whole seconds that it lasts after each renewal.
        stashed: It was reserved by somebody who waited, and nobody has fetched it yet.
    """

    job: int
    line: Line
    lease: JobLease
    record: Record
    priority: int
    ttr: int
    stashed: bool = False

    @property
    def is_owned(self) -> bool:
        """Whether its line still has it; then nobody else can have settled it here."""
        return self.line.held.get(self.job) is self
