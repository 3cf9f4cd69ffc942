"""Which faults strike when: a list made from a seed, before anything runs. Pure: no clock, no I/O.

The same seed with the same parameters gives the same list, on every machine and version of Python. It is made with
`random.Random(seed).random()` alone, whose sequence is promised not to change. A longer run begins as a shorter one.

A fault names no process, since it is planned before any of them exists. It has a number, `pick`, that chooses among
the processes there when it strikes.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec import json as typed_json
from msgspec.structs import asdict

SCHEDULE_VERSION = 1
HOUR_S = 3600.0
MAX_PICK = 1 << 16
MAX_NUMBER = 1_000_000_000  # no number of a schedule file is beyond it

Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_NUMBER)]
Number = Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]

AMOUNTS = {"net.delay": (0.0, 60.0), "net.drop": (0.0, 1.0), "clock.jump": (-24 * HOUR_S, 24 * HOUR_S)}
"""Allowed amounts of a schedule file, by kind; see `Fault`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault."""

    about: str  # its effect, in a few words
    weight: float  # how often it is chosen, compared with others
    lasts: tuple[float, float] = (0.0, 0.0)  # for how long, from and to, in leases (ttl); 0 = it is over at once
    amount: tuple[float, float] = (0.0, 0.0)  # from and to; the unit is the kind's own, see `Fault`


KINDS: Mapping[str, Kind] = {
    "child.kill": Kind("SIGKILL to a child", 8),
    "child.stop": Kind("SIGSTOP to a child, SIGCONT later", 4, (0.1, 2.0)),
    "child.spoil": Kind(
        "a job spoils its process: limits, timers, its user; those after it are innocent", 3, (0.2, 0.5)
    ),
    "forkserver.kill": Kind("SIGKILL to a fork server", 2),
    "forkserver.stop": Kind("SIGSTOP to a fork server, SIGCONT later", 2, (0.1, 1.5)),
    "forkserver.freeze": Kind(
        "SIGSTOP to a fork server for good, a child of its killed: its pool must start another", 1
    ),
    "master.kill": Kind("SIGKILL to a master, another pool in its place later", 2, (0.0, 1.0)),
    "master.stop": Kind("SIGSTOP to a master, SIGCONT later", 3, (0.2, 2.0)),
    "group.stop": Kind("SIGSTOP to all processes of a pool, SIGCONT later", 2, (0.2, 2.0)),
    "pool.term": Kind("SIGTERM to a pool, which drains, another in its place later", 2, (0.0, 0.5)),
    "pool.hup": Kind("SIGHUP to a pool, which loads its app anew", 2),
    "log.block": Kind("nobody reads a pool's log: what is written to it waits", 2, (0.5, 3.0)),
    "net.cut": Kind("all connections of a pool reset", 3),
    "net.hole": Kind("nothing gets through, to or from the broker or both; held back, or lost", 3, (0.2, 2.0)),
    "net.refuse": Kind("new connections of a pool refused", 2, (0.2, 1.5)),
    "net.delay": Kind("everything between a pool and the broker comes later", 3, (0.5, 3.0), (0.02, 0.5)),
    "net.drop": Kind(
        "a share of the broker's replies lost, the connection cut or left silent", 3, (0.5, 3.0), (0.1, 0.5)
    ),
    "access.deny": Kind("the pools' user may not log in, or do nothing; allowed again later", 2, (0.2, 1.2)),
    "broker.restart": Kind("the broker restarted by the command that was given", 1),
    "clock.jump": Kind("a pool's wall clock set, and set back later", 2, (0.5, 4.0), (-HOUR_S, HOUR_S)),
}
"""Every kind, in the order in which they are shown."""


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """One fault.

    Attributes:
        amount: `net.delay`: seconds. `net.drop`: share of the replies, 0 to 1. `clock.jump`: seconds, < 0 is back.
    """

    number: Count  # from 0; kept when a schedule is shrunk, so that it names the same fault
    at: Seconds  # since the faults began
    kind: str  # one of `KINDS`
    pool: Count = 0  # which pool, from 0
    pick: Count = 0  # which child, direction or way: taken modulo what is there
    seconds: Seconds = 0.0  # for how long, or how long the ended pool stays away; 0 = it is over at once
    amount: Number = 0.0


def plan(seed: int, *, seconds: float, pools: int, kinds: Sequence[str], ttl: float, rate: float) -> list[Fault]:
    """Return the faults of a run, by time.

    Args:
        seconds: For how long faults begin, > 0; the last ones may end later.
        kinds: Kinds that may be chosen; their order has no meaning.
        ttl: Seconds of a lease, > 0: faults last for shares and multiples of it.
        rate: Faults a second, on average, > 0.
    """
    chosen = [kind for kind in KINDS if kind in kinds]
    draw = random.Random(seed).random
    faults: list[Fault] = []
    at = 0.0
    while True:
        at += -math.log(1.0 - draw()) / rate
        fault = _fault(len(faults), at, chosen, pools, ttl, [draw() for _ in range(5)])
        if at >= seconds:
            return faults
        faults.append(fault)


def _fault(number: int, at: float, kinds: Sequence[str], pools: int, ttl: float, draws: Sequence[float]) -> Fault:
    """Draw one fault, always with the same number of draws: so one fault's kind does not move all later ones."""
    which, where, pick, lasts, amount = draws
    name = _weighed(kinds, which)
    kind = KINDS[name]
    return Fault(
        number,
        at=round(at, 3),
        kind=name,
        pool=int(where * pools),
        pick=int(pick * MAX_PICK),
        seconds=round(_between(kind.lasts, lasts) * ttl, 3),
        amount=round(_between(kind.amount, amount), 3),
    )


