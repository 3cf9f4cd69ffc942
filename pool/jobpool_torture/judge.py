"""Judgements of a run, by the oracle, by each job's purpose and by the faults; and of keys, by which jobs share one.

No answer tells that a key is done, or held. But only an accepted ack makes a key done, and it is held as long as the
lease of the delivery it was granted to. If a delivery was settled in the end, its lease had not ended before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from jobpool.broker.values import Capabilities, Message, State
from jobpool_torture import oracle, tracking
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import ACCEPTED, Delivery, by_id, histories_of
from jobpool_torture.result import Result
from jobpool_torture.workload import DIES_OF, HANG_TIMEOUT_S, Item

FAR_OUT_S = 5.0  # time beyond timeout and grace that no loaded machine explains
CRASH_LIMIT = "crash-limit"
KILLING = ("child.kill", "forkserver.", "master.", "group.", "pool.")
"""Faults by which a child may die, even if its job is well."""

DYING = ("crash", "poison", "hang", "cancelled")  # kinds of job that end without a word of their own
DEATH_SEEN_S = 2.0  # time after such a fault within which the death of a child is seen to
MAX_CRASHES = 5
KILL_GRACE_S = 1.0
"""Settings of the pools."""

TOLERATED_AFTER_S = 10.0  # time after its end for which a fault excuses what is late
SPOILT_CONNECTION_S = 1.0  # time after its end within which a call may still meet a connection that a fault has spoilt
UNHEARD_AFTER_S = 1.0  # time after the death of a fork server in which its children die, on a busy machine
QUICK_ENQUEUE_S = 0.2  # time of an enqueue in which no connection is made anew, and so nothing sent again
HARMLESS = ("child.kill", "child.stop", "child.spoil", "log.block")
"""Faults that hold up no timeout: a child that is stopped is killed all the same."""


class KeyedRun(NamedTuple):
    """A delivery of the job `id`, which shares `key` (or the name of a single instance) with other jobs."""

    key: str
    id: str
    delivery: Delivery


@dataclass(slots=True)
class Window:
    """A disturbance of `pool` ("" = of all) between two moments of CLOCK_MONOTONIC."""

    pool: str
    kind: str
    begun: float
    ended: float

    def covers(self, pool: str, begun: float, ended: float, after: float) -> bool:
        """Return whether that pool was disturbed between these moments, or up to `after` seconds before."""
        return self.pool in ("", pool) and self.begun <= ended and begun <= self.ended + after


def without_unheard_failures(lines: Sequence[Line], windows: Sequence[Window]) -> list[Line]:
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


def excused_ids(lines: Sequence[Line], windows: Sequence[Window], can: Capabilities) -> set[str]:
    """Return messages that are not judged by their counters and numbers, beside those that the oracle itself leaves."""
    if can.keeps_records:
        return set()
    found = copies_left(lines, windows) | enqueued_twice(lines)
    return found | half_charged(lines, windows) if can.exact_counts else found


def copies_left(lines: Sequence[Line], windows: Iterable[Window]) -> set[str]:
    """Return the messages of which a copy too many may be left if a broker copies (not `Capabilities.keeps_records`).

    These were settled by a copy, or put with an ack, while the pool had no good way to the broker. An unanswered put of
    a copy is repeated, within the call.
    """
    follow_ups = defaultdict(set)
    for line in lines:
        if line.event == "follow":
            follow_ups[line.id, line.fence].add(line.tag)
    bad = [window for window in windows if window.kind.startswith(("net.", "broker."))]
    found: set[str] = set()
    for line in lines:
        settled = line.event in ("settled", "unknown")
        if settled and any(window.covers(line.pool, line.since, line.at, SPOILT_CONNECTION_S) for window in bad):
            found |= follow_ups[line.id, line.fence] if line.verb == "ack" else {line.id}
    return found


def enqueued_twice(lines: Sequence[Line]) -> set[str]:
    """Return messages whose enqueue took so long that they may be there twice, if the broker knows no ids."""
    tried = {line.id: line.at for line in lines if line.event == "try"}
    return {
        line.id for line in lines if line.event == "enq" and line.at - tried.get(line.id, line.at) > QUICK_ENQUEUE_S
    }


def half_charged(lines: Iterable[Line], windows: Iterable[Window]) -> set[str]:
    """Return the messages whose crashes may have been charged by half, if a fetch charges them by a copy.

    Between two fetches a delivery had ended without a verdict, and some pool was cut off, stopped or killed. It may
    have put the copy and not deleted the original. A restart of such a broker forgets deliveries that no copy counts.
    """
    bad = [window for window in windows if window.kind.startswith(("net.", "broker.", "master.", "group."))]
    restarts = [window for window in bad if window.kind == "broker.restart"]
    told = by_id(line for line in lines if line.event in ("try", "fetched", "settled"))
    found: set[str] = set()
    for ident, some in told.items():
        history = sorted(some, key=lambda line: line.at)
        since, crashes, is_open, is_released = history[0].at, 0, False, False  # of the last delivery
        for line in history:
            if line.event == "fetched":
                disturbed = bad if is_open or line.crashes > crashes else restarts if is_released else []
                if any(window.covers(window.pool, since, line.at, SPOILT_CONNECTION_S) for window in disturbed):
                    found.add(ident)
                since, crashes, is_open, is_released = line.since, line.crashes, True, False
            elif line.event == "settled" and line.answer in ACCEPTED and is_open:
                is_open, is_released = False, line.verb == "release"
                crashes += line.verb == "forfeit"
        if is_open and any(since <= window.ended + SPOILT_CONNECTION_S for window in bad):
            found.add(ident)
    return found


def broken_keys(lines: Sequence[Line], items: Mapping[str, Item]) -> dict[str, str]:
    """Return jobs that ran, were skipped or were enqueued as no job with their key should be → why."""
    histories = histories_of(lines, {ident for ident, item in items.items() if shared(item)})
    runs = [KeyedRun(shared(items[one.id]), one.id, delivery) for one in histories for delivery in one.deliveries]
    settled = [run for run in runs if run.delivery.wrote("start") and run.delivery.known.accepted]
    keyed = {ident for ident, item in items.items() if key_of(item)}
    return (
        _skipped_for_nothing([run for run in runs if run.id in keyed])
        | _beside_another(settled)
        | _begun_after_done([run for run in settled if run.id in keyed])
        | _second_of_unique(lines, items)
    )


def key_of(item: Item | None) -> str:
    """Return its idempotency key, which only jobs of this run have; "" = none."""
    return str(item.options.get("idempotency_key", "")) if item else ""


def shared(item: Item) -> str:
    """Return the idempotency key, or the name of a single instance, that only one job may hold; "" = none."""
    name = item.options.get("name", "") if item.options.get("single_instance") else ""
    return key_of(item) or str(name)


def _skipped_for_nothing(runs: Sequence[KeyedRun]) -> dict[str, str]:
    """Report acks without a run before another job with the key was being acked."""
    done: dict[str, float] = {}
    for key, _, delivery in runs:
        if delivery.wrote("end") and delivery.known.may_be("ack"):
            first = min(call.at for call in delivery.calls if call.verb == "ack")
            done[key] = min(done.get(key, first), first)
    return {
        ident: f"delivery {delivery.fence} was acked without a run, and nobody had done its key"
        for key, ident, delivery in runs
        if delivery.known.verb == "ack" and not delivery.wrote("start")
        if key not in done or done[key] > delivery.calls[0].at
    }


def _begun_after_done(settled: Sequence[KeyedRun]) -> dict[str, str]:
    """Report starts after another job with the key was acked. One that lost its lease meanwhile may write that late."""
    done: dict[str, tuple[float, str]] = {}
    for key, ident, delivery in settled:
        if (ack := delivery.known.accepted) and ack.verb == "ack":
            done[key] = min(done.get(key, (ack.at, ident)), (ack.at, ident))
    return {
        ident: f"delivery {delivery.fence} began after {done[key][1]}, with its key, was acked"
        for key, ident, delivery in settled
        if key in done and delivery.wrote("start")[0].at > done[key][0] and ident != done[key][1]
    }


def _beside_another(settled: Iterable[KeyedRun]) -> dict[str, str]:
    """Report starts beside another run of the same: both were settled later, so held until their first calls."""
    found: dict[str, str] = {}
    last: dict[str, tuple[float, str]] = {}
    spans = [(run.delivery.wrote("start")[0].at, run.delivery.calls[0].at, run) for run in settled]
    for begun, asked, (key, ident, delivery) in sorted(spans, key=itemgetter(0, 1)):
        until, other = last.get(key, (begun, ident))
        if begun < until and ident != other:
            found[ident] = f"delivery {delivery.fence} began while {other} ran, which shares {key}"
        last[key] = max((until, other), (asked, ident))
    return found


def _second_of_unique(lines: Sequence[Line], items: Mapping[str, Item]) -> dict[str, str]:
    answers: dict[str, str] = {}
    second = {}
    for line in lines:
        if line.event == "enq" and line.tag in items and items[line.tag].kind == "unique":
            key = key_of(items[line.tag])
            if (first := answers.setdefault(key, line.id)) != line.id:
                second[line.id] = f"it was added beside {first}, which has its unique key"
    return second


def overruns(lines: Sequence[Line], items: Mapping[str, Item], windows: Sequence[Window]) -> dict[str, float]:
    """Return, for each job that hung in a pool that no fault held up, the seconds from its timeout to its verdict.

    The longest, where it hung more than once. The verdict is there when it is first asked for: the answers of the
    broker are not the timeout's business.
    """
    found: dict[str, float] = {}
    bad = [window for window in windows if window.kind not in HARMLESS]
    for history in histories_of(lines, {ident for ident, item in items.items() if item.kind == "hang"}):
        for delivery in history.deliveries:
            starts, asked = delivery.wrote("start"), [call for call in delivery.calls if call.event == "asked"]
            if not (starts and asked and asked[0].verb in ("nack", "abandon")):
                continue
            begun, ended = starts[-1].at, asked[0].at
            if not any(window.covers(asked[0].pool, begun, ended, TOLERATED_AFTER_S) for window in bad):
                found[history.id] = max(found.get(history.id, 0.0), ended - begun - HANG_TIMEOUT_S)
    return found


def over_crash_budget(lines: Iterable[Line], items: Mapping[str, Item]) -> dict[str, str]:
    """Return jobs that crash whenever they run, and ran more often than the crash budget allows → how often."""
    poison = {ident for ident, item in items.items() if item.kind == "poison"}
    # A run that a stop ended, and whose message was given back, or may have been, is not charged.
    runs = {
        history.id: sum(bool(one.wrote("start")) and not one.known.may_be("release") for one in history.deliveries)
        for history in histories_of(lines, poison)
    }
    return {ident: f"it ran {number} times" for ident, number in runs.items() if number > MAX_CRASHES + 1}


def acked_without_run(lines: Sequence[Line], items: Mapping[str, Item]) -> dict[str, str]:
    """Return jobs acked by a delivery whose handler had never begun. One with a key may be: see `broken_keys`."""
    ran = {(line.id, line.fence) for line in lines if line.event == "start"}
    acked = (line for line in lines if line.event == "settled" and line.verb == "ack" and line.answer in ACCEPTED)
    return {
        line.id: "it was acked, and had not begun"
        for line in acked
        if (line.id, line.fence) not in ran and not key_of(items.get(line.id))
    }


def answered_as_another(lines: Iterable[Line], items: Mapping[str, Item]) -> dict[str, str]:
    """Return jobs whose enqueue was answered with another's id; a unique one may be, by the id of one with its key."""
    return {
        line.tag: f"its enqueue was answered as {line.id}"
        for line in lines
        if line.event == "enq" and line.tag in items and line.id != line.tag
        if items[line.tag].kind != "unique" or key_of(items[line.tag]) != key_of(items.get(line.id))
    }


