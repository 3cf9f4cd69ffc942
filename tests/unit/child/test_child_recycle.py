from __future__ import annotations

from jobpool.child.recycle import _lifetime
from jobpool.ipc.process_options import ChildOptions


def test_children_leave_at_different_times_and_a_child_always_at_the_same() -> None:
    options = ChildOptions(max_jobs=1000)
    drawn = [_lifetime(options, child) for child in range(200)]
    assert all(900 <= jobs <= 1100 for jobs in drawn)
    assert len(set(drawn)) > 50
    assert drawn == [_lifetime(options, child) for child in range(200)]
