"""Jobs never wait silently: queues by the app, warnings of what nothing serves, and `enqueue` with the app known."""

from __future__ import annotations

import json
import signal

from cli_shell import Shell
from support.waiting import wait_until

APP = """
import threading, time, jobpool
print("imported")
threading.Thread(target=time.sleep, args=(%d,)).start()

@jobpool.handler(queue="reports")
def report(ctx, customer: int, month: str = "06"): print(f"customer {customer}")

@jobpool.handler
def mail(ctx): ...

jobpool.Scheduler().define("mail").queue("nightly").daily_at("02:30")
"""
MORE = """
@jobpool.handler(queue="extra")
def extra(ctx): print("extra ran")
"""
UNLOADABLE = """
import os, threading, time, jobpool
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
if os.path.exists("once"): raise RuntimeError("not twice")
open("once", "w").close()
@jobpool.handler
def report(ctx): ...
"""


def stats(shell: Shell) -> dict[str, dict[str, int]]:
    return {one["queue"]: one for one in json.loads(shell.call("stats", "--json").stdout)}


def enqueued(shell: Shell, *words: str) -> str:
    done = shell.run("enqueue", *words, code=0)
    [ident] = done.stdout.split()
    return ident


def test_a_pool_serves_the_queues_that_its_app_names(shell: Shell) -> None:
    app = shell.directory / "jobs.py"
    app.write_text(APP % 0)
    enqueued(shell, "--app", "jobs.py", "report", "customer=7")
    shell.enqueue("nobody", queue="typo")
    assert "no pool on this machine serves reports, typo: jobs wait there until one does" in shell.call("stats").stderr

    pool = shell.start("--app", "jobs.py", "-w", "1")
    wait_until(lambda: "no pool here fires them" in shell.log(), what="it has looked round")
    wait_until(lambda: stats(shell).keys() == {"typo"}, what="the report is done")
    assert 'jobs wait in queues that no pool here serves queues="typo (1)"' in shell.log()
    assert "serves the queue of some handlers" not in shell.log()

    app.write_text(APP % 0 + MORE)
    early = shell.run("enqueue", "extra", "--app", "jobs.py", "--delay", "1h")
    assert ". It is the queue of its handler: let a pool serve it, or send the pool HUP" in early.stderr
    pool.send_signal(signal.SIGHUP)
    wait_until(lambda: "the pool serves more queues" in shell.log(), what="the new code is there")
    enqueued(shell, "--app", "jobs.py", "extra", "--delay", "1h")
    assert stats(shell)["extra"]["pools"] == 1, "its note has the new queue"
    astray = shell.call("enqueue", "report", "customer=8", "-Q", "report", "--delay", "1h")
    assert "the job waits in queue 'report'; the pools on this machine serve" in astray.stderr
    assert "`jobpool edit ID --move QUEUE` moves it" in astray.stderr
    assert "the pause is for queue 'report'; the pools on this machine serve" in shell.call("pause", "report").stderr
    assert "serve" not in shell.call("pause", "reports").stderr
    shell.call("resume", "report", "reports", code=0)
    moved = shell.call("edit", astray.stdout.strip(), "--move", "reprots")
    assert "what is moved waits in queue 'reprots'; the pools on this machine serve" in moved.stderr
    assert moved.stdout.endswith("  edited\n")
    moved = shell.call("edit", astray.stdout.strip(), "--move", "reports")
    assert (moved.stdout[-7:], moved.stderr) == ("edited\n", "")
    pool.send_signal(signal.SIGTERM)
    assert pool.wait(30) == 0
    alone = shell.run("--app", "jobs.py", "-w", "1", "-Q", "big", "--until-empty")
    assert 'handlers="extra: extra; default: mail; nightly: mail; reports: report"' in alone.stderr
    assert alone.stderr.count("no pool here serves the queue of some handlers") == 1


def test_of_many_queues_that_nothing_serves_ten_are_named(shell: Shell) -> None:
    for number in range(12):
        shell.enqueue("nobody", queue=f"typo{number:02d}")
    told = shell.call("stats").stderr
    assert "typo08, typo09 and 2 more: jobs wait there" in told
    assert "typo10" not in told


def test_children_that_cannot_import_the_app_fail_a_pool_that_stops_by_itself(shell: Shell) -> None:
    (shell.directory / "jobs.py").write_text(UNLOADABLE)
    done = shell.run("--app", "jobs.py", "-w", "1", "--until-empty", code=1)
    assert "RuntimeError: not twice" in done.stderr.splitlines()[-1]


def test_enqueue_refuses_what_the_app_cannot_run(shell: Shell) -> None:
    (shell.directory / "jobs.py").write_text(APP % 600)  # its thread must not keep the command from ending
    (shell.directory / "jobpool.toml").write_text('apps = ["jobs"]\n')
    (shell.directory / "lines").write_text('{"customer": 1}\n{"customer": "a"}\n')
    for words, said in {
        "repotr customer=7": "the app has no handler 'repotr'; did you mean 'report'? (--no-check enqueues it)",
        "report customer=x": "field 'customer' must be a whole number, not 'x'; --no-check enqueues it",
        "report --file lines": "line 2: handler 'report' cannot take these arguments: field 'customer'",
        "--app gone.py report": "no such file in",
    }.items():
        done = shell.run("enqueue", *words.split())
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    enqueued(shell, "report", "customer=7")
    enqueued(shell, "mail")
    shell.call("enqueue", "repotr", "--no-check", code=0)
    assert {queue: one["waiting"] for queue, one in stats(shell).items()} == {"reports": 1, "default": 2}
