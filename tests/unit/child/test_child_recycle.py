from __future__ import annotations

import pytest

from jobpool.child.recycle import _lifetime, resident
from jobpool.ipc.process_options import ChildOptions


def test_children_leave_at_different_times_and_a_child_always_at_the_same() -> None:
    options = ChildOptions(max_jobs=1000, max_jobs_jitter=0.1)
    drawn = [_lifetime(options, child) for child in range(200)]
    assert all(900 <= jobs <= 1100 for jobs in drawn)
    assert len(set(drawn)) > 50
    assert drawn == [_lifetime(options, child) for child in range(200)]


@pytest.mark.parametrize(("most", "jitter", "drawn"), [(0, 0.1, 0), (-1, 0.1, 0), (1, 1.0, None), (10, 0.0, 10)])
def test_the_bounds_of_a_lifetime(most: int, jitter: float, drawn: int | None) -> None:
    jobs = _lifetime(ChildOptions(max_jobs=most, max_jobs_jitter=jitter), 3)
    assert jobs >= 1 if drawn is None else jobs == drawn


def test_resident_memory_is_measured() -> None:
    before = resident()
    kept = bytearray(50 << 20)
    assert resident() - before > 40 << 20
    del kept
