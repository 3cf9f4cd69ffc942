"""The record of a nemesis: a JSON line for each event, for programs and people to read afterwards."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobpool_torture.schedule import Fault


class Record:
    """A file that grows; it is made with its first line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fault(self, event: str, fault: Fault, said: str, pids: Sequence[int] = ()) -> None:
        """Record the deed of a fault, or its end."""
        self.write(event, said, pids=pids, number=fault.number, kind=fault.kind, pool=fault.pool)

    def write(self, event: str, said: str, *, pids: Sequence[int] = (), **about: Any) -> None:
        """Write one line in one write, so that an interrupt leaves no half of it."""
        when = {"event": event, "at": time.monotonic(), "wall": time.time()}
        line = json.dumps({**when, "said": said, "pids": list(pids), **about}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
