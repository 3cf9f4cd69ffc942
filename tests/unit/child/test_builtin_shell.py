"""The built-in handler `shell`: what it starts, what it refuses, and what is left of it."""

from __future__ import annotations

import os
import resource
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.built_in import attempt, failure, output, refusal
from support.descriptors import open_descriptors
from support.waiting import wait_until

from jobpool.handlers.builtin import Refused
from jobpool.handlers.builtin.shell import choose
from jobpool.ipc.linux import direct_children, open_fds
from jobpool.message.outcome import ResultKind

PYTHON = os.path.realpath(sys.executable)


def shell(payload: Any, *allowed: str, **options: Any) -> Any:
    return attempt("shell", payload, allowed_shell_commands=allowed or ("sh", "echo", PYTHON), **options)


def script(path: Path, text: str = "#!/bin/sh\necho I am $0\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- what it does --------------------------------------------------------------------------------


def test_it_runs_a_program_and_keeps_what_it_prints() -> None:
    for case, payload, printed in [
        ("split as a shell would, and no shell", "echo 'two words' $HOME *", "two words $HOME *"),
        ("nothing of a shell's", "echo a; echo b && echo c | cat > d", "a; echo b && echo c | cat > d"),
        ("a list is taken as it is", ["echo", "$(id)", "`id`", ""], "$(id) `id` "),
        ("lines", ["sh", "-c", "echo one; echo; echo three"], "one\n\nthree"),
        ("nothing on standard input", ["sh", "-c", "cat; echo end"], "end"),
        ("stderr is kept beside", ["sh", "-c", "echo said >&2; echo done"], "done\nsaid\n"),
    ]:
        made = shell(payload)
        assert (made.kind, made.output) == (ResultKind.SUCCEEDED, printed), case


def test_the_output_is_bytes_of_any_kind() -> None:
    assert shell(["sh", "-c", r"printf '\377\303\244'"]).output == "\ufffdä"


def test_it_fails_when_the_program_does_and_may_be_tried_again() -> None:
    for case, command, text in [
        ("status", "exit 3", "program 'sh' exited with status 3"),
        ("with its last words", "echo why >&2; exit 1", "program 'sh' exited with status 1\nwhy"),
        ("signal", "kill -9 $$", "program 'sh' was killed by signal 9 (SIGKILL)"),
        ("another signal", "kill -TERM $$", "program 'sh' was killed by signal 15 (SIGTERM)"),
    ]:
        made = shell(["sh", "-c", f"echo before; {command}"])
        assert (made.kind, made.error, made.output) == (ResultKind.FAILED, text, "before\n"), case


def test_the_environment_is_the_pools_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY", "hush")
    monkeypatch.setenv("JOBPOOL_BACKEND", "redis://:hush@localhost/0")
    monkeypatch.setenv("COLOUR", "red")
    printed = output("shell", "env", allowed_shell_commands=["env"])
    assert "COLOUR=red" in printed.splitlines()
    assert "hush" not in printed


def test_signals_and_the_group_are_those_of_a_program_of_its_own() -> None:
    code = "import os,signal as s; print(os.getpgrp() == os.getpid(), s.getsignal(s.SIGPIPE) == s.SIG_DFL)"
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        told = shell(["sh", "-c", "kill -TERM $$"]).error
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "SIGTERM" in told
    # Python ignores SIGPIPE by itself, so the group is all that it can tell.
    assert shell([PYTHON, "-c", code]).output.startswith("True")


def test_no_descriptor_is_passed_on_or_left_open(tmp_path: Path) -> None:
    before = open_descriptors()
    with (tmp_path / "open").open("w") as handed_down:
        os.set_inheritable(handed_down.fileno(), True)
        listed = shell([PYTHON, "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"]).output
    assert listed == "[0, 1, 2, 3]", "the last one is the list's own"
    assert open_descriptors() <= before


# --- what it refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize("payload", ["true", ["/bin/true"], "sh -c true"])
def test_by_default_nothing_may_be_started(payload: Any) -> None:
    assert refusal("shell", payload) == "no program may be started here: allowed_shell_commands is empty"


def test_what_it_may_not_do_is_refused_for_good() -> None:
    for which, payload, text in [
        ("empty text", "", "the command line is empty"),
        ("blank text", "  \n", "the command line is empty"),
        ("empty list", [], "the command line is empty"),
        ("empty name", [""], "the program's name is empty"),
        ("quoted empty name", "''", "the program's name is empty"),
        ("open quote", "echo --password 'hunter2", "the command line cannot be split into words: No closing quotation"),
        ("no payload", {}, "must be a command line, as a text or a list of texts, not an object"),
        ("a number", 7, "must be a command line, as a text or a list of texts, not a number"),
        ("a number as a word", ["echo", 7], "every word of a command line must be a text, not a number"),
        ("a list as a word", [["echo"]], "every word of a command line must be a text"),
        ("NUL in a word", ["echo", "a\0b"], "holds a NUL byte"),
        ("NUL in the name", "echo\0", "holds a NUL byte"),
        ("relative path", "./echo", "program './echo' is a relative path"),
        ("upwards", "../bin/echo", "is a relative path"),
        ("relative, with .. within", "bin/../echo", "is a relative path"),
        ("other", "rm -rf /", "program 'rm' is not allowed here; allowed_shell_commands names echo"),
        ("other by path", "/bin/rm", "program '/bin/rm' is not allowed here"),
        ("not there", "no-such-program", "program 'no-such-program' is not allowed here"),
        ("other by a winding path", "/bin/../bin/rm", "is not allowed here"),
        ("directory", "/tmp", "program '/tmp' is a directory"),
        ("no program", "/etc/passwd", "program '/etc/passwd' is not executable"),
        ("device", "/dev/null", "program '/dev/null' is not executable"),
        ("case matters", "ECHO hi", "program 'ECHO' is not allowed here"),
    ]:
        assert text in refusal("shell", payload, allowed_shell_commands=["echo"]), which


def test_a_program_that_is_allowed_and_not_there_may_come(tmp_path: Path) -> None:
    path = tmp_path / "later"
    allowed: dict[str, Any] = {"allowed_shell_commands": [str(path), "later"]}
    assert failure("shell", [str(path)], **allowed) == f"there is no program {str(path)!r}: No such file or directory"
    assert failure("shell", "later", **allowed) == "there is no program 'later' on PATH"
    script(path)
    assert output("shell", [str(path)], **allowed)


def test_why_a_program_cannot_be_started_is_told(tmp_path: Path) -> None:
    odd = str(script(tmp_path / "odd", "no interpreter is named\n"))
    for words, why in [([odd], "Exec format error"), (["echo", "x" * 140_000], "Argument list too long")]:
        said = failure("shell", words, allowed_shell_commands=["echo", odd])
        assert said == f"program {words[0]!r} cannot be started: {why}"


@pytest.mark.parametrize("word", ["tool", "{folder}/bin/tool", "{folder}/link", "{folder}/bin/../bin/tool"])
def test_links_and_winding_paths_to_an_allowed_program_are_that_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    script(tmp_path / "bin/tool")
    (tmp_path / "link").symlink_to("bin/tool")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    payload = [word.format(folder=tmp_path)]
    assert output("shell", payload, allowed_shell_commands=["tool"]) == f"I am {tmp_path}/bin/tool"


def test_a_link_with_an_allowed_name_to_another_program_is_refused(tmp_path: Path) -> None:
    script(tmp_path / "allowed/tool")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/tool").symlink_to("/bin/rm")
    allowed = [str(tmp_path / "allowed/tool")]
    assert "is not allowed here" in refusal("shell", [str(tmp_path / "mine/tool")], allowed_shell_commands=allowed)


def test_folders_on_path_that_are_not_absolute_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "here/tool")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PATH", ".::here")
    assert failure("shell", "tool", allowed_shell_commands=["tool"]) == "there is no program 'tool' on PATH"


