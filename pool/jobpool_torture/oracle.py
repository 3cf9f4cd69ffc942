"""The oracle: counts, from a ledger and from what the broker still has, everything that must not be.

DUP and OVERLAP are counted too, and may be allowed. With a witness the rules go by the broker's answers. Without one
they go by the handlers' lines, and see less: no settlements, and only the counters that handlers were told. No I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from jobpool.broker.values import Capabilities, Message
from jobpool_torture import rules
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import ACCEPTED, Delivery, History
from jobpool_torture.rules import Case, Rule

VIOLATIONS: dict[str, Rule] = {
    "LOST": rules.lost,
    "GHOST": rules.ghost,
    "DOUBLE-SETTLE": rules.double_settle,
    "RERUN": rules.rerun,
    "ATT": rules.attempts,
    "CR": rules.crashes,
    "FENCE": rules.fence,
}
"""The counts that must be 0, and how each is found."""

MULTIPLE: dict[str, Rule] = {"DUP": rules.duplicate, "OVERLAP": rules.overlap}  # what may be, where leases were lost
RULES = VIOLATIONS | MULTIPLE
ALL = Capabilities()


@dataclass(slots=True)
class Account:
    """The counts, by ids, so that a failure names them.

    Attributes:
        found: By count, ids → the fault: half a sentence.
        excused: Not judged by their counters and numbers, because a broker that copies may have left two of them.
    """

    found: dict[str, dict[str, str]] = field(default_factory=lambda: {name: {} for name in RULES})
    excused: set[str] = field(default_factory=set)
    crashes: dict[str, int] = field(default_factory=dict)  # per id that has run, as its last run was told

    def __getitem__(self, count: str) -> set[str]:
        """Return the ids of a count."""
        return set(self.found[count])

    def assert_clean(self, counts: Iterable[str] = VIOLATIONS) -> None:
        """Raise `AssertionError`, with the first ids and what is wrong with them, unless these counts are 0."""
        if found := {name: list(self.found[name].items())[:5] for name in counts if self.found[name]}:
            raise AssertionError(str(found))

    def assert_once_each(self) -> None:
        """Assert as `assert_clean`, and that no message ended twice or ran beside itself."""
        self.assert_clean(RULES)


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
    promised, tried = set(enqueued), set(enqueued)
    seen = False
    for line in lines:
        by_id[line.id].append(line)
        seen = seen or line.event == "fetched"
        if line.event in ("try", "enq"):
            tried.add(line.id)
        if line.event == "enq":
            promised.add(line.id)
    witnessed = seen if witnessed is None else witnessed
    kept_by_id: dict[str, list[Message]] = defaultdict(list)
    for message in kept:
        kept_by_id[message.id].append(message)
    histories = {ident: History(ident, by_id.get(ident, ()), can) for ident in {*by_id, *kept_by_id, *enqueued}}
    for history in histories.values():
        _add_follow_ups(history, can, witnessed, promised, tried)
    histories |= {ident: History(ident, (), can) for ident in promised - histories.keys()}  # follow-ups nobody has seen
    account = Account()
    for ident, history in histories.items():
        found = tuple(kept_by_id.get(ident, ()))
        _judge(Case(history, found, ident in promised, ident in tried, can, witnessed), account)
    return account


def _add_follow_ups(history: History, can: Capabilities, witnessed: bool, promised: set[str], tried: set[str]) -> None:
    """Add the follow-ups of a message to the ids whose enqueue was answered, and to those whose enqueue was tried."""
    for follow in history.wrote("follow"):
        delivery = history.at(follow.fence)
        if not witnessed or delivery is None or delivery.known.may_be("ack"):
            tried.add(follow.tag)
        elif not can.atomic_across_queues and any(call.verb == "ack" for call in delivery.calls):
            tried.add(follow.tag)  # put before it was known that the ack is refused
        if witnessed and delivery is not None and _is_each_run_acked(delivery):
            promised.add(follow.tag)


def _is_each_run_acked(delivery: Delivery) -> bool:
    """Return False if a number was given twice: then it is open whose run an accepted ack has ended."""
    acks = sum(call.verb == "ack" and call.answer in ACCEPTED for call in delivery.calls if call.event == "settled")
    return delivery.known.verb == "ack" and acks >= len({line.owner for line in delivery.fetched})


def _judge(case: Case, account: Account) -> None:
    ident = case.history.id
    for name, rule in RULES.items():
        if reason := next(rule(case), ""):
            account.found[name][ident] = reason
    if case.copies:
        account.excused.add(ident)
    if starts := case.history.wrote("start"):
        account.crashes[ident] = starts[-1].crashes
