"""The record of each abnormal end, made by a real pool of a real child that died, and where a person meets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import apps_deaths
from support.poolrig import LIMIT, PoolProcess, Rig, kill_child
from support.waiting import wait_until

from jobpool.broker.values import Message
from jobpool.ipc.linux import find_oom_kills
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.message.death import MAX_RECORD_BYTES, Death
from jobpool.message.definition import JobDefinition

APP = Path(apps_deaths.__file__)
MEBI = 2**20
POOL = ("--max-crashes", "1", "--kill-grace", "0.3", "--memory-limit", "200M")


in_one_pool = pytest.mark.xdist_group("deadly")
"""Of a test that uses it: on one worker, so that one is started."""


@pytest.fixture(scope="module")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, PoolProcess]]:
    """A pool in which a job is dead at its second crash."""
    with Rig(tmp_path_factory.mktemp("deaths")) as rig:
        yield rig, rig.start_pool(*POOL, workers=2, app=APP).wait_ready(2)


def dead(rig: Rig, ident: str) -> tuple[Message, Death]:
    """Wait until it is a dead letter; the message and its record."""
    wait_until(lambda: rig.is_dead(ident), LIMIT, f"{ident} is dead")
    message = rig.inspect(ident)
    assert message.cause is not None
    assert len(message.cause) <= MAX_RECORD_BYTES
    return message, Death.from_text(message.cause)


@in_one_pool
def test_a_segmentation_fault_in_c_code(deadly: tuple[Rig, PoolProcess]) -> None:
    rig, _ = deadly
    message, death = dead(rig, rig.enqueue("end", {"how": "segfault"}))
    assert (message.reason, message.crashes, message.attempts) == ("crash-limit", 2, 0)
    assert (death.how, death.sent_by) == ("killed by SIGSEGV", "itself")
    assert re.search(r'File ".*apps_deaths\.py", line \d+ in segfault', death.stack), death.stack
    assert "jobpool/child/" not in death.stack
    assert 5 * MEBI < death.peak_memory < 500 * MEBI
    assert 0 < death.cpu_seconds < 20
    assert death.output == "printed in delivery 2\nwritten to descriptor 2"


@in_one_pool
@pytest.mark.parametrize(
    ("how", "timeout", "reason", "ended", "sent_by", "named"),
    [
        ("abort", None, "crash-limit", "killed by SIGABRT", "itself", "in end"),
        ("exit_at_once", None, "crash-limit", "exited with status 3", "itself", ""),
        ("sleep", 0.3, "timeout", "timeout", "the pool: timeout", "in sleep"),
        ("loop_in_c", 0.5, "timeout", "timeout", "the pool: timeout", "in loop_in_c"),
        ("die_of_the_alarm", 0.3, "timeout", "timeout", "the pool: timeout", ""),
        ("grow", None, "memory-limit", "memory limit", "the pool: memory limit", ""),
        # The handler becomes another program, which closes the channel and goes on.
        ("become_another_program", None, "crash-limit", "killed by SIGKILL", "the pool: broken channel", ""),
    ],
)
def test_how_it_ended_and_who_ended_it(
    deadly: tuple[Rig, PoolProcess], how: str, timeout: float | None, reason: str, ended: str, sent_by: str, named: str
) -> None:
    rig, _ = deadly
    message, death = dead(rig, rig.enqueue("end", {"how": how}, timeout=timeout))
    assert (message.reason, death.how, death.sent_by) == (reason, ended, sent_by)
    assert message.crashes == (2 if reason == "crash-limit" else 0)
    assert named in death.stack
    assert "printed in delivery" in death.output or how == "become_another_program"
    assert how != "grow" or death.peak_memory > 200 * MEBI
    assert how != "loop_in_c" or death.cpu_seconds > 0.1


@in_one_pool
def test_a_kill_from_outside(deadly: tuple[Rig, PoolProcess]) -> None:
    rig, pool = deadly
    ident = rig.enqueue("end", {"how": "sleep"})
    for delivery in (1, 2):
        said = f"printed in delivery {delivery}"
        wait_until(lambda s=said: kill_who_said(pool, ident, s), LIMIT, said)  # type: ignore[misc]
    message, death = dead(rig, ident)
    assert (message.reason, death.how) == ("crash-limit", "killed by SIGKILL")
    assert death.sent_by in ("outside, or its own code", "outside, or the kernel"), (
        "the second where no count of the kernel's is"
    )
    assert "printed in delivery 2" in death.output


@in_one_pool
def test_a_retry_that_goes_well_leaves_no_trace_of_a_death(deadly: tuple[Rig, PoolProcess]) -> None:
    """An ordinary failure keeps what it printed: it is not an abnormal end."""
    rig, _ = deadly
    ident = rig.enqueue("end", {"how": "no such way"})
    wait_until(lambda: rig.is_dead(ident), LIMIT)
    message = rig.inspect(ident)
    assert message.reason == "failed"
    assert message.cause
    death = Death.from_text(message.cause)
    assert (death.how, death.stack) == ("", "")
    assert death.output.splitlines() == ["printed in delivery 1", "", "written to descriptor 2"]


@in_one_pool
def test_it_is_shown_wherever_the_cause_is(deadly: tuple[Rig, PoolProcess]) -> None:
    rig, pool = deadly
    ident = rig.enqueue("end", {"how": "segfault"})
    dead(rig, ident)

    def jobpool(*words: str) -> str:
        command = [sys.executable, "-m", "jobpool", *words, "-b", rig.url]
        return subprocess.run(command, cwd=rig.directory, capture_output=True, text=True, check=True).stdout

    row = next(line for line in jobpool("dead", "list").splitlines() if line.startswith(ident))
    assert re.search(r"crash-limit +killed by SIGSEGV \(itself\)$", row), row
    assert "crash-limit: killed by SIGSEGV (itself); peak memory" in jobpool("list", f"id:{ident}")
    told = jobpool("inspect", ident)
    for part in ("\ncause\n  killed by SIGSEGV\n", "ended by      itself", "in segfault", "printed in delivery 2"):
        assert part in told
    cause = json.loads(jobpool("inspect", ident, "--json"))["cause"]
    assert (cause["how"], cause["sent_by"]) == ("killed by SIGSEGV", "itself")
    causes = [entry["cause"] for entry in pool.log("a message is dead: crash limit")]  # thinned out: not one each
    assert any(re.match(r"(killed|exited).* \(itself\)(, core dumped)?; peak memory \d+ MiB, CPU ", c) for c in causes)
    assert any("killed by SIGSEGV (itself)" in line for line in pool.last_deaths())


def test_the_log_says_which_job_died_where_and_which_is_dead_of_it_and_no_job_if_there_was_none(rig: Rig) -> None:
    pool = rig.start_pool(*POOL, workers=1, app=APP).wait_ready(1)
    ident = rig.enqueue("end", {"how": "segfault"}, name="nightly", then=(JobDefinition("after"),))
    dead(rig, ident)
    wait_until(lambda: len(pool.log("a child died")) == 2, LIMIT)
    died = pool.log("a child died")[0]
    assert (died["id"], died["handler"]) == (ident, "end")
    assert re.search(r'File ".*apps_deaths\.py", line \d+ in segfault', "\n".join(died["stack"][:2])), died
    [limit] = wait_until(lambda: pool.log("a message is dead: crash limit"), LIMIT)
    assert limit["cause"].startswith("killed by SIGSEGV (itself)")
    told = {"id": ident, "queue": "default", "handler": "end", "name": "nightly", "attempts": 0, "crashes": 2}
    told["not_run"] = "after"
    assert told.items() <= limit.items()

    [idle] = pool.wait_ready(1).children()
    kill_child(pool, idle)
    died = wait_until(lambda: pool.log("a child died")[2:], LIMIT)[0]
    assert died["pid"] == idle
    assert died.keys().isdisjoint({"id", "handler", "stack"})


def crashed(rig: Rig, ident: str) -> Message:
    """Wait until a crash is charged; the message."""
    wait_until(lambda: rig.inspect(ident).crashes == 1, LIMIT, "a crash is charged")
    return rig.inspect(ident)


@pytest.fixture
def small_group(rig: Rig) -> Iterator[Path]:
    """A control group of 160 MiB, below this process's own; skips where none may be made."""
    counted = find_oom_kills()
    group = counted.parent / f"jobpool-test-{os.getpid()}" if counted else None
    limit = "memory.max" if counted and counted.name == "memory.events" else "memory.limit_in_bytes"
    try:
        assert group is not None
        group.mkdir()
        (group / limit).write_text("160M")
    except (AssertionError, OSError) as error:
        if group is not None and group.exists():
            group.rmdir()
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    yield group
    rig.end()
    wait_until(lambda: not (group / "cgroup.procs").read_text(), LIMIT, "the group is empty")
    group.rmdir()


