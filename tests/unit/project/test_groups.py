"""Tests of one `xdist_group` run on one worker: they share what is dear to make, or would meet each other's servers."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("one-worker")
def test_the_plugin_knows_the_groups(request: pytest.FixtureRequest) -> None:
    """pytest-xdist tells its master by the end of the name; where pytest drops that, all run anywhere."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@one-worker")
