"""Jobs that spoil their process: no job that comes after them in it fails."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.apps_spoilt import OF_ROOT, ROOT_ONLY, TIMERS, WAYS
from support.faultmoves import stop_all
from support.faultrig import broker_of_file, rig_of_file
from support.poolrig import APP, PoolProcess, Rig

pytestmark = [
    pytest.mark.xdist_group("fault-spoilt"),  # one pool for all of them
    pytest.mark.on("sqlite"),
]

SPOILT = str(APP.with_name("apps_spoilt.py"))
FULL = bool(os.environ.get("POOLTEST_FULL"))
INNOCENTS, AT_LEAST = (300, 300) if FULL else (120, 30)
"""Jobs, which take a millisecond of the processor each: 120 together outlast the timers that are left armed."""

broker, rig = broker_of_file, rig_of_file


@pytest.fixture(scope="module")
def pool(rig: Rig) -> Iterator[PoolProcess]:
    """With one child at a time, so that what follows a spoiler meets its process."""
    home = rig.directory / "home"
    folder = rig.directory / ROOT_ONLY
    folder.write_text("mine")
    folder.chmod(0o600)
    pool = rig.start_pool(workers=1, app=SPOILT, HOME=str(home), POOLTEST_HOME=str(home)).wait_ready(1)
    yield pool
    stop_all(rig, [pool])


@pytest.mark.row(38)
@pytest.mark.parametrize("how", [*WAYS, *OF_ROOT])
@pytest.mark.usefixtures("pool")
def test_no_innocent_job_fails_after_one_that_spoils_its_process(rig: Rig, how: str) -> None:
    if how in OF_ROOT and os.geteuid() != 0:
        pytest.skip("only root can do that to itself")
    dead = rig.dead().keys()
    rig.enqueue("spoil", {"how": how})
    idents = rig.enqueue_many("innocent", [{}] * (INNOCENTS if how in TIMERS else AT_LEAST))
    rig.wait_drained()
    assert rig.dead().keys() == dead
    settled = [(line.id, line.verb) for line in rig.lines("settled") if line.id in idents]
    assert sorted(ident for ident, verb in settled if verb == "ack") == sorted(idents)
    assert {verb for _, verb in settled} <= {"ack", "release"}  # what did not begin at once is given back
