"""Lets tests of what watches the pool use the stage of the pool's own tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "master"))
