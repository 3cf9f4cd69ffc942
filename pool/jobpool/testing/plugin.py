"""For pytest: `pytest_plugins = ["jobpool.testing.plugin"]` in a `conftest.py` gives tests the fixture `virtual_pool`.

Nothing loads it by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jobpool.testing.pool import VirtualPool


@pytest.fixture
def virtual_pool() -> Iterator[VirtualPool]:
    """Yield a `VirtualPool` with the handlers of `@jobpool.handler`, which takes all that the test enqueues.

    Fails the test at its end when a fault that it injected has not happened.
    """
    with VirtualPool() as pool:
        yield pool
        assert not pool.unused, f"injected, and never met: {'; '.join(pool.unused)}"
