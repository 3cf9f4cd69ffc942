"""A pool ends with the terminal that it was started in, as any other program does."""

from __future__ import annotations

import os
import pty
import subprocess
from contextlib import closing

import pytest
from cli_shell import PROGRAM, Shell
from support.waiting import wait_until

from jobpool.broker.opening import open_backend

APP = """
import pathlib, time
import jobpool


@jobpool.handler
def nap(ctx: jobpool.JobContext) -> None:
    pathlib.Path("begun").touch()
    time.sleep(1)
"""
WORDS = (*PROGRAM, "--app", "./app.py", "--workers", "1", "--log-format", "json")


@pytest.mark.parametrize("starter", [(), ("nohup",)])
def test_a_pool_drains_when_its_terminal_is_closed_unless_nohup_started_it(
    shell: Shell, starter: tuple[str, ...]
) -> None:
    (shell.directory / "app.py").write_text(APP)
    shell.enqueue("nap")
    ours, theirs = pty.openpty()
    with (shell.directory / "pool.log").open("w") as log:
        words = ["setsid", "--ctty", *starter, *WORDS]
        pool = subprocess.Popen(
            words, cwd=shell.directory, env=shell.environment, stdin=theirs, stdout=theirs, stderr=log
        )
    os.close(theirs)
    try:
        wait_until((shell.directory / "begun").exists, what="the job runs")
        os.close(ours)  # the kernel sends two HUPs: to the leader of the session, and to the group in the foreground
        if starter:
            wait_until(lambda: shell.log().count('"app loaded"') == 2, what="it has reloaded")
            pool.terminate()
        assert pool.wait(30) == 0
    finally:
        pool.kill()
        pool.wait()
    assert ('"stopping: the terminal was closed"' in shell.log()) is not bool(starter)
    assert shell.log().count('"reload asked for"') == len(starter)
    with closing(open_backend(f"sqlite:///{shell.directory}/jobpool.db")) as backend:
        assert backend.queues() == [], "the job that ran has ended"
