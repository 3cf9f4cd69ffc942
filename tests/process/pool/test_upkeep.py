"""Children and fork servers come and go: boots that fail, reloads, growth and shrinkage (FAULTS 18, 20, 22, 24)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

from support.poolrig import APP, Rig, is_alive, kill_child, wait_gone
from support.waiting import wait_until

BROKEN = "import jobpool\nraise RuntimeError('half a deploy')\n"


def an_app(rig: Rig, version: str = "old", extra: str = "") -> Path:
    """A copy of the tests' app that may be changed."""
    path = rig.directory / "the_app.py"
    path.write_text(APP.read_text() + f"\nVERSION = {version!r}\n{extra}\n")
    return path


def version_seen(rig: Rig) -> str:
    ident = rig.enqueue("tell_version")
    wait_until(lambda: rig.ends(ident))
    return rig.ends(ident)[0].tag


# --- boots that fail --------------------------------------------------------------------------------------------------


def test_an_app_that_does_not_import_at_the_start_ends_the_pool_with_one_sentence(rig: Rig) -> None:
    ident = rig.enqueue("work")
    app = rig.directory / "the_app.py"
    app.write_text(BROKEN)
    pool = rig.run_pool(app=app)
    assert pool.wait() == 1
    last = pool.log_path.read_text().splitlines()[-1]
    assert last.startswith("jobpool: ")
    assert "RuntimeError: half a deploy" in last
    assert "Traceback" not in pool.log_path.read_text()
    assert rig.inspect(ident).deliveries == 0, "no lease is taken without a ready child"
    rig.assert_no_processes_left()


def test_children_that_can_boot_no_more_are_tried_again_until_they_can(rig: Rig) -> None:
    """The app leaves threads, so each child imports it; from some time on that fails."""
    switch = rig.directory / "broken"
    app = an_app(
        rig,
        extra="threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        f"if os.path.exists({str(switch)!r}): raise RuntimeError('the disk is gone')",
    )
    pool = rig.start_pool(app=app).wait_ready(2)
    switch.touch()
    for pid in pool.children():
        kill_child(pool, pid)
    wait_until(lambda: pool.header().boot_failures >= 3, what="it has tried")
    ident = rig.enqueue("work")
    assert not pool.is_healthy()
    assert "the disk is gone" in pool.header().problem
    assert pool.header().ready == 0
    wait_until(lambda: pool.header().boot_failures >= 4)
    assert rig.inspect(ident).deliveries == 0, "no lease is taken without a ready child"
    switch.unlink()
    rig.wait_started(ident, limit=10.0)
    pool.wait_ready(2)
    assert pool.is_healthy()
    assert pool.stop() == 0
    rig.assert_no_processes_left()


def test_an_import_that_hangs_is_ended_and_tried_again(rig: Rig) -> None:
    once = rig.directory / "once"
    app = an_app(rig, extra=f"if not os.path.exists({str(once)!r}): open({str(once)!r}, 'w').close(); time.sleep(600)")
    ident = rig.enqueue("work")
    pool = rig.start_pool("--boot-timeout", "1", app=app)
    rig.wait_started(ident, limit=10.0)
    assert any("was not imported after 1 s" in entry["error"] for entry in pool.log("the fork server is killed"))
    assert pool.stop() == 0
    rig.assert_no_processes_left()


def test_an_app_that_starts_threads_is_named_and_works(rig: Rig) -> None:
    """FAULTS 20."""
    app = an_app(rig, extra="threading.Thread(target=time.sleep, args=(600,), daemon=True, name='ticker').start()")
    pool = rig.start_pool(app=app).wait_ready(2)
    [warning] = [e for e in pool.log() if "threads" in e["event"]]
    assert warning["threads"] == ["ticker"]
    rig.enqueue_many("work", [{}] * 100)
    rig.enqueue("hang", {"how": "hang_in_sum"}, timeout=0.3)
    rig.wait_drained()
    assert len(rig.ends()) == 100
    assert [message.reason for message in rig.dead().values()] == ["timeout"]
    assert pool.stop() == 0
    rig.assert_no_processes_left()


# --- reload -----------------------------------------------------------------------------------------------------------


def test_hup_brings_new_code_and_disturbs_no_running_job(rig: Rig) -> None:
    """FAULTS 22."""
    app = an_app(rig, "old")
    pool = rig.start_pool(app=app, workers=3).wait_ready(3)
    assert version_seen(rig) == "old"
    end = rig.directory / "end"
    running = rig.enqueue("again", {"first": 0, "later": 0, "until": str(end)})
    [start] = rig.wait_started(running)
    rig.enqueue_many("work", [{"seconds": 0.005}] * 200)
    an_app(rig, "new")
    pool.send(signal.SIGHUP)
    wait_until(lambda: version_seen(rig) == "new", 5.0)
    wait_until(lambda: {version_seen(rig) for _ in range(3)} == {"new"}, 5.0)
    assert is_alive(start.pid)
    end.touch()
    rig.wait_drained()
    rig.account().assert_once_each()
    wait_gone([start.pid], 2.0)
    wait_until(lambda: len(pool.fork_servers()) == 1, 3.0, "the old fork server has gone with its last child")
    pool.wait_ready(3)
    assert pool.stop() == 0
    rig.assert_no_processes_left()


