"""Compiles the project once, before the first test, and leaves out what is marked `more` unless `--all` is given.
Shares tests out among the workers of pytest-xdist.

Tests start hundreds of programs that import the project, and each would compile it anew where Python keeps no bytecode
(PYTHONDONTWRITEBYTECODE): half a second of a processor for a pool.
"""

from __future__ import annotations

import compileall
import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
IMPORTED = ("pool", "backends", "tests/support", "tests/servicebus_peer")

# On a busy machine both are about the machine.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run what is marked `more` too, and each law on every backend")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell's `&`, and so for all programs of the tests too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "more: one more of a kind, or a long row; runs with --all, or by its whole name")
    if any("::" in argument for argument in config.args):
        config.option.all = True  # who names a test wants it
    if config.option.all:
        os.environ["POOLTEST_ALL"] = "1"  # for what is decided when a test is imported: see support.tiers
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers start after it
        for folder in IMPORTED:
            compileall.compile_dir(ROOT / folder, quiet=2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=turn)
    left_out = [] if config.option.all else [item for item in items if item.get_closest_marker("more")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("more")]


def turn(item: pytest.Item) -> int:
    """What is long comes first, and what is short last: so all workers end at about the same time."""
    if item.get_closest_marker("xdist_group"):
        return 0
    return 1 + ("unit" in item.path.parts) + 2 * ("contract" in item.path.parts)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: a third of the time is spent in it, and tests are not garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a unit file together, and the rows of a law, as those of an `xdist_group` are.

    What the tests of a file share is made by one worker, and the master has an eighth of the parts to count at each end
    of a test: with 13,000 of them it took 24 s of a processor.
    """
    from xdist.scheduler import LoadGroupScheduling

    config.option.loadscopereorder = False  # in the order of `turn`, not by how many they are

    class Scheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope = super()._split_scope(nodeid)
            if scope != nodeid:  # a group
                return scope
            if nodeid.startswith("tests/unit/"):
                return nodeid.partition("::")[0]
            return nodeid.partition("[")[0] if nodeid.startswith("tests/contract/") else nodeid

    return Scheduling(config, log)
