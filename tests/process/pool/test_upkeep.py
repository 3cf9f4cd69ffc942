"""What a pool says of its children when it is asked by a signal."""

from __future__ import annotations

import contextlib
import signal

from support.changing_app import an_app
from support.descriptors import no_more_descriptors
from support.poolrig import LIMIT, PoolProcess, Rig, kill_child
from support.waiting import wait_until

from jobpool.ipc.linux import ACCIDENTAL_SIGNALS
from jobpool_torture.processes import send

SLOW_BIRTH = """
import time
os.register_at_fork(after_in_child=lambda: time.sleep(1.5))
"""


def children(pool: PoolProcess) -> list[int]:
    """Those that its scoreboard shows; none before there is one."""
    with contextlib.suppress(StopIteration, OSError, ValueError):
        return sorted(pool.slots().values())
    return []


def test_quit_ends_no_child_that_is_being_born(rig: Rig) -> None:
    pool = rig.start_pool(app=an_app(rig, extra=SLOW_BIRTH))
    wait_until(lambda: len(children(pool)) == 2)
    born = children(pool)
    pool.send(signal.SIGQUIT)
    wait_until(lambda: len(pool.log("stack of a child")) == 2)
    pool.wait_ready(2)
    assert children(pool) == born
    assert not pool.log("a child died")
    assert pool.stop() == 0


def test_a_pool_that_has_run_out_of_descriptors_goes_on_and_has_its_children_again_later(rig: Rig) -> None:
    rig.witness = True
    pool = rig.start_pool("--metrics", "0", "--history", f"file:{rig.directory}/history").wait_ready(2)
    rig.enqueue_many("work", [{}] * 20)
    rig.wait_drained()
    with no_more_descriptors(pool.pid):
        kill_child(pool, pool.children()[0])
        rig.enqueue_many("work", [{"seconds": 0.1}] * 20)
        rig.wait_drained()
        wait_until(lambda: pool.log("no child could be forked"), LIMIT)
        wait_until(lambda: any(entry["event"].startswith("children cannot be measured") for entry in pool.log()), LIMIT)
        wait_until(lambda: pool.log("history cannot be written; trying again"), LIMIT)
    pool.wait_ready(2)
    wait_until(lambda: pool.log("history is written again"), LIMIT)
    assert pool.stop() == 0
    rig.account().assert_clean()


DISPOSITIONS = """
import re, subprocess


def ignored_and_blocked(text):
    return re.findall("^Sig(?:Ign|Blk):.*", text, re.MULTILINE)


AT_IMPORT = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout


@jobpool.handler
def tell_signals(ctx: jobpool.JobContext) -> None:
    started = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
    note(ctx, "end", tag=str([ignored_and_blocked(AT_IMPORT), ignored_and_blocked(started)]))
"""
PLAIN = ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"]
"""Of a program that nobody has told anything; Python gives those that it starts PIPE and XFSZ back."""


def test_signals_that_mean_nothing_to_a_pool_are_ignored_and_quit_logs_every_childs_stack(rig: Rig) -> None:
    pool = rig.start_pool(app=an_app(rig, extra=DISPOSITIONS)).wait_ready(2)
    [server] = pool.fork_servers()
    born = children(pool)
    for number in sorted(ACCIDENTAL_SIGNALS):
        assert send(pool.pid, number, lambda _: True)
        if number != signal.SIGALRM:
            assert send(server, number, lambda _: True)
    ident = rig.enqueue("tell_signals")
    wait_until(lambda: rig.ends(ident))
    assert rig.ends(ident)[0].tag == str([PLAIN, PLAIN])
    assert pool.fork_servers() == [server]
    assert children(pool) == born
    quit_logs_every_childs_stack(rig, pool)
    assert pool.stop() == 0


def quit_logs_every_childs_stack(rig: Rig, pool: PoolProcess) -> None:
    ident = rig.enqueue("hang", {"how": "hang_in_lock"})
    rig.wait_started(ident)
    pool.send(signal.SIGQUIT)
    wait_until(lambda: len(pool.log("stack of a child")) == 2)
    [hung] = [entry for entry in pool.log("stack of a child") if "hang_in_lock" in entry["stack"]]
    assert [entry["stack"] for entry in pool.log("stack of a child") if entry != hung] == ["idle"]
    assert (hung["id"], hung["handler"]) == (ident, "hang")
    assert len(rig.starts(ident)) == 1
    pool.send(signal.SIGTERM)
    wait_until(lambda: pool.header().draining)
