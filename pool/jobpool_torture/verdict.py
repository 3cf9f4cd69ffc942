"""The end of a run: everything that is known is judged, and what the broker still has is written down."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from jobpool.broker.values import Capabilities, Message
from jobpool_torture import judge, keys, oracle
from jobpool_torture import leftovers as remains
from jobpool_torture import tolerated as excuses
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import ACCEPTED
from jobpool_torture.result import Result
from jobpool_torture.workload import Item

MAX_CRASHES = 5
"""The pools' `max_crashes`."""


def reach(
    result: Result,
    lines: Sequence[Line],
    kept: Sequence[Message],
    items: Mapping[str, Item],
    windows: Sequence[excuses.Window],
    can: Capabilities,
    kill_grace: float,
) -> None:
    """Fill in the findings of ledger and broker.

    Args:
        result: Gets counts and figures.
        lines: The whole ledger.
        kept: Messages that the broker still has.
        items: The enqueued jobs, by id.
        windows: When faults struck which pools.
        can: Of the broker.
        kill_grace: Seconds that the pools were given.
    """
    result.dead = remains.reasons(kept)
    account = oracle.count(lines, kept=kept, can=can, witnessed=True)
    if not can.lists_live:
        account.lost -= _not_listed(lines, account.lost, result.left)
    result.take(account, excuses.doubled(lines, windows, can))
    late = judge.overruns(lines, items, windows)
    result.late = sorted(late.values())
    bound = kill_grace + judge.FAR_OUT_S
    result.add("LATE", [f"{ident}: {seconds:.1f} s" for ident, seconds in late.items() if seconds > bound])
    ours = [message for message in kept if message.id not in account.ghosts]
    _tell(result, "LOST", judge.unrun(lines, items))
    _tell(result, "LOST", judge.swallowed(lines, items))
    _tell(result, "LOST", judge.undeserved(ours, items, MAX_CRASHES, exact=can.exact_crashes))
    _tell(result, "BLAMED", judge.blamed(lines, items, windows))
    _tell(result, "KEY", keys.broken(lines, items))
    if can.exact_crashes and can.atomic_nack:
        _tell(result, "POISON", judge.unpoisoned(lines, items, MAX_CRASHES))


def _tell(result: Result, count: str, found: Mapping[str, str]) -> None:
    result.add(count, [f"{ident}: {why}" for ident, why in found.items()])


def _not_listed(lines: Sequence[Line], missing: Collection[str], left: int) -> set[str]:
    """Return the missing ids without an end, if `left` were left when a person ended the drain.

    A broker that lists no live messages tells how many they are, and not which.
    """
    ends = ("ack", "abandon")
    ended = {line.id for line in lines if line.event == "settled" and line.verb in ends and line.answer in ACCEPTED}
    ended |= {line.id for line in lines if line.event == "reaped" and line.answer == "dead"}
    open_ = set(missing) - ended
    return open_ if len(open_) <= left else set()


def dump(kept: Sequence[Message], file: Path) -> None:
    """Write one JSON line a message: purged ones cannot be looked at any more. Raises OSError."""
    with file.open("w") as stream:
        for message in kept:
            stream.write(json.dumps(remains.described(message)) + "\n")
