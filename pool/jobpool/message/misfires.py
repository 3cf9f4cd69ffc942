"""The names of policies for missed firings: `skip`, `one`, `all(n)`. Only their syntax, no decision."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from jobpool.errors import InvalidJob

MOST_MADE_UP = 1000
"""The largest n of `all(n)`: each is one enqueue."""

_ALL = re.compile(r"all\(([0-9]{1,9})\)")


@dataclass(frozen=True, slots=True)
class Misfire:
    """The number of missed instants that are made up for, the newest first.

    Attributes:
        text: As it was written: `skip`, `one`, `all(3)`.
        most: 0 for `skip`, 1 for `one`, n for `all(n)`; 0..1000.
    """

    text: str
    most: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `skip`, `one` or `all(n)` with n from 1 to 1000; white space around it does not matter.

        Raises:
            InvalidJob: It is none of these.
        """
        word = text.strip() if isinstance(text, str) else ""
        if word in ("skip", "one"):
            return cls(word, 1 if word == "one" else 0)
        found = _ALL.fullmatch(word)
        if found is None or not 1 <= int(found[1]) <= MOST_MADE_UP:
            raise InvalidJob(f"misfire {text!r} is refused: 'skip', 'one' or 'all(n)' with n from 1 to {MOST_MADE_UP}")
        return cls(f"all({int(found[1])})", int(found[1]))
