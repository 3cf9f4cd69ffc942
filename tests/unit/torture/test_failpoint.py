"""Fail-points: the process dies, or stops, at exactly the call that is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from support.waiting import wait_until

from jobpool_torture.processes import state

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
PROGRAM = """
import sys
from support.failpoints import FailPoints, parse_points
points = FailPoints(parse_points(sys.argv[1]))
for call in sys.argv[2:]:
    print(call, flush=True)
    point, _, verbs = call.partition("/")
    points.at(point, verbs.split("+"))
"""


def survived(points: str, *calls: str) -> int | None:
    """At which call (1-based) it died; None = at none."""
    words = [sys.executable, "-c", PROGRAM, points, *calls]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return len(done.stdout.splitlines()) if done.returncode else None


def test_it_dies_at_the_call_that_is_named_and_at_no_other() -> None:
    calls = ("before-settle/ack", "before-settle/nack+ack", "after-settle/ack", "before-settle/nack", "after-fetch")

    assert survived("before-settle:3", *calls) == 4
    assert survived("before-settle/nack:2", *calls) == 4
    assert survived("before-settle:3,after-settle", *calls) == 3
    assert survived("before-renew,after-fetch:2", *calls) is None


def test_it_stops_where_it_is_told_to_and_goes_on() -> None:
    words = [sys.executable, "-c", PROGRAM, "after-fetch:2=stop", *["after-fetch"] * 3]
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as program:
        wait_until(lambda: state(program.pid) == "T", 30.0, "it has stopped")
        program.send_signal(signal.SIGCONT)
        assert program.stdout
        assert program.stdout.read().splitlines() == ["after-fetch"] * 3
    assert program.returncode == 0
