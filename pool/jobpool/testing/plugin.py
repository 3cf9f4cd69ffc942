"""The fixture `virtual_pool`. pytest loads this by its entry point in each run, so a test's need imports the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jobpool.testing.pool import VirtualPool


@pytest.fixture
def virtual_pool() -> Iterator[VirtualPool]:
    """Yield a `VirtualPool` with the handlers of `@jobpool.handler`, which takes all that the test enqueues.

    Fails the test at its end when a fault that it injected has not happened.
    """
    from jobpool.testing.pool import VirtualPool

    with VirtualPool() as pool:
        yield pool
        assert not pool.unused, f"injected, and never met: {'; '.join(pool.unused)}"
