"""What a newcomer types, in the order in which `jobpool init` says it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from cli_shell import Shell
from support.waiting import wait_until


def test_init_enqueue_run(shell: Shell) -> None:
    shell.run("init", code=0)
    shell.run("enqueue", "count_primes", "below=1000", code=0)
    shell.enqueue("count_primes", {"below": 2000})
    done = shell.run("--until-empty", "--fail-on-dead", "--progress", "-w", "2", code=0)
    assert done.stdout == ""
    assert " 2/2 " in done.stderr
    assert json.loads(shell.call("stats", "--json").stdout) == [] or _pending(shell) == 0
    assert list((shell.directory / "run").iterdir()) == []


def test_a_pool_says_which_database_it_works_on_and_which_lies_beside_its_app(shell: Shell) -> None:
    folder = shell.directory / "other"
    folder.mkdir()
    (folder / "jobs.py").write_text("import jobpool\n@jobpool.handler\ndef work(ctx): ...\n")
    words, told = ("-A", "other/jobs.py", "-w", "1", "--until-empty"), "no backend is configured"
    new, again = (shell.run(*words).stderr for _ in range(2))
    assert f"{told}     file={shell.directory}/jobpool.db\n" in new
    assert told not in again
    (folder / "jobpool.db").touch()
    assert f"file={shell.directory}/jobpool.db beside_app={folder}/jobpool.db mend=" in shell.run(*words).stderr

    (shell.directory / "jobpool.toml").write_text('backend = "sqlite:///jobpool.db"')
    configured = shell.run(*words).stderr
    assert told not in configured
    assert f"config={shell.directory}/jobpool.toml\n" in configured


def test_no_code_of_the_app_runs_before_the_broker_has_answered(shell: Shell) -> None:
    (shell.directory / "told.py").write_text("open('imported', 'w')\n")
    done = shell.run("-A", "told", "-b", "redis://127.0.0.1:1/0", "-w", "1", code=1)
    assert "nothing listens there" in done.stderr.splitlines()[-1]
    assert "127.0.0.1:1" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (shell.directory / "imported").exists()


def test_an_app_that_does_not_import_is_one_sentence_after_its_stack(shell: Shell) -> None:
    """Slowly: that the queue is empty is known first. Where its own line is at fault: tests/faults/test_boots.py."""
    code = "(lambda: __import__('no_such_module_at_all'))()"
    (shell.directory / "broken.py").write_text(f"import time\ntime.sleep(1.0)\n{code}\n")
    done = shell.run("-A", "broken", "-w", "1", "--until-empty", "-q", code=1)
    assert "no_such_module_at_all" in done.stderr
    assert "jobpool: " in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize("words", [("-A", "app.py"), ("-A", "app", "--no-preload"), ("-A", "app.py", "--cron")])
def test_files_beside_the_app_are_not_taken_for_modules_of_python(shell: Shell, words: tuple[str, ...]) -> None:
    """`token` is imported by the interpreter's own start of a program, the others by jobpool."""
    (shell.directory / "app.py").write_text(
        "import jobpool, beside\n@jobpool.handler\ndef work(ctx): ...\njobpool.Scheduler().define('work').hourly()\n"
    )
    for name in ("beside", "token", "types", "platform", "signal", "select", "random"):
        (shell.directory / f"{name}.py").write_text("MINE = True\n")
    shell.enqueue("work")
    done = shell.run(*words, "-w", "1", "--until-empty", "--fail-on-dead", "--no-progress")
    assert (done.returncode, "ERROR" in done.stderr) == (0, False), done.stderr
    assert "succeeded=1" in done.stderr
    found = json.loads(shell.run("doctor", "--json", *words).stdout)["findings"]
    assert {one["level"] for one in found if one["check"] == "handlers"} == {"ok"}
    shell.run("run-one", "work", *words[:2], code=0)


def test_top_and_health_of_a_pool_that_runs_is_stopped_is_killed(shell: Shell) -> None:
    shell.run("health", code=3)
    shell.run("init")
    pool = shell.start("-w", "2", "-n", "mine")
    wait_until(lambda: shell.call("health").exit_code == 0, what="healthy")
    top = shell.run("top", code=0)
    assert f"mine  pid {pool.pid}" in top.stdout
    assert top.stdout.count("idle") == 2
    for leave in (b"q", signal.SIGINT):
        shown, code = shell.on_a_terminal("top", until=b"idle", then=leave)
        assert code == 0, shown
        assert "SLOT" in shown
        assert "\x1b[?1049l" in shown, "the old screen is back"

    pool.send_signal(signal.SIGSTOP)
    wait_until(lambda: shell.call("health").exit_code == 1, what="degraded")
    assert "has not turned its loop" in shell.call("health", "-n", "mine").stdout
    assert "has not turned its loop" in shell.call("top").stdout
    shell.call("health", "-n", "another", code=3)

    pool.send_signal(signal.SIGCONT)
    wait_until(lambda: shell.call("health").exit_code == 0, what="healthy again")
    pool.kill()
    pool.wait(30)
    shell.call("health", code=3)
    assert list((shell.directory / "run").iterdir()) == []


def test_a_closed_pipe_is_no_error_worth_a_word(shell: Shell) -> None:
    shell.enqueue("x", count=3000)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken:
        done = subprocess.run(
            [sys.executable, "-m", "jobpool", "list", "--limit", "0"],
            cwd=shell.directory,
            env=shell.environment,
            stdout=broken,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr == ""


def test_on_a_terminal_what_destroys_asks(shell: Shell) -> None:
    shell.enqueue("a")
    shown, code = shell.on_a_terminal("purge", "--all", until=b"[y/N]", then=b"n\n")
    assert code == 1, shown
    assert "nothing was changed" in shown
    assert _pending(shell) == 1
    shown, code = shell.on_a_terminal("purge", "--all", until=b"[y/N]", then=b"y\n")
    assert code == 0, shown
    assert "1 message purged" in shown
    assert _pending(shell) == 0


def _pending(shell: Shell) -> int:
    counts = json.loads(shell.call("stats", "default", "--json").stdout)
    return sum(counts[0][state] for state in ("waiting", "delayed", "leased"))


def test_a_verb_works_without_standard_streams(shell: Shell) -> None:
    """What it prints must not get into the database, though that has a descriptor of theirs."""
    shell.run(program=("sh", "-c", f"exec {sys.executable} -m jobpool enqueue a 0<&- 1>&- 2>&-"), code=0)
    assert _pending(shell) == 1
