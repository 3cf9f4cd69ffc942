"""Which faults strike when: a list made from a seed, before anything runs. Pure: no clock, no I/O.

The same seed with the same parameters gives the same list, on every machine and version of Python. It is made with
`random.Random(seed).random()` alone, whose sequence is promised not to change. A longer run begins as a shorter one.

A fault names no process: at that time nobody knows which there will be. It has a number, `pick`, that chooses among
what is there when it strikes.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

SCHEDULE_VERSION = 1
HOUR_S = 3600.0
MAX_PICK = 1 << 16
MAX_NUMBER = 1e9
"""No number of a schedule file is beyond it: seconds, or a pick."""

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


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        amount: `net.delay`: seconds; `net.drop`: share of the replies, 0 to 1; `clock.jump`: seconds, < 0 is back.
    """

    number: int  # from 0; kept when a schedule is shrunk, so that it names the same fault
    at: float  # seconds since the faults began, >= 0
    kind: str  # one of `KINDS`
    pool: int = 0  # which pool, from 0
    pick: int = 0  # >= 0; which child, direction or way: taken modulo what is there
    seconds: float = 0.0  # for how long, or how long the ended pool stays away; 0 = it is over at once
    amount: float = 0.0

    @property
    def ends(self) -> float:
        """Seconds since the faults began."""
        return self.at + self.seconds


def plan(seed: int, *, seconds: float, pools: int, kinds: Sequence[str], ttl: float, rate: float) -> list[Fault]:
    """Return the faults of a run, by time.

    Args:
        seconds: For how long faults begin, > 0; the last ones may end later.
        kinds: Kinds that may be chosen; their order has no meaning.
        ttl: Seconds of a lease, > 0: faults last for shares and multiples of it.
        rate: Faults a second, on average, > 0.

    Raises:
        ValueError: One of these is out of its range, or a kind is unknown; the text is for the user.
    """
    _check(seconds, pools, kinds, ttl, rate)
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


def _check(seconds: float, pools: int, kinds: Sequence[str], ttl: float, rate: float) -> None:
    for name, value in (("seconds", seconds), ("pools", pools), ("ttl", ttl), ("rate", rate)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} of a schedule must be more than 0, not {value!r}")
    if not kinds:
        raise ValueError("a schedule needs at least one kind of fault")
    if unknown := sorted(set(kinds).difference(KINDS)):
        raise ValueError(f"{unknown[0]!r} is not a kind of fault; there are {', '.join(KINDS)}")


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


def dump(faults: Sequence[Fault], about: Mapping[str, Any]) -> str:
    """Return the text of a schedule file: what a replay must know `about` the run (JSON), and a line for each fault."""
    lines = ",\n".join(f"    {json.dumps(asdict(fault))}" for fault in faults)
    head = f'"version": {SCHEDULE_VERSION},\n  "about": {json.dumps(dict(about))}'
    return f'{{\n  {head},\n  "faults": [\n{lines}\n  ]\n}}\n'


def load(text: str) -> tuple[list[Fault], dict[str, Any]]:
    """Return the faults in a schedule file, by time, and what it says `about` the run.

    Raises `ValueError`: it is none; one sentence for the user.
    """
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not a schedule: not JSON ({error})") from error
    if not isinstance(read, dict) or "version" not in read or not isinstance(read.get("about"), dict):
        raise ValueError('it is not a schedule: it has no "version", "about" and "faults"')
    if read["version"] != SCHEDULE_VERSION:
        raise ValueError(
            f"it is a schedule of version {str(read['version'])[:20]}, and this jobpool reads {SCHEDULE_VERSION}"
        )
    faults = list(_faults(read.get("faults")))
    if len({fault.number for fault in faults}) < len(faults):
        raise ValueError("two faults of the schedule have one number, by which each is undone")
    return sorted(faults, key=lambda fault: fault.at), read["about"]


def _faults(found: object) -> Iterator[Fault]:
    if not isinstance(found, list):
        raise ValueError('it is not a schedule: "faults" is not a list')
    for index, entry in enumerate(found):
        fault = _read(entry)
        if fault is None:
            raise ValueError(f"fault {index} of the schedule is none: {json.dumps(entry)[:200]}")
        yield fault


def _read(entry: object) -> Fault | None:
    """Parse an entry; None: it is not a fault."""
    names = {field.name for field in fields(Fault)}
    if not isinstance(entry, dict) or not {"number", "at", "kind"} <= entry.keys() <= names:
        return None
    if entry["kind"] not in list(KINDS):  # a list: the value read may be anything, and a key must be hashable
        return None
    numbers = [value for name, value in entry.items() if name != "kind"]
    if not all(type(value) in (int, float) and -MAX_NUMBER <= value <= MAX_NUMBER for value in numbers):  # no NaN
        return None
    fault = Fault(**entry)
    whole = all(isinstance(value, int) and value >= 0 for value in (fault.number, fault.pool, fault.pick))
    least, most = AMOUNTS.get(fault.kind, (0.0, 0.0))
    sane = min(fault.at, fault.seconds) >= 0 and (not most or least <= fault.amount <= most)
    return fault if whole and sane else None