def wrong_dead_letters(kept: Iterable[Message], items: Mapping[str, Item], *, exact: bool = True) -> dict[str, str]:
    """Return dead letters of jobs that should not have died, or not of that, or not yet → why.

    A message that is not one of `items` is a follow-up, and good work. Any job may die of more than
    `MAX_CRASHES`. If not `exact`, a broker may give a message up by a count of its own.
    """
    dead = (message for message in kept if message.state is State.DEAD)
    whys = {message.id: _wrong_dead_letter(message, items.get(message.id), exact) for message in dead}
    return {ident: why for ident, why in whys.items() if why}


def _wrong_dead_letter(message: Message, item: Item | None, exact: bool) -> str:
    reason = message.reason or "for no reason"
    if reason == CRASH_LIMIT:
        too_early = exact and message.crashes <= MAX_CRASHES
        return f"it is dead ({reason}) after {message.crashes} crashes" if too_early else ""
    kind = item.kind if item else "follow-up"
    if item is None or DIES_OF.get(kind) != reason:
        return f"it is dead ({reason}), which no job of the kind {kind} may be"
    if kind == "cancelled":
        return ""
    retries = item.options["max_retries"] if reason != "unrecoverable" else 0
    if message.attempts <= retries:
        return f"it is dead ({reason}) after {message.attempts} of {retries + 1} attempts"
    return ""


