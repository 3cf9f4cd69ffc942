"""The benchmarks' tables, counters and arithmetic: well formed, whatever the numbers are. No test looks at a time."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
from collections.abc import Iterator
from functools import partial
from io import StringIO
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from bench import efficiency, faults, job_counters, mixed, mixed_jobs, pools, report
from bench.figures import Figure, Section, Target, median, percentile, ratio
from bench.plan import Plan
from bench.rounds import Samples, interleaved, rates
from rich.console import Console
from support.waiting import wait_until


def figure(value: float, target: Target | None = None) -> Figure:
    return Figure("a figure", value, "ms", value, value, 1, target)


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        pytest.param(Target("≥", 2), 2, True, id="at least, reached"),
        pytest.param(Target("≥", 2), 1.9, False, id="at least, missed"),
        pytest.param(Target("≤", 2), 2, True, id="at most, reached"),
        pytest.param(Target("≤", 2), 2.1, False, id="at most, missed"),
        pytest.param(Target(">", 2), 2, False, id="more than, equal"),
        pytest.param(None, 2, None, id="no target"),
    ],
)
def test_a_figure_says_whether_its_target_is_met(target: Target | None, value: float, met: bool | None) -> None:
    assert figure(value, target).met is met


def test_a_percentile_is_a_sample_that_was_seen() -> None:
    samples = [float(n) for n in range(1, 201)]

    assert [percentile("x", "ms", samples, p).value for p in (50, 90, 99, 100)] == [100, 180, 198, 200]
    assert percentile("x", "ms", [7.0], 99).value == 7


def test_a_ratio_is_taken_within_each_round() -> None:
    assert ratio("x", [1.0, 20.0, 3.0], [2.0, 10.0, 2.0]).value == 1.5


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12,346"), (100.0, "100"), (2.5, "2.5"), (0.01234, "0.0123"), (0.0, "0")]
)
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert report.number(value) == text


def test_the_tables_of_the_readme_are_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\n### restart: old\n### memory: kept\n{report.END}\nafter\n")
    sections = [Section("restart", "a title", [figure(3, Target("≤", 2))], ["a note"])]

    report.write_readme(readme, sections, {"cores": 2})
    report.write_readme(readme, sections, {"cores": 2})

    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("### memory: kept\n") == text.count("### restart: a title\n") == 1
    assert text.count("Measured: cores 2") == 1
    assert "| a figure | 3 ms |  | 1 | ≤ 2 ms | NO |" in text.splitlines()


def test_a_readme_without_a_place_for_tables_is_left_alone(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("nothing")

    with pytest.raises(ValueError, match="no place for tables"):
        report.write_readme(readme, [], {})

    assert readme.read_text() == "nothing"


def test_a_tiny_benchmark_makes_a_table_and_json() -> None:
    section = efficiency.run(Plan(tiny=True))
    out = StringIO()

    report.show(section, Console(file=out, width=120))
    told = json.loads(report.as_json([section], report.machine()))

    assert "memory://" in out.getvalue()
    assert told["machine"]["cores"] >= 1
    (found,) = told["sections"]
    assert found["name"] == "efficiency"
    assert [f["count"] for f in found["figures"]] == [1, 1, 1, 1, 2]
    assert all(f["low"] <= f["value"] <= f["high"] for f in found["figures"])


def test_a_median_knows_what_it_was_made_of() -> None:
    assert median("x", "ms", [3.0, 1.0, 2.0]) == Figure("x", 2.0, "ms", 1.0, 3.0, 3)


def test_each_round_begins_with_another_contestant_and_samples_keep_their_order() -> None:
    turns: list[str] = []

    def contest(name: str) -> dict[str, float]:
        turns.append(name)
        return {"rate": float(len(turns))}

    samples = interleaved({name: partial(contest, name) for name in "abc"}, 2)

    assert turns == ["a", "b", "c", "b", "c", "a"]
    assert rates(samples) == {"a": [1, 6], "b": [2, 4], "c": [3, 5]}


def test_a_contestant_may_look_at_what_others_have_done() -> None:
    samples: Samples = {}
    seen: list[int] = []

    interleaved({"first": dict, "second": lambda: {"seen": seen.append(len(samples["first"]))}}, 1, samples)

    assert seen == [1]


def test_a_line_through_points() -> None:
    for case, points, line in [
        ("two points are the line", [(0.0, 10.0), (2.0, 40.0)], (10.0, 15.0)),
        ("so are more on one", [(0.1, 20.0), (0.5, 60.0), (0.9, 100.0)], (10.0, 100.0)),
    ]:
        assert pools.fitted(points) == pytest.approx(line), case


def test_a_line_errs_by_shares_and_not_by_amounts() -> None:
    job, request = pools.fitted([(0.0, 10.0), (0.0, 10.0), (1.0, 1000.0), (1.0, 1100.0)])

    assert job == pytest.approx(10.0)
    assert 1000.0 < job + request < 1050.0  # nearer to the smaller, of which the same amount is more


def test_the_model_says_how_far_it_is_off() -> None:
    samples = {
        "Redis, no-op, 1 pool": [{"requests": 0.1, "server": 20.0}],
        "Redis, 5 ms, 1 pool": [{"requests": 0.5, "server": 60.0}, {"requests": 0.7, "server": 80.0}],
    }

    found = {figure.name: figure.value for figure in pools._model("Redis", samples)}

    assert found["Redis, model: a job"] == pytest.approx(10.0)
    assert found["Redis, model: a request"] == pytest.approx(100.0)
    assert found["Redis, 5 ms, 1 pool: model / measured"] == pytest.approx(1.0)


def test_one_pool_has_no_share_of_others() -> None:
    sample = dict.fromkeys(pools.BUSY, 1.0)

    def of(count: int) -> list[Figure]:
        return pools._columns("x", [sample], pools._shown(count))

    assert {figure.name for figure in of(2)} - {figure.name for figure in of(1)} == {"x: fewest", "x: most"}


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


@pytest.mark.more
def test_times_to_notice_and_to_recover() -> None:
    section = faults.run(Plan(tiny=True))

    assert {figure.name for figure in section.figures} == {
        f"{name}, p{percent}"
        for percent in (50, 99)
        for name in (
            *("child killed: its end is noted", "child killed: its message runs again"),
            "connections cut, redis: the next ack is accepted",
            "reply of a settlement lost, redis: that settlement is known",
            "black hole, redis: after it, the first ack is accepted",
        )
    }
    assert all(0 < figure.value < 60_000 for figure in section.figures)


JOBS = 500
FORK = multiprocessing.get_context("fork")


def _work(jobs: int) -> None:
    for _ in range(jobs):
        job_counters.count()


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[job_counters.JobCounters]:
    with contextlib.closing(job_counters.JobCounters(tmp_path / "counters")) as made:
        monkeypatch.setenv(job_counters.VARIABLE, str(made.path))
        yield made


@contextlib.contextmanager
def workers(count: int) -> Iterator[list[BaseProcess]]:
    processes: list[BaseProcess] = [FORK.Process(target=_work, args=(JOBS,)) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()


def test_processes_wait_at_the_gate_and_then_count_every_job(counters: job_counters.JobCounters) -> None:
    with workers(4) as processes:
        wait_until(lambda: len(counters.pids()) == 4, what="four processes at the gate")
        assert counters.done() == (0, 0.0)

        begun = counters.open_gate()
        for process in processes:
            process.join(30)

        jobs, ended = counters.done()
        assert sorted(counters.pids()) == sorted(process.pid for process in processes if process.pid)
        assert counters.counts() == {process.pid: JOBS for process in processes}
    assert jobs == 4 * JOBS
    assert begun <= ended <= time.monotonic()


def test_without_a_file_nothing_is_counted_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(job_counters.VARIABLE, raising=False)

    with workers(1) as [process]:
        process.join(30)

        assert process.exitcode == 0
