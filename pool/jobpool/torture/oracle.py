"""The oracle: counts, from a ledger and from what the broker still has, everything that must not be.

LOST, GHOST, DOUBLE-SETTLE, RERUN, FENCE, ATT and CR are always 0; DUP and OVERLAP are counted, for whoever knows how
many there may be. Each is one rule: a message's case in, the sentence that says what is wrong out. No I/O.

With a witness the rules go by what the broker answered (chain.py). Without one they go by what the handlers wrote, and
see less: nothing of what was settled, and of the counters only what the handlers were told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from jobpool.backend import Capabilities, Message, State
from jobpool.torture.chain import ACCEPTED, Delivery, Link, Story, links
from jobpool.torture.ledger import Line

ALL = Capabilities()

CLOCKS = 0.1
"""Seconds by which a broker's clock may run ahead of this machine's within one lease."""


@dataclass(slots=True)
class Account:
    """What was counted: ids, so that a failure names them.

    Attributes:
        lost: Enqueued, and neither acked nor kept; or acked though their handler had not ended; or dead, and gone; or
            dead, and given up by nobody.
        ghosts: Delivered, run or kept, and never enqueued.
        double_settles: Ended more often than once, or settled by one whose lease was over.
        reruns: Delivered again, or kept alive, after an accepted end; or delivered while another delivery held it.
        fences: Delivered or begun under a number that had been another's, or that was not the next.
        wrong_attempts: Another number of failures than they had.
        wrong_crashes: Another number of crashes than deliveries without a verdict.
        duplicates: Ended more than once. No fault by itself.
        overlaps: Ran on after a later delivery had begun. No fault by itself.
        crashes: Per id that has run, as its last run was told.
        notes: Per id, what is wrong with it, or was excused: whole sentences.
        excused: Not judged by their counters and numbers, because a broker that copies may have left two of them.
        messages: How many there were.
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
    crashes: dict[str, int] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    messages: int = 0

    def violations(self) -> dict[str, set[str]]:
        """The counts that must be 0, by the names that the documents use: all of them, with their ids."""
        return {
            "LOST": self.lost,
            "GHOST": self.ghosts,
            "DOUBLE-SETTLE": self.double_settles,
            "RERUN": self.reruns,
            "ATT": self.wrong_attempts,
            "CR": self.wrong_crashes,
            "FENCE": self.fences,
        }

    @property
    def is_clean(self) -> bool:
        """Whether all of them are."""
        return not any(self.violations().values())

    def assert_clean(self) -> None:
        """Raise `AssertionError`, with the first ids and what is wrong with them, unless it is clean."""
        self._assert_none(self.violations())

    def assert_once_each(self) -> None:
        """As `assert_clean`, and no message ended twice or ran beside itself."""
        self._assert_none(self.violations() | {"DUP": self.duplicates, "OVERLAP": self.overlaps})

    def _assert_none(self, counts: dict[str, set[str]]) -> None:
        found = {name: sorted(ids)[:5] for name, ids in counts.items() if ids}
        why = {ident: self.notes.get(ident, []) for ids in found.values() for ident in ids}
        if found:
            raise AssertionError(f"{found}: {why}")


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known of one message.

    Attributes:
        kept: What the broker still has under its id; mostly one or none.
        promised: An enqueue was answered.
        tried: An enqueue was tried, at least.
        witnessed: All pools ran under a witness.
    """

    story: Story
    kept: tuple[Message, ...]
    promised: bool
    tried: bool
    can: Capabilities
    witnessed: bool

    @property
    def copies(self) -> int:
        """How many more of it there may be than were enqueued."""
        return 0 if self.can.atomic_nack else self.story.copies()


Rule = Callable[[Case], str]
"""The sentence that says what is wrong; "" = nothing."""


# --- LOST, GHOST ------------------------------------------------------------------------------------------------------


def lost(case: Case) -> str:
    """Enqueued, and gone without an ack; or acked before its time."""
    if case.witnessed:
        return _unearned(case) or _vanished(case) or _died_of_nothing(case)
    if case.promised and not case.kept and not case.story.wrote("end"):
        return "it was enqueued, no run of it ended, and the broker does not have it"
    return ""


def _unearned(case: Case) -> str:
    for delivery in case.story.deliveries:
        if delivery.known.verb == "ack" and delivery.wrote("start") and not delivery.wrote("end"):
            return f"delivery {delivery.fence} was acked though its handler had not ended"
    return ""


def _vanished(case: Case) -> str:
    if not case.promised or case.kept:
        return ""
    if _may_be_acked(case):
        return ""
    died = any(delivery.known.verb == "abandon" for delivery in case.story.deliveries) or _deaths(case.story)
    return "it became a dead letter, and that is gone" if died else "it was never acked, and the broker has it not"


def _may_be_acked(case: Case) -> bool:
    """An ack that was not answered was none if the message was delivered, or reaped, after it."""
    deliveries = case.story.deliveries
    if any(delivery.known.verb == "ack" for delivery in deliveries):
        return True
    last = deliveries if case.copies else deliveries[-1:]
    return any(delivery.known.may_be("ack") and not _was_reaped(case, delivery) for delivery in last)


def _was_reaped(case: Case, delivery: Delivery) -> bool:
    """A reaper took it back from that delivery, or from a later one."""
    if not case.can.exact_crashes or case.copies or not delivery.fetched:
        return False
    return any(line.crashes > delivery.fetched[0].crashes for line in case.story.reaped)


def _died_of_nothing(case: Case) -> str:
    """A message that nobody holds is no reaper's business: after a nack or a release it cannot become a dead letter."""
    deliveries, dead = case.story.deliveries, [message for message in case.kept if message.state is State.DEAD]
    if not (deliveries and dead and case.can.atomic_nack) or case.can.native_reap or _deaths(case.story):
        return ""
    last = deliveries[-1]
    if last.known.verb in ("nack", "release") and dead[0].deliveries == last.fence:
        return f"it is dead, and delivery {last.fence}, its last, ended in a {last.known.verb}"
    return ""