def blamed(lines: Sequence[Line], items: Mapping[str, Item], windows: Sequence[Window]) -> dict[str, str]:
    """Return jobs that failed though their handler did not, or whose child died though nothing had killed it → why.

    A job that finds its process spoilt by an earlier one does so.
    """
    excused = {(line.id, line.fence) for line in lines if line.event in ("fail", "spoilt")}
    killing = [window for window in windows if window.kind.startswith(KILLING)]
    begun: dict[tuple[str, int], float] = {}  # when so far: a broker may count deliveries anew after a restart
    found: dict[str, str] = {}
    for line in sorted(lines, key=lambda line: line.at):
        delivery = (line.id, line.fence)
        item = items.get(line.id)
        if line.event == "start":
            begun[delivery] = line.at
        if (
            line.event != "asked"
            or delivery in excused
            or (item and (item.kind in DYING or item.handler == "torture.crash"))
        ):
            continue
        if line.verb == "nack" or (line.verb == "abandon" and delivery in begun):
            found[line.id] = f"delivery {line.fence} failed, and its handler had not"
        elif line.verb == "forfeit" and not any(
            window.covers(line.pool, begun.get(delivery, line.at), line.at, DEATH_SEEN_S) for window in killing
        ):
            found[line.id] = f"delivery {line.fence} died, and nothing had killed it"
    return found


