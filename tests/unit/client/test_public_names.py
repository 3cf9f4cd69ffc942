"""`import jobpool`: what it offers, what it does not drag in, and the hooks that docs/hooks.md shows."""

# ruff: noqa: ARG001 - a handler takes its context, whether it looks at it or not

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.pages import blocks, page

import jobpool
from jobpool.broker.values import ReapPolicy
from jobpool.handlers.registry import HandlerRegistry
from jobpool.testing import Crash, VirtualPool

HEAVY = ("click", "rich", "pydantic", "psutil", "asyncio", "importlib.metadata", "tomllib", "croniter", "zoneinfo")
FOR_PRODUCERS = ("dataclasses", "datetime", "logging", "orjson", "threading", "sqlite3", "jobpool.message")
FOR_POOLS = ("jobpool.cli", "jobpool.handlers", "jobpool.master", "jobpool.ipc", "jobpool.settings", "multiprocessing")


SCHEDULING = ("croniter", "zoneinfo", "difflib", "jobpool.message.cron_fields")
OF_A_POOL = ("jobpool.testing.pool", "jobpool.master", "jobpool.policy", "jobpool.child")


@pytest.mark.parametrize(
    ("program", "left_out"),
    [
        pytest.param("pass", (*HEAVY, *FOR_PRODUCERS, *FOR_POOLS), id="an import alone"),
        pytest.param("jobpool.Jobs('sqlite:///x.db').define('mail').dispatch()", (*HEAVY, *FOR_POOLS), id="a producer"),
        pytest.param("jobpool.JobDefinition('report').with_queue('q')", SCHEDULING, id="who schedules nothing"),
        pytest.param("import jobpool.worker, jobpool.client", ("jobpool.testing",), id="the kit for tests"),
        pytest.param("import jobpool.testing.plugin", OF_A_POOL, id="its fixture, in every run of pytest"),
    ],
)
def test_what_is_not_needed_is_not_imported(tmp_path: Path, program: str, left_out: tuple[str, ...]) -> None:
    assert _imported_by(f"import jobpool; {program}", tmp_path, left_out) == []


def test_a_cron_expression_is_read_by_croniter(tmp_path: Path) -> None:
    program = "import jobpool; jobpool.JobDefinition('report', cron_expression='5 * * * *')"
    assert _imported_by(program, tmp_path, ("croniter",)) == ["croniter"]


def _imported_by(program: str, directory: Path, names: tuple[str, ...]) -> list[str]:
    """Return those of `names` that a program imports, run in a directory without a configuration file."""
    words = [sys.executable, "-c", f"{program}; import sys; print(*{{*{names!r}}} & {{*sys.modules}})"]
    ran = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=60, check=True)
    return sorted(ran.stdout.split())


class Busy(jobpool.Retry):
    """As an app may derive it."""

    def __init__(self) -> None:
        super().__init__(after=7, reason="busy")


def pickled(error: Exception) -> Exception:
    return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]


@pytest.mark.parametrize("pass_on", [pickled, copy.copy], ids=["pickled", "copied"])
def test_a_process_pool_passes_every_error_on_as_it_is(pass_on: Callable[[Exception], Exception]) -> None:
    made = [
        *(jobpool.Retry(after=5, reason="busy"), jobpool.Snooze(after=1), Busy()),
        *(jobpool.JobFailed("dead", "its status"), jobpool.ResultPending("not yet"), jobpool.InvalidJob("no")),
    ]
    for error in made:
        error.add_note("told")
        found = pass_on(error)
        assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


def test_every_public_name_is_there() -> None:
    for name in jobpool.__all__:
        assert getattr(jobpool, name) is not None, name
        assert name in dir(jobpool)
    assert sorted(jobpool._HOME) == jobpool.__all__


def test_a_producer_catches_the_errors_of_its_calls_by_their_public_names() -> None:
    with pytest.raises(jobpool.InvalidJob) as refused:
        jobpool.JobDefinition("")
    assert isinstance(refused.value, jobpool.JobpoolError)
    for known in (jobpool.ConfigurationError, jobpool.Unsupported, jobpool.WriteRefused):
        assert issubclass(known, jobpool.JobpoolError)


@pytest.mark.parametrize(("name", "module"), sorted(jobpool._MODULES.items()))
def test_a_module_is_there_without_an_import_of_its_own(name: str, module: str, tmp_path: Path) -> None:
    assert _imported_by(f"import jobpool; jobpool.{name}", tmp_path, (f"jobpool.{module}",)) == [f"jobpool.{module}"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'jobpool' has no attribute 'nonsense'"):
        _ = jobpool.nonsense


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert jobpool.__version__ == project["project"]["version"]


def test_a_module_is_found_under_its_former_name_too() -> None:
    for name in sorted(jobpool._MOVED):
        former, home = import_module(f"jobpool.{name}"), import_module(f"jobpool.{jobpool._MOVED[name]}")
        public = [word for word, value in vars(home).items() if getattr(value, "__module__", "") == home.__name__]
        assert public, name
        assert all(getattr(former, word) is getattr(home, word) for word in public), name


def hooked() -> HandlerRegistry:
    """The page's hooks, and a handler that fails."""
    registry = HandlerRegistry()
    names: dict[str, Any] = {name: getattr(registry, name) for name in ("before_attempt", "after_attempt", "on_death")}
    [code] = blocks(page("hooks"))
    types = {name: getattr(jobpool, name) for name in ("JobContext", "ExecutionResult", "DeadJob")}
    space = {"__name__": "page", "jobpool": SimpleNamespace(**names, **types)}
    exec(compile(code.replace("import jobpool\n", ""), "hooks.md", "exec", dont_inherit=True), space)

    @registry.handler(max_retries=0)
    def report(ctx: jobpool.JobContext, customer: int) -> None:
        raise ValueError("no paper")

    return registry


def test_the_pages_example_sees_an_attempt_and_its_death() -> None:
    with VirtualPool(hooked()) as pool:
        ident = pool.enqueue(jobpool.JobDefinition("report", {"customer": 7}))
        failed, told = pool.run_all()
        assert failed.output.split("\n") == [
            f"begins report {ident}",
            "",
            f"ended {ident} failed ValueError('no paper')",
            "",
        ]
        assert "dead report {'customer': 7} failed 1\n" in told.output
        assert [letter.id for letter in pool.dead()] == [ident]


def test_a_crash_too_many_is_told_there_too() -> None:
    with VirtualPool(hooked(), reap=ReapPolicy(max_crashes=1, back_off=0.0)) as pool:
        pool.inject(Crash(), at="in_handler", times=2)
        pool.enqueue(jobpool.JobDefinition("report", {"customer": 7}))
        assert "dead report {'customer': 7} crash-limit 0\n" in pool.run_all()[-1].output


def test_a_queue_that_is_closed_to_the_hooks_tells_of_nothing() -> None:
    with VirtualPool(hooked(), queue_handlers={"default": ["report"]}) as pool:
        pool.enqueue(jobpool.JobDefinition("report", {"customer": 7}))
        assert len(pool.run_all()) == 1
