"""Faults of operation: the time until a pool has noticed, and until all is well again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from bench import fault_cases
from bench.fault_cases import Strike
from bench.fault_stage import Stage, stage
from bench.figures import Figure, Section, Target, percentile
from bench.plan import Plan

TITLE = "two pools of 2: from each fault until it is noticed, and until all goes on"

TRIES = 3
"""Times that one sample is taken, at most, until its fault has struck what it was to."""

ENOUGH = 100
"""Samples from which a 99th percentile means something."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One, and how often it strikes. `bounds`: seconds that the 99th percentile may take, by what it is to."""

    name: str
    strike: Strike
    full: int
    quick: int
    bounds: dict[str, float]


PROCESSES = (
    Fault("child killed", fault_cases.child_killed, 100, 10, {"its message runs again": 0.5}),
    Fault("child stopped", fault_cases.child_stopped, 20, 1, {"killed, after its timeout": 1.5}),
    Fault("fork server killed", fault_cases.fork_server_killed, 20, 3, {}),
)
"""No broker's matter."""

MASTERS = (
    Fault(
        "master killed",
        fault_cases.master_killed,
        *(10, 1),
        {"its children are gone": 1.0, "all messages are redelivered": 3.0},
    ),
    Fault("master stopped", fault_cases.master_stopped, 10, 1, {"its message is redelivered": 3.0}),
)
"""A lease of 2 s, and what is left of 0.8 s until the next reap."""

BACK = 5.0

BROKERS = (
    Fault("connections cut", fault_cases.connections_cut, 50, 5, {"the next ack is accepted": BACK}),
    Fault("reply of a settlement lost", fault_cases.reply_cut, 50, 5, {"that settlement is known": BACK}),
    Fault("reply of a settlement swallowed", fault_cases.reply_swallowed, 10, 1, {"that settlement is known": BACK}),
    Fault("black hole of 3 s", fault_cases.black_hole, 10, 1, {"after it, the first ack is accepted": BACK}),
    Fault("half-open", fault_cases.half_open, 10, 1, {"the next ack is accepted": BACK}),
    Fault("broker killed", fault_cases.broker_killed, 10, 1, {"since it answers, the first ack is accepted": BACK}),
)

OWNED = ("connections cut", "black hole of 3 s", "broker killed")
"""Faults for beanstalkd, besides a killed master, whose leases end with its connection. It does not know the repeat of
a settlement, and its server may forget when the lease of a silent holder ends.
"""

TINY = (
    PROCESSES[0],
    Fault("connections cut", fault_cases.connections_cut, 1, 1, {}),
    Fault("reply of a settlement lost", fault_cases.reply_cut, 1, 1, {}),
    Fault("black hole", partial(fault_cases.black_hole, seconds=0.2), 1, 1, {}),
)
"""For a test: those that take no lease's time."""

SHORT, LONG = 2.0, 10.0
"""Seconds, of leases: what waits for one to end; and what must be well before it does."""

STAGES = (
    ("sqlite", SHORT, (*PROCESSES, *MASTERS)),
    *((broker, SHORT, MASTERS) for broker in ("redis", "postgres")),
    *((broker, LONG, BROKERS) for broker in ("redis", "postgres")),
    ("beanstalkd", SHORT, MASTERS[:1]),
    ("beanstalkd", LONG, tuple(fault for fault in BROKERS if fault.name in OWNED)),
)


def run(plan: Plan) -> Section:
    """Run broker by broker, fault by fault."""
    figures: list[Figure] = []
    for broker, ttl, faults in (("redis", SHORT, TINY),) if plan.tiny else STAGES:
        with stage(plan, broker, ttl) as on:
            for fault in faults:
                where = "" if fault in PROCESSES else f", {broker}"
                figures += _figures(on, fault, where, plan.pick(fault.full, fault.quick))
    return Section("faults", TITLE, figures, NOTES)


def _figures(on: Stage, fault: Fault, where: str, times: int) -> Iterator[Figure]:
    samples: dict[str, list[float]] = defaultdict(list)
    for _ in range(times):
        for what, seconds in sample(on, fault).items():
            samples[what].append(seconds * 1e3)
    for what, taken in samples.items():
        name = f"{fault.name}{where}: {what}"
        bound = fault.bounds.get(what)
        yield percentile(name, "ms", taken, 50)
        yield percentile(name, "ms", taken, 99, Target("≤", bound * 1e3) if bound else None)


def sample(on: Stage, fault: Fault) -> dict[str, float]:
    """Strike once. If the machine stood still before it, what was to be struck may be over: then it is struck anew.

    Raises:
        TimeoutError, ProcessLookupError: It never struck.
    """
    for _ in range(TRIES - 1):
        with suppress(TimeoutError, ProcessLookupError):
            return fault.strike(on)
        on.mend()
    return fault.strike(on)


NOTES = [
    f"Where a sample is dear there are fewer than {ENOUGH}, and p99 is the highest of them.",
    f"Leases of {SHORT:g} s where one has to end (a master killed or stopped), of {LONG:g} s for networks and brokers.",
    "A crash inside a child is in `restart`, a handler that hangs in C in `timeouts`.",
]
