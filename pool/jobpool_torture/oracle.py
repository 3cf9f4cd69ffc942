"""The oracle: counts, from a ledger and from what the broker still has, everything that must not be.

DUP and OVERLAP are counted too, and may be allowed. The rules go by the broker's answers to pools that all ran under a
witness, and by the handlers' lines. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product

from jobpool.broker.values import Capabilities, Leases, Message, State
from jobpool.message.settlement import CANCELLED
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import ACCEPTED, CounterStep, Delivery, History, by_id, counter_steps

CLOCK_TOLERANCE_S = 0.1  # time by which a broker's clock may run ahead of this machine's within one lease


@dataclass(frozen=True, slots=True)
class Case:
    """The knowledge about one message."""

    history: History
    kept: tuple[Message, ...]  # messages that the broker still has under its id; mostly one or none
    promised: bool  # an enqueue was answered
    tried: bool  # an enqueue was tried, at least
    can: Capabilities

    @property
    def copies(self) -> int:
        """How many more of it there may be than were enqueued."""
        return 0 if self.can.keeps_records else self.history.copies()


def lost(case: Case) -> Iterator[str]:
    """Report a message that was enqueued and is gone without an ack, or was acked before its time."""
    deliveries = case.history.deliveries
    for delivery in deliveries:
        if delivery.known.verb == "ack" and delivery.wrote("start") and not delivery.wrote("end"):
            yield f"delivery {delivery.fence} was acked though its handler had not ended"
    deaths = _deaths(case.history)
    if case.promised and not case.kept and not _may_be_acked(case):
        died = any(delivery.known.verb == "abandon" for delivery in deliveries) or deaths
        yield "it became a dead letter, and that is gone" if died else "it was never acked, and the broker has it not"
    # After a nack or a release a reaper must leave a message alone; a person may cancel it.
    dead = [message for message in case.kept if message.state is State.DEAD and message.reason != CANCELLED]
    if deliveries and dead and case.can.keeps_records and not deaths:
        last = deliveries[-1]
        if last.known.verb in ("nack", "release") and dead[0].deliveries == last.fence:
            yield f"it is dead, and delivery {last.fence}, its last, ended in a {last.known.verb}"


def _may_be_acked(case: Case) -> bool:
    """Return False for an unanswered ack if the message was delivered, or reaped, after it."""
    deliveries = case.history.deliveries
    if any(delivery.known.verb == "ack" for delivery in deliveries):
        return True
    last = deliveries if case.copies else deliveries[-1:]
    return any(delivery.known.may_be("ack") and not _was_reaped(case, delivery) for delivery in last)


def _was_reaped(case: Case, delivery: Delivery) -> bool:
    """Return whether a reaper took it back from that delivery, or from a later one."""
    if not case.can.exact_counts or case.copies or not delivery.fetched:
        return False
    return any(line.crashes > delivery.fetched[0].crashes for line in case.history.reaped)


def _deaths(history: History) -> int:
    return sum(line.answer == "dead" for line in history.reaped)


def ghost(case: Case) -> Iterator[str]:
    """Report a message that nobody has enqueued."""
    if not case.tried and (case.history.deliveries or case.history.reaped or case.kept):
        yield "nobody has enqueued it"


def double_settle(case: Case) -> Iterator[str]:
    """Report a message that ended twice, or was settled by a former holder."""
    deliveries = case.history.deliveries
    for delivery in deliveries:
        done, verb = delivery.known.done, delivery.known.verb
        verbs = ", ".join(call.verb for call in done)
        if len(done) > 1 + case.copies:
            yield f"delivery {delivery.fence} was settled {len(done)} times: {verbs}"
        elif done and verb not in {call.verb for call in done} and not case.copies:
            yield f"delivery {delivery.fence} ended in {verbs}, and {verb} was answered as done"
    for delivery in deliveries if not case.copies else []:
        for call, later in product(delivery.known.done, case.history.after(delivery.fence)):
            if any(line.at < call.since for line in later.fetched):
                yield f"{call.verb} of delivery {delivery.fence} was accepted after delivery {later.fence}"
    ended = (delivery for delivery in deliveries if delivery.known.verb in ("ack", "abandon"))
    ends = [f"{delivery.known.verb} of delivery {delivery.fence}" for delivery in ended]
    ends += ["crash-limit"] * _deaths(case.history)
    if len(ends) > 1 + case.copies:
        yield f"it ended {len(ends)} times: {', '.join(ends)}"


def rerun(case: Case) -> Iterator[str]:
    """Report a delivery after an accepted end, or while another held the message."""
    if case.copies:
        return
    deliveries = case.history.deliveries
    for delivery in deliveries:
        end = delivery.known.verb
        if end in ("ack", "abandon"):
            for later in case.history.after(delivery.fence):
                yield f"delivery {later.fence} came after the {end} of delivery {delivery.fence}"
            for message in case.kept:
                if end == "ack" or message.state is not State.DEAD:
                    yield f"delivery {delivery.fence} ended in an {end}, and the broker has it: {message.state.value}"
    for death, delivery in product([line for line in case.history.reaped if line.answer == "dead"], deliveries):
        if any(line.since > death.at for line in delivery.fetched):
            yield f"delivery {delivery.fence} came after its crash-limit"
    if case.can.leases is not Leases.CONNECTION and case.can.exact_counts:
        yield from _too_soon(case.history)


def _too_soon(history: History) -> Iterator[str]:
    """Report a lease that ended early without a settlement: it must last, even if its pool has died."""
    for held, later in pairwise(delivery for delivery in history.deliveries if delivery.fetched):
        lease, came = held.fetched[0], min(line.at for line in later.fetched)
        left = lease.since + lease.holds - CLOCK_TOLERANCE_S - came
        if left > 0 and not held.calls:
            yield f"delivery {later.fence} came {left:.2f} s before the lease of delivery {held.fence} was over"


def duplicate(case: Case) -> Iterator[str]:
    """Report a message that ended more than once."""
    ends = len(case.history.wrote("end"))
    if ends > 1:
        yield f"it ended {ends} times"


def fence(case: Case) -> Iterator[str]:
    """Report numbers of deliveries that do not grow, or that name two deliveries."""
    for delivery in case.history.deliveries if not case.copies else []:
        number, starts = delivery.fence, delivery.wrote("start")
        if len({line.owner for line in delivery.fetched}) > 1:
            yield f"delivery {number} was handed out {len(delivery.fetched)} times"
        if len(starts) > 1:
            yield f"delivery {number} began {len(starts)} times"
        if starts and not delivery.fetched:
            yield f"it began as delivery {number}, which nobody had fetched"
        for later in case.history.after(number):
            if any(ours.since > theirs.at for ours in delivery.fetched for theirs in later.fetched):
                yield f"delivery {number} was asked for after delivery {later.fence} was there"


def attempts(case: Case) -> Iterator[str]:
    """Report a counter of failures that differs from the settlements, or from what the handler was told and did."""
    if case.copies:
        return
    for link in _links(case):
        if not link.attempts_fit():
            yield f"before delivery {link.fence}, {link.added[0]} failures were added, not {_steps(link, 0)}"
    yield from _told_otherwise(case.history, "attempt")
    for delivery in case.history.deliveries:
        if delivery.known.verb == "release" and delivery.wrote("fail"):
            yield f"delivery {delivery.fence} failed, and was released"


def crashes(case: Case) -> Iterator[str]:
    """Report a counter of crashes that differs from the deliveries without a verdict."""
    if case.copies:
        return
    for link in _links(case):
        if link.attempts_fit() and not link.crashes_fit(exact=case.can.exact_counts):
            unseen = f", and up to {link.unseen} of deliveries that nobody saw" if link.unseen else ""
            yield f"before delivery {link.fence}, {link.added[1]} crashes were added, not {_steps(link, 1)}{unseen}"
    yield from _told_otherwise(case.history, "crashes")


def _links(case: Case) -> list[CounterStep]:
    return counter_steps(case.history, case.kept[0] if len(case.kept) == 1 else None)


def _steps(link: CounterStep, place: int) -> str:
    return " or ".join(str(number) for number in sorted({step[place] for step in link.steps}))


def _told_otherwise(history: History, counter: str) -> Iterator[str]:
    """Report a handler that was told a number other than its pool's."""
    for delivery in history.deliveries:
        told = {getattr(line, counter) for line in (*delivery.fetched, *delivery.wrote("start"))}
        if len(told) > 1:
            yield f"as delivery {delivery.fence} its {counter} were told as {sorted(told)}"


