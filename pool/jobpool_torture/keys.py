"""Judgements of keys, by the knowledge of which jobs share one: the rules of KEY. Pure.

No answer tells that a key is done, or held. But only an accepted ack makes a key done, and it is held as long as the
lease of the delivery it was granted to. If a delivery was settled in the end, its lease had not ended before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jobpool.broker.values import Capabilities
from jobpool_torture.ledger import Line
from jobpool_torture.message_history import Delivery, History
from jobpool_torture.workload import Item

DOUBTFUL = Capabilities(idempotent_settle=False)
"""A call that was not answered may have been carried out, whatever later ones were answered."""

Run = tuple[str, str, Delivery]
"""A run: its shared key, its job's id, and the delivery."""


def broken(lines: Iterable[Line], items: Mapping[str, Item]) -> dict[str, str]:
    """Return jobs that ran, were skipped or were enqueued as no job with their key should be → why."""
    history = list(lines)
    histories = list(histories_of(history, {ident: item for ident, item in items.items() if shared(item)}))
    runs = [(shared(items[one.id]), one.id, delivery) for one in histories for delivery in one.deliveries]
    keyed = [run for run in runs if key_of(items[run[1]])]
    second = _second_of_unique(history, items)
    return _skipped_for_nothing(keyed) | _beside_another(runs) | _begun_after_done(keyed) | second


def histories_of(lines: Iterable[Line], items: Mapping[str, Item]) -> Iterator[History]:
    """Yield the history of each of these jobs of which there is a line."""
    by_id: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line.id in items:
            by_id[line.id].append(line)
    return (History(ident, told, DOUBTFUL) for ident, told in by_id.items())


def key_of(item: Item | None) -> str:
    """Return its idempotency key, which nobody else but jobs of this run has; "" = none."""
    return str(item.options.get("idempotency_key", "")) if item else ""


def shared(item: Item) -> str:
    """Return what only one job may hold at a time: its idempotency key, or the name of a single instance; "" =
    nothing.
    """
    name = item.options.get("name", "") if item.options.get("single_instance") else ""
    return key_of(item) or str(name)


def _skipped_for_nothing(runs: Sequence[Run]) -> dict[str, str]:
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


def _begun_after_done(runs: Iterable[Run]) -> dict[str, str]:
    """Report starts after another job with the key was acked. One that lost its lease meanwhile may write that late."""
    runs = [run for run in runs if run[2].wrote("start") and run[2].known.accepted]
    done: dict[str, tuple[float, str]] = {}
    for key, ident, delivery in runs:
        if (ack := delivery.known.accepted) and ack.verb == "ack":
            done[key] = min(done.get(key, (ack.at, ident)), (ack.at, ident))
    return {
        ident: f"delivery {delivery.fence} began after {done[key][1]}, with its key, was acked"
        for key, ident, delivery in runs
        if key in done and delivery.wrote("start")[0].at > done[key][0] and ident != done[key][1]
    }


def _beside_another(runs: Iterable[Run]) -> dict[str, str]:
    """Report starts beside another run of the same: both were settled later, so both leases were live."""
    found: dict[str, str] = {}
    last: dict[str, tuple[float, str]] = {}
    settled = [(d.wrote("start")[0].at, d.calls[0].at, *run) for run in runs if _was_held(d := run[2])]
    for begun, asked, name, ident, delivery in sorted(settled, key=lambda one: one[:2]):
        until, other = last.get(name, (begun, ident))
        if begun < until and ident != other:
            found[ident] = f"delivery {delivery.fence} began while {other} ran, which shares {name}"
        last[name] = max((until, other), (asked, ident))
    return found


def _was_held(delivery: Delivery) -> bool:
    """Return the time for which it was surely held: from its start until its first call."""
    return bool(delivery.wrote("start") and delivery.known.accepted)


def _second_of_unique(lines: Sequence[Line], items: Mapping[str, Item]) -> dict[str, str]:
    answers: dict[str, str] = {}
    second = {}
    for line in lines:
        if line.event == "enq" and line.tag in items and items[line.tag].kind == "unique":
            key = key_of(items[line.tag])
            if (first := answers.setdefault(key, line.id)) != line.id:
                second[line.id] = f"it was added beside {first}, which has its unique key"
    return second