def fill_in(
    result: Result,
    lines: Sequence[Line],
    kept: Sequence[Message],
    items: Mapping[str, Item],
    windows: Sequence[Window],
    can: Capabilities,
    results: Mapping[str, Any],
) -> None:
    """Fill in the findings of the whole ledger, of the messages that the broker still has (`kept`), and of results."""
    reasons = Counter(message.reason or "" for message in kept if message.state is State.DEAD)
    result.dead, result.tracked = dict(reasons.most_common()), tracking.figures(lines, results)
    account = oracle.count(without_unheard_failures(lines, windows), kept=kept, can=can)
    if not can.lists_live:
        for ident in _not_listed(lines, account["LOST"], result.left):
            del account.found["LOST"][ident]
    result.take(account, excused_ids(lines, windows, can))
    late = overruns(lines, items, windows)
    result.late = sorted(late.values())
    bound = KILL_GRACE_S + FAR_OUT_S
    result.add("LATE", [f"{ident}: {seconds:.1f} s" for ident, seconds in late.items() if seconds > bound])
    ours = [message for message in kept if message.id not in account.found["GHOST"]]
    counted = can.exact_counts and can.keeps_records
    found = [
        ("LOST", acked_without_run(lines, items)),
        ("LOST", answered_as_another(lines, items)),
        ("LOST", wrong_dead_letters(ours, items, exact=can.exact_counts)),
        ("BLAMED", blamed(lines, items, windows)),
        ("KEY", broken_keys(lines, items)),
        ("POISON", over_crash_budget(lines, items) if counted else {}),
        ("RESULT", tracking.results(lines, items, results)),
        ("CANCEL", tracking.cancels(lines, items, kept)),
        ("BATCH", tracking.batches(lines, items, kept)),
    ]
    for name, ids in found:
        result.add(name, [f"{ident}: {why}" for ident, why in ids.items()])


def _not_listed(lines: Sequence[Line], missing: Collection[str], left: int) -> set[str]:
    """Return the missing ids without an end, if `left` were left when a person ended the drain.

    A broker that lists no live messages tells how many they are, and not which.
    """
    ends = ("ack", "abandon")
    ended = {line.id for line in lines if line.event == "settled" and line.verb in ends and line.answer in ACCEPTED}
    ended |= {line.id for line in lines if line.event == "reaped" and line.answer == "dead"}
    open_ = set(missing) - ended
    return open_ if len(open_) <= left else set()
