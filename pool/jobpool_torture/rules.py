"""The oracle's rules: one message's case in, a sentence about its fault out ("" = none)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from jobpool.broker.values import Capabilities, Message, State
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import CounterStep, Delivery, History, counter_steps

CLOCK_TOLERANCE_S = 0.1
"""Seconds by which a broker's clock may run ahead of this machine's within one lease."""

# --- LOST, GHOST ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """The knowledge about one message.

    Attributes:
        kept: Messages that the broker still has under its id; mostly one or none.
        promised: An enqueue was answered.
        tried: An enqueue was tried, at least.
        witnessed: All pools ran under a witness.
    """

    history: History
    kept: tuple[Message, ...]
    promised: bool
    tried: bool
    can: Capabilities
    witnessed: bool

    @property
    def copies(self) -> int:
        """How many more of it there may be than were enqueued."""
        return 0 if self.can.atomic_nack else self.history.copies()


Rule = Callable[[Case], str]
"""The sentence that says what is wrong; "" = nothing."""


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


def fence(case: Case) -> str:
    """Report numbers of deliveries that do not grow, or that name two deliveries."""
    if not case.witnessed:
        numbers = [line.fence for line in case.history.wrote("start")]
        return "" if numbers == sorted(set(numbers)) else f"it began as the deliveries {numbers}"
    if case.copies:
        return ""
    return next((found for d in case.history.deliveries if (found := _misnumbered(case.history, d))), "")


def _misnumbered(history: History, delivery: Delivery) -> str:
    number = delivery.fence
    if len({line.owner for line in delivery.fetched}) > 1:
        return f"delivery {number} was handed out {len(delivery.fetched)} times"
    starts = delivery.wrote("start")
    if len(starts) > 1:
        return f"delivery {number} began {len(starts)} times"
    if starts and not delivery.fetched:
        return f"it began as delivery {number}, which nobody had fetched"
    for later in history.after(number):
        if any(ours.since > theirs.at for ours in delivery.fetched for theirs in later.fetched):
            return f"delivery {number} was asked for after delivery {later.fence} was there"
    return ""


# --- ATT, CR ----------------------------------------------------------------------------------------------------------


def attempts(case: Case) -> str:
    """Report a counter of failures that differs from the settlements, or from what the handler was told and did."""
    if not case.witnessed:
        return _attempts_told(case.history)
    if case.copies:
        return ""
    for link in _links(case):
        if not link.attempts_fit():
            return f"before delivery {link.fence}, {link.added[0]} failures were added, not {_steps(link.steps, 0)}"
    return _told_otherwise(case.history, "attempt") or _failed_and_released(case.history)


def crashes(case: Case) -> str:
    """Report a counter of crashes that differs from the deliveries without a verdict."""
    if not case.witnessed:
        return _crashes_told(case.history)
    if case.copies:
        return ""
    for link in _links(case):
        if link.attempts_fit() and not link.crashes_fit(exact=case.can.exact_crashes):
            unseen = f", and up to {link.unseen} of deliveries that nobody saw" if link.unseen else ""
            due = _steps(link.steps, 1) + unseen
            return f"before delivery {link.fence}, {link.added[1]} crashes were added, not {due}"
    return _told_otherwise(case.history, "crashes")


def _links(case: Case) -> list[CounterStep]:
    return counter_steps(case.history, case.kept[0] if len(case.kept) == 1 else None)


def _steps(steps: Iterable[tuple[int, int]], place: int) -> str:
    return " or ".join(str(number) for number in sorted({step[place] for step in steps}))


def _told_otherwise(history: History, counter: str) -> str:
    """Report a handler that was told a number other than its pool's."""
    for delivery in history.deliveries:
        told = {getattr(line, counter) for line in (*delivery.fetched, *delivery.wrote("start"))}
        if len(told) > 1:
            return f"as delivery {delivery.fence} its {counter} were told as {sorted(told)}"
    return ""


def _failed_and_released(history: History) -> str:
    for delivery in history.deliveries:
        if delivery.known.verb == "release" and delivery.wrote("fail"):
            return f"delivery {delivery.fence} failed, and was released"
    return ""


def _attempts_told(history: History) -> str:
    for start in history.wrote("start"):
        failures = sum(line.fence < start.fence for line in history.wrote("fail"))
        if start.attempt != failures + 1:
            return f"delivery {start.fence} was told attempt {start.attempt} after {failures} failures"
    return ""


def _crashes_told(history: History) -> str:
    """Report a wrong number of crashes told: each run but the last that wrote no end and no failure was cut short."""
    starts = history.wrote("start")
    ends = {line.fence for line in history.run if line.event in ("end", "fail")}
    cut_short = sum(line.fence not in ends for line in starts[:-1])
    if starts and cut_short > starts[-1].crashes:
        return f"{cut_short} runs were cut short, and the last was told of {starts[-1].crashes} crashes"
    return ""


# --- OVERLAP ----------------------------------------------------------------------------------------------------------


def overlap(case: Case) -> str:
    """Report a run that wrote something after a later one had begun."""
    begun = 0
    for line in case.history.run:
        if line.event == "start":
            if line.fence < begun:
                return f"delivery {line.fence} began after delivery {begun}"
            begun = line.fence
        elif line.fence < begun:
            return f"delivery {line.fence} ran on after delivery {begun} had begun"
    return ""
