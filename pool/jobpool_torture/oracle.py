"""The oracle: counts, from a ledger and from what the broker still has, everything that must not be.

LOST, GHOST, DOUBLE-SETTLE, RERUN, FENCE, ATT and CR are always 0; DUP and OVERLAP are counted, and may be allowed.
With a witness the rules go by the broker's answers. Without one they go by the handlers' lines, and see less: no
settlements, and only the counters that handlers were told. No I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from jobpool.broker.values import Capabilities, Message
from jobpool_torture import rules
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import ACCEPTED, Delivery, History
from jobpool_torture.rules import Case, Rule

VIOLATIONS = {
    "LOST": "lost",
    "GHOST": "ghosts",
    "DOUBLE-SETTLE": "double_settles",
    "RERUN": "reruns",
    "ATT": "wrong_attempts",
    "CR": "wrong_crashes",
    "FENCE": "fences",
}
"""The counts that must be 0, by the names that the documents use → attributes of an `Account`."""

MULTIPLE = {"DUP": "duplicates", "OVERLAP": "overlaps"}  # counts of what may be, where leases were lost
ALL = Capabilities()

RULES: dict[str, Rule] = {
    "lost": rules.lost,
    "ghosts": rules.ghost,
    "double_settles": rules.double_settle,
    "reruns": rules.rerun,
    "fences": rules.fence,
    "wrong_attempts": rules.attempts,
    "wrong_crashes": rules.crashes,
    "duplicates": rules.duplicate,
    "overlaps": rules.overlap,
}
"""By the attribute of the account that each fills."""


@dataclass(slots=True)
class Account:
    """The counts: ids, so that a failure names them (`rules` has their meaning).

    Attributes:
        excused: Not judged by their counters and numbers, because a broker that copies may have left two of them.
        reasons: By attribute and id, the fault, or why it was excused: half a sentence.
    """

    lost: set[str] = field(default_factory=set)
    ghosts: set[str] = field(default_factory=set)
    double_settles: set[str] = field(default_factory=set)
    reruns: set[str] = field(default_factory=set)
    fences: set[str] = field(default_factory=set)
    wrong_attempts: set[str] = field(default_factory=set)
    wrong_crashes: set[str] = field(default_factory=set)
    duplicates: set[str] = field(default_factory=set)
    overlaps: set[str] = field(default_factory=set)
    crashes: dict[str, int] = field(default_factory=dict)  # per id that has run, as its last run was told
    excused: set[str] = field(default_factory=set)
    messages: int = 0  # how many there were
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)

    def note(self, attribute: str, ident: str, reason: str) -> None:
        """Count a message in."""
        getattr(self, attribute).add(ident)
        self.reasons[attribute, ident] = reason

    def violations(self) -> dict[str, dict[str, str]]:
        """Return the counts that must be 0, all of them: of each its ids → why."""
        return self._told(VIOLATIONS)

    def _told(self, counts: Mapping[str, str]) -> dict[str, dict[str, str]]:
        return {
            name: {ident: self.reasons[attribute, ident] for ident in sorted(getattr(self, attribute))}
            for name, attribute in counts.items()
        }

    @property
    def is_clean(self) -> bool:
        return not any(self.violations().values())

    def assert_clean(self) -> None:
        """Raise `AssertionError`, with the first ids and what is wrong with them, unless it is clean."""
        self._assert_none(VIOLATIONS)

    def assert_once_each(self) -> None:
        """Assert as `assert_clean`, and that no message ended twice or ran beside itself."""
        self._assert_none(VIOLATIONS | MULTIPLE)

    def _assert_none(self, counts: Mapping[str, str]) -> None:
        found = {name: list(reasons.items())[:5] for name, reasons in self._told(counts).items() if reasons}
        if found:
            raise AssertionError(str(found))


def count(
    lines: Iterable[Line],
    enqueued: Collection[str] = (),
    kept: Iterable[Message] = (),
    *,
    can: Capabilities = ALL,
    witnessed: bool | None = None,
) -> Account:
    """Count.

    Args:
        lines: The whole ledger.
        enqueued: Ids of which an enqueue was answered, besides those that the ledger names.
        kept: All that the broker still has, live or dead.
        witnessed: True if every pool ran under a witness; None = if a witness wrote something.
    """
    by_id: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_id[line.id].append(line)
    kept_by_id: dict[str, list[Message]] = defaultdict(list)
    for message in kept:
        kept_by_id[message.id].append(message)
    if witnessed is None:
        witnessed = any(line.event == "fetched" for history in by_id.values() for line in history)
    histories = {ident: History(ident, by_id.get(ident, ()), can) for ident in {*by_id, *kept_by_id, *enqueued}}
    promised, tried = _known_ids(by_id, enqueued, histories, can, witnessed)
    histories |= {ident: History(ident, (), can) for ident in promised - histories.keys()}  # follow-ups nobody has seen
    account = Account(messages=len(histories))
    for ident, history in histories.items():
        found = tuple(kept_by_id.get(ident, ()))
        _judge(Case(history, found, ident in promised, ident in tried, can, witnessed), account)
    return account


def _known_ids(
    by_id: dict[str, list[Line]],
    enqueued: Collection[str],
    histories: dict[str, History],
    can: Capabilities,
    witnessed: bool,
) -> tuple[set[str], set[str]]:
    """Return ids whose enqueue was answered, and ids whose enqueue was tried."""
    promised = {*enqueued, *(ident for ident, history in by_id.items() if any(line.event == "enq" for line in history))}
    tried = promised | {ident for ident, history in by_id.items() if any(line.event == "try" for line in history)}
    for history in histories.values():
        for follow in history.wrote("follow"):
            delivery = history.at(follow.fence)
            if not witnessed or delivery is None or delivery.known.may_be("ack"):
                tried.add(follow.tag)
            elif not can.atomic_across_queues and any(call.verb == "ack" for call in delivery.calls):
                tried.add(follow.tag)  # put before it was known that the ack is refused
            if witnessed and delivery is not None and _is_each_run_acked(delivery):
                promised.add(follow.tag)
    return promised, tried


def _is_each_run_acked(delivery: Delivery) -> bool:
    """Return False if a number was given twice: then it is open whose run an accepted ack has ended."""
    acks = sum(call.verb == "ack" and call.answer in ACCEPTED for call in delivery.calls if call.event == "settled")
    return delivery.known.verb == "ack" and acks >= len({line.owner for line in delivery.fetched})


def _judge(case: Case, account: Account) -> None:
    ident = case.history.id
    for attribute, rule in RULES.items():
        if reason := next(rule(case), ""):
            account.note(attribute, ident, reason)
    if case.copies:
        account.note("excused", ident, f"{case.copies} unanswered calls may have left a copy of it")
    starts = case.history.wrote("start")
    if starts:
        account.crashes[ident] = starts[-1].crashes
