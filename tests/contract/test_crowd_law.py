"""Many consumers at once, in processes of their own where the backend is shared by processes."""

from __future__ import annotations

from collections import Counter

import pytest
from support import crowd
from support.harness import Harness
from support.jobs import QUEUE, numbered

pytestmark = [pytest.mark.needs("leases"), pytest.mark.xdist_group("crowds")]  # their processes are made once a file


def test_eight_consumers_never_hold_a_message_twice(harness: Harness) -> None:
    opener = harness.opener()
    backend = harness.keep(opener())
    # Brokers that count by looking at each message take their time over 2,000.
    known = backend.enqueue_many(numbered(2000 if harness.capabilities.exact_counts else 400))
    seen = [entry for part in harness.crowd(opener, crowd.drain, 8) for entry in part]
    assert sorted(ident for ident, _, _ in seen) == sorted(known)
    assert {deliveries for _, deliveries, _ in seen} == {1}
    assert all(accepted for _, _, accepted in seen)
    assert backend.stats(QUEUE).pending == 0


@pytest.mark.needs("exact_crashes")
@pytest.mark.lacks("native_reap")
def test_four_reapers_charge_each_expiry_once_and_lose_nothing(harness: Harness) -> None:
    opener = harness.opener()
    backend = harness.keep(opener())
    known = backend.enqueue_many(numbered(200))
    results = harness.crowd(opener, crowd.reap_and_settle, 4)
    acked = Counter(ident for _, acks in results for ident in acks)
    dead = {message.id for message in backend.list_messages(limit=1000)}
    assert acked.total() == len(acked)
    assert set(acked) | dead == set(known)
    assert not set(acked) & dead


@pytest.mark.needs("settle_anywhere")
def test_consumers_of_one_message_agree_on_who_has_it(harness: Harness) -> None:
    opener = harness.opener()
    [ident] = harness.keep(opener()).enqueue_many(numbered(1))
    taken = [found for part in harness.crowd(opener, crowd.take, 4) for found in part]
    assert taken == [ident]


def test_one_message_is_settled_by_one_of_its_consumers(harness: Harness) -> None:
    opener = harness.opener()
    backend = harness.keep(opener())
    ident = backend.enqueue(numbered(1)[0])
    seen = [entry for part in harness.crowd(opener, crowd.drain, 4) for entry in part]
    assert seen == [(ident, 1, True)]
    assert backend.stats(QUEUE).pending == 0
