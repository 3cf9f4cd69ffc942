"""What the pool grants a job: its time, its memory, and nothing of what is the master's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from support.poolrig import Rig
from support.poolrig_brokers import PostgresBroker
from support.waiting import wait_until

TELLING = """
import os, pathlib, jobpool

@jobpool.handler
def tell(ctx, file: str):
    pathlib.Path(file).write_text(repr(os.environ))
"""

PEEKING = """
import os, pathlib, jobpool

scheduler = jobpool.Scheduler()
scheduler.define("peek").daily_at("03:00")

@jobpool.handler
def peek(ctx, pid: int, file: str):
    told = []
    for name in ("mem", "fd/0"):
        try:
            open(f"/proc/{pid}/{name}", "rb").close()
            told.append(f"{name} opened")
        except OSError as error:
            told.append(f"{name} {type(error).__name__}")
    pathlib.Path(file).write_text(", ".join(told))
"""

WITHOUT_PTRACE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 19, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_PTRACE: refused to who is not root, and has none
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_job_has_the_pools_default_timeout_unless_it_names_one_and_never_more_than_the_pools_most(rig: Rig) -> None:
    ident = rig.enqueue("hang", {"how": "hang_in_sleep"})
    unlimited = rig.enqueue("work", {"seconds": 1.0}, timeout=0)
    outlasting = rig.enqueue("hang", {"how": "hang_in_sleep"}, timeout=0)
    rig.run_pool("--until-empty", "--default-timeout", "0.3", "--max-timeout", "2.5", "--kill-grace", "0.4")
    assert rig.inspect(ident).reason == rig.inspect(outlasting).reason == "timeout"
    assert "maximum execution time of 0.3 seconds" in (rig.inspect(ident).last_error or "")
    assert "maximum execution time of 2.5 seconds" in (rig.inspect(outlasting).last_error or "")
    assert rig.ends(unlimited)


def test_handlers_enqueue_only_where_the_pool_allows_it(rig: Rig) -> None:
    refused = [rig.enqueue(handler) for handler in ("follow_up", "produce", "fan_out")]
    rig.run_pool("--until-empty", "--enqueue-to", "reports,billing")
    for ident in refused:
        assert "may not enqueue to queue 'default'" in (rig.inspect(ident).last_error or "")
    assert rig.starts() == []
    assert rig.dead().keys() == set(refused)


def test_memory_that_was_given_back_is_not_charged_to_the_next_job(rig: Rig) -> None:
    rig.start_pool("--memory-limit", "120M", workers=1).wait_ready(1)
    for _ in range(4):
        rig.enqueue("grow", {"mebibytes": 200, "then": 0.15})
        rig.enqueue("work", {"seconds": 0.25})
        rig.enqueue("leak", {"mebibytes": 200})
        rig.enqueue("work", {"seconds": 0.25})
    rig.wait_drained()
    assert {message.handler for message in rig.dead().values()} <= {"grow", "leak"}


def test_no_handler_gets_the_brokers_password_from_the_environment(tmp_path: Path) -> None:
    app = tmp_path / "telling.py"
    app.write_text(TELLING)
    with PostgresBroker.on_shared_server() as broker, Rig(tmp_path, broker.url) as rig:
        secret = {"PGPASSWORD": "do-not-tell", "JOBPOOL_SIGNING_KEY": "do-not-tell"}
        rig.sign_with("do-not-tell")
        rig.enqueue("tell", {"file": str(tmp_path / "told")})
        pool = rig.run_pool("--until-empty", app=app, APP_PASSWORD="hand-on", **secret)
        told = (tmp_path / "told").read_text()
        assert "hand-on" in told
        assert "do-not-tell" not in told
        [line] = pool.log("the app does not get the broker's credentials")
        assert line["variables"] == ["PGPASSWORD"]


def test_no_child_holds_the_broker_or_its_secrets_or_reads_the_memory_of_master_or_scheduler(rig: Rig) -> None:
    """Of one user, they are. Root with all its rights may trace anybody, so it goes without that one here."""
    app = rig.directory / "peeking.py"
    app.write_text(PEEKING)
    rig.sign_with("do-not-tell")
    through = (sys.executable, "-c", WITHOUT_PTRACE)
    pool = rig.start_pool("--cron", app=app, through=through, JOBPOOL_SIGNING_KEY="do-not-tell").wait_ready(2)
    for pid in (*pool.fork_servers(), *pool.children()):
        opened = [_target(pid, fd) for fd in os.listdir(f"/proc/{pid}/fd")]
        assert not [name for name in opened if "jobpool.db" in name]
        with open(f"/proc/{pid}/environ", "rb") as environ:
            assert b"do-not-tell" not in environ.read()
    [started] = wait_until(lambda: pool.log("the scheduler starts"), what="a scheduler starts")
    wait_until(lambda: pool.log("cron is ready"), what="the scheduler is ready")
    for pid in (pool.pid, started["pid"]):
        told = rig.directory / f"told-{pid}"
        rig.enqueue("peek", {"pid": pid, "file": str(told)})
        rig.wait_drained()
        assert told.read_text() == "mem PermissionError, fd/0 PermissionError"
    assert pool.is_healthy()
    assert pool.stop() == 0


def _target(pid: int, fd: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except FileNotFoundError:
        return ""
