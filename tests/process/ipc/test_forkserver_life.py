"""The fork server itself: its start, the import of the app, its end and its owner's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.nurse import LIMIT, TESTS, Child, Nurse, Watch
from support.stalls import Stopwatch

from jobpool.ipc import packets
from jobpool.ipc.fork_client import ForkServerClient
from jobpool.ipc.frames import Exited, HandlerInfo, Loaded, LoadFailed
from jobpool.ipc.linux import open_fds


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()


def test_the_table_of_handlers_is_reported_and_the_title_names_the_pool(nurse: Nurse) -> None:
    loaded = nurse.hear(Loaded)
    assert loaded.handlers == [HandlerInfo("demo", max_retries=3)]
    assert (loaded.preloaded, loaded.threads) == (True, [])
    assert 0 <= loaded.seconds < LIMIT
    assert command_line(nurse.server.pid) == "jobpool: fork server [test]"
    assert nurse.bear().ask("report")["preload"] is True


@pytest.mark.parametrize(
    ("app", "sentence", "in_trace"),
    [
        (
            "missing",
            "myapp does not import: ModuleNotFoundError: No module named 'nowhere_to_be_found'",
            "childmains.py",
        ),
        ("bad_syntax", "myapp does not import: SyntaxError: invalid syntax (myapp.py, line 1)", "def report(:"),
        ("exits", "myapp does not import: SystemExit: 5", "sys.exit(5)"),
        ("misconfigured", "the app 'myapp' has no handlers: decorate one with @jobpool.handler", ""),
        ("no_such_function", "myapp does not import: AttributeError", "no_such_function"),
    ],
)
def test_an_app_that_does_not_import_is_one_sentence_and_a_traceback(app: str, sentence: str, in_trace: str) -> None:
    with Nurse(app=app, apps=["myapp"]) as nurse:
        [failed] = nurse.hear_end()
        assert isinstance(failed, LoadFailed)
        assert failed.error.startswith(sentence)
        assert (in_trace in failed.trace, bool(in_trace)) == (True, bool(failed.trace))
        assert nurse.server.wait(LIMIT) == 3


def test_what_an_import_had_started_before_it_failed_is_dead_when_that_is_told() -> None:
    with Nurse(app="starts_a_helper_and_fails") as nurse:
        helper = int(nurse.hear(LoadFailed).error.split()[-1])
        with pytest.raises(ProcessLookupError):
            os.kill(helper, 0)


def test_an_app_that_ends_the_process_at_its_import_is_an_end_without_a_word() -> None:
    with Nurse(app="dies") as nurse:
        assert nurse.hear_end() == []
        assert nurse.server.wait(LIMIT) == 9


def test_threads_that_the_import_leaves_are_named_and_the_children_import_by_themselves() -> None:
    with Nurse(app="starts_threads") as nurse:
        loaded = nurse.hear(Loaded)
        assert (loaded.preloaded, loaded.threads) == (False, ["poller"])
        assert [handler.name for handler in loaded.handlers] == ["demo"]
        child = nurse.bear()
        report = child.ask("report")
        assert (report["preload"], report["threads"]) == (False, 1)
        assert report["parent"] == nurse.server.pid
        assert child.ask("descriptors") == {}
        assert Path(f"/proc/{nurse.server.pid}/task/{nurse.server.pid}/children").read_text().split() == [
            str(child.pid)
        ]


def test_the_brokers_url_and_the_keys_are_not_in_any_environment() -> None:
    environ = {**os.environ, "JOBPOOL_BACKEND": "redis://:secret@host", "JOBS_KEY": "secret", "SECRET_KEY": "the app's"}
    with Nurse(environ=environ) as nurse:
        of_child = nurse.bear().ask("report")["environ"]
        assert "JOBPOOL_BACKEND" not in of_child
        assert of_child["SECRET_KEY"] == "the app's"
        assert b"redis://:secret" not in Path(f"/proc/{nurse.server.pid}/environ").read_bytes()


def test_one_that_was_told_nothing_ends_when_its_master_hangs_up() -> None:
    for pause in (0.0, 0.5):  # while it starts, and while it waits
        begun = ForkServerClient(os.environ)
        time.sleep(pause)
        begun.close()
        assert begun.wait(LIMIT) == 0
        begun.discard()


def test_a_request_that_is_no_frame_ends_the_fork_server_and_its_children(nurse: Nurse, child: Child) -> None:
    watch = Watch([child.pid, *child.ask("leave_grandchildren")])
    packets.send(nurse.server._control, b"rubbish")
    nurse.hear_end()
    assert watch.wait(1.0) == []
    assert nurse.server.wait(LIMIT) == 1


def test_rubbish_from_the_fork_server_makes_the_master_kill_it_and_say_why(caplog: pytest.LogCaptureFixture) -> None:
    with Nurse() as nurse:
        nurse.hear(Loaded)
        theirs, ours = packets.pair()
        with theirs:
            its_own = nurse.server._control  # open until the kill: the fork server would end by itself
            ours.setblocking(False)
            nurse.server._control = ours
            theirs.send(b"rubbish")
            assert nurse.server.receive() == []
        assert nurse.server.closed
        [told] = caplog.records
        assert "a packet of 7 bytes is not a frame" in vars(told)["fields"]["why"]
        assert "rubbish" not in str(vars(told))
        assert nurse.server.wait(LIMIT) == -signal.SIGKILL
        its_own.close()


def test_hanging_up_ends_everything_within_a_second(nurse: Nurse) -> None:
    children = [nurse.bear(slot) for slot in range(4)]
    grandchildren = [pid for child in children for pid in child.ask("leave_grandchildren")]
    watch = Watch([nurse.server.pid, *(child.pid for child in children), *grandchildren])
    nurse.server.close()
    assert watch.wait(1.0) == []
    assert nurse.server.poll() == 0


def test_a_closed_client_is_harmless() -> None:
    before = open_fds()
    with Nurse() as nurse:
        nurse.server.close()
        nurse.server.close()
        assert nurse.server.fileno() == -1
        assert nurse.server.receive() == []
        nurse.spawn()
        nurse.server.wait(LIMIT)
        nurse.server.kill()
    assert open_fds() == before


def start_owner(count: int, app: str = "plain") -> tuple[subprocess.Popen[str], dict[str, Any]]:
    words = [sys.executable, "-m", "support.owner", str(count), app]
    owner = subprocess.Popen(words, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    return owner, json.loads(owner.stdout.readline())


def test_kill_9_of_the_owner_ends_fork_server_children_and_grandchildren_within_a_second() -> None:
    owner, pids = start_owner(4)
    with owner:
        watch = Watch([pids["server"], *pids["children"], *pids["grandchildren"]])
        owner.kill()
        assert watch.wait(1.0) == []


@pytest.mark.parametrize("app", ["plain", "sleeps_at_the_third_fork", "hangs_in_c_at_the_third_fork"])
def test_kill_9_of_the_owner_ends_a_fork_server_that_is_stopped_or_hangs_in_a_hook(app: str) -> None:
    owner, pids = start_owner(2, app)
    with owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        if app == "plain":
            os.kill(pids["server"], signal.SIGSTOP)
        else:
            owner.stdin.write("one-more\n")
            owner.stdin.flush()
            assert "hanging\n" in owner.stdout
        watch, grandchildren = Watch([pids["server"], *pids["children"]]), Watch(pids["grandchildren"])
        owner.kill()
        assert watch.wait(LIMIT) == []
        if app == "hangs_in_c_at_the_third_fork":
            for pid in grandchildren.wait(0.001):
                os.kill(pid, signal.SIGKILL)  # it was killed itself, and could sweep nothing
        else:
            assert grandchildren.wait(LIMIT) == []


def test_a_signal_to_go_on_ends_no_fork_server_whose_owner_lives(nurse: Nurse) -> None:
    child = nurse.bear(0)
    for _ in range(3):
        os.kill(nurse.server.pid, signal.SIGCONT)
        nurse.bear(1)
    assert child.ask("report")["parent"] == nurse.server.pid


def test_kill_9_of_the_owner_while_the_app_hangs_at_its_import_ends_the_fork_server() -> None:
    program = "from support.nurse import Nurse\nimport time\n"
    program += "nurse = Nurse(app='hangs')\nprint(nurse.server.pid, flush=True)\ntime.sleep(600)\n"
    with subprocess.Popen([sys.executable, "-c", program], cwd=TESTS, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        watch = Watch([int(owner.stdout.readline())])
        owner.kill()
        assert watch.wait(1.0) == []


def test_kill_9_of_the_fork_server_ends_the_children_and_leaves_the_rest_to_the_owners_sweep() -> None:
    owner, pids = start_owner(3)
    with owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        children, grandchildren = Watch(pids["children"]), Watch(pids["grandchildren"])
        owner.stdin.write("kill-server\n")
        owner.stdin.flush()
        assert children.wait(1.0) == []
        assert int(owner.stdout.readline()) >= len(pids["grandchildren"])
        assert grandchildren.wait(0.001) == []
    assert owner.returncode == 0


def test_a_child_whose_group_was_stopped_dies_of_the_kill_all_the_same(nurse: Nurse, child: Child) -> None:
    os.killpg(child.pid, signal.SIGSTOP)
    assert nurse.end(child).signal == signal.SIGKILL


def test_children_come_up_fast_and_share_what_was_preloaded() -> None:
    with Nurse(app="thirty_megabytes", main="quiet") as nurse:
        nurse.hear(Loaded)
        begun = Stopwatch()
        child = nurse.bear()
        assert begun.seconds() < 1.0
        assert private_bytes(child.pid) <= 6 << 20
        assert shared_bytes(child.pid) > 25 << 20
        exited = nurse.end(child)
        assert isinstance(exited, Exited)


def private_bytes(pid: int) -> int:
    return _rollup(pid, "Private_Clean", "Private_Dirty")


def shared_bytes(pid: int) -> int:
    return _rollup(pid, "Shared_Clean", "Shared_Dirty")


def _rollup(pid: int, *names: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.split(":")[0] in names)
