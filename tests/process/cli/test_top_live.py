"""`jobpool top` on a terminal, as a person uses it; also on one that is slow."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator

import pyte
import pytest
from cli_shell import Shell
from support.poolrig import LIMIT
from support.waiting import wait_until

APP = """
import time, jobpool
@jobpool.handler("hang")
def hang(ctx):
    time.sleep(600)  # what resists in C, and costs a processor: tests/process/pool/test_control.py
"""


pytestmark = pytest.mark.xdist_group("top-live")  # one pool for all of them


class Top:
    """One `jobpool top` on a terminal of its own, which is read with so many bytes a second (None = all at once)."""

    def __init__(self, shell: Shell, *words: str, speed: int | None = None, term: str = "xterm") -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jobpool", "top", *words],
            cwd=shell.directory,
            env=shell.environment | {"TERM": term},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.written = 0
        self.screen = pyte.Screen(80, 24)
        self.speed = speed
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        terminal = pyte.ByteStream(self.screen)
        with contextlib.suppress(OSError):  # it has left
            while data := os.read(self._ours, 65536 if self.speed is None else self.speed // 20):
                self.written += len(data)
                terminal.feed(data)
                if self.speed is not None:
                    time.sleep(0.05)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def shows(self, *parts: str) -> None:
        """Wait until all these are on the screen."""
        try:
            wait_until(lambda: all(part in "".join(self.screen.display) for part in parts), what=f"{parts} shown")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self.screen.display])) from None

    def leave(self, keys: str = "q") -> int:
        self.press(keys)
        code = self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        return code

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(LIMIT)
        os.close(self._ours)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """With one pool of two children for all tests, which leave it idle."""
    shell = Shell(tmp_path_factory.mktemp("top"))
    (shell.directory / "app.py").write_text(APP)
    pool = shell.start("-w", "2", "-A", "app", "-n", "mine", "--default-timeout", "600", "--kill-grace", "0.3")
    try:
        wait_until(lambda: shell.call("health").exit_code == 0, what="healthy")
        yield shell
        pool.terminate()
        assert pool.wait(LIMIT) == 0, shell.log()
    finally:
        shell.end_all()


@pytest.fixture
def running(shell: Shell) -> Iterator[str]:
    """The id of a job that hangs."""
    ident = shell.enqueue("hang")
    wait_until(lambda: ident in shell.call("top").stdout, what="it runs")
    yield ident
    shell.call("cancel", ident)
    wait_until(lambda: is_cancelled(shell, ident), what="it is dead")


def is_cancelled(shell: Shell, ident: str) -> bool:
    return '"cancelled"' in shell.call("inspect", ident, "--json").stdout


def test_on_a_dumb_terminal_it_prints_once(shell: Shell) -> None:
    top = Top(shell, term="dumb")
    try:
        assert top.process.wait(LIMIT) == 0
        top.shows("SLOT", "up")
        assert "choose" not in "".join(top.screen.display)
    finally:
        top.end()


def test_a_person_looks_at_a_stack_and_cancels_the_job(shell: Shell, running: str) -> None:
    top = Top(shell)
    try:
        top.shows("SLOT", running, "choose")
        top.press("/hang\r\x1b[Bs")
        top.shows("show the stack of mine, slot")
        top.press("y")
        top.shows("stack of child", "app.py", "in hang")
        top.press("qc")
        top.shows(f"cancel job {running} (hang) of mine")
        top.press("n")
        top.shows("nothing was done")
        top.press("cy")
        top.shows(f"job {running} is told to end")
        wait_until(lambda: is_cancelled(shell, running), what="it is dead")
        top.shows("no slot passes the filter")
        assert top.leave("\x1bq") == 0
    finally:
        top.end()


def test_a_pool_in_which_nothing_moves_costs_nothing(shell: Shell) -> None:
    top = Top(shell, "-d", "0.1")
    try:
        top.shows("SLOT", "idle", "choose")
        begin, before = time.monotonic(), top.written
        wait_until(lambda: time.monotonic() - begin > 1.0, what="some time has passed")
        assert (top.written - before) / (time.monotonic() - begin) < 400, "bytes a second, of three numbers that grow"
        assert top.leave() == 0
    finally:
        top.end()


def test_a_slow_terminal_shows_all_and_keys_are_heard(shell: Shell, running: str) -> None:
    top = Top(shell, "-d", "0.1", speed=1200)
    try:
        top.shows("SLOT", running, "choose")
        top.press("/hang\r\x1b[Bc")
        top.shows(f"cancel job {running} (hang)", "y/N")
        top.press("n")
        top.shows("nothing was done")
        assert top.leave() == 0
    finally:
        top.end()


def test_json_has_depths_rates_and_ages_of_queues(shell: Shell, running: str) -> None:
    shell.call("pause", "default")
    wait_until(lambda: "paused" in shell.call("top").stdout, what="the pause is heard")
    shell.enqueue("hang", count=3)
    wait_until(
        lambda: "default: 3 waiting, oldest" in re.sub(r"\x1b\[[0-9;]*m", "", shell.call("top").stdout),
        what="counted",
    )
    [pool] = json.loads(shell.run("top", "--once", "--json", "-d", "0.3").stdout)
    [queue] = pool["queues"]
    [counts] = json.loads(shell.call("stats", "default", "--json").stdout)
    assert (queue["queue"], queue["waiting"], queue["delayed"], queue["dead"]) == ("default", 3, 0, counts["dead"])
    assert queue["oldest"] > 0
    assert (queue["rate"], pool["rate"]) == (0.0, 0.0)
    assert running in [row["job"] for row in pool["rows"]]
    shell.call("purge", "state:waiting", "--yes", code=0)
    shell.call("resume", "default", code=0)
