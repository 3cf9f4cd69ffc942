"""The counts that a run makes by looking at its pools: all are 0 where they are well; where one is sick, its is not.

The fleet is acted: what it is asked to do is done by this thread, whenever the run looks at its nemesis.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.errors import JobpoolError
from jobpool.message.definition import JobDefinition
from jobpool.message.signing import EnvelopeSigner
from jobpool_torture import run as module
from jobpool_torture.environment import Environment
from jobpool_torture.fleet import End
from jobpool_torture.judge import Window
from jobpool_torture.ledger import Ledger, Line, append
from jobpool_torture.nemesis import Blow
from jobpool_torture.options import Options
from jobpool_torture.result import Result
from jobpool_torture.run import Run
from jobpool_torture.schedule import Fault
from jobpool_torture.stall_detector import DrainStall
from jobpool_torture.witness import Witness
from jobpool_torture.workload import Item

QUEUE = "torture-1"
JOBS = (1, 2)
LIMIT = 20.0
SECONDS = 0.1
PATIENCE = 0.3
FAULTS = [Fault(0, 0.0, "child.kill", 0)]
MASTER = Counter({"socket": 3, "unix socket": 6, "pipe": 2})


class Refusing:
    """What the producer has: it takes the warm-up, and raises what is set to be raised for other jobs."""

    def __init__(self, acted: Acted) -> None:
        self._acted = acted
        self._backend = open_backend(acted.url, signer=acted.signer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def enqueue_many(self, jobs: Sequence[JobDefinition]) -> list[str]:
        if self._acted.refuses is not None and not all("-w" in str(job.identifier) for job in jobs):
            raise self._acted.refuses
        return self._backend.enqueue_many(jobs)


class Acted:
    """A place, its fleet and its nemesis in one. What is sick about it is set by a test."""

    connections = "socket"
    prefix = "ab12cd34"
    options: Options

    def __init__(self, folder: Path) -> None:
        self.signer = EnvelopeSigner(["k" * 32])
        self.folder = folder
        self.url = f"sqlite:///{folder}/q.db"
        self.ledger = folder / "ledger.jsonl"
        self.fleet = self.nemesis = self
        self.children = 2
        self.pools = [SimpleNamespace(name="pool1", is_full=lambda workers: self.children == workers)]
        self.ends: list[End] = []
        self.unexpected: list[End] = []
        self.problems: list[str] = []
        self.windows: list[Window] = []
        self.stalled: list[str] = []
        self.statuses: dict[str, int | None] = {"pool1": 0}
        self.left: dict[int, str] = {}
        self.more: Mapping[str, int] = {}
        self.missing: list[str] = []
        self.shuns: Callable[[str], bool] = lambda _: False
        self.misses = False
        self.refuses: Exception | None = None
        self.was_healed = False
        self.backend = open_backend(self.url, signer=self.signer)
        self.backend.prepare()
        self.capabilities = self.backend.capabilities
        self._witness = cast(QueueBackend, Witness(self.backend, self.ledger, pool="pool1"))

    def connect(self) -> QueueBackend:
        return cast(QueueBackend, Refusing(self))

    def due(self) -> list[str]:
        """Every job that waits is run, and acked; what is shunned is given back unharmed."""
        for lease in self._witness.fetch_many(QUEUE, limit=100, ttl=5.0):
            if self.shuns(lease.id):
                self._witness.release(lease)
                continue
            for event in ("start", "end"):
                append(self.ledger, [Line(event, lease.id, fence=lease.deliveries, pool="pool1", attempt=1)])
            self._witness.ack(lease)
        return []

    def strike(self, _: Fault) -> Blow:
        """All jobs are there by then: so none of them depends on how long the run's few moments take."""
        last = f"{self.prefix}-{JOBS[-1]:06d}"
        if self.refuses is None:
            wait_until(lambda: last in _answered(self.ledger), LIMIT, "all jobs are enqueued")
        return Blow("a child killed", missed=self.misses)

    def heal(self) -> list[str]:
        self.was_healed = True
        return []

    def wait_ready(self, _: float) -> list[str]:
        return self.missing if self.was_healed else []

    def descriptors(self) -> dict[str, Counter[str]]:
        return {"pool1": MASTER + Counter(self.more if self.was_healed else {})}

    def stop_all(self, _: float) -> dict[str, int | None]:
        return self.statuses

    def processes(self) -> dict[int, str]:
        return self.left

    def start(self) -> None: ...

    hang_up = remove_user = close = start

    def disturb_producer(self, share: float = 0.05) -> None: ...


def _answered(ledger: Path) -> set[str]:
    return {line.id for line in Ledger(ledger).read() if line.event == "enq"}


@pytest.fixture
def acted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Acted]:
    def jobs(*numbers: int) -> list[Item]:
        return [Item(number, 0.0, "work", "torture.work", {"seconds": 0}, 0.0, {}) for number in numbers]

    monkeypatch.setattr(module, "warm_up_jobs", lambda *_, **__: jobs(-1))
    monkeypatch.setattr(module, "workload", lambda *_, **__: jobs(*JOBS))
    monkeypatch.setattr(module, "DrainStall", lambda _, now: DrainStall(PATIENCE, now))
    monkeypatch.setattr(module, "POOLS_LOOK_S", 0.01)
    monkeypatch.setattr(module, "TURN_S", 0.005)
    for name in ("START_LIMIT_S", "ORPHANS_LIMIT_S", "INTERRUPTED_LIMIT_S", "REST_LIMIT_S"):
        monkeypatch.setattr(module, name, 0.2)
    made = Acted(tmp_path)
    yield made
    made.backend.close()


