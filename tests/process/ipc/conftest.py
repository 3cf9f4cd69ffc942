from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.nurse import Child, Nurse

from jobpool.ipc.linux import allow_open_files

allow_open_files(8192)  # hundreds of children at once, six descriptors each; many systems allow 1,024 at first


@pytest.fixture
def nurse() -> Iterator[Nurse]:
    """With a fork server whose app does nothing of note."""
    with Nurse() as nurse:
        yield nurse


@pytest.fixture
def child(nurse: Nurse) -> Child:
    """Born, and ready."""
    return nurse.bear()
