"""How much of two cores reaches the jobs: 20 ms of CPU work in a pool, against the same work in bare processes."""

from __future__ import annotations

from typing import NamedTuple

from bench.cpu_work import loops_for
from bench.figures import Section, Target, median, ratio
from bench.plan import Plan
from bench.programs import sample

WORKERS = 2
TITLE = "20 ms of CPU work a job, 2 workers, against the same work in 2 bare processes"
JOB_SECONDS = 0.02
NOTE = (
    "Time can come out above 100 % when other programs run: they take more from two bare processes than from a pool. "
    "CPU is the work's part of all CPU time that was used, whatever else runs."
)


class Sample(NamedTuple):
    """Seconds that passed, and CPU seconds that were used."""

    wall: float
    cpu: float


def run(plan: Plan) -> Section:
    """Run interleaved; each pool run stands between two bare runs, so drift of the machine falls out."""
    jobs = plan.pick(800, 100, 4)  # of 200, the first and the last ones weigh two per cent
    loops = _loops(jobs)
    bare = [_bare(jobs, loops)]
    pools: dict[str, list[Sample]] = {"memory://": [], "sqlite://": []}
    ideal: list[Sample] = []
    for _ in range(plan.turns()):
        pools["memory://"].append(_pool("memory://", jobs, loops))
        with plan.sqlite() as url:
            pools["sqlite://"].append(_pool(url, jobs, loops))
        bare.append(_bare(jobs, loops))
        ideal.append(Sample(*(50 * (a + b) for a, b in zip(bare[-2], bare[-1], strict=True))))
    figures = []
    for name, took in pools.items():
        figures.append(
            ratio(f"{name}, time, % of ideal", [s.wall for s in ideal], [s.wall for s in took], Target("≥", 96))
        )
        figures.append(ratio(f"{name}, CPU, % of ideal", [s.cpu for s in ideal], [s.cpu for s in took]))
    figures.append(median("bare processes", "ms a job and core", [s.wall / jobs * WORKERS * 1e3 for s in bare]))
    return Section("efficiency", TITLE, figures, [NOTE])


def _loops(jobs: int) -> int:
    """Return how many take 20 ms of CPU time when both cores work: two threads of one core slow each other down."""
    guess = loops_for(JOB_SECONDS)
    return max(1, round(guess * JOB_SECONDS / (_bare(jobs, guess).cpu / jobs)))


def _bare(jobs: int, loops: int) -> Sample:
    found = sample("samples.bare_processes", processes=WORKERS, jobs=jobs, loops=loops)
    return Sample(found["seconds"], found["cpu"])


def _pool(url: str, jobs: int, loops: int) -> Sample:
    found = sample("samples.pool", url=url, workers=WORKERS, jobs=jobs, handler="burn", payload={"loops": loops})
    cpu = sum(found[part] for part in ("master", "broker", "children")) * jobs / 1000
    return Sample(found["seconds"], cpu)
