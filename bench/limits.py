"""Limits that two pools on one broker keep together: shares of weighted queues, places of a queue, starts a minute."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

from bench.figures import Figure, Section, Target
from bench.guards import Place, brokers_of
from bench.live_pool import twins, wait_for
from bench.plan import Plan
from jobpool.client.jobs import Jobs

TITLE = "two pools on one broker: what they keep together"
NOTES = [
    "Each handler notes when it began and ended. `8:1`: two queues, both never empty; how many times as many starts the"
    " heavy one had. `places`: most jobs that ran at one moment under a limit of 3, of 8 children that wanted to;"
    " and how much of the time the three were in use. `a minute`: most starts within any minute, less a tenth of a"
    " second for the way from the broker's word, which is what counts, to the handler's first line."
]
WEIGHTS = ("-Q", "heavy=8", "-Q", "light=1")
PLACES = 3
SPAN = 0.02
RATE = 120
MINUTE = 60.0
WINDOW = MINUTE - 0.1
RATE_WATCH = 75.0

Span = tuple[str, float, float]
"""Queue, begin, end."""


def run(plan: Plan) -> Section:
    """Run broker after broker; the minutes of all brokers at once, because nothing else happens in them."""
    figures: list[Figure] = []
    with brokers_of(plan) as brokers:
        for name, (place, _) in brokers.items():
            with place() as url:
                figures += _shares(plan, name, url)
            with place() as url:
                figures += _places(plan, name, url)
        if not plan.tiny:
            with ThreadPoolExecutor(len(brokers)) as threads:
                tasks = [threads.submit(_rate, plan, name, place) for name, (place, _) in brokers.items()]
                figures += [figure for task in tasks for figure in task.result()]
    return Section("limits", TITLE, figures, NOTES)


def _shares(plan: Plan, name: str, url: str) -> list[Figure]:
    """Return the shares of the first starts; both queues hold more than all of them."""
    looked_at = plan.pick(9000, 1800, 90)
    with twins(plan, url, 2, *WEIGHTS) as notes:
        _enqueue(url, notes, {"heavy": looked_at, "light": looked_at}, 0.0)
        spans = _read(notes, looked_at)[:looked_at]
    heavy = sum(queue == "heavy" for queue, _, _ in spans)
    value = heavy / max(1, len(spans) - heavy)
    off = abs(value / 8 - 1) * 100
    return [
        Figure(f"{name}, 8:1, starts of heavy for one of light", value, "", value, value, len(spans)),
        Figure(f"{name}, 8:1, off by", off, "%", off, off, len(spans), Target("≤", 10)),
    ]


def _places(plan: Plan, name: str, url: str) -> list[Figure]:
    jobs = plan.pick(1000, 200, 20)
    with twins(plan, url, 4, "-Q", "narrow", "--concurrency-limit", f"narrow={PLACES}") as notes:
        _enqueue(url, notes, {"narrow": jobs}, SPAN)
        spans = _read(notes, jobs)
    begin, end = min(span[1] for span in spans), max(span[2] for span in spans)
    ideal = sum(span[2] - span[1] for span in spans) / PLACES
    most = _most_at_once(spans)
    used = 100 * ideal / (end - begin)
    return [
        Figure(f"{name}, {PLACES} places, most at once", most, "", most, most, jobs, Target("≤", PLACES)),
        Figure(f"{name}, {PLACES} places, in use", used, "% of the time", used, used, jobs),
    ]


def _rate(plan: Plan, name: str, place: Place) -> list[Figure]:
    with place() as url, twins(plan, url, 2, "-Q", "slow", "--rate-limit", f"slow={RATE}") as notes:
        _enqueue(url, notes, {"slow": 5 * RATE}, 0.0)
        _read(notes, 1)
        time.sleep(RATE_WATCH)
        spans = _read(notes, 1)
    begun = sorted(span[1] for span in spans)
    most = max(sum(first <= other < first + WINDOW for other in begun) for first in begun)
    second = sum(begun[0] + MINUTE <= other for other in begun)
    return [
        Figure(f"{name}, {RATE} a minute, most within a minute", most, "", most, most, len(begun), Target("≤", RATE)),
        Figure(f"{name}, {RATE} a minute, starts in the 15 s after the first minute", second, "", second, second, 1),
    ]


def _enqueue(url: str, notes: Path, counts: dict[str, int], seconds: float) -> None:
    """Fill both queues by turns, so that none is empty while the other is filled."""
    with Jobs(url) as jobs:
        queues = [queue for queue, count in counts.items() for _ in range(count)]
        spread = sorted(range(len(queues)), key=lambda place: place % max(counts.values()))
        jobs.enqueue_many(
            jobs.define("span", {"path": str(notes), "queue": queues[place], "seconds": seconds}).queue(queues[place])
            for place in spread
        )


def _read(notes: Path, count: int) -> list[Span]:
    """Return all that is noted, as soon as there are `count`, in the order of their starts."""

    def found() -> list[str] | None:
        lines = notes.read_text().splitlines() if notes.exists() else []
        return lines if len(lines) >= count else None

    words = [line.split() for line in wait_for(found, f"{count} jobs")]
    return sorted(((queue, float(begin), float(end)) for queue, begin, end in words), key=lambda span: span[1])


def _most_at_once(spans: Sequence[Span]) -> int:
    """Count the most at once, with ends before begins at the same moment."""
    changes = sorted([(begin, 1) for _, begin, _ in spans] + [(end, -1) for _, _, end in spans])
    return max(accumulate(change for _, change in changes))
