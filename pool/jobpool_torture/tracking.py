"""Judgements of a producer's requests: results of jobs, cancels and batches. Pure.

Each returns ids → why. An unanswered settlement excuses either outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from jobpool.broker.control import Cancel
from jobpool.broker.values import Message, State
from jobpool.message.settlement import CANCELLED
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import Delivery, History, histories_of
from jobpool_torture.workload import RESULT_TTL_S, Item, done_of, member_ids, success_of

DONE = (Cancel.CANCELLED.value, Cancel.ALREADY.value)  # answers after which a job must not begin


def figures(lines: Sequence[Line], found: Collection[str]) -> dict[str, int]:
    """Return how many results, answers to cancels and closed batches there are to judge by."""
    answers = Counter(line.answer for line in lines if line.event == "cancel")
    done = sum(answers.pop(answer, 0) for answer in DONE)
    counts = {"results": len(found), "cancelled": done, "not cancelled": answers.total()}
    counts["batches"] = len(_closed(lines))
    return {name: count for name, count in counts.items() if count}


def results(lines: Sequence[Line], items: Mapping[str, Item], found: Mapping[str, Any]) -> dict[str, str]:
    """Return jobs whose result is missing, or is not that of the delivery that was acked.

    `found`: the results that the broker has, just after the last line.
    """
    now = max((line.at for line in lines), default=0.0)
    wanted = {ident: item for ident, item in items.items() if "result_ttl" in item.options}
    whys = {history.id: _result(history, found, now) for history in histories_of(lines, wanted)}
    return {ident: why for ident, why in whys.items() if why}


def _result(history: History, found: Mapping[str, Any], now: float) -> str:
    acked = [one for one in history.deliveries if one.known.verb == "ack"]
    if history.id not in found:
        recent = [one for one in acked if one.known.accepted and now - one.known.accepted.at < RESULT_TTL_S / 2]
        return f"delivery {recent[-1].fence} was acked, and its result is not kept" if recent else ""
    possible = acked or [one for one in history.deliveries if one.known.may_be("ack")]
    receipts = ((one.fence, one.fetched[0].attempt if one.fetched else 0) for one in possible)
    if found[history.id] in [{"job": history.id, "fence": fence, "attempt": attempt} for fence, attempt in receipts]:
        return ""  # see `handlers.receipt`
    told = f"delivery {possible[-1].fence} was acked" if possible else "no delivery was acked"
    return f"{told}, and its result is {found[history.id]}"


def cancels(lines: Sequence[Line], items: Mapping[str, Item], kept: Sequence[Message]) -> dict[str, str]:
    """Return jobs that began after their cancel was answered as done, or that are not dead because of it."""
    answered: dict[str, float] = {}
    for line in lines:
        if line.event == "cancel" and line.answer in DONE:
            answered.setdefault(line.id, line.at)
    dead = {message.id for message in kept if message.state is State.DEAD and message.reason == CANCELLED}
    found = dict.fromkeys(answered.keys() - dead, "its cancel was answered, and it is not a dead letter of that")
    for history in histories_of(lines, {ident: items[ident] for ident in answered}):
        for delivery in history.deliveries:
            if _began_after(delivery, answered[history.id]):
                found[history.id] = f"delivery {delivery.fence} began after its cancel was answered"
    return found


def _began_after(delivery: Delivery, moment: float) -> bool:
    """Return False too for a run that had lost its lease by then: it may begin, and write that, at any time."""
    held = delivery.known.accepted or any(line.since > moment for line in delivery.fetched)
    return bool(held) and any(line.at > moment for line in delivery.wrote("start"))


def batches(lines: Sequence[Line], items: Mapping[str, Item], kept: Sequence[Message]) -> dict[str, str]:
    """Return batches that were closed, and whose callbacks did not run, came twice, or were told wrong counts.

    One with a member that has not ended is not judged, nor one whose callback has not; both are judged as jobs.
    """
    closed = _closed(lines)
    of_batches = {ident: item for ident, item in items.items() if ident.partition(":")[0].partition("m")[0] in closed}
    follows = {line.tag: items[line.id] for line in lines if line.event == "follow" and line.id in of_batches}
    histories = {history.id: history for history in histories_of(lines, of_batches | follows)}
    messages = {message.id: message for message in kept}
    whys = {ident: next(_batch(ident, items[done_of(ident)], histories, messages), "") for ident in closed}
    return {ident: why for ident, why in whys.items() if why}


def _closed(lines: Sequence[Line]) -> set[str]:
    return {line.id.partition(":")[0] for line in lines if line.event == "enq" and line.id.endswith(done_of(""))}


def _batch(ident: str, item: Item, histories: Mapping[str, History], messages: Mapping[str, Message]) -> Iterator[str]:
    known, possible = _members(member_ids(ident, item), histories, messages)
    dead = [messages[each] for each in possible if each in messages]
    if any(message.state is not State.DEAD for message in dead):
        return
    cancelled = sum(message.reason == CANCELLED for message in dead)
    for callback, is_due in ((done_of(ident), True), (success_of(ident), not dead)):
        history = histories.get(callback, History(callback))
        told = {line.tag for line in history.wrote("told")}
        if told and not is_due:
            yield f"{callback} ran, and {len(dead)} of its members had not succeeded"
        if is_due and not told and callback not in messages:
            yield f"all of its members have ended, and {callback} never ran"
        if len(told) > 1 or sum(one.known.verb == "ack" for one in history.deliveries) > 1:
            yield f"{callback} came more than once: {sorted(told)}"
        for counts in told:
            total, *others = map(int, counts.split())
            expected = [total - len(dead), len(dead) - cancelled, cancelled]
            if others != expected or not len(known) <= total <= len(possible):
                fates = f"{len(dead)} are dead, {cancelled} cancelled"
                yield f"{callback} was told {counts}: of {len(known)} members, {fates}"


def _members(
    given: Collection[str], histories: Mapping[str, History], messages: Mapping[str, Message]
) -> tuple[set[str], set[str]]:
    """Return the ids of all members, and the same with those whose enqueue is unknown."""
    known, possible = set(given), set(given)
    for history in [histories[ident] for ident in given if ident in histories]:
        for line in history.wrote("follow"):
            delivery = history.at(line.fence)
            if delivery is None or not delivery.known.may_be("ack"):
                continue
            possible.add(line.tag)
            if delivery.known.verb == "ack" or line.tag in messages or line.tag in histories:
                known.add(line.tag)
    return known, possible
