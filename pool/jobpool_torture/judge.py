"""Judgements of a run beside the oracle's, by its knowledge of each job's purpose and of the faults. Pure.

Of keys: keys.py. Excuses by faults: excuses.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jobpool.broker.values import Message, State
from jobpool_torture.keys import histories_of, key_of
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import ACCEPTED
from jobpool_torture.tolerated import Window
from jobpool_torture.workload import DIES_OF, HANG_TIMEOUT_S, Item

FAR_OUT_S = 5.0
"""Seconds beyond timeout and grace that no loaded machine explains."""

CRASH_LIMIT = "crash-limit"

KILLING = ("child.kill", "forkserver.", "master.", "group.", "pool.")
"""Faults by which a child may die, whatever its job does."""

DYING = ("crash", "poison", "hang")
"""Kinds of job that end without a word of their own."""

DEATH_SEEN_S = 2.0
"""Seconds after such a fault within which the death of a child is seen to."""


def overruns(lines: Sequence[Line], items: Mapping[str, Item], windows: Sequence[Window]) -> dict[str, float]:
    """Return, for each job that hung in a pool that no fault held up, the seconds from its timeout to its verdict.

    The longest, where it hung more than once. The promise is the grace and half a second. The verdict is there when it
    is first asked for: whether the broker answers, and how often it has to be asked, is not the timeout's business.
    """
    started = {(line.id, line.fence): line.at for line in lines if line.event == "start" and _is(line, items, "hang")}
    first: dict[tuple[str, int], Line] = {}
    for line in lines:
        if line.event == "asked" and (line.id, line.fence) in started:
            first.setdefault((line.id, line.fence), line)
    found: dict[str, float] = {}
    for delivery, line in first.items():
        begun = started[delivery]
        is_verdict = line.verb in ("nack", "abandon")
        if is_verdict and not any(window.covers(line.pool, begun, line.at) for window in windows):
            found[line.id] = max(found.get(line.id, 0.0), line.at - begun - HANG_TIMEOUT_S)
    return found


def unpoisoned(lines: Iterable[Line], items: Mapping[str, Item], max_crashes: int) -> dict[str, str]:
    """Return jobs that crash whenever they run, and ran more often than the crash budget allows → how often.

    A run that a stop ended, and whose message was given back, or may have been, is not charged.
    """
    poison = {ident: item for ident, item in items.items() if item.kind == "poison"}
    runs = {
        history.id: sum(bool(one.wrote("start")) and not one.known.may_be("release") for one in history.deliveries)
        for history in histories_of(lines, poison)
    }
    return {ident: f"it ran {number} times" for ident, number in runs.items() if number > max_crashes + 1}


def unrun(lines: Sequence[Line], items: Mapping[str, Item]) -> dict[str, str]:
    """Return jobs acked by a delivery whose handler had never begun. One with a key may be: see keys.py."""
    ran = {(line.id, line.fence) for line in lines if line.event == "start"}
    acked = (line for line in lines if line.event == "settled" and line.verb == "ack" and line.answer in ACCEPTED)
    return {
        line.id: "it was acked, and had not begun"
        for line in acked
        if (line.id, line.fence) not in ran and not key_of(items.get(line.id))
    }


def swallowed(lines: Iterable[Line], items: Mapping[str, Item]) -> dict[str, str]:
    """Return jobs whose enqueue was answered with another's id; a unique one may be, by the id of one with its key."""
    return {
        line.tag: f"its enqueue was answered as {line.id}"
        for line in lines
        if line.event == "enq" and line.tag in items and line.id != line.tag
        if items[line.tag].kind != "unique" or key_of(items[line.tag]) != key_of(items.get(line.id))
    }


def undeserved(
    kept: Iterable[Message], items: Mapping[str, Item], max_crashes: int, *, exact: bool = True
) -> dict[str, str]:
    """Return dead letters of jobs that should not have died, or not of that, or not yet → why.

    Args:
        kept: Messages that the broker still has.
        items: The enqueued jobs; any other message is a follow-up, and good work.
        max_crashes: Any job may die of more crashes than this. The oracle checks their number.
        exact: False if a broker may give a message up by a count of its own (not `Capabilities.exact_crashes`).
    """
    dead = (message for message in kept if message.state is State.DEAD)
    whys = {message.id: _undeserved(message, items.get(message.id), max_crashes, exact) for message in dead}
    return {ident: why for ident, why in whys.items() if why}


def _undeserved(message: Message, item: Item | None, max_crashes: int, exact: bool) -> str:
    reason = message.reason or "for no reason"
    if reason == CRASH_LIMIT:
        too_early = exact and message.crashes <= max_crashes
        return f"it is dead ({reason}) after {message.crashes} crashes" if too_early else ""
    kind = item.kind if item else "follow-up"
    if item is None or DIES_OF.get(kind) != reason:
        return f"it is dead ({reason}), which no job of the kind {kind} may be"
    retries = item.options["max_retries"] if reason != "unrecoverable" else 0
    if message.attempts <= retries:
        return f"it is dead ({reason}) after {message.attempts} of {retries + 1} attempts"
    return ""


def blamed(lines: Sequence[Line], items: Mapping[str, Item], windows: Sequence[Window]) -> dict[str, str]:
    """Return jobs that failed though their handler did not, or whose child died though nothing had killed it → why.

    So it is when a job finds its process spoilt by an earlier one.
    """
    excused = {(line.id, line.fence) for line in lines if line.event in ("fail", "spoilt")}
    begun = {(line.id, line.fence): line.at for line in lines if line.event == "start"}
    killing = [window for window in windows if window.kind.startswith(KILLING)]
    found: dict[str, str] = {}
    for line in lines:
        delivery = (line.id, line.fence)
        if line.event != "asked" or delivery in excused or _dies(items.get(line.id)):
            continue
        if line.verb == "nack" or (line.verb == "abandon" and delivery in begun):
            found[line.id] = f"delivery {line.fence} failed, and its handler had not"
        elif line.verb == "forfeit" and not _may_be_killed(line, begun.get(delivery, line.at), killing):
            found[line.id] = f"delivery {line.fence} died, and nothing had killed it"
    return found


def _dies(item: Item | None) -> bool:
    return item is not None and (item.kind in DYING or item.handler == "torture.crash")


def _may_be_killed(line: Line, begun: float, killing: Iterable[Window]) -> bool:
    return any(
        window.pool in ("", line.pool) and window.begun <= line.at and begun <= window.ended + DEATH_SEEN_S
        for window in killing
    )


def _is(line: Line, items: Mapping[str, Item], kind: str) -> bool:
    return line.id in items and items[line.id].kind == kind
