"""Where a broker has no claims, it says so."""

from __future__ import annotations

import pytest

from jobpool.broker.backend import QueueBackend
from jobpool.errors import Unsupported


@pytest.mark.lacks("claims")
def test_a_broker_without_claims_names_the_capability(backend: QueueBackend) -> None:
    with pytest.raises(Unsupported, match=r"Capabilities\.key_store"):
        _ = backend.claims
