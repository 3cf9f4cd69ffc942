"""The oracle's rules of what is counted on the way: FENCE, ATT, CR, and OVERLAP."""

from __future__ import annotations

from collections.abc import Iterable

from jobpool_torture.case import Case
from jobpool_torture.message_history import CounterStep, Delivery, History, counter_steps

# --- FENCE ------------------------------------------------------------------------------------------------------------


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
