"""The oracle's count where pools ran without a witness: by the handlers' lines, so without settlements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from jobpool.broker.values import Capabilities, Message
from jobpool_torture import oracle
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import History
from jobpool_torture.oracle import Case, Rule
from support.accounts import Account, told

ALL = Capabilities()


def lost(case: Case) -> Iterator[str]:
    if case.promised and not case.kept and not case.history.wrote("end"):
        yield "it was enqueued, no run of it ended, and the broker does not have it"


def fence(case: Case) -> Iterator[str]:
    numbers = [line.fence for line in case.history.wrote("start")]
    if numbers != sorted(set(numbers)):
        yield f"it began as the deliveries {numbers}"


def attempts(case: Case) -> Iterator[str]:
    for start in case.history.wrote("start"):
        failures = sum(line.fence < start.fence for line in case.history.wrote("fail"))
        if start.attempt != failures + 1:
            yield f"delivery {start.fence} was told attempt {start.attempt} after {failures} failures"


def crashes(case: Case) -> Iterator[str]:
    """Each run but the last that wrote no end and no failure was cut short."""
    starts = case.history.wrote("start")
    ends = {line.fence for line in case.history.run if line.event in ("end", "fail")}
    cut_short = sum(line.fence not in ends for line in starts[:-1])
    if starts and cut_short > starts[-1].crashes:
        yield f"{cut_short} runs were cut short, and the last was told of {starts[-1].crashes} crashes"


RULES: dict[str, Rule] = {
    "LOST": lost,
    "FENCE": fence,
    "ATT": attempts,
    "CR": crashes,
    "GHOST": oracle.ghost,
    "DUP": oracle.duplicate,
    "OVERLAP": oracle.overlap,
}


def count(lines: Sequence[Line], enqueued: Collection[str], kept: Iterable[Message]) -> Account:
    by_id: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_id[line.id].append(line)
    kept_by_id: dict[str, list[Message]] = defaultdict(list)
    for message in kept:
        kept_by_id[message.id].append(message)
    promised = {*enqueued, *(line.id for line in lines if line.event == "enq")}
    follow_ups = {line.tag for line in lines if line.event == "follow"}
    tried = promised | follow_ups | {line.id for line in lines if line.event == "try"}
    account = oracle.Account()
    for ident in {*by_id, *kept_by_id, *enqueued}:
        history = History(ident, by_id.get(ident, ()), ALL)
        case = Case(history, tuple(kept_by_id.get(ident, ())), ident in promised, ident in tried, ALL)
        account.judge(case, RULES)
    return told(account, lines)
