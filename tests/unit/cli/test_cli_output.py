from __future__ import annotations

from jobpool.cli.output import aligned, columns, fit

COLUMNS = columns("ID, HANDLER~, WHY~")


def test_only_flexible_columns_are_cut_the_widest_first() -> None:
    for room, widths in [
        (100, [16, 20, 40]),
        (76, [16, 20, 40]),
        (60, [16, 20, 24]),
        (40, [16, 12, 12]),
        (10, [16, 8, 8]),
    ]:
        assert fit(COLUMNS, [16, 20, 40], room) == widths, room


def test_a_cell_takes_the_places_that_a_terminal_gives_it() -> None:
    rows = [["a\nb", "1", "日本語の長いテキスト"], ["cd", "22", "e\u0301"]]
    assert aligned(columns("ID, N>, WHY~"), rows, 17, gap=1) == [
        ["ID ", " N", "WHY       "],
        ["a b", " 1", "日本語の… "],
        ["cd ", "22", "e\u0301         "],
    ]
