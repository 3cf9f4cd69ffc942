from __future__ import annotations

import subprocess
import sys

import pytest

from jobpool.child.recycle import _lifetime
from jobpool.ipc.process_options import ChildOptions


def test_children_leave_at_different_times_and_a_child_always_at_the_same() -> None:
    options = ChildOptions(max_jobs=1000)
    drawn = [_lifetime(options, child) for child in range(200)]
    assert all(900 <= jobs <= 1100 for jobs in drawn)
    assert len(set(drawn)) > 50
    assert drawn == [_lifetime(options, child) for child in range(200)]


@pytest.mark.parametrize(("most", "drawn"), [(0, 0), (-1, 0), (1, 1)])
def test_the_bounds_of_a_lifetime(most: int, drawn: int) -> None:
    assert _lifetime(ChildOptions(max_jobs=most), 3) == drawn


GROWS = """
from jobpool.child.recycle import resident
before = resident()
kept = bytearray(50 << 20)
print(resident() - before)
"""


def test_resident_memory_is_measured() -> None:
    """In a process of its own: the kernel takes pages from a large one that has not used them for long."""
    grown = subprocess.run([sys.executable, "-c", GROWS], capture_output=True, text=True, timeout=60, check=True)
    assert int(grown.stdout) > 40 << 20