def ghost(case: Case) -> str:
    """Something of it is there, and nobody has enqueued it."""
    if case.tried or (case.story.is_empty and not case.kept):
        return ""
    return "nobody has enqueued it"


# --- DOUBLE-SETTLE, RERUN ---------------------------------------------------------------------------------------------


def double_settle(case: Case) -> str:
    """It ended twice; or somebody settled it who did not hold it any more."""
    return _settled_twice(case) or _settled_late(case) or _ended_twice(case)


def _settled_twice(case: Case) -> str:
    for delivery in case.story.deliveries:
        done = delivery.known.done
        if len(done) > 1 + case.copies:
            return f"delivery {delivery.fence} was settled {len(done)} times: {_verbs(done)}"
        if done and delivery.known.verb not in {call.verb for call in done} and not case.copies:
            return f"delivery {delivery.fence} ended in {_verbs(done)}, and {delivery.known.verb} was answered as done"
    return ""


def _settled_late(case: Case) -> str:
    """A call that began after a later delivery was answered, and was accepted all the same."""
    if case.copies:
        return ""
    for delivery in case.story.deliveries:
        for call in delivery.known.done:
            for later in _later(case.story, delivery.fence):
                if any(line.at < call.since for line in later.fetched):
                    return f"{call.verb} of delivery {delivery.fence} was accepted after delivery {later.fence}"
    return ""


def _ended_twice(case: Case) -> str:
    ended = (d for d in case.story.deliveries if d.known.verb in ("ack", "abandon"))
    ends = [f"{d.known.verb} of delivery {d.fence}" for d in ended] + ["crash-limit"] * _deaths(case.story)
    return f"it ended {len(ends)} times: {', '.join(ends)}" if len(ends) > 1 + case.copies else ""


def _deaths(story: Story) -> int:
    return sum(line.answer == "dead" for line in story.reaped)


def _verbs(calls: Iterable[Line]) -> str:
    return ", ".join(call.verb for call in calls)


def _later(story: Story, fence: int) -> Iterator[Delivery]:
    return (delivery for delivery in story.deliveries if delivery.fence > fence)


def rerun(case: Case) -> str:
    """An accepted end was not the end of it; or it was delivered to one while another held it."""
    if case.copies:
        return ""
    return _after_its_end(case) or _after_its_death(case.story) or _too_soon(case)


def _after_its_end(case: Case) -> str:
    for delivery in case.story.deliveries:
        end = delivery.known.verb
        if end in ("ack", "abandon"):
            for later in _later(case.story, delivery.fence):
                return f"delivery {later.fence} came after the {end} of delivery {delivery.fence}"
            for message in case.kept:
                if end == "ack" or message.state is not State.DEAD:
                    return f"delivery {delivery.fence} ended in an {end}, and the broker has it: {message.state.value}"
    return ""


