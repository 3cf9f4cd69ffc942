"""The benchmark of mixed lengths: its arithmetic, and a tiny run. No test looks at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import mixed, mixed_jobs
from bench.plan import Plan


def test_share_used(tmp_path: Path) -> None:
    for case, naps, workers, share in [
        ("one after the other; the last does not count", [(0.0, 1.0), (1.0, 1.0), (2.0, 9.0)], 1, 1.0),
        ("and nothing beside it", [(0.0, 1.0), (1.0, 1.0), (2.0, 9.0)], 2, 0.5),
        ("a long one counts until the last begins", [(3.0, 1.0), (0.0, 10.0), (4.0, 1.0)], 2, 0.625),
    ]:
        notes = tmp_path / "notes"
        notes.write_text("".join(f"{begun} {seconds}\n" for begun, seconds in naps))
        assert mixed_jobs.share_used(notes, workers) == share, case


def test_all_run_the_same_jobs_in_the_same_order() -> None:
    mix = mixed.MIXES["3 % of 120 ms among 0.5 ms"]
    lengths = mixed_jobs.lengths(mix, 10_000)
    assert lengths == mixed_jobs.lengths(mix, 10_000)
    assert sum(lengths) / len(lengths) == pytest.approx(mixed_jobs.mean(mix), rel=0.1)


def test_a_tiny_run_beside_the_executor() -> None:
    plan = Plan(tiny=True)
    figures = mixed.shares(plan, {"SQLite": plan.sqlite}, "3 % of 120 ms among 0.5 ms", 2)
    assert [figure.name.rpartition(": ")[2] for figure in figures] == ["SQLite", "executor", "SQLite / executor"]
    assert all(0 < figure.value <= 1 for figure in figures[:2])
