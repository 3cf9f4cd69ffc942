"""An app with 30 MB of Python objects made at its import."""

from __future__ import annotations

from bench import app_data
from bench.apps import noop

__all__ = ["TABLE", "noop"]

TABLE = app_data.made()