def _after_its_death(story: Story) -> str:
    for death in (line for line in story.reaped if line.answer == "dead"):
        for delivery in story.deliveries:
            if any(line.since > death.at for line in delivery.fetched):
                return f"delivery {delivery.fence} came after its crash-limit"
    return ""


def _too_soon(case: Case) -> str:
    """A lease that nobody has tried to settle lasts as long as it was given for, whatever became of its pool."""
    if not (case.can.lasting_leases and case.can.exact_crashes):
        return ""
    for held, later in pairwise(d for d in case.story.deliveries if d.fetched):
        lease, came = held.fetched[0], min(line.at for line in later.fetched)
        left = lease.since + lease.holds - CLOCKS - came
        if left > 0 and not held.calls:
            return f"delivery {later.fence} came {left:.2f} s before the lease of delivery {held.fence} was over"
    return ""


# --- FENCE ------------------------------------------------------------------------------------------------------------


def fence(case: Case) -> str:
    """Numbers of deliveries strictly grow, and each is one delivery."""
    if not case.witnessed:
        numbers = [line.fence for line in case.story.wrote("start")]
        return "" if numbers == sorted(set(numbers)) else f"it began as the deliveries {numbers}"
    if case.copies:
        return ""
    return next((found for d in case.story.deliveries if (found := _misnumbered(case.story, d))), "")


def _misnumbered(story: Story, delivery: Delivery) -> str:
    number = delivery.fence
    if len({line.owner for line in delivery.fetched}) > 1:
        return f"delivery {number} was handed out {len(delivery.fetched)} times"
    starts = delivery.wrote("start")
    if len(starts) > 1:
        return f"delivery {number} began {len(starts)} times"
    if starts and not delivery.fetched:
        return f"it began as delivery {number}, which nobody had fetched"
    for later in _later(story, number):
        if any(ours.since > theirs.at for ours in delivery.fetched for theirs in later.fetched):
            return f"delivery {number} was asked for after delivery {later.fence} was there"
    return ""


# --- ATT, CR ----------------------------------------------------------------------------------------------------------


def attempts(case: Case) -> str:
    """The counter of failures is not what was settled, or not what the handler was told or did."""
    if not case.witnessed:
        return _attempts_told(case.story)
    if case.copies:
        return ""
    for link in _links(case):
        if not link.attempts_fit():
            return f"before delivery {link.fence}, {link.added[0]} failures were added, not {_steps(link.steps, 0)}"
    return _told_otherwise(case.story, "attempt") or _failed_and_released(case.story)


def crashes(case: Case) -> str:
    """The counter of crashes is not that of the deliveries without a verdict."""
    if not case.witnessed:
        return _crashes_told(case.story)
    if case.copies:
        return ""
    for link in _links(case):
        if link.attempts_fit() and not link.crashes_fit(exact=case.can.exact_crashes):
            unseen = f", and up to {link.unseen} of deliveries that nobody saw" if link.unseen else ""
            due = _steps(link.steps, 1) + unseen
            return f"before delivery {link.fence}, {link.added[1]} crashes were added, not {due}"
    return _told_otherwise(case.story, "crashes")


def _links(case: Case) -> list[Link]:
    return links(case.story, case.kept[0] if len(case.kept) == 1 else None)


def _steps(steps: Iterable[tuple[int, int]], place: int) -> str:
    return " or ".join(str(number) for number in sorted({step[place] for step in steps}))


def _told_otherwise(story: Story, counter: str) -> str:
    """A handler was told another number than its pool."""
    for delivery in story.deliveries:
        told = {getattr(line, counter) for line in (*delivery.fetched, *delivery.wrote("start"))}
        if len(told) > 1:
            return f"as delivery {delivery.fence} its {counter} were told as {sorted(told)}"
    return ""


def _failed_and_released(story: Story) -> str:
    for delivery in story.deliveries:
        if delivery.known.verb == "release" and delivery.wrote("fail"):
            return f"delivery {delivery.fence} failed, and was released"
    return ""


def _attempts_told(story: Story) -> str:
    for start in story.wrote("start"):
        failures = sum(line.fence < start.fence for line in story.wrote("fail"))
        if start.attempt != failures + 1:
            return f"delivery {start.fence} was told attempt {start.attempt} after {failures} failures"
    return ""