def overlap(case: Case) -> Iterator[str]:
    """Report a run that wrote something after a later one had begun."""
    begun = 0
    for line in case.history.run:
        if line.event == "start":
            if line.fence < begun:
                yield f"delivery {line.fence} began after delivery {begun}"
            begun = line.fence
        elif line.fence < begun:
            yield f"delivery {line.fence} ran on after delivery {begun} had begun"


Rule = Callable[[Case], Iterator[str]]  # yields sentences that say what is wrong; the first one counts
VIOLATIONS: dict[str, Rule] = {
    "LOST": lost,
    "GHOST": ghost,
    "DOUBLE-SETTLE": double_settle,
    "RERUN": rerun,
    "ATT": attempts,
    "CR": crashes,
    "FENCE": fence,
}
"""The counts that must be 0, and how each is found."""

MULTIPLE: dict[str, Rule] = {"DUP": duplicate, "OVERLAP": overlap}  # counts that may be above 0, where leases were lost
RULES = VIOLATIONS | MULTIPLE


@dataclass(slots=True)
class Account:
    """The counts, by ids → the fault: half a sentence."""

    found: dict[str, dict[str, str]] = field(default_factory=lambda: {name: {} for name in RULES})
    excused: set[str] = field(default_factory=set)
    """Ids not judged by their counters and numbers, because a broker that copies may have left two of them."""

    def __getitem__(self, count: str) -> set[str]:
        return set(self.found[count])

    def judge(self, case: Case) -> None:
        """Count a message in."""
        ident = case.history.id
        for name, rule in RULES.items():
            if reason := next(rule(case), ""):
                self.found[name][ident] = reason
        if case.copies:
            self.excused.add(ident)


