from __future__ import annotations

import pytest

from jobpool.ipc import line_budget
from jobpool.ipc.line_budget import SAID_AT_ONCE, SAID_PER_S, LineBudget


def test_a_burst_then_so_many_lines_a_second_and_never_more_than_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(line_budget, "monotonic", lambda: now)
    budget = LineBudget()
    assert budget.left() == SAID_AT_ONCE
    assert budget.spend(SAID_AT_ONCE) == 0
    for passed, left in ((0.0, 0), (0.5 / SAID_PER_S, 0), (0.5 / SAID_PER_S, 1), (1.0, 1 + SAID_PER_S)):
        now += passed
        assert int(budget.left() + 1e-6) == left, passed
    assert int(budget.spend(40) + 1e-6) == SAID_PER_S - 39
    now += 3600
    assert budget.left() == SAID_AT_ONCE