def _crashes_told(story: Story) -> str:
    """Each run but the last that wrote neither an end nor a failure was cut short."""
    starts = story.wrote("start")
    ends = {line.fence for line in story.run if line.event in ("end", "fail")}
    cut_short = sum(line.fence not in ends for line in starts[:-1])
    if starts and cut_short > starts[-1].crashes:
        return f"{cut_short} runs were cut short, and the last was told of {starts[-1].crashes} crashes"
    return ""


# --- DUP, OVERLAP -----------------------------------------------------------------------------------------------------


def duplicate(case: Case) -> str:
    """It ended more than once."""
    ends = len(case.story.wrote("end"))
    return f"it ended {ends} times" if ends > 1 else ""


def overlap(case: Case) -> str:
    """A run wrote something after a later one had begun."""
    begun = 0
    for line in case.story.run:
        if line.event == "start":
            if line.fence < begun:
                return f"delivery {line.fence} began after delivery {begun}"
            begun = line.fence
        elif line.fence < begun:
            return f"delivery {line.fence} ran on after delivery {begun} had begun"
    return ""


RULES: dict[str, Rule] = {
    "lost": lost,
    "ghosts": ghost,
    "double_settles": double_settle,
    "reruns": rerun,
    "fences": fence,
    "wrong_attempts": attempts,
    "wrong_crashes": crashes,
    "duplicates": duplicate,
    "overlaps": overlap,
}
"""By the attribute of the account that each fills."""


# --- counting ---------------------------------------------------------------------------------------------------------


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
        witnessed: Whether every pool ran under a witness; None = a witness wrote something.
    """
    by_id: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_id[line.id].append(line)
    kept_by_id: dict[str, list[Message]] = defaultdict(list)
    for message in kept:
        kept_by_id[message.id].append(message)
    if witnessed is None:
        witnessed = any(line.event == "fetched" for story in by_id.values() for line in story)
    stories = {ident: Story(ident, by_id.get(ident, ()), can) for ident in {*by_id, *kept_by_id, *enqueued}}
    promised, tried = _known_ids(by_id, enqueued, stories, can, witnessed)
    stories |= {ident: Story(ident, (), can) for ident in promised - stories.keys()}  # follow-ups nobody has seen
    account = Account(messages=len(stories))
    for ident, story in stories.items():
        found = tuple(kept_by_id.get(ident, ()))
        _judge(Case(story, found, ident in promised, ident in tried, can, witnessed), account)
    return account


def _known_ids(
    by_id: dict[str, list[Line]],
    enqueued: Collection[str],
    stories: dict[str, Story],
    can: Capabilities,
    witnessed: bool,
) -> tuple[set[str], set[str]]:
    """Ids whose enqueue was answered, and ids whose enqueue was tried."""
    promised = {*enqueued, *(ident for ident, story in by_id.items() if any(line.event == "enq" for line in story))}
    tried = promised | {ident for ident, story in by_id.items() if any(line.event == "try" for line in story)}
    for story in stories.values():
        for follow in story.wrote("follow"):
            delivery = story.at(follow.fence)
            if not witnessed or delivery is None or delivery.known.may_be("ack"):
                tried.add(follow.tag)
            elif not can.atomic_follow_ups and any(call.verb == "ack" for call in delivery.calls):
                tried.add(follow.tag)  # put before it was known that the ack is refused
            if witnessed and delivery is not None and _is_each_run_acked(delivery):
                promised.add(follow.tag)
    return promised, tried


def _is_each_run_acked(delivery: Delivery) -> bool:
    """A number that was given twice leaves open whose run an accepted ack has ended."""
    acks = sum(call.verb == "ack" and call.answer in ACCEPTED for call in delivery.calls if call.event == "settled")
    return delivery.known.verb == "ack" and acks >= len({line.owner for line in delivery.fetched})


def _judge(case: Case, account: Account) -> None:
    ident = case.story.id
    for name, rule in RULES.items():
        sentence = rule(case)
        if sentence:
            getattr(account, name).add(ident)
            account.notes.setdefault(ident, []).append(sentence)
    if case.copies:
        account.excused.add(ident)
        account.notes.setdefault(ident, []).append(f"{case.copies} unanswered calls may have left a copy of it")
    starts = case.story.wrote("start")
    if starts:
        account.crashes[ident] = starts[-1].crashes
