"""Claims, pools and takers of many processes at once on one queue, where claims and leases end in mid-work."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support import crowd_claims
from support.claims import post
from support.crowd_claims import Span
from support.harness import Harness
from support.jobs import numbered

pytestmark = [
    pytest.mark.needs("leases", "claims"),
    pytest.mark.xdist_group("crowds"),
]  # their processes are made once a file


def in_two_hands(spans: list[Span]) -> list[tuple[Span, Span]]:
    """Neighbours in time that held one message at one moment, and are not one holder."""
    real = sorted((span for span in spans if span.start < span.end), key=lambda span: (span.message, span.start))
    return [
        (one, other)
        for one, other in pairwise(real)
        if one.message == other.message and one.holder != other.holder and other.start < one.end
    ]


@pytest.mark.spans
def test_a_message_in_two_hands_would_be_seen() -> None:
    one, other = Span("m", "one", 1.0, 3.0), Span("m", "other", 2.0, 4.0)
    assert in_two_hands([other, one]) == [(one, other)]
    assert in_two_hands([one, Span("m", "other", 3.0, 4.0), Span("n", "other", 2.0, 4.0)]) == []


@pytest.mark.spans
@pytest.mark.lacks("native_reap")
def test_each_message_is_finished_once_and_never_in_two_hands(harness: Harness) -> None:
    opener = harness.opener()
    backend = harness.keep(opener())
    known = post(backend, *(b"%d" % number for number in range(60))) + backend.enqueue_many(numbered(60))
    parts = harness.crowd(opener, crowd_claims.churn, 4)
    assert sorted(ident for part in parts for ident in part.finished) == sorted(known)
    assert in_two_hands([span for part in parts for span in part.spans]) == []
    assert (backend.list_messages(), backend.queues()) == ([], [])