def test_a_link_that_is_changed_after_the_check_changes_nothing(tmp_path: Path) -> None:
    script(tmp_path / "good")
    link = tmp_path / "link"
    link.symlink_to("good")
    chosen = choose(str(link), [str(link)], False, "")
    link.unlink()
    link.symlink_to("/bin/rm")
    assert chosen[0] == str(tmp_path / "good")


def test_many_programs_in_one_file_are_each_told_the_name_that_is_allowed(tmp_path: Path) -> None:
    script(tmp_path / "box")
    for name in ("list", "shell", "other"):
        (tmp_path / name).symlink_to("box")
    allowed = [str(tmp_path / "list"), str(tmp_path / "other")]

    def told(name: str) -> str:
        return choose(str(tmp_path / name), allowed, False, "")[1]

    assert (told("list"), told("other")) == (allowed[0], allowed[1])
    assert told("shell") == allowed[0], "by another name of the same file it is what is allowed, not what was asked for"


def test_all_programs_may_be_allowed_and_then_what_is_none_is_still_refused() -> None:
    assert output("shell", "echo hi", allow_all_shell_commands=True) == "hi"
    assert "is a directory" in refusal("shell", "/", allow_all_shell_commands=True)
    assert failure("shell", "no-such", allow_all_shell_commands=True) == "there is no program 'no-such' on PATH"
    with pytest.raises(Refused, match="relative path"):
        choose("./echo", [], True, "/bin")


