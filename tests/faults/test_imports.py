"""An app that opens sockets and a database, takes locks and seeds random numbers at its import (row 20).

With POOLTEST_FULL=1 it is forked 5,000 times.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.faultmoves import Figure, start_pools, stop_all
from support.poolrig import Rig
from support.poolrig_brokers import Broker, PostgresBroker
from support.tls_echo import TlsEcho

APP = str(Path(__file__).parents[1] / "support" / "apps_imports.py")
FORKS = 5_000 if os.environ.get("POOLTEST_FULL") else 150


def seen(rig: Rig) -> list[dict[str, Any]]:
    """What each job found in its child."""
    return [json.loads(line.tag) for line in rig.lines("effect")]


@pytest.mark.row(20)
@pytest.mark.on("postgres")
def test_no_child_shares_a_socket_or_a_random_state_and_the_hook_opens_them_anew(
    rig: Rig, broker: Broker, tmp_path: Path
) -> None:
    assert isinstance(broker, PostgresBroker)
    with TlsEcho(tmp_path) as echo:
        servers: dict[str, Any] = {"IMPORT_TLS": echo.address, "IMPORT_POSTGRES": broker.server_url}
        pools = start_pools(rig, 2, "--recycle", "jobs=3", app=APP, **servers)
        rig.enqueue_many("look", [{}] * 36)
        rig.wait_drained()
        found = seen(rig)
        assert len(found) == 36
        children = {one["pid"] for one in found}
        assert len(children) >= 9, "some of each child, many children"

        of_child = {
            pid: {socket for one in found if one["pid"] == pid for socket in one["sockets"]} for pid in children
        }
        assert sum(map(len, of_child.values())) == len(set().union(*of_child.values())), "no socket is in two children"
        assert len({one["backend"] for one in found}) == len(children), "a database connection each"
        assert all(one["echo"] == str(one["pid"]) for one in found), "nobody hears another's answer"
        assert all(one["unattended"].endswith("Error") for one in found), "cut off, rather than shared"
        assert len({one["dice"] for one in found}) == len({one["random"] for one in found}) == 36
        rig.account().assert_once_each()
        stop_all(rig, pools)


@pytest.mark.more
@pytest.mark.row(20)
def test_thousands_of_forks_of_an_app_with_locks_and_a_database_lock_nobody_up(rig: Rig, figure: Figure) -> None:
    """A child for each job."""
    pools = start_pools(rig, 2, "--recycle", "jobs=1", app=APP)
    begun = time.monotonic()
    rig.enqueue_many("look", [{}] * FORKS)
    rig.wait_drained(60 + FORKS / 10)
    figure("a child for each job", (time.monotonic() - begun) / FORKS * 1000, "ms")
    assert len({one["pid"] for one in seen(rig)}) == len(seen(rig)) == FORKS
    for pool in pools:
        pool.wait_ready(2)
        assert not pool.log("a child could not boot")
        assert not pool.log("a child died")
    rig.account().assert_once_each()
    stop_all(rig, pools)
