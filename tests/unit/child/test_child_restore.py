"""When a child looks thoroughly at what a handler may have changed in its process."""

from __future__ import annotations

import subprocess
import sys

LOOKS = """
import os
from jobpool.child.restore import Tidy

tidy = Tidy()
tidy.restore(10.0, False)
os.nice(1)
for now, failed in ((10.05, False), (10.06, True), (10.07, False), (10.17, False)):
    print(tidy.restore(now, failed) or "fine")
"""


def test_a_costly_look_comes_after_a_failure_and_else_ten_times_a_second() -> None:
    """In a process of its own, which is spoilt by it."""
    told = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.splitlines() == ["fine", "user or rights", "fine", "user or rights"]