# --- what is left of it --------------------------------------------------------------------------


def test_a_timeout_kills_the_whole_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = """trap '' TERM; echo $$ >> "$0"; (trap '' TERM; sh -c 'echo $$ >> "$0"; exec sleep 600' "$0") & sleep 600"""
    made = shell(["sh", "-c", code, str(pids)], timeout=0.5)
    assert made.kind is ResultKind.TIMEOUT
    assert made.duration < 5
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2
    wait_until(lambda: not any(map(alive, started)), 5, "all of the group is dead")


def test_where_there_is_no_alarm_the_deadline_ends_it_too() -> None:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(shell(["sh", "-c", "exec sleep 600"], timeout=0.2)))
    begun = time.monotonic()
    thread.start()
    thread.join(30)
    assert made, "it has ended"
    assert made[0].kind is ResultKind.TIMEOUT
    assert time.monotonic() - begun < 20


def test_what_a_program_leaves_running_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    made = shell(["sh", "-c", 'sleep 600 & echo $! > "$0"; echo done', str(pid)], timeout=30)
    assert (made.kind, made.output) == (ResultKind.SUCCEEDED, "done")
    wait_until(lambda: not alive(int(pid.read_text())), 5, "what was left is dead")


def test_endless_output_is_bounded() -> None:
    made = attempt(
        "shell",
        ["sh", "-c", "head -c 200000000 /dev/zero | tr '\\0' x; echo; echo the end"],
        allowed_shell_commands=["sh"],
        output_cap=10_000,
    )
    assert made.kind is ResultKind.SUCCEEDED
    assert len(made.output) < 11_000
    assert "bytes dropped" in made.output
    assert made.output.endswith("the end")


def test_much_on_both_streams_stops_neither() -> None:
    code = (
        "import sys; [(sys.stdout.write('o' * 70000), sys.stderr.write('e' * 70000)) for _ in range(20)]; sys.exit(2)"
    )
    made = shell([PYTHON, "-c", code], timeout=30)
    assert made.error.startswith(f"program {PYTHON!r} exited with status 2\neee")


def test_it_is_the_programs_end_that_counts_and_not_that_of_its_streams(tmp_path: Path) -> None:
    script(tmp_path / "closes", "#!/bin/sh\nexec >&- 2>&-\nexit 4\n", stat.S_IRWXU)
    said = failure("shell", [str(tmp_path / "closes")], allowed_shell_commands=[str(tmp_path / "closes")])
    assert said.endswith("exited with status 4")


# Python drops and reports what is raised in a callback of a weak reference: the alarm goes off once more.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_alarm_at_any_moment_leaves_no_program_behind() -> None:
    before, opened = direct_children(), open_fds()
    for moment in range(60):
        made = shell(["sleep", "600"], "sleep", timeout=0.0001 * (moment + 1))
        assert made.kind is ResultKind.TIMEOUT
        for pid in direct_children() - before:  # killed; on a busy machine its death takes longer than is waited for
            wait_until(lambda pid=pid: os.waitpid(pid, os.WNOHANG)[0], what="it is dead")  # type: ignore[misc]
    assert open_fds() == opened


def test_without_a_free_descriptor_nothing_is_started() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 2, hard))  # one pipe, and not the second
    try:
        said = failure("shell", "echo hi", allowed_shell_commands=["echo"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert said == "program 'echo' cannot be started: Too many open files"
    assert output("shell", "echo hi", allowed_shell_commands=["echo"]) == "hi"


@given(payload=st.text() | st.lists(st.text(max_size=4) | st.integers() | st.none(), max_size=4) | st.integers())
def test_whatever_the_payload_only_what_is_allowed_may_start(payload: Any) -> None:
    try:
        made = attempt("shell", payload, allowed_shell_commands=["no-such-program"])
    except ValueError:
        return  # JSON cannot carry it: refused where it is enqueued
    assert made.kind is ResultKind.UNRECOVERABLE
    assert "Traceback" not in made.error
