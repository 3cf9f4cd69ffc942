"""`jobpool run-one`: a job in the foreground, with the terminal that it was started from."""

from __future__ import annotations

import json
import signal

from cli_shell import Shell

APP = """
import ctypes
import dataclasses
import os
import threading
import time
from typing import Annotated, Literal, NewType

import jobpool

Street = NewType("Street", str)
Size = Annotated[Literal["1", "2"], "of a parcel"]


@jobpool.handler("report", queue="reports", max_retries=0)
def report(ctx: jobpool.JobContext, customer: int) -> str:
    ctx.progress(0.5, "halfway")
    ctx.enqueue("mail", {"to": customer})
    print("working")
    return f"done {customer}"


@jobpool.handler(queue="reports", max_retries=0)
def stops(ctx: jobpool.JobContext, number: int) -> int:
    breakpoint()
    return number + 1


@jobpool.handler
def post(ctx: jobpool.JobContext, number: int, code: str, street: Street | None = None, size: Size = "1") -> str:
    return repr((number, code, street, size))


@dataclasses.dataclass
class Parcel:
    number: int
    code: str


@jobpool.handler
def ship(parcel: Parcel) -> str:
    return repr((parcel.number, parcel.code))


@jobpool.handler
def rest(**fields: str) -> str:
    return repr(fields)


@jobpool.handler
def crashes(ctx: jobpool.JobContext) -> None:
    ctypes.string_at(0)


@jobpool.handler
def leaves(ctx: jobpool.JobContext) -> None:
    if not os.fork():
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))


@jobpool.handler
def later(ctx: jobpool.JobContext) -> None:
    raise jobpool.Retry(after=60)
"""


def with_app(shell: Shell) -> Shell:
    (shell.directory / "jobs.py").write_text(APP)
    (shell.directory / "jobpool.toml").write_text('apps = ["jobs"]\n')
    return shell


def test_it_shows_what_the_job_says_and_sends_nothing(shell: Shell) -> None:
    done = with_app(shell).run("run-one", "report", "customer=7")
    assert (done.returncode, done.stdout) == (0, "working\ndone 7\n"), done.stderr
    for part in ("50% halfway", "not enqueued: mail {'to': 7}", "succeeded in"):
        assert part in done.stderr
    assert not list(shell.directory.glob("*.db"))


def test_a_word_is_text_where_only_that_fits(shell: Shell) -> None:
    with_app(shell)
    for line, given in (
        ("post number=7 code=2026.10 street=12 size=2", "(7, '2026.10', '12', '2')"),
        ("post number=7 code=null street=null", "(7, 'null', None, '1')"),
        ('post number=7 code="7"', "(7, '7', None, '1')"),
        ("ship number=7 code=12345", "(7, '12345')"),
        ("rest fields=1 a=true", "{'fields': '1', 'a': 'true'}"),
    ):
        done = shell.run("run-one", *line.split())
        assert done.stdout == f"{given}\n", done.stderr
    done = shell.run("enqueue", "post", "number=7", "code=2026.10")
    assert '"code": "2026.10"' in shell.run("inspect", done.stdout.strip()).stdout, done.stderr


def test_an_app_that_enqueues_at_its_import_is_told_of_it(shell: Shell) -> None:
    with_app(shell)
    assert "the app enqueues" not in shell.run("enqueue", "report", "customer=7").stderr
    (shell.directory / "jobs.py").write_text(APP + "report.enqueue(customer=8)\n")
    told = shell.run("enqueue", "report", "customer=7").stderr
    assert "the app enqueues at its import, and so this look at it did too" in told


def test_a_crash_in_c_code_leaves_its_stack(shell: Shell) -> None:
    assert "in crashes" in with_app(shell).run("run-one", "crashes", code=-signal.SIGSEGV).stderr


def test_a_job_that_does_not_succeed_is_a_failure(shell: Shell) -> None:
    with_app(shell)
    for words, code, told in (
        (["leaves"], 1, "the job ended its process by os._exit(0): in a pool that is a crash\n"),
        (["later"], 1, "to be run again after 60 s"),
        (["report"], 1, "customer"),
        (["reprot"], 2, "the app has no handler 'reprot'; did you mean 'report'?\n"),
    ):
        done = shell.run("run-one", *words)
        assert (done.returncode, told in done.stderr) == (code, True), done.stderr


def test_a_thread_that_the_app_leaves_spoils_no_success(shell: Shell) -> None:
    with_app(shell)
    (shell.directory / "jobs.py").write_text(APP + "threading.Thread(target=time.sleep, args=(60,)).start()\n")
    done = shell.run("run-one", "rest")
    assert (done.returncode, "os._exit" in done.stderr) == (0, False), done.stderr


def test_a_breakpoint_works_there_and_is_told_in_a_pool(shell: Shell) -> None:
    shown, code = with_app(shell).on_a_terminal("run-one", "stops", "number=4", until=b"(Pdb)", then=b"c\n")
    assert (code, "\r\n5\r\n" in shown) == (0, True), shown

    shell.enqueue("stops", {"number": 4}, queue="reports", max_retries=0)
    shell.run("--until-empty", "--workers", "1")
    [letter] = json.loads(shell.call("dead", "list", "--json").stdout)
    assert "run-one" in str(letter), letter
