"""Gives each test a rig whose processes are gone when it ends; a failing test says where its folder is."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from support.poolrig import PoolProcess, Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    try:
        yield rig
    finally:
        rig.end()


@pytest.fixture(scope="module")
def one_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, PoolProcess]]:
    """A pool for the tests of one file that leave it as they find it, however badly their jobs behave."""
    rig = Rig(tmp_path_factory.mktemp("pool"))
    try:
        pool = rig.start_pool("--ttl", "5", "--default-timeout", "20").wait_ready(2)
        yield rig, pool
        assert pool.stop() == 0
        rig.assert_no_processes_left()
    finally:
        rig.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    values = getattr(item, "funcargs", {})
    rig = values.get("rig") or values.get("one_pool", (None,))[0]
    if report.failed and isinstance(rig, Rig):
        logs = "".join(f"--- {pool.name}\n{pool.log_path.read_text()[-3000:]}\n" for pool in rig.pools)
        report.sections.append(("pools", f"left in {rig.directory}\n{logs}"))
    return report
