"""Checks whether the supervisor gives the pool enough time to stop."""

from __future__ import annotations

import math

from jobpool.broker.finding import Finding, Level
from jobpool.ops.doctor.surroundings import Supervisor, Surroundings

MARGIN = 2.0
"""Seconds that a stop takes beyond `stop_grace`: kills, releases, goodbyes."""


def judge(stop_grace: float, around: Surroundings) -> Finding:
    """Compare `stop_grace` with the time that the supervisor waits."""
    supervisor = around.supervisor
    if supervisor is None:
        return Finding("stop-grace", Level.OK, f"stop_grace is {stop_grace:g} s, and no supervisor is seen")
    if supervisor.seconds >= stop_grace + MARGIN:
        return Finding("stop-grace", Level.OK, f"{_waits(supervisor)}, and stop_grace is {stop_grace:g} s")
    return Finding(
        "stop-grace",
        Level.PROBLEM if supervisor.known else Level.WARNING,
        f"{_waits(supervisor)}, and stop_grace is {stop_grace:g} s",
        "it kills the pool in the middle of its stop: a crash for what runs, which then waits for its lease to end",
        _mend(supervisor, stop_grace),
    )


def _waits(supervisor: Supervisor) -> str:
    waits = f"{supervisor.name} waits {supervisor.seconds:g} s for a stop"
    return waits if supervisor.known else f"{waits} unless told otherwise"


def _mend(supervisor: Supervisor, stop_grace: float) -> str:
    lower = supervisor.seconds - MARGIN
    raised = f"set {supervisor.setting} to {math.ceil(stop_grace + 5)} s or more"
    return f"{raised}, or stop_grace to {lower:g} or less" if lower > 0 else raised
