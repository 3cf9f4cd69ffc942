"""The real program in processes of its own, on SQLite, in an empty directory; verbs also in the test's process."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from support.logs import same_logs
from support.poolrig import LIMIT

from jobpool.broker.opening import open_backend
from jobpool.cli.main import cli
from jobpool.message.definition import JobDefinition

PROGRAM = (sys.executable, "-P", "-m", "jobpool")
"""As the console script: the working directory is not on the path."""


class Shell:
    """Runs `jobpool` in `directory`; what is still running at the end is killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBPOOL_", "JOBS_"))}
        self.environment = kept | {"JOBPOOL_RUNTIME_DIR": str(directory / "run"), "NO_COLOR": "1"}
        self._started: list[subprocess.Popen[str]] = []

    def run(
        self,
        *words: str,
        code: int | None = None,
        program: Sequence[str] = PROGRAM,
        directory: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end. `code`: with which it must exit. `program`, `directory`: another one, or elsewhere."""
        done = subprocess.run(
            [*program, *words],
            cwd=directory or self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert code in (None, done.returncode), done.stderr
        return done

    def call(self, *words: str, code: int | None = None) -> Result:
        """Call a verb in this process, which costs a tenth of a program; one that imports no app."""
        environment = dict.fromkeys(os.environ.keys() - self.environment.keys()) | self.environment
        with same_logs(), contextlib.chdir(self.directory):
            result = CliRunner().invoke(cli, words, env=environment, catch_exceptions=False)
        assert code in (None, result.exit_code), result.output
        return result

    def enqueue(self, handler: str, payload: Any = None, count: int = 1, **options: Any) -> str:
        """Put jobs straight into the database; the id of the first."""
        with contextlib.closing(open_backend(f"sqlite:///{self.directory}/jobpool.db")) as backend:
            return backend.enqueue_many([JobDefinition(handler, payload or {}, **options)] * count)[0]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start it and come back at once; its log goes to `pool.log`."""
        with (self.directory / "pool.log").open("a") as log:
            process = subprocess.Popen(
                [*PROGRAM, *words],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        self._started.append(process)
        return process

    def on_a_terminal(self, *words: str, until: bytes, then: bytes | signal.Signals) -> tuple[str, int]:
        """Run it on a terminal; once `until` is shown, press a key or signal. What was shown, and the code."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*PROGRAM, *words],
            cwd=self.directory,
            env=self.environment | {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        too_long = threading.Timer(LIMIT, process.kill)
        too_long.start()
        shown, told = b"", False
        with contextlib.suppress(OSError):  # the other side of the terminal is closed: it has left
            while True:
                shown += os.read(ours, 65536)
                if until in shown and not told:
                    told = True
                    process.send_signal(then) if isinstance(then, signal.Signals) else os.write(ours, then)
        code = process.wait(LIMIT)
        too_long.cancel()
        os.close(ours)
        return shown.decode(errors="replace"), code

    def log(self) -> str:
        return (self.directory / "pool.log").read_text()

    def end_all(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(LIMIT)
