"""The oracle's rules of how a message came to its end: LOST, GHOST, DOUBLE-SETTLE, RERUN, and DUP."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from jobpool.broker.values import State
from jobpool_torture.case import Case
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import Delivery, History

CLOCK_TOLERANCE_S = 0.1
"""Seconds by which a broker's clock may run ahead of this machine's within one lease."""

# --- LOST, GHOST ------------------------------------------------------------------------------------------------------


def lost(case: Case) -> str:
    """Report a message that was enqueued and is gone without an ack, or was acked before its time."""
    if case.witnessed:
        return _unearned(case) or _vanished(case) or _died_of_nothing(case)
    if case.promised and not case.kept and not case.history.wrote("end"):
        return "it was enqueued, no run of it ended, and the broker does not have it"
    return ""


def _unearned(case: Case) -> str:
    for delivery in case.history.deliveries:
        if delivery.known.verb == "ack" and delivery.wrote("start") and not delivery.wrote("end"):
            return f"delivery {delivery.fence} was acked though its handler had not ended"
    return ""


def _vanished(case: Case) -> str:
    if not case.promised or case.kept:
        return ""
    if _may_be_acked(case):
        return ""
    died = any(delivery.known.verb == "abandon" for delivery in case.history.deliveries) or _deaths(case.history)
    return "it became a dead letter, and that is gone" if died else "it was never acked, and the broker has it not"


def _may_be_acked(case: Case) -> bool:
    """Return False for an unanswered ack if the message was delivered, or reaped, after it."""
    deliveries = case.history.deliveries
    if any(delivery.known.verb == "ack" for delivery in deliveries):
        return True
    last = deliveries if case.copies else deliveries[-1:]
    return any(delivery.known.may_be("ack") and not _was_reaped(case, delivery) for delivery in last)


def _was_reaped(case: Case, delivery: Delivery) -> bool:
    """Return whether a reaper took it back from that delivery, or from a later one."""
    if not case.can.exact_crashes or case.copies or not delivery.fetched:
        return False
    return any(line.crashes > delivery.fetched[0].crashes for line in case.history.reaped)


def _died_of_nothing(case: Case) -> str:
    """Report a dead letter that nobody held: after a nack or a release a reaper must leave a message alone."""
    deliveries, dead = case.history.deliveries, [message for message in case.kept if message.state is State.DEAD]
    if not (deliveries and dead and case.can.atomic_nack) or case.can.native_reap or _deaths(case.history):
        return ""
    last = deliveries[-1]
    if last.known.verb in ("nack", "release") and dead[0].deliveries == last.fence:
        return f"it is dead, and delivery {last.fence}, its last, ended in a {last.known.verb}"
    return ""


def ghost(case: Case) -> str:
    """Report a message that nobody has enqueued."""
    if case.tried or (case.history.is_empty and not case.kept):
        return ""
    return "nobody has enqueued it"


# --- DOUBLE-SETTLE, RERUN ---------------------------------------------------------------------------------------------


def double_settle(case: Case) -> str:
    """Report a message that ended twice, or was settled by a former holder."""
    return _settled_twice(case) or _settled_late(case) or _ended_twice(case)


def _settled_twice(case: Case) -> str:
    for delivery in case.history.deliveries:
        done = delivery.known.done
        if len(done) > 1 + case.copies:
            return f"delivery {delivery.fence} was settled {len(done)} times: {_verbs(done)}"
        if done and delivery.known.verb not in {call.verb for call in done} and not case.copies:
            return f"delivery {delivery.fence} ended in {_verbs(done)}, and {delivery.known.verb} was answered as done"
    return ""


def _settled_late(case: Case) -> str:
    """Report an accepted call that began after a later delivery was answered."""
    if case.copies:
        return ""
    for delivery in case.history.deliveries:
        for call in delivery.known.done:
            for later in case.history.after(delivery.fence):
                if any(line.at < call.since for line in later.fetched):
                    return f"{call.verb} of delivery {delivery.fence} was accepted after delivery {later.fence}"
    return ""


def _ended_twice(case: Case) -> str:
    ended = (d for d in case.history.deliveries if d.known.verb in ("ack", "abandon"))
    ends = [f"{d.known.verb} of delivery {d.fence}" for d in ended] + ["crash-limit"] * _deaths(case.history)
    return f"it ended {len(ends)} times: {', '.join(ends)}" if len(ends) > 1 + case.copies else ""


def _deaths(history: History) -> int:
    return sum(line.answer == "dead" for line in history.reaped)


def _verbs(calls: Iterable[Line]) -> str:
    return ", ".join(call.verb for call in calls)


def rerun(case: Case) -> str:
    """Report a delivery after an accepted end, or while another held the message."""
    if case.copies:
        return ""
    return _after_its_end(case) or _after_its_death(case.history) or _too_soon(case)


def _after_its_end(case: Case) -> str:
    for delivery in case.history.deliveries:
        end = delivery.known.verb
        if end in ("ack", "abandon"):
            for later in case.history.after(delivery.fence):
                return f"delivery {later.fence} came after the {end} of delivery {delivery.fence}"
            for message in case.kept:
                if end == "ack" or message.state is not State.DEAD:
                    return f"delivery {delivery.fence} ended in an {end}, and the broker has it: {message.state.value}"
    return ""


def _after_its_death(history: History) -> str:
    for death in (line for line in history.reaped if line.answer == "dead"):
        for delivery in history.deliveries:
            if any(line.since > death.at for line in delivery.fetched):
                return f"delivery {delivery.fence} came after its crash-limit"
    return ""


def _too_soon(case: Case) -> str:
    """Report a lease that nobody settled and that ended early: it lasts, whatever became of its pool."""
    if not (case.can.lasting_leases and case.can.exact_crashes):
        return ""
    for held, later in pairwise(d for d in case.history.deliveries if d.fetched):
        lease, came = held.fetched[0], min(line.at for line in later.fetched)
        left = lease.since + lease.holds - CLOCK_TOLERANCE_S - came
        if left > 0 and not held.calls:
            return f"delivery {later.fence} came {left:.2f} s before the lease of delivery {held.fence} was over"
    return ""


# --- DUP --------------------------------------------------------------------------------------------------------------


def duplicate(case: Case) -> str:
    """Report a message that ended more than once."""
    ends = len(case.history.wrote("end"))
    return f"it ended {ends} times" if ends > 1 else ""
