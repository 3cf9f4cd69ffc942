"""Excuses by faults: when they struck, and which messages a broker that copies may have doubled. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobpool.broker.values import Capabilities
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import ACCEPTED

TOLERATED_AFTER_S = 10.0  # time after its end for which a fault excuses what is late
SPOILT_CONNECTION_S = 1.0  # time after its end within which a call may still meet a connection that a fault has spoilt
UNHEARD_AFTER_S = 1.0  # time after the death of a fork server in which its children die, on a busy machine
QUICK_ENQUEUE_S = 0.2  # time of an enqueue in which no connection is made anew, and so nothing sent again
HARMLESS = ("child.kill", "child.stop", "child.spoil", "log.block")
"""Faults that hold up no timeout: a child that is stopped is killed all the same."""


@dataclass(frozen=True, slots=True)
class Window:
    """`pool` ("" = all of them) was disturbed between two moments of CLOCK_MONOTONIC."""

    pool: str
    kind: str
    begun: float
    ended: float

    def covers(self, pool: str, begun: float, ended: float, after: float = TOLERATED_AFTER_S) -> bool:
        """Return whether that pool was disturbed between these moments, or up to `after` seconds before."""
        if self.kind in HARMLESS or self.pool not in ("", pool):
            return False
        return self.begun <= ended and begun <= self.ended + after


def heard(lines: Sequence[Line], windows: Sequence[Window]) -> list[Line]:
    """Return the lines without failures that no master heard of.

    The child died with its fork server just after its handler had failed, so its message was released.
    """
    struck = [window for window in windows if window.kind.startswith("forkserver.")]
    released = {(line.id, line.fence): line for line in lines if line.event == "settled" and line.verb == "release"}

    def is_unheard(line: Line) -> bool:
        settled = released.get((line.id, line.fence)) if line.event == "fail" else None
        return settled is not None and any(
            window.covers(settled.pool, line.at, settled.since, UNHEARD_AFTER_S) for window in struck
        )

    return [line for line in lines if not is_unheard(line)]


def doubled(lines: Sequence[Line], windows: Sequence[Window], can: Capabilities) -> set[str]:
    """Return messages that are not judged by their counters and numbers, beside those that the oracle itself leaves."""
    if can.keeps_records:
        return set()
    found = copied(lines, windows) | repeated(lines)
    return found | recounted(lines, windows) if can.exact_counts else found


def copied(lines: Iterable[Line], windows: Iterable[Window]) -> set[str]:
    """Return the messages of which a copy too many may be left if a broker copies (not `Capabilities.keeps_records`).

    These were settled by a copy, or put with an ack, while the pool had no good way to the broker. An unanswered put of
    a copy is repeated, within the call.
    """
    history = list(lines)
    follow_ups = defaultdict(set)
    for line in history:
        if line.event == "follow":
            follow_ups[line.id, line.fence].add(line.tag)
    bad = [window for window in windows if window.kind.startswith(("net.", "broker."))]
    found: set[str] = set()
    for line in history:
        settled = line.event in ("settled", "unknown")
        if settled and any(window.covers(line.pool, line.since, line.at, SPOILT_CONNECTION_S) for window in bad):
            found |= follow_ups[line.id, line.fence] if line.verb == "ack" else {line.id}
    return found


def repeated(lines: Iterable[Line]) -> set[str]:
    """Return messages whose enqueue took so long that they may be there twice, if the broker knows no ids."""
    history = [line for line in lines if line.event in ("try", "enq")]
    tried = {line.id: line.at for line in history if line.event == "try"}
    return {
        line.id for line in history if line.event == "enq" and line.at - tried.get(line.id, line.at) > QUICK_ENQUEUE_S
    }


def recounted(lines: Iterable[Line], windows: Iterable[Window]) -> set[str]:
    """Return the messages whose crashes may have been charged by half, if a fetch charges them by a copy.

    Between two fetches a delivery had ended without a verdict, and some pool was cut off, stopped or killed. It may
    have put the copy and not deleted the original. A restart of such a broker forgets deliveries that no copy counts.
    """
    history = sorted((line for line in lines if line.event in ("try", "fetched", "settled")), key=lambda line: line.at)
    bad = [window for window in windows if window.kind.startswith(("net.", "broker.", "master.", "group."))]
    restarts = [window for window in bad if window.kind == "broker.restart"]
    held: dict[str, _Held] = {}
    found: set[str] = set()
    for line in history:
        now = held.setdefault(line.id, _Held(line.at))
        if line.event == "settled":
            now.settle(line)
        elif line.event == "fetched":
            disturbed = bad if now.is_open or line.crashes > now.crashes else restarts if now.is_released else []
            found |= {
                line.id for window in disturbed if window.covers(window.pool, now.since, line.at, SPOILT_CONNECTION_S)
            }
            held[line.id] = _Held(line.since, line.crashes, is_open=True)
    ends = ((ident, now.since) for ident, now in held.items() if now.is_open)
    return found.union(
        ident for ident, since in ends if any(since <= window.ended + SPOILT_CONNECTION_S for window in bad)
    )


@dataclass(slots=True)
class _Held:
    """The time since a message was fetched last, and the end of that delivery."""

    since: float
    crashes: int = 0
    is_open: bool = False
    is_released: bool = False

    def settle(self, line: Line) -> None:
        if line.answer in ACCEPTED and self.is_open:
            self.is_open, self.is_released = False, line.verb == "release"
            self.crashes += line.verb == "forfeit"
