"""What a newcomer types, in the order in which `jobpool init` says it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_shell import Shell, wait_until


def test_init_enqueue_run(shell: Shell) -> None:
    assert shell.run("init").returncode == 0
    for below in (1000, 2000, 3000):
        assert shell.run("enqueue", "count_primes", f"below={below}").returncode == 0
    done = shell.run("--until-empty", "--fail-on-dead", "-w", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert json.loads(shell.run("stats", "--json").stdout) == [] or _pending(shell) == 0
    assert list((shell.directory / "run").iterdir()) == []


def test_once_runs_one_job(shell: Shell) -> None:
    shell.run("init")
    for _ in range(2):
        shell.run("enqueue", "count_primes", "below=1000")
    assert shell.run("--once", "-w", "1").returncode == 0
    assert _pending(shell) == 1


def test_a_dead_job_makes_fail_on_dead_exit_1(shell: Shell) -> None:
    shell.run("init")
    shell.run("enqueue", "count_primes", "below=words", "--max-retries", "0", "--no-check")
    done = shell.run("--until-empty", "--fail-on-dead", "-w", "1")
    assert done.returncode == 1, done.stderr
    [dead] = json.loads(shell.run("dead", "--json").stdout)
    assert "'below' must be a whole number" in dead["last_error"]


def test_a_progress_bar_when_asked_for(shell: Shell) -> None:
    shell.run("init")
    shell.run("enqueue", "count_primes", "below=1000")
    done = shell.run("--until-empty", "--progress", "-w", "1")
    assert " 1/1 " in done.stderr


def test_no_code_of_the_app_runs_before_the_broker_has_answered(shell: Shell) -> None:
    (shell.directory / "told.py").write_text("open('imported', 'w')\n")
    done = shell.run("-A", "told", "-b", "redis://127.0.0.1:1/0", "-w", "1")
    assert done.returncode == 1
    assert "nothing listens there" in done.stderr.splitlines()[-1]
    assert not (shell.directory / "imported").exists()


@pytest.mark.parametrize(
    ("flags", "code", "stacks"),
    [
        pytest.param((), "import no_such_module_at_all", 0, id="forever"),
        pytest.param(("--until-empty", "-q"), "(lambda: __import__('no_such_module_at_all'))()", 1, id="until empty"),
    ],
)
def test_an_app_that_does_not_import_is_one_sentence_after_a_stack_if_it_is_deep(
    shell: Shell, flags: tuple[str, ...], code: str, stacks: int
) -> None:
    # Slowly: that the queue is empty is known first.
    (shell.directory / "broken.py").write_text(f"import time\ntime.sleep(1.0)\n{code}\n")
    done = shell.run("-A", "broken", "-w", "1", *flags)
    assert done.returncode == 1
    assert "no_such_module_at_all" in done.stderr
    assert "jobpool: " in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == stacks


def test_top_and_health_of_a_running_and_of_a_stopped_pool(shell: Shell) -> None:
    assert shell.run("health").returncode == 3
    shell.run("init")
    pool = shell.start("-w", "2", "-n", "mine")
    wait_until(lambda: shell.run("health").returncode == 0, "healthy")
    top = shell.run("top")
    assert top.returncode == 0
    assert f"mine  pid {pool.pid}" in top.stdout
    assert top.stdout.count("idle") == 2

    pool.send_signal(signal.SIGSTOP)
    wait_until(lambda: shell.run("health").returncode == 1, "degraded")
    assert "has not turned its loop" in shell.run("health", "-n", "mine").stdout
    assert "has not turned its loop" in shell.run("top").stdout
    assert shell.run("health", "-n", "another").returncode == 3

    pool.send_signal(signal.SIGCONT)
    pool.send_signal(signal.SIGTERM)
    assert pool.wait(30) == 0, shell.log()
    assert shell.run("health").returncode == 3


def test_a_second_pool_on_the_same_file_shares_the_work(shell: Shell) -> None:
    shell.run("init")
    first, second = shell.start("-w", "1", "-n", "first"), shell.start("-w", "1", "-n", "second")
    wait_until(lambda: len(json.loads(shell.run("top", "--json").stdout)) == 2, "both are seen")
    shell.run("enqueue", "count_primes", "--file", "-", input='{"below": 1000}\n' * 20)
    wait_until(lambda: _pending(shell) == 0, "all done")
    for pool in (first, second):
        pool.send_signal(signal.SIGTERM)
        assert pool.wait(30) == 0, shell.log()


def test_a_killed_pool_is_not_shown_any_more(shell: Shell) -> None:
    shell.run("init")
    pool = shell.start("-w", "1")
    wait_until(lambda: shell.run("health").returncode == 0, "healthy")
    pool.kill()
    pool.wait(30)
    assert shell.run("health").returncode == 3
    assert list((shell.directory / "run").iterdir()) == []


def test_the_master_does_not_carry_the_settings_machinery(shell: Shell) -> None:
    shell.run("init")
    shell.environment["JOBPOOL_DEBUG"] = "1"  # or its maps would be hidden from all but root
    pool = shell.start("-w", "1")
    wait_until(lambda: shell.run("health").returncode == 0, "healthy")
    maps = Path(f"/proc/{pool.pid}/maps").read_text()
    assert "pydantic" not in maps
    pool.send_signal(signal.SIGTERM)
    assert pool.wait(30) == 0, shell.log()


def test_a_log_in_json(shell: Shell) -> None:
    shell.run("init")
    done = shell.run("--until-empty", "--log-format", "json", "-w", "1", "-v")
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    assert entries
    assert all({"time", "level", "event"} <= entry.keys() for entry in entries)


def test_a_closed_pipe_is_no_error_worth_a_word(shell: Shell) -> None:
    shell.run("enqueue", "x", "--file", "-", input="{}\n" * 3000)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken:
        done = subprocess.run(
            [sys.executable, "-m", "jobpool.cli.main", "list", "--limit", "0"],
            cwd=shell.directory,
            env=shell.environment,
            stdout=broken,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr == ""


@pytest.mark.parametrize("leave", [b"q", signal.SIGINT], ids=["q", "Ctrl-C"])
def test_top_on_a_terminal(shell: Shell, leave: bytes | signal.Signals) -> None:
    shell.run("init")
    pool = shell.start("-w", "1")
    wait_until(lambda: shell.run("health").returncode == 0, "healthy")
    shown, code = shell.on_a_terminal("top", until=b"idle", then=leave)
    assert code == 0, shown
    assert "SLOT" in shown
    assert "\x1b[?1049l" in shown, "the old screen is back"
    pool.send_signal(signal.SIGTERM)
    assert pool.wait(30) == 0, shell.log()


def test_on_a_terminal_what_destroys_asks(shell: Shell) -> None:
    shell.run("enqueue", "a")
    shown, code = shell.on_a_terminal("purge", "--all", until=b"[y/N]", then=b"n\n")
    assert code == 1, shown
    assert "nothing was changed" in shown
    assert _pending(shell) == 1
    shown, code = shell.on_a_terminal("purge", "--all", until=b"[y/N]", then=b"y\n")
    assert code == 0, shown
    assert "1 message purged" in shown
    assert _pending(shell) == 0


def _pending(shell: Shell) -> int:
    counts = json.loads(shell.run("stats", "default", "--json").stdout)
    return sum(counts[0][state] for state in ("waiting", "delayed", "leased"))


def test_verbs_work_without_standard_streams(shell: Shell) -> None:
    for words in ("init", "enqueue count_primes below=1000", "stats"):
        command = f"exec {sys.executable} -m jobpool.cli.main {words} 0<&- 1>&- 2>&-"
        done = subprocess.run(["sh", "-c", command], cwd=shell.directory, env=shell.environment, check=False)
        assert done.returncode == 0, words
    assert _pending(shell) == 1
