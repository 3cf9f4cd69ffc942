"""What verbs print: tables that fit, and nothing from elsewhere that steers a terminal, as text or JSON."""

from __future__ import annotations

import io
import json
import logging
import re
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from calling import Jobpool

from jobpool.broker.backend import QueueBackend
from jobpool.cli.output import BLOCK_ROWS, aligned, answer, columns, cut, fit, table
from jobpool.cli.top import tell as tell_health
from jobpool.cli.top_lines import cells, headline
from jobpool.cli.top_screen import View
from jobpool.errors import BackendUnavailable
from jobpool.message.masking import Masker
from jobpool.message.printable import json_text, one_line, printable
from jobpool.ops.health import Check, Health
from jobpool.ops.runtime_dir import PoolFile
from jobpool.ops.top import PoolSample, QueueRow, SlotRow
from jobpool.telemetry.history.places import HistoryFile
from jobpool.telemetry.history.row import AttemptRow, encode, row_of
from jobpool.telemetry.logs import configure
from jobpool.telemetry.metrics.pages import text_page

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


STEERING = "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\b\u202etxt\u2066\u200e\u061c\u2028\u2029\u200b\ufeff\U000e0041"
HOSTILE = f"[red]{STEERING}[link=http://x]\nstate  forged"
ALLOWED = "日本 Zürich ع\u200d👩\u200d🚀 [red]"


def is_safe(text: str) -> bool:
    """Whether each character shows itself, apart from breaks of lines and what joins scripts and emoji."""
    return all(char.isprintable() or char in "\n\t\u200d" for char in text)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def hostile(jobpool: Jobpool, broker: QueueBackend, tmp_path: Path) -> str:
    """The id of a dead letter that is hostile in each of its texts, written around the checks of a producer."""
    jobpool("enqueue", "report", "-Q", "reports", "--", json.dumps({"text": HOSTILE}), code=0)
    [lease] = broker.fetch_many("reports", limit=1)
    broker.abandon(lease, "failed", f"Traceback:\n  deep\nValueError: {HOSTILE}")
    jobpool("message", "post", "reports", json.dumps(HOSTILE), code=0)
    with sqlite3.connect(tmp_path / "jobpool.db") as connection:
        connection.execute("UPDATE messages SET handler = ?, reason = ? WHERE state = 3", (HOSTILE, HOSTILE))
    connection.close()
    return lease.id


@pytest.mark.parametrize("json_", [False, True], ids=["text", "json"])
@pytest.mark.parametrize(
    "words", [["inspect", "ID"], ["list"], ["dead", "list"], ["stats"], ["message", "list", "reports"]], ids=" ".join
)
def test_no_verb_passes_on_what_steers(jobpool: Jobpool, hostile: str, words: list[str], json_: bool) -> None:
    words = [hostile if word == "ID" else word for word in words]
    result = jobpool(*words, *(["--json"] if json_ else []), code=0)
    assert is_safe(result.stdout), result.stdout
    if json_:
        json.loads(result.stdout)
    else:
        assert not re.search("^state  forged", result.stdout, re.MULTILINE)


def test_json_still_says_what_was_written(jobpool: Jobpool, hostile: str) -> None:
    told = json.loads(jobpool("inspect", hostile, "--json").stdout)
    assert told["reason"] == HOSTILE
    assert json.loads(jobpool("dead", "list", "--json").stdout)[0]["handler"] == HOSTILE


def test_a_preview_and_errors_are_safe(jobpool: Jobpool, hostile: str) -> None:
    preview = jobpool("dead", "purge", "--all", "--dry-run")
    assert hostile in preview.stdout
    assert is_safe(preview.stdout)
    for words in (
        ["inspect", HOSTILE],
        ["list", f"queue:{STEERING}"],
        ["stats", "-b", f"no{STEERING}://x"],
        ["-vv", "stats", "-Q", STEERING],
    ):
        failed = jobpool(*words)
        assert is_safe(failed.stderr), failed.stderr