def test_the_kernels_out_of_memory_killer(rig: Rig, small_group: Path) -> None:
    """A real one, in a group of the pool's own: who is killed from outside in the same group is still told apart."""
    into = ("sh", "-c", f'echo $$ > {small_group}/cgroup.procs; exec "$@"', "sh")
    pool = rig.start_pool("--max-crashes", "1", workers=1, app=APP, through=into).wait_ready(1)
    message, death = dead(rig, rig.enqueue("end", {"how": "grow"}))
    assert (message.reason, death.how) == ("crash-limit", "killed by SIGKILL")
    assert death.sent_by == "the kernel: out of memory"
    ident = rig.enqueue("end", {"how": "sleep"})
    wait_until(lambda: kill_who_said(pool, ident, "printed in delivery 1"), LIMIT)
    assert Death.from_text(crashed(rig, ident).cause or "").sent_by == "outside, or its own code"
    assert pool.process.poll() is None, "the master was not the killer's choice"


def test_a_crash_may_be_left_to_its_lease(rig: Rig) -> None:
    rig.start_pool("--on-crash", "expire", "--ttl", "1.5", workers=1, app=APP).wait_ready(1)
    message = crashed(rig, rig.enqueue("end", {"how": "segfault"}))
    assert Death.from_text(message.cause or "") == Death("lease expired")
    assert message.attempts == 0


def kill_who_said(pool: PoolProcess, ident: str, said: str) -> bool:
    """SIGKILL to the child that runs the message, once it has printed this; False: there is none yet."""
    with Scoreboard.open(pool.note().board) as board:
        pages = [board.slot(index) for index in range(board.slots)]
        found = [page.child.read() for page in pages if said in page.printed.read(page.child.nonce)]
        pids = [child.pid for child in found if child.ident == ident]
    return any(kill_child(pool, pid) for pid in pids)
