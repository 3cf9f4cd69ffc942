"""A pool with `--cron`: a scheduler beside it fires, is replaced when it dies or the app is new, ends with the pool."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from urllib.request import urlopen

from support.poolrig import APP, PoolProcess, Rig
from support.waiting import wait_until

from jobpool.broker.values import once_id
from jobpool_torture.processes import is_alive

SCHEDULES = """
import jobpool as _jobpool
_scheduler = _jobpool.Scheduler()
_scheduler.define("work", {"tag": "by cron"}).named("each-minute").queue("default").every_minute().misfire("all(5)")
_scheduler.define("work", {"tag": "inline"}).every_minute()
"""

TWICE = """
_scheduler.define("work").named("each-minute").queue("default").hourly()
"""


def an_app(rig: Rig) -> Path:
    path = rig.directory / "the_app.py"
    path.write_text(APP.read_text() + SCHEDULES)
    return path


def companions(pool: PoolProcess) -> list[int]:
    """The schedulers among the master's children."""
    found = []
    for task in os.listdir(f"/proc/{pool.pid}/task"):
        try:
            children = Path(f"/proc/{pool.pid}/task/{task}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # a thread that has answered a scrape, and ended
            continue
        found += [int(pid) for pid in children if is_alive(int(pid)) and "jobpool: cron" in command(int(pid))]
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def the_one(pool: PoolProcess, not_this: int = 0) -> int:
    """The scheduler, once there is one, and no other."""

    def there() -> int:
        pids = companions(pool)
        return pids[0] if len(pids) == 1 and pids[0] != not_this else 0

    return wait_until(there, 30.0, "a scheduler runs")


def fired_in_time(pool: PoolProcess) -> float:
    """How many times a schedule has fired by the metrics of how late they are."""
    port = pool.log("metrics are served")[0]["port"]
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as answer:
        found = re.search(r"^jobpool_cron_lateness_seconds_count (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_it_fires_is_replaced_and_ends_with_the_pool(rig: Rig) -> None:
    app = an_app(rig)
    flags = ("--cron", "--metrics", "0")
    pool = rig.start_pool(*flags, app=app, JOBPOOL_DEBUG="1").wait_ready(2)  # else its environment is hidden
    first = the_one(pool)
    wait_until(lambda: pool.log("schedule fired"), what="it has fired")
    fired = pool.log("schedule fired")
    ids = {entry["id"] for entry in fired if "id" in entry}
    wait_until(lambda: ids <= {line.id for line in rig.ends()}, what="the pool has run what it fired")
    wait_until(lambda: fired_in_time(pool) >= 2.0, 60.0, "both schedules have fired, and their lateness is counted")
    assert b"JOBPOOL_BACKEND" not in Path(f"/proc/{first}/environ").read_bytes()

    wait_until(lambda: pool.log("cron is ready"))
    os.kill(first, signal.SIGKILL)
    second = the_one(pool, first)
    wait_until(lambda: len(pool.log("cron is ready")) == 2)
    assert [entry["status"] for entry in pool.log("the scheduler died; another is started")] == [-9]

    pool.send(signal.SIGHUP)
    third = the_one(pool, second)
    wait_until(lambda: len(pool.log("cron is ready")) == 3)
    wait_until(lambda: not is_alive(second), what="the second has ended")
    assert len(pool.log("the scheduler died; another is started")) == 1, "the second was asked to go"

    with app.open("a") as file:
        file.write(TWICE)
    pool.send(signal.SIGHUP)
    kept = "the schedules are refused; the scheduler that runs goes on"
    (entry,) = wait_until(lambda: pool.log(kept), what="the new schedules are refused")
    assert "each-minute" in entry["error"]
    assert "the_app.py" in entry["error"], "it says where"
    assert the_one(pool) == third, "and the old ones stay"

    app.write_text(APP.read_text())
    pool.send(signal.SIGHUP)
    wait_until(lambda: not is_alive(third), what="the old one has ended: there are no schedules any more")
    wait_until(lambda: pool.log("cron is ready")[-1]["schedules"] == 0)
    assert len(pool.log(kept)) == 1, "which is nothing to complain of"

    assert pool.stop() == 0
    rig.assert_no_processes_left()
    instants = [entry["at"] for entry in pool.log("schedule fired") if entry["name"] == "each-minute"]
    assert len(instants) == len(set(instants)), "three schedulers in turn, and each instant once"
    assert {once_id(f"each-minute at {at}") for at in instants} <= {line.id for line in rig.starts()}


def test_an_app_without_schedules_ends_a_pool_that_starts_with_cron(rig: Rig) -> None:
    pool = rig.start_pool("--cron", workers=1)
    assert pool.wait() == 1
    (line,) = [line for line in pool.log_lines() if "declares no schedule" in line]
    assert "the scheduler cannot start: " in line
    rig.assert_no_processes_left()


def test_it_dies_with_the_master(rig: Rig) -> None:
    pool = rig.start_pool("--cron", app=an_app(rig)).wait_ready(2)
    companion = the_one(pool)
    pool.send(signal.SIGKILL)
    pool.wait()
    wait_until(lambda: not is_alive(companion), what="the scheduler is dead")
    rig.assert_no_processes_left()


def test_one_that_hangs_does_not_hold_up_a_stop(rig: Rig) -> None:
    pool = rig.start_pool("--cron", "--stop-grace", "60", app=an_app(rig)).wait_ready(2)
    wait_until(lambda: pool.log("schedule fired"), what="it turns")
    os.kill(the_one(pool), signal.SIGSTOP)
    assert pool.stop(limit=20.0) == 0
    rig.assert_no_processes_left()
