"""Hooks of an app in a real pool: what they see, and what becomes of a job whose hook hangs, dies or fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.poolrig import Rig
from support.waiting import wait_until

APP = """
import ctypes, json, os, signal, time
import jobpool

HERE = os.path.dirname(__file__)

def ends(how):
    if how == "raise":
        raise ValueError("hook is broken")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "hang":
        while True:
            pass
    if how == "hang in C":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(60)

@jobpool.before_attempt
def begin(ctx):
    if ctx.handler == "it":
        ends(ctx.payload.get("before"))

@jobpool.after_attempt
def end(ctx, result):
    if ctx.handler == "it" and ctx.fence == 1:
        ends(ctx.payload.get("after"))

@jobpool.on_death
def died(dead):
    with open(f"{HERE}/deaths", "a") as file:
        print(json.dumps([dead.id, dead.reason, dead.error, dead.cause, dead.stack, dead.output]), file=file)
    again = f"{HERE}/again-{dead.id}"
    if dead.payload.get("hook") == "fails once" and not os.path.exists(again):
        open(again, "w").close()
        raise OSError("mail is down")

@jobpool.handler(timeout=1)
def it(ctx):
    ends(ctx.payload.get("handler"))
"""

FLAGS = ("--max-crashes", "1", "--until-empty")


def start(rig: Rig, folder: Path, *flags: str, **options: Any) -> Path:
    app = folder / "hooked.py"
    app.write_text(APP)
    rig.run_pool(*FLAGS, *flags, app=app, **options)
    return app.with_name("deaths")


def deaths(file: Path) -> dict[str, list[Any]]:
    told = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    return {ident: rest for ident, *rest in told}


def test_no_job_is_lost_by_its_hook_and_the_record_says_that_it_was_the_hook(rig: Rig, tmp_path: Path) -> None:
    ways = ["raise", "kill", "segfault", "hang", "hang in C"]
    before = {way: rig.enqueue("it", {"before": way}, max_retries=0) for way in ways}
    after = {way: rig.enqueue("it", {"after": way}, max_retries=1) for way in ways}
    retried = rig.enqueue("it", {"handler": "raise", "hook": "fails once"}, max_retries=0)
    told = deaths(start(rig, tmp_path, "--kill-grace", "0.3", workers=2))
    assert set(told) == {*before.values(), retried}
    assert set(rig.dead()) == set(told), "each that failed after its handler ran again, and ended well"
    for way, ident in before.items():
        record = told[ident]
        assert "before_attempt" in str(record), (way, record)
    reasons = {way: told[ident][0] for way, ident in before.items()}
    assert reasons == {
        "raise": "failed",
        "kill": "crash-limit",
        "segfault": "crash-limit",
        "hang": "timeout",
        "hang in C": "timeout",
    }
    assert "in begin" in told[before["hang in C"]][3], "the stack at the kill"
    assert not set(after.values()) & set(told)


PLAIN = """
import os
import jobpool

@jobpool.handler(max_retries=0)
def it(ctx):
    os.abort() if ctx.payload.get("abort") else [][0]
"""


def test_without_a_hook_nothing_is_sent_and_the_next_pool_with_one_tells_of_the_reapers_deaths(
    rig: Rig, tmp_path: Path
) -> None:
    app = tmp_path / "plain.py"
    app.write_text(PLAIN)
    failed, crashed = rig.enqueue("it", {}), rig.enqueue("it", {"abort": True})
    pool = rig.run_pool(*FLAGS, app=app)
    assert set(rig.dead()) == {failed, crashed}
    [stopped] = pool.log("stopped")
    assert stopped["fetched"] == 3, "one failure and two crashes"
    assert set(deaths(start(rig, tmp_path))) == {crashed}, "at once, though the queue is empty"


def test_queue_handlers_that_leave_the_hooks_out_are_said(rig: Rig, tmp_path: Path) -> None:
    ident = rig.enqueue("it", {"handler": "raise"}, max_retries=0)
    (tmp_path / "jobpool.toml").write_text('[queue_handlers]\ndefault = ["it"]\n')
    told = start(rig, tmp_path, "--config", str(tmp_path / "jobpool.toml"))
    wait_until(lambda: rig.is_dead(ident))
    assert deaths(told) == {}
    assert rig.stats().waiting == 0
