"""The oracle's account, with what tests assert of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobpool_torture import oracle
from jobpool_torture.ledger import Line
from jobpool_torture.oracle import RULES, VIOLATIONS


@dataclass(slots=True)
class Account(oracle.Account):
    """`crashes`: per id that has run, as its last run was told."""

    crashes: dict[str, int] = field(default_factory=dict)

    def assert_clean(self, counts: Iterable[str] = VIOLATIONS) -> None:
        """Raise `AssertionError`, with the first ids and what is wrong with them, unless these counts are 0."""
        if found := {name: list(self.found[name].items())[:5] for name in counts if self.found[name]}:
            raise AssertionError(str(found))

    def assert_apart(self) -> None:
        """Assert as `assert_clean`, and that no message ran beside itself."""
        self.assert_clean([*VIOLATIONS, "OVERLAP"])

    def assert_once_each(self) -> None:
        """Assert as `assert_clean`, and that no message ended twice or ran beside itself."""
        self.assert_clean(RULES)


def count(lines: Sequence[Line], *more: Any, **options: Any) -> Account:
    account = oracle.count(lines, *more, **options)
    return Account(account.found, account.excused, {line.id: line.crashes for line in lines if line.event == "start"})
