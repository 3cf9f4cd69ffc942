"""The oracle: counts, from a ledger and from what the broker still has, everything that must not be.

LOST, GHOST, DOUBLE-SETTLE, RERUN, FENCE, ATT and CR are always 0; DUP and OVERLAP are counted, and may be allowed. Each
is one rule: a message's case in, a sentence about its fault out. No I/O.

With a witness the rules go by the broker's answers (chain.py). Without one they go by the handlers' lines, and see
less: no settlements, and only the counters that handlers were told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from jobpool.broker.values import Capabilities, Message
from jobpool_torture import counters, ends
from jobpool_torture.account import Account
from jobpool_torture.case import Case, Rule
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import ACCEPTED, Delivery, History

ALL = Capabilities()

RULES: dict[str, Rule] = {
    "lost": ends.lost,
    "ghosts": ends.ghost,
    "double_settles": ends.double_settle,
    "reruns": ends.rerun,
    "fences": counters.fence,
    "wrong_attempts": counters.attempts,
    "wrong_crashes": counters.crashes,
    "duplicates": ends.duplicate,
    "overlaps": counters.overlap,
}
"""By the attribute of the account that each fills."""


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
        can: Of the broker.
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
            elif not can.atomic_follow_ups and any(call.verb == "ack" for call in delivery.calls):
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
        if reason := rule(case):
            account.note(attribute, ident, reason)
    if case.copies:
        account.note("excused", ident, f"{case.copies} unanswered calls may have left a copy of it")
    starts = case.history.wrote("start")
    if starts:
        account.crashes[ident] = starts[-1].crashes
