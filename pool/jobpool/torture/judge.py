"""What a run can judge beside the oracle, because it knows what each job was for and when faults struck. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jobpool.torture.ledger import Line
from jobpool.torture.tally import ACCEPTED
from jobpool.torture.workload import TIMEOUT, Item

AFTER = 10.0
"""Seconds after its end for which a fault excuses what is late."""

SOON = 1.0
"""Seconds after its end within which a call may still meet a connection that a fault has spoilt."""

QUICK = 0.2
"""Seconds of an enqueue in which no connection is made anew, and so nothing sent again."""

HARMLESS = ("child.kill", "child.stop")
"""Faults that hold up no timeout: a child that is stopped is killed all the same."""

FAR_OUT = 5.0
"""Seconds beyond timeout and grace that no loaded machine explains."""


@dataclass(frozen=True, slots=True)
class Window:
    """`pool` ("" = all of them) was disturbed between two moments of CLOCK_MONOTONIC."""

    pool: str
    kind: str
    begun: float
    ended: float

    def covers(self, pool: str, begun: float, ended: float, after: float = AFTER) -> bool:
        """Whether something in that pool and between these moments was disturbed, or within `after` seconds of it."""
        if self.kind in HARMLESS or self.pool not in ("", pool):
            return False
        return self.begun <= ended and begun <= self.ended + after


def overruns(lines: Iterable[Line], items: Mapping[str, Item], windows: Iterable[Window]) -> dict[str, float]:
    """For each job that hung, in a pool that no fault held up: seconds from its timeout to the verdict `timeout`.

    The longest, where it hung more than once. The promise is the grace and half a second.
    """
    started = {(line.id, line.fence): line.at for line in lines if line.event == "start" and _is(line, items, "hang")}
    disturbed = list(windows)
    found: dict[str, float] = {}
    for line in lines:
        begun = started.get((line.id, line.fence))
        if line.event != "asked" or line.verb not in ("nack", "abandon") or begun is None:
            continue
        if not any(window.covers(line.pool, begun, line.at) for window in disturbed):
            found[line.id] = max(found.get(line.id, 0.0), line.at - begun - TIMEOUT)
    return found


def unpoisoned(lines: Iterable[Line], items: Mapping[str, Item], max_crashes: int) -> set[str]:
    """Jobs that crash whenever they run, and ran more often than the crash budget allows.

    A run that a stop ended, and whose message was given back, is not charged.
    """
    starts: dict[str, set[int]] = defaultdict(set)
    excused: dict[str, set[int]] = defaultdict(set)
    for line in lines:
        if not _is(line, items, "poison"):
            continue
        if line.event == "start":
            starts[line.id].add(line.fence)
        elif line.event in ("settled", "unknown") and line.verb == "release":
            excused[line.id].add(line.fence)
    return {ident for ident, fences in starts.items() if len(fences - excused[ident]) > max_crashes + 1}


def unrun(lines: Iterable[Line], items: Mapping[str, Item]) -> set[str]:
    """Jobs that were acked by a delivery whose handler had never begun. One with a key may be: its key was done."""
    story = list(lines)
    ran = {(line.id, line.fence) for line in story if line.event == "start"}
    acked = (line for line in story if line.event == "settled" and line.verb == "ack" and line.answer in ACCEPTED)
    return {line.id for line in acked if (line.id, line.fence) not in ran and not _key(line.id, items)}


def broken_keys(lines: Iterable[Line], items: Mapping[str, Item]) -> set[str]:
    """Jobs that should not be, by the key that they share with others.

    One with an idempotency key that began after another with it was acked; a second message with the same unique key.
    """
    story = list(lines)
    return _begun_after_done(story, items) | _second_of_unique(story, items)


def copied(lines: Iterable[Line], windows: Iterable[Window]) -> set[str]:
    """Messages of which a copy too many may be left where a broker copies (`Capabilities.atomic_nack` is False).

    Those that were settled by a copy, and follow-ups that were put with an ack, while the pool had no good way to the
    broker: the put of a copy that was not answered is repeated, within the call.
    """
    story = list(lines)
    follow_ups = defaultdict(set)
    for line in story:
        if line.event == "follow":
            follow_ups[line.id, line.fence].add(line.tag)
    bad = [window for window in windows if window.kind.startswith(("net.", "broker."))]
    found: set[str] = set()
    for line in story:
        settled = line.event in ("settled", "unknown")
        if settled and any(window.covers(line.pool, line.since, line.at, SOON) for window in bad):
            found |= follow_ups[line.id, line.fence] if line.verb == "ack" else {line.id}
    return found


def repeated(lines: Iterable[Line]) -> set[str]:
    """Messages whose enqueue took so long that the client may have sent them twice, where the broker knows no ids."""
    story = [line for line in lines if line.event in ("try", "enq")]
    tried = {line.id: line.at for line in story if line.event == "try"}
    return {line.id for line in story if line.event == "enq" and line.at - tried.get(line.id, line.at) > QUICK}


def recounted(lines: Iterable[Line], windows: Iterable[Window]) -> set[str]:
    """Messages whose crashes may have been charged by half, where who fetches a message charges them by a copy.

    That is a broker that counts deliveries itself (`Capabilities.native_reap` and `exact_crashes`, not `atomic_nack`).
    Between two fetches a delivery had ended without a verdict, and some pool was cut off, stopped or killed: it may
    have put the copy and not deleted the original. A restart of such a broker forgets deliveries that no copy counts.
    """
    story = sorted((line for line in lines if line.event in ("try", "fetched", "settled")), key=lambda line: line.at)
    bad = [window for window in windows if window.kind.startswith(("net.", "broker.", "master.", "group."))]
    restarts = [window for window in bad if window.kind == "broker.restart"]
    held: dict[str, _Held] = {}
    found: set[str] = set()
    for line in story:
        now = held.setdefault(line.id, _Held(line.at))
        if line.event == "settled":
            now.settle(line)
        elif line.event == "fetched":
            disturbed = bad if now.is_open or line.crashes > now.crashes else restarts if now.is_released else []
            found |= {line.id for window in disturbed if window.covers(window.pool, now.since, line.at, SOON)}
            held[line.id] = _Held(line.since, line.crashes, is_open=True)
    ends = ((ident, now.since) for ident, now in held.items() if now.is_open)
    return found.union(ident for ident, since in ends if any(since <= window.ended + SOON for window in bad))


@dataclass(slots=True)
class _Held:
    """Since when a message has been as it was fetched last, and what has become of that delivery."""

    since: float
    crashes: int = 0
    is_open: bool = False
    is_released: bool = False

    def settle(self, line: Line) -> None:
        if line.answer in ACCEPTED and self.is_open:
            self.is_open, self.is_released = False, line.verb == "release"
            self.crashes += line.verb == "forfeit"


def _begun_after_done(story: list[Line], items: Mapping[str, Item]) -> set[str]:
    ran = {(line.id, line.fence) for line in story if line.event == "start"}
    done: dict[str, tuple[float, str]] = {}
    for line in story:
        key = _key(line.id, items)
        acked = line.event == "settled" and line.verb == "ack" and line.answer in ACCEPTED
        if key and acked and (line.id, line.fence) in ran:
            done[key] = min(done.get(key, (line.at, line.id)), (line.at, line.id))
    return {
        line.id
        for line in story
        if line.event == "start" and (first := done.get(_key(line.id, items))) and line.at > first[0]
        if line.id != first[1]
    }


def _second_of_unique(story: list[Line], items: Mapping[str, Item]) -> set[str]:
    answers: dict[str, str] = {}
    second = set()
    for line in story:
        if line.event == "enq" and line.tag in items and items[line.tag].kind == "unique":
            key = items[line.tag].options["idempotency_key"]
            if answers.setdefault(key, line.id) != line.id:
                second.add(line.id)
    return second


def _key(ident: str, items: Mapping[str, Item]) -> str:
    """Its idempotency key, which nobody else but jobs of this run has; "" = none."""
    return str(items[ident].options.get("idempotency_key", "")) if ident in items else ""


def _is(line: Line, items: Mapping[str, Item], kind: str) -> bool:
    return line.id in items and items[line.id].kind == kind