def count(
    lines: Iterable[Line], enqueued: Collection[str] = (), kept: Iterable[Message] = (), *, can: Capabilities
) -> Account:
    """Count by the whole ledger, and by all that the broker still has, live or dead (`kept`).

    `enqueued`: ids of which an enqueue was answered, besides those that the ledger names.
    """
    told, found = by_id(lines), by_id(kept)
    events = {ident: {line.event for line in some} for ident, some in told.items()}
    promised = {*enqueued, *(ident for ident, some in events.items() if "enq" in some)}
    tried = promised | {ident for ident, some in events.items() if "try" in some}
    known = can.keeps_records
    histories = {ident: History(ident, told.get(ident, ()), idempotent=known) for ident in {*told, *found, *enqueued}}
    for history in histories.values():
        _add_follow_ups(history, can, promised, tried)
    histories |= {ident: History(ident) for ident in promised - histories.keys()}  # follow-ups nobody has seen
    account = Account()
    for ident, history in histories.items():
        kept_of = tuple(found.get(ident, ()))
        account.judge(Case(history, kept_of, ident in promised, ident in tried, can))
    return account


def _add_follow_ups(history: History, can: Capabilities, promised: set[str], tried: set[str]) -> None:
    """Add the follow-ups of a message to the ids whose enqueue was answered, and to those whose enqueue was tried."""
    for follow in history.wrote("follow"):
        delivery = history.at(follow.fence)
        if delivery is None or delivery.known.may_be("ack"):
            tried.add(follow.tag)
        elif not can.atomic_across_queues and any(call.verb == "ack" for call in delivery.calls):
            tried.add(follow.tag)  # put before it was known that the ack is refused
        if delivery is not None and _is_each_run_acked(delivery):
            promised.add(follow.tag)


def _is_each_run_acked(delivery: Delivery) -> bool:
    """Return False if a number was given twice: then it is open whose run an accepted ack has ended."""
    acks = sum(call.verb == "ack" and call.answer in ACCEPTED for call in delivery.calls if call.event == "settled")
    return delivery.known.verb == "ack" and acks >= len({line.owner for line in delivery.fetched})
