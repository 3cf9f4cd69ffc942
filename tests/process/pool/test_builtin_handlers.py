"""Built-in handlers in a real pool: what they may do comes with its settings, and nothing of a program outlives it."""

from __future__ import annotations

from pathlib import Path

from support.poolrig import Rig

from jobpool.broker.values import State

APP = """
import jobpool, time

@jobpool.command("app:wait")
def wait(ctx, seconds: float):
    time.sleep(seconds)

@jobpool.listener("paid")
def thank(ctx, order: int):
    open(f"thanked-{order}", "w").close()

def touch(name):
    open(name, "w").close()
"""

FLAGS = (
    *("--allowed-shell-commands", "sh,touch", "--allowed-callables", "calls:touch", "--allowed-events", "paid"),
    *("--queue", "default,closed,narrow", "--queue-handlers", "closed=", "--queue-handlers", "narrow=command"),
    *("--kill-grace", "0.5", "--until-empty", "--unknown-handler-grace", "60"),
)

TREE = "echo $$ >> pids; {first}setsid sh -c 'echo $$ >> pids; exec sleep 600' & (sleep 600 & sleep 600) & sleep 600"
"""A program with children in its group, and one in a session of its own."""


def test_a_pool_runs_what_its_settings_allow_and_leaves_nothing_running(rig: Rig) -> None:
    app = rig.directory / "calls.py"
    app.write_text(APP)
    done = [
        rig.enqueue("shell", "touch one"),
        rig.enqueue("callable", {"callable": "calls:touch", "args": ["two"]}),
        rig.enqueue("event", {"name": "paid", "data": {"order": 3}}),
        rig.enqueue("command", "app:wait 0"),
        rig.enqueue("command", "app:wait 0", queue="narrow"),
    ]
    refused = {
        rig.enqueue("shell", "rm -rf x", max_retries=5): "program 'rm' is not allowed here",
        rig.enqueue("callable", "os:abort", max_retries=5): "callable 'os:abort' is not allowed here",
        rig.enqueue("event", {"name": "lost"}, max_retries=5): "event 'lost' is not allowed here",
        rig.enqueue("command", "app:gone", max_retries=5): "no command is named 'app:gone' here; there are app:wait",
        rig.enqueue("shell", "touch x", queue="closed"): "handler 'shell' is not allowed on this queue",
        rig.enqueue("shell", "touch x", queue="narrow"): "handler 'shell' is not allowed on this queue",
    }
    # The alarm ends the first; the second stops the child that would hear it, so the master has to.
    hangs = rig.enqueue("shell", ["sh", "-c", TREE.format(first="")], timeout=0.5)
    wedges = rig.enqueue("shell", ["sh", "-c", TREE.format(first="kill -STOP $PPID; ")], timeout=0.5)

    pool = rig.run_pool(*FLAGS, app=app)

    rig.assert_no_processes_left()
    assert len((rig.directory / "pids").read_text().split()) == 4
    assert all((rig.directory / name).exists() for name in ("one", "two", "thanked-3"))
    assert not Path(rig.directory / "x").exists()
    dead = rig.dead()
    assert set(dead) == {*refused, hangs, wedges}
    assert not any(rig.backend.inspect(ident) for ident in done)
    for ident, text in refused.items():
        assert text in (dead[ident].last_error or "")
        assert dead[ident].attempts <= 1
    assert [(dead[ident].reason, dead[ident].state) for ident in (hangs, wedges)] == [("timeout", State.DEAD)] * 2
    [loaded] = pool.log("app loaded")
    assert {"callable", "command", "event", "shell"} <= set(loaded["handlers"])
