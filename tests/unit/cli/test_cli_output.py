from __future__ import annotations

import pytest

from jobpool.cli.output import Column, fit, plural

COLUMNS = (Column("ID"), Column("HANDLER", flexible=True), Column("WHY", flexible=True))


@pytest.mark.parametrize(
    ("room", "widths"),
    [
        (100, [16, 20, 40]),
        (76, [16, 20, 40]),
        (60, [16, 20, 24]),
        (40, [16, 12, 12]),
        (10, [16, 8, 8]),
    ],
)
def test_only_flexible_columns_are_cut_the_widest_first(room: int, widths: list[int]) -> None:
    assert fit(COLUMNS, [16, 20, 40], room) == widths


@pytest.mark.parametrize(("count", "text"), [(0, "0 jobs"), (1, "1 job"), (2000, "2,000 jobs")])
def test_plural(count: int, text: str) -> None:
    assert plural(count, "job") == text
