"""The log as it was, around what sets one up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def same_logs() -> Iterator[None]:
    """Undo what a command line that is called in this process does to the loggers."""
    loggers = [logging.getLogger("jobpool"), logging.getLogger()]
    before = [(logger, list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    try:
        yield
    finally:
        for logger, handlers, level, propagate in before:
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)
