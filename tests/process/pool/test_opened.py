"""What an app opens at its import, in the children of a pool."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from support.poolrig import Rig

APP = Path(__file__).parents[2] / "support" / "apps_opened.py"
PAGE = Path(__file__).parents[3] / "docs" / "forking.md"
LINES = 800
CHILDREN = 16
ENQUEUING = "import jobpool\n@jobpool.handler\ndef mail(path: str): ...\n{}mail.enqueue('a')\n"
TIMED = """
import faulthandler, jobpool
faulthandler.dump_traceback_later(3600)  # its thread is not in a fork
@jobpool.handler
def again(ctx: jobpool.JobContext) -> None: ...
"""
PATCHED = """
import select, socket, threading, jobpool
@jobpool.handler
def again(ctx: jobpool.JobContext) -> None: ...
del select.poll
socket.socket = threading.get_ident = object  # as `monkey_patch` of gevent and eventlet do
"""
ENQUEUES = "the app enqueues at its import, so each start adds its jobs again"


def test_files_lose_no_line_and_what_is_cut_off_is_told_in_the_log_and_in_each_error(rig: Rig) -> None:
    rig.enqueue_many("write", [{"number": number} for number in range(LINES)])
    rig.enqueue("read")
    query, call = rig.enqueue("query"), rig.enqueue("call")
    closing = rig.enqueue_many("close_archive", [{}] * 2)
    thread = rig.enqueue("begin_thread")
    rig.enqueue("price", {"number": 6})
    [(name, code)] = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (rig.directory / name).write_text(code)
    (rig.directory / "guarded.py").write_text(ENQUEUING.format("if __name__ == '__main__':\n    "))
    pool = rig.run_pool("--until-empty", "--app", name, "--app", "guarded.py", workers=CHILDREN, app=APP)

    for name in ("appended", "written", "rotating", "watched"):
        lines = Counter((rig.directory / f"{name}.log").read_text().splitlines())
        assert lines == Counter(f"line {number}" for number in range(LINES)), name
    header, *rows = (rig.directory / "rows.txt").read_text().splitlines()
    assert (header, sorted(rows)) == ("header", sorted(f"row {number}" for number in range(LINES)))

    [said] = pool.log(
        "what the app's import opened is cut off in its children: open it in the handler (docs/forking.md)"
    )
    database = f"{rig.directory}/own.db (open for reading and writing)"
    assert said["cut"][0] == database
    assert [one.partition(" 127")[0] for one in said["cut"][1:]] == ["socket at", "socket to"]
    [rotating] = [entry for entry in pool.log() if "rotates" in entry["event"]]
    assert rotating["files"] == [f"{rig.directory}/rotating.log"]
    dead = rig.dead()
    assert set(dead) == {query, call}
    assert all(database in (dead[ident].last_error or "").splitlines()[-1] for ident in dead)

    assert "INFO:root:order 6, draw " in (rig.directory / "orders.log").read_text()

    assert pool.log(ENQUEUES) == []
    replaced = {entry["id"]: entry["why"] for entry in pool.log("a child is replaced")}
    assert replaced[thread] == "threads: Thread-1 (sleep)"
    assert not set(closing) & set(replaced), "a file of the app's own that a handler closes is not a leak"


def test_an_app_that_enqueues_at_its_import_is_told_so(rig: Rig) -> None:
    (rig.directory / "enqueuing.py").write_text(ENQUEUING.format(""))
    pool = rig.run_pool("--until-empty", app="enqueuing.py")
    assert [entry["level"] for entry in pool.log(ENQUEUES)] == ["warning"]


@pytest.mark.parametrize("app", [TIMED, PATCHED])
def test_jobs_of_an_app_that_sets_a_timer_of_stacks_or_patches_the_standard_library_succeed(rig: Rig, app: str) -> None:
    (rig.directory / "odd.py").write_text(app)
    rig.enqueue_many("again", [{}] * 3)
    pool = rig.run_pool("--until-empty", "--fail-on-dead", "--default-timeout", "5", app="odd.py")
    assert pool.wait() == 0
    assert [entry["event"] for entry in pool.log() if entry["level"] != "info"] == []
