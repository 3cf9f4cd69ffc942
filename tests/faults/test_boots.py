"""Children that cannot boot: the pool backs off, says why and takes no lease; another pool does the work (row 18).

And the app that leaves threads running after its import, which each child then imports for itself (row 20).
"""

from __future__ import annotations

import itertools
import time
from datetime import datetime

import pytest
from support.changing_app import BROKEN, an_app
from support.faultmoves import Figure, start_pools, stop_all
from support.outages import complaints
from support.poolrig import LIMIT, PoolProcess, Rig, kill_child
from support.stalls import Stalls
from support.waiting import wait_until

from jobpool.broker.values import State
from jobpool.master.state import FIRST_BOOT_PAUSE_S
from jobpool.telemetry.metrics.pages import BOOT_LOOP

BOOT = 2.0
"""Seconds that a boot may take: enough for one that succeeds, on a busy machine."""

THREAD = "threading.Thread(target=time.sleep, args=(600,), daemon=True, name='ticker').start()\n"


def is_ready(pool: PoolProcess) -> bool:
    return pool.get("/readyz")[0] == 200


def fetchers(rig: Rig, idents: list[str]) -> set[str]:
    """The pools that were given any of these, as the witness saw it."""
    return {line.pool for line in rig.lines("fetched") if line.id in idents}


def gaps(pool: PoolProcess, event: str) -> list[float]:
    """Seconds between one entry of the log and the next."""
    times = [datetime.fromisoformat(entry["time"]).timestamp() for entry in pool.log(event)]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.row(18)
def test_an_app_that_does_not_import_at_the_start_ends_the_pool_with_one_sentence_and_takes_nothing(rig: Rig) -> None:
    ident = rig.enqueue("work")
    app = rig.directory / "the_app.py"
    app.write_text(BROKEN)
    broken = rig.run_pool(app=app)
    assert broken.wait() == 1
    assert "RuntimeError: half a deploy" in broken.log()[-1]["error"]
    assert "Traceback" not in broken.log_path.read_text()
    assert (rig.inspect(ident).state, rig.inspect(ident).deliveries) == (State.WAITING, 0)


@pytest.mark.row(18)
@pytest.mark.parametrize(
    ("what", "event", "why", "failures"),
    [
        pytest.param(
            "raise RuntimeError('the disk is gone')",
            "a child could not boot",
            "the disk is gone",
            BOOT_LOOP,
            id="raises",
        ),
        pytest.param("time.sleep(600)", "", f"not ready after {BOOT:g} s", 2, id="hangs", marks=pytest.mark.more),
    ],
)
def test_children_that_can_boot_no_more_are_tried_again_until_they_can_and_another_pool_works_meanwhile(
    rig: Rig, figure: Figure, what: str, event: str, why: str, failures: int
) -> None:
    """Each child imports the app, because it leaves a thread; from some time on that fails."""
    switch = rig.directory / "broken"
    app = an_app(rig, extra=f"{THREAD}if os.path.exists({str(switch)!r}): {what}")
    harmed = rig.start_pool("--metrics", "0", "--boot-timeout", f"{BOOT:g}", app=app)
    good = rig.start_pool()
    for pool in (harmed, good):
        pool.wait_ready(2)
    wait_until(lambda: is_ready(harmed))
    switch.touch()
    with Stalls() as stalls:
        for pid in harmed.children():
            kill_child(harmed, pid)
        wait_until(lambda: harmed.ready() == 0)
        ids = rig.enqueue_many("work", [{"seconds": 0.01}] * 100)
        wait_until(lambda: harmed.header().boot_failures >= failures, LIMIT, "it has tried")
        rig.wait_drained()
    ids += rig.enqueue_many("work", [{}] * 20)
    rig.wait_drained()

    assert fetchers(rig, ids) == {good.name}, "no lease is taken without a ready child"
    assert not is_ready(harmed)
    assert not harmed.is_healthy()
    assert why in harmed.header().problem
    if event:
        waits = [FIRST_BOOT_PAUSE_S * 2**count for count in range(BOOT_LOOP)]
        [_, *later] = gaps(harmed, event)  # the first two may have begun at once
        late = 0.01 + stalls.longest  # a line is written some time after the moment from which its pool waits
        assert all(gap > wait - late for gap, wait in zip(later, waits[1:], strict=False)), "0.1 s, doubling"
        wait_until(lambda: complaints(harmed) == {"children", "boot"}, what="health says so")
    switch.unlink()
    mended = time.monotonic()
    harmed.wait_ready(2)
    figure("ready after the mend", time.monotonic() - mended, "s")
    wait_until(lambda: is_ready(harmed) and harmed.is_healthy())
    rig.enqueue_many("work", [{"seconds": 0.02}] * 60)
    rig.wait_drained()
    assert {line.pool for line in rig.lines("fetched")} == {harmed.name, good.name}
    rig.account().assert_once_each()
    stop_all(rig, [harmed, good])


@pytest.mark.row(18)
def test_an_import_that_hangs_is_ended_and_tried_again(rig: Rig) -> None:
    """It is the fork server that hangs: the app is to be preloaded. No lease is taken meanwhile."""
    mended = rig.directory / "mended"
    app = an_app(rig, extra=f"if not os.path.exists({str(mended)!r}): time.sleep(600)")
    ids = rig.enqueue_many("work", [{}] * 60)
    harmed = rig.start_pool("--boot-timeout", f"{BOOT:g}", app=app)
    killed = "the fork server is killed"
    why = f"was not imported after {BOOT:g} s"
    wait_until(lambda: any(why in entry["error"] for entry in harmed.log(killed)), LIMIT)
    assert not harmed.is_healthy()
    assert rig.stats().waiting == len(ids)
    assert not rig.lines("fetched")
    mended.touch()
    harmed.wait_ready(2)
    rig.wait_drained()
    rig.account().assert_once_each()
    stop_all(rig, [harmed])


@pytest.mark.row(20)
def test_an_app_that_starts_threads_is_named_and_imported_in_each_child(rig: Rig) -> None:
    """Nothing of it is in the fork server; what its jobs do wrong is seen to as ever."""
    imported = rig.directory / "imported"
    app = an_app(rig, extra=f"{THREAD}open({str(imported)!r}, 'a').write(f'{{os.getppid()}}\\n')")
    [pool] = start_pools(rig, 1, "--kill-grace", "0.2", app=app)
    [warning] = [entry for entry in pool.log() if "threads" in entry["event"]]
    assert warning["threads"] == ["ticker"]
    [server] = pool.fork_servers()
    assert imported.read_text().split().count(str(server)) == 2, "each child, once"
    assert imported.read_text().split().count(str(pool.pid)) == 1, "and the fork server, before it began anew"
    rig.enqueue_many("work", [{}] * 20)
    rig.enqueue("hang", {"how": "hang_in_sum"}, timeout=0.3)
    rig.wait_drained()
    assert len(rig.ends()) == 20
    assert [message.reason for message in rig.dead().values()] == ["timeout"]
    rig.account().assert_once_each()
    stop_all(rig, [pool])