def a_run(acted: Acted, faults: Sequence[Fault] = FAULTS, **more: Any) -> Run:
    acted.options = Options(acted.url, pools=1, workers=2, ttl=1.0, queue=QUEUE, **more)
    object.__setattr__(acted.options, "seconds", SECONDS)
    return Run(cast(Environment, acted), faults, lambda _: None)


def tortured(acted: Acted, **more: Any) -> Result:
    return a_run(acted, **more).go()


def test_a_fleet_that_is_well(acted: Acted) -> None:
    result = tortured(acted)
    assert result.counts == {}
    assert result.doubt == ""
    assert result.tally.done == 3
    assert result.struck == {"child.kill": 1}
    assert set(result.seconds) == {"start", "warm up", "faults", "heal", "drain", "idle", "stop", "count", "empty"}
    assert result.descriptors == {"pool1": {}}


@pytest.mark.parametrize(
    ("sick", "count", "told"),
    [
        ({"shuns": lambda ident: ident.endswith("2")}, "STUCK", "ab12cd34-000002: waiting, torture.work, attempts 0"),
        ({"missing": ["pool1"]}, "DIED", "pool1 did not come up again: "),
        (
            {"unexpected": [End("pool1", 7, 3, False, "it has ended", "No memory")]},
            "DIED",
            "it has ended: No memory",
        ),
        ({"statuses": {"pool1": 4}}, "EXIT", "pool1: status 4"),
        ({"statuses": {"pool1": None}}, "EXIT", "pool1: had to be killed"),
        ({"stalled": ["pool1: its fork server 7 stood still"]}, "STALLED", "pool1: its fork server 7"),
        ({"left": {7: "sleep 600"}}, "ORPHANS", "pid 7: sleep 600"),
        ({"more": {"unix socket": 1}}, "FD", "pool1: +1 unix socket"),
    ],
    ids=["stuck", "did not come up", "ended by itself", "a status", "killed", "stalled", "an orphan", "a descriptor"],
)
def test_of_a_sick_one_that_count_alone_is_not_0(acted: Acted, sick: Mapping[str, Any], count: str, told: str) -> None:
    for name, value in sick.items():
        setattr(acted, name, value)
    result = tortured(acted)
    assert list(result.counts) == [count]
    assert len(result.counts[count]) == 1
    assert result.counts[count][0].startswith(told)
    assert result.problems == []
    assert acted.backend.stats(QUEUE).pending == 0, "what is stuck is deleted when it was counted"


@pytest.mark.parametrize(
    ("sick", "doubt"),
    [
        ({"misses": True}, "none of the 1 faults"),
        ({"problems": ["'restart' has ended with status 127"] * 3}, "'restart' has ended with status 127, 3 times"),
        ({"refuses": JobpoolError("the disk is full")}, "the producer has ended, and with it the faults: the disk"),
    ],
    ids=["missed", "a problem", "no producer"],
)
def test_what_was_not_tested_is_told(acted: Acted, sick: Mapping[str, Any], doubt: str) -> None:
    for name, value in sick.items():
        setattr(acted, name, value)
    result = tortured(acted)
    assert result.counts == {}
    assert result.doubt.startswith(doubt)
    assert not result.is_clean
    assert "empty" in result.seconds


def test_children_that_are_missing_at_the_end_are_told_and_descriptors_are_not_compared_then(acted: Acted) -> None:
    run = a_run(acted)
    acted.more = {"pipe": -2}

    def heal() -> list[str]:
        acted.was_healed, acted.children = True, 1
        return []

    acted.heal = heal  # type: ignore[method-assign]
    result = run.go()
    assert result.counts == {}
    assert result.doubt == (
        "descriptors were not compared: after 0.2 s without a job pool1 had more or fewer than 2 ready children"
    )


def test_descriptors_are_noted_only_once_all_children_are_there(acted: Acted) -> None:
    """Those of a child that is born later would be a leak else."""
    taken: list[int] = []
    asked = iter([1, 1, 1])
    look = acted.descriptors

    def is_full(workers: int) -> bool:
        acted.children = next(asked, 2)
        return acted.children == workers

    def descriptors() -> dict[str, Counter[str]]:
        taken.append(acted.children)
        return look()

    acted.children = 0
    acted.pools[0].is_full = is_full
    acted.descriptors = descriptors  # type: ignore[method-assign]
    assert tortured(acted).is_clean
    assert taken == [2, 2], "before and after"


def test_an_interrupt_in_the_warm_up_is_no_failure(acted: Acted) -> None:
    acted.shuns = lambda _: True
    run = a_run(acted)
    acted.start = run.interrupt  # type: ignore[method-assign]
    result = run.go()
    assert result.is_clean
    assert result.left == 1
    assert result.struck == {}
    assert result.descriptors == {}
    assert acted.backend.stats(QUEUE).pending == 0


def test_jobs_that_are_not_done_without_any_fault_end_the_run_and_its_producer(acted: Acted) -> None:
    acted.shuns = lambda _: True
    with pytest.raises(JobpoolError, match=r"the pools did not do 1 jobs without any fault"):
        tortured(acted)
    assert not [thread for thread in threading.enumerate() if thread.name == "torture-producer"]


def test_all_is_left_where_it_is_to_be_kept(acted: Acted) -> None:
    acted.shuns = lambda ident: ident.endswith("2")
    result = tortured(acted, keep=True)
    assert "empty" not in result.seconds
    assert acted.backend.stats(QUEUE).waiting == 1
