"""A working directory that this user may not enter, or that is gone: verbs go on if they can, and a pool is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from cli_shell import Shell
from support.servers.launching import setpriv

WHY = {"closed": "cannot be entered by this user", "gone": "was removed"}


class Elsewhere:
    """Runs `jobpool` in a directory that is closed or removed when the program starts, without root's way past that."""

    def __init__(self, shell: Shell, how: str) -> None:
        self.here = shell.directory / how
        self.broker = ["-b", f"sqlite:///{shell.directory}/q.db"]
        self._shell = shell
        way = 'chmod 0 "$PWD"' if how == "closed" else 'rm -r "$PWD"'
        self._words = ["sh", "-c", f'{way} && exec "$@"', "sh", *_as_an_ordinary_user()]

    def run(self, *words: str, code: int) -> subprocess.CompletedProcess[str]:
        self.here.mkdir()
        (self.here / "jobpool.toml").write_text("workers = 1")
        (self.here / "myjobs.py").touch()
        try:
            program = (*self._words, sys.executable, "-m", "jobpool")
            return self._shell.run(*words, program=program, directory=self.here, code=code)
        finally:
            if self.here.exists():
                self.here.chmod(0o700)
                shutil.rmtree(self.here)


def _as_an_ordinary_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    return [setpriv(), "--bounding-set=-dac_override,-dac_read_search", "--"]


@pytest.fixture(params=["closed", "gone"])
def elsewhere(shell: Shell, request: pytest.FixtureRequest) -> Elsewhere:
    return Elsewhere(shell, request.param)


def test_verbs_go_on_without_a_file_of_settings(elsewhere: Elsewhere) -> None:
    for words, code in (("enqueue report", 0), ("stats", 0), ("dead list", 0), ("health", 3)):
        verb = words.split()
        elsewhere.run(*verb, *([] if verb == ["health"] else elsewhere.broker), code=code)


@pytest.mark.parametrize("verb", ["run", "doctor", "run-one report"])
def test_what_runs_jobs_there_is_refused(elsewhere: Elsewhere, verb: str) -> None:
    done = elsewhere.run(*elsewhere.broker, *verb.split(), "-A", "myjobs", code=2)
    why = WHY[elsewhere.here.name]
    told = rf"the working directory {elsewhere.here}( \(deleted\))? {why}: start it in another \(WorkingDirectory= in a"
    assert re.search(told, done.stderr), done.stderr


def test_a_named_file_that_may_not_be_read_is_an_error_of_settings(shell: Shell) -> None:
    elsewhere = Elsewhere(shell, "closed")
    done = elsewhere.run("stats", "-C", f"{elsewhere.here}/jobpool.toml", code=2)
    assert f"{elsewhere.here}/jobpool.toml cannot be read: " in done.stderr