def _weighed(kinds: Sequence[str], draw: float) -> str:
    left = draw * sum(KINDS[kind].weight for kind in kinds)
    for kind in kinds:
        left -= KINDS[kind].weight
        if left < 0:
            return kind
    return kinds[-1]


def _between(bounds: tuple[float, float], draw: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * draw


class About(Struct):
    """The options of a run that its schedule file brings along."""

    seed: int
    seconds: Seconds
    pools: Count
    workers: Count
    ttl: Seconds
    rate: Number


class _Head(Struct):
    version: int


class _File(Struct):
    about: About
    faults: list[Fault]


def dump(faults: Sequence[Fault], about: Mapping[str, Any]) -> str:
    """Return the text of a schedule file: facts `about` the run, for a replay (JSON), and a line for each fault."""
    lines = ",\n".join(f"    {json.dumps(asdict(fault))}" for fault in faults)
    head = f'"version": {SCHEDULE_VERSION},\n  "about": {json.dumps(dict(about))}'
    return f'{{\n  {head},\n  "faults": [\n{lines}\n  ]\n}}\n'


def load(text: str) -> tuple[list[Fault], About]:
    """Return the faults in a schedule file, by time, and its facts `about` the run.

    Raises `ValueError`: it is none; one sentence for the user.
    """
    try:
        version = typed_json.decode(text, type=_Head).version
        file = typed_json.decode(text, type=_File) if version == SCHEDULE_VERSION else None
    except ValueError as error:
        raise ValueError(f"it is not a schedule: {error}") from error
    if file is None:
        raise ValueError(f"it is a schedule of version {version}, and this jobpool reads {SCHEDULE_VERSION}")
    for fault in file.faults:
        least, most = AMOUNTS.get(fault.kind, (-MAX_NUMBER, MAX_NUMBER))
        if fault.kind not in KINDS or not least <= fault.amount <= most:
            raise ValueError(f"fault {fault.number} of the schedule is none: {json.dumps(asdict(fault))}")
        if fault.pool >= file.about.pools:
            raise ValueError(f"fault {fault.number} strikes a pool that is not there")
    if len({fault.number for fault in file.faults}) < len(file.faults):
        raise ValueError("two faults of the schedule have one number, by which each is undone")
    return sorted(file.faults, key=lambda fault: fault.at), file.about
