"""How a built-in handler fails: in one sentence. No traceback is kept of what jobpool itself raises."""

from __future__ import annotations

from jobpool.errors import JobpoolError, Unrecoverable


class Failure(JobpoolError):
    """The attempt failed; the next one may do better."""


class Refused(Unrecoverable):
    """The handler may not do this, or cannot take this payload: it never will, so the job is not tried again."""
