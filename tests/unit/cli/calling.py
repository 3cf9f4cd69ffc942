"""The type of the fixture `jobpool`, by which tests call the command line in this process."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

Jobpool = Callable[..., Result]
