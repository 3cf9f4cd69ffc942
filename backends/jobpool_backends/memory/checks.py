"""The one finding about a queue in a process's own memory."""

from __future__ import annotations

from jobpool.broker.finding import Finding, Level

PLACE = Finding(
    "memory.place",
    Level.PROBLEM,
    "memory:// keeps its messages in this process",
    "they end with it, and no other process sees them",
    "use sqlite:///jobpool.db; memory:// is for tests",
)
