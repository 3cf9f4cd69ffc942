from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest

from jobpool.cli.output import BLOCK_ROWS, aligned, answer, columns, cut, fit
from jobpool.errors import BackendUnavailable

COLUMNS = columns("ID, HANDLER~, WHY~")


def test_a_line_is_cut_to_the_places_that_it_takes() -> None:
    lines = {("reports", 7): "reports", ("reports", 4): "rep…", ("日本語", 6): "日本語", ("日本語", 5): "日本…"}
    lines |= {("日本語", 4): "日…", ("日本語", 1): "…", ("reports", 0): "…"}
    assert {given: cut(*given) for given in lines} == lines


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


@pytest.mark.parametrize("json_", [False, True])
def test_the_first_are_shown_before_the_last_are_read(capsys: pytest.CaptureFixture[str], json_: bool) -> None:
    """A list of a million messages needs neither the memory for all of them nor their time to show the first."""
    shown = ""

    def numbers() -> Iterator[int]:
        nonlocal shown
        yield from range(BLOCK_ROWS + 1)
        shown = capsys.readouterr().out
        yield 10**20

    with click.Context(click.Command("numbers")) as ctx:
        ctx.params["json_"] = json_
        answer(numbers(), int, columns("N>"), lambda number: [str(number)])
    last = capsys.readouterr().out
    assert shown.split()[1:3] == (["1,", "2,"] if json_ else ["0", "1"])
    if json_:
        assert len(json.loads(shown + "]")) == BLOCK_ROWS + 1, "each is shown at once, whatever its size"
        assert json.loads(shown + last) == [*range(BLOCK_ROWS + 1), 10**20]
    else:
        assert last.split() == [str(BLOCK_ROWS), f"{10**20}"]


def test_a_list_that_fails_half_way_holds_whole_values_and_is_not_closed(capsys: pytest.CaptureFixture[str]) -> None:
    def numbers() -> Iterator[int]:
        yield from range(3)
        raise BackendUnavailable("it went away")

    with click.Context(click.Command("numbers")) as ctx:
        ctx.params["json_"] = True
        with pytest.raises(BackendUnavailable):
            answer(numbers(), int, (), str)
    assert capsys.readouterr().out == "[0, 1, 2"
