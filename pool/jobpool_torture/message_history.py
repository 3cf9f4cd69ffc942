"""One message's history: its deliveries, the known facts of each settlement, and the counters that could follow.

Two pools write to one ledger, and either may be stopped between an answer and its line. So the order of lines of two
pools proves nothing. Three things count: the broker's numbers of deliveries, the order of one delivery's lines, and
clocks. A call that began after another was answered came after it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from jobpool.broker.values import Message, State
from jobpool.message.settlement import Settled
from jobpool_torture.ledger import Line

HANDLERS = ("start", "end", "fail", "effect", "left", "follow", "told")  # events that a run of the handler writes
ACCEPTED = (Settled.OK.value, Settled.ALREADY.value)  # answers of a broker to a settlement that is in force
CALL_REMEMBERED_S = 50.0  # time for which a broker surely knows a call again; less than the contract's 60, for clocks

Told = TypeVar("Told", Line, Message)
Step = tuple[int, int]  # attempts and crashes that a delivery adds

CRASHED: Step = (0, 1)
STEPS: dict[str, Step] = {"nack": (1, 0), "release": (0, 0), "forfeit": CRASHED}
"""By an accepted settlement. A `move` or `abandon` says itself what it adds; after an ack nothing follows."""


@dataclass(frozen=True, slots=True)
class Known:
    """The known facts of one delivery's settlement.

    Attributes:
        done: Calls that the broker answered with OK: it changed something; more than one is a fault.
    """

    done: tuple[Line, ...] = ()
    accepted: Line | None = None  # the last call that was answered OK or ALREADY
    unknown: tuple[Line, ...] = ()  # calls that may have been carried out, and of which no later answer tells
    unanswered: tuple[Line, ...] = ()  # all calls that were not answered, those included of which a later answer told

    @property
    def verb(self) -> str:
        """The accepted one; "" = none is known to be."""
        return self.accepted.verb if self.accepted else ""

    def may_be(self, verb: str) -> bool:
        """Return whether it was settled so, as far as is known."""
        return self.verb == verb or any(line.verb == verb for line in self.unknown)


def known_of(calls: Iterable[Line], *, idempotent: bool) -> Known:
    """Read the `asked`, `settled` and `unknown` lines of one delivery, in their order.

    If settlements are `idempotent`, a refusal tells that the unanswered calls before it had no effect.
    """
    done: list[Line] = []
    accepted: Line | None = None
    unknown: list[Line] = []
    unanswered: list[Line] = []
    asked: Line | None = None
    for line in (*calls, None):
        if line is None or line.event == "asked":
            silent, asked = asked, line  # the pool that asked before was killed in that call
        else:
            silent, asked = (line if line.event == "unknown" else None), None
        if silent is not None:
            unknown.append(silent)
            unanswered.append(silent)
        if line is None or line.event != "settled":
            continue
        if line.answer in ACCEPTED:
            accepted = line
            done += [line] if line.answer == Settled.OK.value else []
        elif idempotent:
            unknown = [call for call in unknown if line.at - call.since > CALL_REMEMBERED_S]
    return Known(tuple(done), accepted, () if accepted else tuple(unknown), tuple(unanswered))


@dataclass(slots=True)
class Delivery:
    """One lease of the message, as far as anybody has seen it."""

    fence: int
    fetched: list[Line] = field(default_factory=list)
    calls: list[Line] = field(default_factory=list)
    run: list[Line] = field(default_factory=list)
    known: Known = Known()

    def refused(self) -> list[Line]:
        return [line for line in self.calls if line.event == "settled" and line.answer not in ACCEPTED]

    def wrote(self, event: str) -> list[Line]:
        return [line for line in self.run if line.event == event]


class History:
    """The lines of one message, in the ledger's order.

    Unless settlements are `idempotent`, an unanswered call may have been carried out, even if later answers deny it.
    """

    def __init__(self, ident: str, lines: Iterable[Line] = (), *, idempotent: bool = False) -> None:
        self.id = ident
        self.reaped: list[Line] = []
        self.run: list[Line] = []
        self._deliveries: dict[int, Delivery] = {}
        for line in lines:
            self._add(line)
        self.deliveries = [self._deliveries[fence] for fence in sorted(self._deliveries)]
        for delivery in self.deliveries:
            delivery.known = known_of(delivery.calls, idempotent=idempotent)

    def _add(self, line: Line) -> None:
        if line.event == "reaped":
            self.reaped.append(line)
        elif line.event == "fetched":
            self._delivery(line.fence).fetched.append(line)
        elif line.event in ("asked", "settled", "unknown"):
            self._delivery(line.fence).calls.append(line)
        elif line.event in HANDLERS:
            self.run.append(line)
            self._delivery(line.fence).run.append(line)

    def _delivery(self, fence: int) -> Delivery:
        return self._deliveries.setdefault(fence, Delivery(fence))

    def at(self, fence: int) -> Delivery | None:
        return self._deliveries.get(fence)

    def after(self, fence: int) -> Iterator[Delivery]:
        return (delivery for delivery in self.deliveries if delivery.fence > fence)

    def wrote(self, event: str) -> list[Line]:
        return [line for line in self.run if line.event == event]

    def copies(self) -> int:
        """Return how many settlements may be half done, if a broker copies: unanswered, or refused after the copy."""
        calls = (call for delivery in self.deliveries for call in (*delivery.known.unanswered, *delivery.refused()))
        return sum(call.verb != "ack" for call in calls)


def histories_of(lines: Iterable[Line], idents: Container[str]) -> Iterator[History]:
    """Yield the history of each of these jobs of which there is a line."""
    told = by_id(line for line in lines if line.id in idents)
    return (History(ident, some) for ident, some in told.items())


def by_id(things: Iterable[Told]) -> dict[str, list[Told]]:
    found: dict[str, list[Told]] = defaultdict(list)
    for each in things:
        found[each.id].append(each)
    return found


def steps_of(known: Known) -> set[Step]:
    """Return the steps that this delivery can have added, given that the message was delivered again, or is kept."""
    if known.accepted is not None:
        return {_step(known.accepted)}
    return {CRASHED, *(_step(line) for line in known.unknown)}


def _step(call: Line) -> Step:
    return (call.attempt, call.crashes) if call.verb in ("move", "abandon") else STEPS.get(call.verb, CRASHED)


@dataclass(frozen=True, slots=True)
class CounterStep:
    """A step from one delivery, or the enqueue, to the next that was seen, or to the kept message."""

    fence: int  # of the second
    added: Step  # its attempts and crashes minus those of the first
    steps: frozenset[Step]  # steps that the first can have added
    unseen: int  # deliveries between the two, which nobody saw: each crashed, or was given back

    def attempts_fit(self) -> bool:
        """Return whether the attempts fit: no unseen delivery has failed."""
        return any(self.added[0] == attempts for attempts, _ in self.steps)

    def crashes_fit(self, *, exact: bool) -> bool:
        """Return whether the crashes fit; unless `exact`, the broker may charge less."""
        fitting = [crashes for attempts, crashes in self.steps if attempts == self.added[0]]
        return any((crashes if exact else -math.inf) <= self.added[1] <= crashes + self.unseen for crashes in fitting)


def counter_steps(history: History, kept: Message | None) -> list[CounterStep]:
    """Return the steps of deliveries with a `fetched` line, and of the kept message, up to an accepted ack."""
    found: list[CounterStep] = []
    before, told, steps, ended = 0, (0, 0), frozenset({(0, 0)}), ""
    for delivery in history.deliveries:
        if delivery.fetched:
            line = delivery.fetched[0]
            now = (line.attempt - 1, line.crashes)
            found.append(_link(delivery.fence, now, told, steps, delivery.fence - before - 1))
            before, told, steps = delivery.fence, now, frozenset(steps_of(delivery.known))
            ended = delivery.known.verb
        if delivery.known.verb == "ack":
            return found
    if kept is not None:
        found.append(_to_kept(kept, before, told, steps, ended))
    return found


def _to_kept(kept: Message, before: int, told: Step, steps: frozenset[Step], ended: str) -> CounterStep:
    """Return the last link. A running lease has added nothing yet; nor has a forfeited one, until it is reaped."""
    runs = kept.state is State.LEASED
    unseen = kept.deliveries - before
    if runs and unseen == 0 and ended in ("", "forfeit"):
        steps = frozenset({(0, 0)})
    return _link(kept.deliveries, (kept.attempts, kept.crashes), told, steps, unseen - (runs and unseen > 0))


def _link(fence: int, now: Step, told: Step, steps: frozenset[Step], unseen: int) -> CounterStep:
    return CounterStep(fence, (now[0] - told[0], now[1] - told[1]), steps, max(0, unseen))
