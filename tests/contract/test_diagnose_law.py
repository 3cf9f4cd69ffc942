"""What a backend says of its broker: findings with their mends, and cautions that are the bad ones among them."""

from __future__ import annotations

import re

import pytest

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Level, cautions_of

pytestmark = pytest.mark.needs("leases")


def test_every_check_has_a_name_and_what_is_bad_a_reason_and_a_mend(backend: QueueBackend) -> None:
    found = backend.diagnose()
    assert found
    for finding in found:
        assert re.fullmatch(r"[a-z]+(\.[a-z_-]+)+", finding.check), finding.check
        assert finding.found
        assert not finding.is_bad or finding.mend, finding
        assert finding.is_bad or not finding.mend, finding


def test_cautions_are_the_sentences_of_what_is_bad(backend: QueueBackend) -> None:
    found = backend.diagnose()
    assert backend.cautions() == cautions_of(found)
    assert len(backend.cautions()) == sum(f.level in (Level.WARNING, Level.PROBLEM) for f in found)


def test_looking_changes_nothing(backend: QueueBackend) -> None:
    before = backend.queues()
    backend.diagnose()
    backend.broker_time()
    assert backend.queues() == before
