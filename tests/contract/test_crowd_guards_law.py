"""Guards among many consumers at once, in processes of their own where the backend is shared by processes."""

from __future__ import annotations

from collections import Counter

import pytest
from support import crowd_guards
from support.crowd_guards import Span
from support.harness import Harness
from support.jobs import QUEUE, a_job, numbered

pytestmark = [
    pytest.mark.needs("leases", "key_store"),
    pytest.mark.xdist_group("crowds"),
]  # their processes are made once a file

CROWD = 8


def most_at_once(spans: list[Span]) -> int:
    """How many of the spans share a moment, at the most."""
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    inside = most = 0
    for _, step in edges:
        inside += step
        most = max(most, inside)
    return most


def test_places_are_never_exceeded(harness: Harness) -> None:
    opener = harness.opener()
    backend = harness.keep(opener())
    backend.enqueue_many(numbered(120))
    spans = [span for part in harness.crowd(opener, crowd_guards.hold_places, CROWD) for span in part]
    assert len(spans) == 120
    assert most_at_once(spans) <= 3
    assert backend.keys.holders(QUEUE, "queue") == []


def test_a_key_runs_to_its_end_once(harness: Harness) -> None:
    opener = harness.opener()
    backend = harness.keep(opener())
    keys = [f"order-{number}" for number in range(20)]
    backend.enqueue_many([a_job(key) for _ in range(6) for key in keys])
    ran = Counter(key for part in harness.crowd(opener, crowd_guards.run_keys_once, CROWD) for key in part)
    assert ran == Counter(keys)
    assert backend.stats(QUEUE).pending == 0


@pytest.mark.spans
def test_a_unique_job_of_a_crowd_is_one_message_with_one_id(harness: Harness) -> None:
    opener = harness.opener()
    backend = harness.keep(opener())
    ids = {ident for part in harness.crowd(opener, crowd_guards.enqueue_the_same, CROWD) for ident in part}
    assert len(ids) == 1
    assert [message.id for message in backend.list_messages()] == list(ids)


def test_a_rate_is_exceeded_in_no_window(harness: Harness) -> None:
    opener = harness.opener()
    harness.keep(opener()).enqueue_many(numbered(CROWD))
    parts = harness.crowd(opener, crowd_guards.start_within_the_rate, CROWD)
    spans = sorted((span for part in parts for span in part), key=lambda span: span[1])
    most, window = crowd_guards.RATE.most, crowd_guards.RATE.window
    assert len(spans) > most, "the rate never had room again"
    for first in range(len(spans) - most):
        together = spans[first : first + most + 1]
        # However late a start was counted and however early the first: so many never fit in one window.
        assert max(after for _, after in together) - min(before for before, _ in together) >= window - 0.001
