"""What a handler receives is what its producer gave, and the bytes are those that were signed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.harness import Harness
from support.jobs import QUEUE, a_job, new_lease
from support.looks import recover
from support.tiers import examples

from jobpool.broker.backend import QueueBackend

pytestmark = pytest.mark.needs("leases")

DEEP: Any = "bottom"
for _ in range(60):
    DEEP = [DEEP]

PAYLOADS = {
    "null": None,
    "true": True,
    "zero": 0,
    "largest-integer": 2**63 - 1,
    "smallest-integer": -(2**63),
    "unsigned": 2**64 - 1,
    "float": 0.1 + 0.2,
    "tiny-float": 5e-324,
    "negative-zero": -0.0,
    "empty-string": "",
    "unicode": "Zürich 東京 \U0001f600 \u202e \u0000 \ufeff",
    "empty-array": [],
    "empty-object": {},
    "nested": {"a": [1, {"b": [None, True, "x"]}], "": {"": ""}},
    "deep": DEEP,
    "large": "x" * 900_000,
    "many": list(range(20_000)),
    "looks-like-sql": "'; DROP TABLE messages; --",
    "nul-bytes": "a\u0000b\u0000",
}

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # A lone surrogate is not text that UTF-8 can carry.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=10,
)


def test_a_payload_arrives_as_it_was_sent(backend: QueueBackend) -> None:
    for name, payload in PAYLOADS.items():
        backend.enqueue(a_job().with_payload(payload))
        [lease] = backend.fetch_many(QUEUE, limit=1)
        assert repr(lease.envelope.payload) == repr(payload), name
        backend.ack(lease)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=JSON)
def test_any_payload_arrives_as_it_was_sent(backend: QueueBackend, payload: Any) -> None:
    backend.enqueue(a_job().with_payload(payload))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.ack(lease)
    assert lease.envelope.payload == payload


def test_the_bytes_survive_a_nack_and_a_reap(harness: Harness, backend: QueueBackend) -> None:
    first = new_lease(backend, {"z": 1, "a": [1.0, 2e300]})
    backend.nack(first)
    [second] = backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    recover(harness, backend, 1.0)
    [third] = backend.fetch_many(QUEUE, limit=1)
    assert first.body == second.body == third.body
    assert (third.envelope.attempts, third.attempts) == (1, 1)
    assert third.crashes == 1 or not backend.capabilities.exact_counts
    backend.release(third)
    [fourth] = backend.fetch_many(QUEUE, limit=1)
    assert fourth.body == first.body, "where a crash is charged by a copy, it is this one's"
