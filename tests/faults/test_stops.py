"""Stops under load: by a supervisor, by a person at a terminal, twice; another pool goes on with what is given back.

Jobs take 0.2 s, 10 s and an hour, and the grace is 5 s: no pause of the machine takes the short ones over its end.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faultmoves import Figure, end_unharmed, fed, in_time, start_pools, stop_all, under_way
from support.poolrig import Rig
from support.stalls import Stalls
from support.tiers import more
from support.waiting import wait_until

from jobpool.clock import ONE_SIGNAL_S
from jobpool_torture.processes import send, tree_of

GRACE = 5.0
SHORT, LONG, HOUR = 0.2, 10.0, 3600.0
AT_ONCE = 1.0
"""Seconds."""

GOODBYE = 2.0
"""Seconds that the client of Service Bus may take to close its links."""


def job(seconds: float, go: Path) -> dict[str, object]:
    """For `again`: its first delivery takes so long once the file is there; any other ends at once."""
    return {"first": seconds, "later": 0, "until": str(go)}


def assert_untouched(rig: Rig, ident: str) -> None:
    """No counter that leads to a dead letter has moved, whoever has the message now."""
    told = rig.lines("fetched", ident)
    assert {(line.attempt, line.crashes) for line in told} == {(1, 0)}, told


def streaming(rig: Rig, until: Callable[[], bool]) -> bool:
    """Whether it is so; meanwhile the stream of short jobs never ends."""
    return fed(rig, until, 0.002, 200)


@pytest.mark.row(21)
@pytest.mark.on("beanstalk", "sqlite", "redis", "postgres", "servicebus")
def test_a_stop_lets_short_jobs_end_and_another_pool_goes_on_with_the_long_ones(rig: Rig, figure: Figure) -> None:
    [leaving] = start_pools(rig, 1, "--stop-grace", f"{GRACE}", workers=3)
    go = rig.directory / "go"
    short, long, hour = (rig.enqueue("again", job(seconds, go)) for seconds in (SHORT, LONG, HOUR))
    rig.wait_started(short, long, hour)
    [staying] = start_pools(rig, 1)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 200)
    with Stalls() as stalls:
        asked = time.monotonic()
        leaving.send(signal.SIGTERM)
        wait_until(lambda: leaving.log("stopping"))  # said at once, while the scoreboard waits for its turn
        go.touch()  # not before: its children would take what waits
        assert leaving.wait() == 0
        took = time.monotonic() - asked
    figure("the stop beyond its grace", took - GRACE, "s")
    goodbye = GOODBYE if rig.url.startswith("Endpoint=") else 0.0
    assert GRACE <= took < GRACE + AT_ONCE + goodbye + stalls.allowance
    rig.wait_drained()

    assert {line.verb for line in rig.lines("settled", short)} == {"ack"}
    assert len(rig.starts(short)) == 1
    for ident in (long, hour):
        [released] = [line for line in rig.lines("settled", ident) if line.verb == "release"]
        [first, second] = rig.lines("fetched", ident)
        assert (released.pool, second.pool, second.fence > first.fence) == (leaving.name, staying.name, True)
        assert second.at - released.at < AT_ONCE + stalls.allowance
        figure("fetched again after", max(0.0, second.at - released.at), "s")  # lines are written behind the answers
        assert_untouched(rig, ident)
    assert not under_way(rig, leaving)
    rig.account().assert_once_each()
    assert not rig.dead()
    stop_all(rig, [staying])


@pytest.mark.row(21)
@pytest.mark.on("redis", "sqlite", "postgres")
def test_stops_in_a_stream_of_short_jobs_lose_and_repeat_none(rig: Rig, figure: Figure) -> None:
    leaving, staying = start_pools(rig, 2)
    wait_until(lambda: streaming(rig, lambda: len(rig.ends()) > 150), 30.0, "a stream")
    # Its processes share the machine with the stream of the other pool until they have ended: 0.2 s of work each.
    figure("a stop in a stream", in_time(leaving.stop, AT_ONCE + 1.5), "s")
    assert leaving.wait() == 0
    assert not under_way(rig, leaving)
    end_unharmed(rig, [staying])


@pytest.mark.row(21)
@pytest.mark.parametrize("number", [signal.SIGINT, *more((signal.SIGTERM,))])
def test_a_signal_to_the_whole_group_lets_children_go_on_and_a_second_gives_back_at_once(
    rig: Rig, number: signal.Signals
) -> None:
    """As a terminal does it, and `kill` with a group's number."""
    [leaving] = start_pools(rig, 1, "--stop-grace", "60")
    go = rig.directory / "go"
    short, hour = (rig.enqueue("again", job(seconds, go)) for seconds in (SHORT, HOUR))
    runner, _ = rig.wait_started(short, hour)
    [staying] = start_pools(rig, 1)
    others = rig.enqueue_many("work", [{"seconds": 0.01}] * 50)
    os.killpg(leaving.pid, number)
    wait_until(lambda: leaving.log("stopping"))
    stopping = time.monotonic()
    go.touch()
    wait_until(lambda: {line.verb for line in rig.lines("settled", short)} == {"ack"}, what="a child has gone on")
    # The same signal counts once in this time, which has mostly passed by now.
    wait_until(lambda: time.monotonic() >= stopping + ONE_SIGNAL_S)
    os.killpg(leaving.pid, number)
    in_time(leaving.wait, AT_ONCE)
    assert leaving.wait() == 0
    rig.wait_drained()
    assert [line.pid for line in rig.ends(short)] == [runner.pid]
    assert [line.pool for line in rig.lines("fetched", hour)] == [leaving.name, staying.name]
    assert_untouched(rig, hour)
    acked = {line.pool for ident in others for line in rig.lines("settled", ident) if line.verb == "ack"}
    assert acked == {staying.name}, "the one that leaves begins nothing more"
    rig.account().assert_once_each()
    stop_all(rig, [staying])


@pytest.mark.row(21)
def test_a_term_to_every_process_of_a_pool_costs_no_attempt_and_no_message(rig: Rig) -> None:
    """What a supervisor does that signals a whole control group: children die of it, as of any signal."""
    leaving, staying = start_pools(rig, 2, "--stop-grace", "5", "--max-crashes", "0")
    rig.enqueue_many("work", [{"seconds": 0.3}] * 16)
    wait_until(lambda: {line.pid for line in rig.starts()} & set(leaving.children()), what="its children are at work")
    family = tree_of(leaving.pid)
    for pid in family:  # some may have gone with those before them
        send(pid, signal.SIGTERM, family.__contains__)
    assert leaving.wait() == 0
    assert not under_way(rig, leaving)
    rig.wait_drained()
    rig.account().assert_clean()
    assert {line.attempt for line in rig.starts()} == {1}
    assert not rig.dead()
    stop_all(rig, [staying])
