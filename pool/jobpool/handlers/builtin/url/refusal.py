"""Errors of a call that is refused, or that its server asks to be made later."""

from __future__ import annotations

from jobpool.errors import Retry
from jobpool.handlers import sentences


class Refused(sentences.Refused):
    """The call is not made, or its answer is not taken, and never will be.

    Args:
        rule: A short, stable name of the rule, for logs and searches; the text begins with it.
        why: The mistake, and how it can be mended. Holds no secret part of a URL, and only the kind of the address that
            a name resolves to. A producer must not learn internal addresses by asking.
    """

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(f"refused ({rule}): {why}")
        self.rule = rule


class Later(Retry):
    """The server said when to come again: the next attempt is then. Burns an attempt."""
