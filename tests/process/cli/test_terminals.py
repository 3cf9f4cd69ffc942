"""On real terminals: a pool ends with the one that it was started in, and a slow retry shows its progress there."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cli_shell import PROGRAM, Shell
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition

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


LETTERS = 40


@pytest.fixture
def broker(shell: Shell) -> Iterator[QueueBackend]:
    """With some dead letters."""
    backend = open_backend(f"sqlite:///{shell.directory}/jobpool.db")
    backend.enqueue_many(JobDefinition("report") for _ in range(LETTERS))
    for lease in backend.fetch_many("default", limit=LETTERS):
        assert backend.abandon(lease, "timeout")
    yield backend
    backend.close()


def test_it_shows_its_progress_and_ctrl_c_says_how_far_it_came(shell: Shell, broker: QueueBackend) -> None:
    words = ("dead", "retry", "reason:timeout", "--rate", "240", "--yes")
    shown, code = shell.on_a_terminal(*words, until=b" 5%", then=signal.SIGINT)
    assert code == 130, shown
    said = re.search(r"interrupted: (\d+) messages retried so far; the same command goes on with the rest", shown)
    assert said, shown
    done = int(said[1])
    assert 2 <= done < LETTERS
    counts = broker.stats("default")
    assert (counts.waiting, counts.dead) == (done, LETTERS - done)

    assert shell.call("dead", "retry", "reason:timeout", "--yes").stdout == f"{LETTERS - done} messages retried\n"
    assert broker.stats("default").dead == 0


def test_in_a_pipe_there_is_no_bar(shell: Shell, broker: QueueBackend) -> None:
    done = shell.run("dead", "retry", "--all", "--rate", "30000", "--yes")
    assert (done.stdout, done.returncode) == (f"{LETTERS} messages retried\n", 0)
    assert "%" not in done.stderr
    assert broker.stats("default").waiting == LETTERS


@pytest.mark.parametrize("program", [PROGRAM, (str(Path(sys.executable).with_name("jobpool")),)], ids=["-m", "script"])
def test_ctrl_c_while_the_command_line_is_imported_prints_no_traceback(shell: Shell, program: tuple[str, ...]) -> None:
    (shell.directory / "click.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nprint('imported')\n")
    shell.environment["PYTHONPATH"] = str(shell.directory)
    for through, code, told in (((), -signal.SIGINT, ""), (("env", "--ignore-signal=INT"), 1, "imported\n")):
        done = shell.run("stats", program=(*through, *program), code=code)
        assert (done.stdout, "KeyboardInterrupt" in done.stderr) == (told, False)


def test_what_an_output_that_is_not_utf_8_cannot_take_is_written_as_in_json(shell: Shell) -> None:
    ident = shell.enqueue("report", {"text": "déjà ✓ 😀"})
    shell.environment["PYTHONIOENCODING"] = "latin-1"
    for words, shown in (((), r"déjà \u2713 \ud83d\ude00"), (("--json",), r'"déjà \u2713 \ud83d\ude00"')):
        command = (*PROGRAM, "inspect", ident, *words)
        told = subprocess.check_output(command, cwd=shell.directory, env=shell.environment, encoding="latin-1")
        assert shown in told