@pytest.mark.parametrize("words", [[], ["--json"], ["--full"]], ids=["table", "json", "one"])
def test_a_history_is_safe(jobpool: Jobpool, tmp_path: Path, words: list[str]) -> None:
    attempt = AttemptRow("x", HOSTILE, "id1", 1, HOSTILE, {"n": HOSTILE}, "acked", start=1e9, duration=2.0)
    row = {**row_of(attempt, Masker()), "error": HOSTILE, "output": HOSTILE}
    HistoryFile(tmp_path / "h", 9).append([("x", encode(row))])
    result = jobpool("history", "x", f"--history=file:{tmp_path}/h", *words, code=0)
    assert is_safe(result.stdout), result.stdout


def test_markup_of_others_is_inert_in_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "200")
    table(columns("A"), [[f"[red]x[/red] [link=http://x]y[/link] :smile: {STEERING}"]])
    assert "[red]x[/red] [link=http://x]y[/link] :smile:" in screen.getvalue()
    assert is_safe(re.sub("\x1b\\[[0-9;]*m", "", screen.getvalue())), "no more than the colours of the table"


def test_top_and_health_are_safe(capsys: pytest.CaptureFixture[str]) -> None:
    pool = PoolFile(HOSTILE, 1, ("", HOSTILE), "1", (HOSTILE,), 1, HOSTILE, "", 0.0)
    row = SlotRow(
        0, 1, "busy", HOSTILE, HOSTILE, HOSTILE, 1, 1.0, None, 0.5, HOSTILE, 1, 0.1, 1, 1, 1, False, HOSTILE, HOSTILE
    )
    queue = QueueRow(HOSTILE, 1, 1, 1, 1.0, 1.0)
    sample = PoolSample(pool, None, (row,), None, 0.0, 0.0, HOSTILE, (queue,))
    assert is_safe(headline(sample))
    for shown in (row, replace(row, state="idle", progress=0.0, progress_text="")):
        assert all(is_safe(cell) and "\n" not in cell for cell in cells(shown))
    assert is_safe(re.sub("\x1b\\[[0-9;]*m", "", "\n".join(View(lambda *_: "", "").lines([sample], 300, 40))))
    tell_health(Health(pool, (Check("boot", False, HOSTILE),)))
    assert is_safe(capsys.readouterr().out)


@pytest.mark.parametrize("style", ["text", "json"])
def test_log_lines_are_safe_and_one_line(style: str) -> None:
    stream = io.StringIO()
    configure("info", style, stream)
    log = logging.getLogger("jobpool")
    for value in (HOSTILE, STEERING.replace(" ", ""), [HOSTILE], "\ud800"):
        log.warning(f"event {HOSTILE}", extra={"fields": {"error": value}})
    assert is_safe(stream.getvalue()), stream.getvalue()
    assert stream.getvalue().count("\n") == 4
    if style == "json":
        assert json.loads(stream.getvalue().splitlines()[0])["error"] == HOSTILE
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("broke")
    assert is_safe(stream.getvalue())
    assert "\nstate  forged" not in stream.getvalue()


def test_what_the_metrics_server_says_is_safe_and_one_line() -> None:
    body = text_page(503, f"not ready: {HOSTILE} \ud800").body.decode()
    assert is_safe(body)
    assert body.count("\n") == 1


def test_each_character_that_steers_is_escaped_and_json_keeps_it() -> None:
    directions = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
    for number in (*range(0x20), *range(0x7F, 0xA0), *directions, 0x2028, 0x2029, 0xD800, 0xDFFF):
        text = f"a{chr(number)}b"
        assert is_safe(printable(text)), hex(number)
        assert is_safe(one_line(text)), hex(number)
        assert "\n" not in one_line(text), hex(number)
        assert is_safe(json_text(text)), hex(number)
        assert json.loads(json_text([text])) == [text], hex(number)


def test_what_does_not_steer_stays() -> None:
    assert printable(f"{ALLOWED}\r\n\tx") == f"{ALLOWED}\n\tx"
    assert one_line(f"{ALLOWED}\r\n\tx") == f"{ALLOWED}  x"
    assert json.loads(json_text({"a": STEERING, "b": ALLOWED})) == {"a": STEERING, "b": ALLOWED}
    assert ALLOWED in json_text(ALLOWED)