def test_hup_with_broken_code_leaves_the_old_code_at_work(rig: Rig) -> None:
    app = an_app(rig, "old")
    pool = rig.start_pool(app=app).wait_ready(2)
    before = set(pool.children())
    app.write_text(BROKEN)
    pool.send(signal.SIGHUP)
    wait_until(lambda: pool.log("the app does not load; what runs goes on"))
    assert version_seen(rig) == "old"
    assert set(pool.children()) == before
    assert kill_child(pool, before.pop()), "and the old fork server still fills places"
    pool.wait_ready(2)
    assert version_seen(rig) == "old"
    wait_until(lambda: len(pool.fork_servers()) == 1)
    an_app(rig, "new")
    pool.send(signal.SIGHUP)
    wait_until(lambda: version_seen(rig) == "new", 5.0)
    assert pool.process.poll() is None
    assert pool.stop() == 0
    rig.assert_no_processes_left()


def test_many_hups_under_load(rig: Rig) -> None:
    app = an_app(rig, "old")
    pool = rig.start_pool("--max-crashes", "0", app=app).wait_ready(2)
    rig.enqueue_many("work", [{"seconds": 0.005}] * 500)
    for number in range(8):
        an_app(rig, f"v{number}")
        pool.send(signal.SIGHUP)
        done = len(rig.ends())
        wait_until(lambda d=done: len(rig.ends()) > d + 20 or rig.stats().pending == 0)  # type: ignore[misc]
    rig.wait_drained()
    rig.account().assert_once_each()
    assert set(rig.account().crashes.values()) == {0}
    wait_until(lambda: version_seen(rig) == "v7", 10.0, "the last version runs")
    wait_until(lambda: len(pool.fork_servers()) == 1, 10.0, "one fork server is left")
    assert not pool.log("a child died")
    pool.wait_ready(2)
    assert pool.stop() == 0
    rig.assert_no_processes_left()


# --- more and fewer ---------------------------------------------------------------------------------------------------


def is_pending(pid: int, number: int) -> bool:
    """Whether a signal to the process waits for its delivery."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_ttin_and_ttou_add_and_remove_children_under_load(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 300)
    for count in (3, 4, 5):
        pool.send(signal.SIGTTIN)
        pool.wait_ready(count)
    for _ in range(20):
        pool.send(random.choice((signal.SIGTTIN, signal.SIGTTOU)))
    while pool.header().workers > 1:
        pool.send(signal.SIGTTOU)
    pool.wait_ready(1)
    pool.send(signal.SIGTTOU)  # one stays, whatever comes
    wait_until(
        lambda: not is_pending(pool.pid, signal.SIGTTOU)
    )  # else the kernel delivers TTIN, the smaller one, first
    pool.send(signal.SIGTTIN)
    pool.wait_ready(2)
    rig.wait_drained()
    account = rig.account()
    account.assert_once_each()
    assert set(account.crashes.values()) == {0}
    assert pool.stop() == 0
    rig.assert_no_processes_left()


def test_all_children_dying_at_once(rig: Rig) -> None:
    pool = rig.start_pool("--max-crashes", "0", workers=8).wait_ready(8)
    rig.enqueue_many("work", [{"seconds": 0.05}] * 100)
    for _ in range(3):
        wait_until(lambda: len(pool.children()) == 8 and pool.ready() == 8)
        doomed = pool.children()
        assert sum(kill_child(pool, pid) for pid in doomed) == 8
        wait_gone(doomed, 1.0)
        killed = time.monotonic()
        wait_until(lambda d=doomed: len(set(pool.children()) - set(d)) == 8 and pool.ready() == 8)  # type: ignore[misc]
        assert time.monotonic() - killed < 2.0
    rig.wait_drained()
    rig.account().assert_clean()
    assert pool.stop() == 0
    rig.assert_no_processes_left()


def test_a_storm_of_signals(rig: Rig) -> None:
    pool = rig.start_pool("--max-crashes", "0").wait_ready(2)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 200)
    storm = (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGQUIT, signal.SIGCHLD, signal.SIGWINCH)
    for _ in range(200):
        pool.send(random.choice(storm))
    rig.wait_drained()
    rig.account().assert_once_each()
    wait_until(lambda: len(pool.fork_servers()) == 1, 10.0)
    assert pool.stop() == 0
    rig.assert_no_processes_left()


def test_quit_logs_every_childs_stack(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    ident = rig.enqueue("hang", {"how": "hang_in_sum"})
    rig.wait_started(ident)
    pool.send(signal.SIGQUIT)
    wait_until(lambda: len(pool.log("stack of a child")) == 2)
    assert any("hang_in_sum" in entry["stack"] for entry in pool.log("stack of a child"))
    assert len(rig.starts(ident)) == 1
    pool.send(signal.SIGTERM)
    wait_until(lambda: pool.header().draining)
    assert pool.stop() == 0


# --- whose children ---------------------------------------------------------------------------------------------------


def test_children_that_the_master_was_started_with_are_left_alone(rig: Rig) -> None:
    """FAULTS 24: a process that a shell handed over by exec is not the pool's to kill."""
    script = rig.directory / "start.sh"
    sleep = shutil.which("sleep")
    script.write_text(f'{sleep} 300 &\nexec "$@"\n')
    pool = rig.start_pool(through=("/bin/sh", str(script)))
    wait_until(lambda: pool.process.poll() is None and pool.ready() == 2, 15.0)
    [stranger] = [pid for pid, command in rig.processes().items() if command.endswith("sleep 300")]
    [server] = pool.fork_servers()
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: pool.fork_servers() not in ([], [server]) and pool.ready() == 2)
    assert is_alive(stranger)
    assert pool.stop() == 0
    assert is_alive(stranger)
