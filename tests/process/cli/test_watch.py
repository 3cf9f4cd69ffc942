"""`--watch`: the pool runs the code as it was saved last."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cli_shell import Shell
from support.waiting import wait_until

from jobpool.cli.watch import folder_of, look

APP = """
import pathlib
import jobpool


@jobpool.handler(queue="reports")
def report(ctx: jobpool.JobContext) -> None:
    with pathlib.Path("said").open("a") as said:
        print({text!r}, file=said)
"""


def test_it_reloads_when_a_file_is_saved_and_survives_one_that_does_not_load(shell: Shell) -> None:
    app, said = shell.directory / "jobs.py", shell.directory / "said"
    said.touch()
    app.write_text(APP.format(text="old"))
    pool = shell.start("--app", "jobs", "--workers", "1", "--watch")
    wait_until(lambda: "pool starts" in (shell.directory / "pool.log").read_text(), 30.0, "it starts")
    for number in (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU):
        pool.send_signal(number)  # so early it asks for nothing yet, and must neither end nor stop the pool

    def runs(text: str) -> None:
        wait_until(lambda: _enqueued_and_said(shell, said, text), 30.0, f"a job says {text}")

    runs("old")
    app.write_text("this is not Python")
    wait_until(lambda: "the app does not load" in (shell.directory / "pool.log").read_text(), 30.0, "it says so")
    runs("old")
    verbs = ("health", "top")
    wait_until(lambda: all("the last reload failed" in shell.call(verb).stdout for verb in verbs), 30.0, "they say so")
    app.write_text(APP.format(text="new"))
    runs("new")
    wait_until(lambda: "reload failed" not in shell.call("health").stdout, 30.0, "it is forgotten")


def _enqueued_and_said(shell: Shell, said: Path, text: str) -> bool:
    shell.enqueue("report", queue="reports")
    return said.read_text().splitlines()[-1:] == [text]


def test_it_looks_at_the_apps_own_python_files(tmp_path: Path) -> None:
    for name in ("shop/__init__.py", "shop/deep/jobs.py", "shop/page.html", "shop/.hidden/a.py", "shop/venv/lib/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "shop/venv/pyvenv.cfg").touch()
    os.symlink("nowhere", tmp_path / "shop/broken.py")
    folder = folder_of("shop.deep.jobs", [str(tmp_path)])
    assert folder == tmp_path / "shop"
    assert folder_of(str(tmp_path / "one.py"), []) == tmp_path
    assert folder_of("there_is_no_such_module", [str(tmp_path)]) is None
    found = {str(Path(path).relative_to(folder)) for path in look({folder})}
    assert found == {"__init__.py", "deep/jobs.py"}


def test_of_django_it_looks_at_the_projects_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mysite").mkdir()
    (tmp_path / "mysite" / "__init__.py").touch()
    (tmp_path / "settings.py").touch()
    for settings in ("mysite.settings", "settings"):
        monkeypatch.setenv("DJANGO_SETTINGS_MODULE", settings)
        assert folder_of("jobpool.contrib.django.app", [str(tmp_path)]) == tmp_path
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    assert folder_of("jobpool.contrib.django.app", [str(tmp_path)]) is None
