"""A row of history: its fields, its size, its masking; what is gathered for it, and what is dropped."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import row as in_row

from jobpool.errors import ConfigurationError
from jobpool.message.capped_text import DEFAULT_CAP, cap_text
from jobpool.message.death import Death
from jobpool.message.masking import MASK, Masker
from jobpool.message.setting_types import History, parse_history
from jobpool.telemetry.history.places import check_place
from jobpool.telemetry.history.row import (
    FIELDS,
    MAX_ROW_BYTES,
    UNNAMED,
    AttemptRow,
    decode,
    encode,
    log_name,
    row_of,
    shortened,
)
from jobpool.telemetry.history.writer import Feed

MASKER = Masker()


def an_attempt(**fields: Any) -> AttemptRow:
    about = dict[str, Any](name="monthly", job="report", id="a" * 16, attempt=1, queue="q", payload={"x": 1})
    return AttemptRow(**({**about, "status": "acked"} | fields))


def test_a_row_has_these_fields_in_this_order() -> None:
    row = row_of(an_attempt(output="done", start=100.0, duration=2.5), MASKER)
    assert tuple(row) == FIELDS
    assert (row["start"], row["end"], row["duration"], row["source"]) == (100.0, 102.5, 2.5, "queue")
    assert decode(encode(row)) == row


def test_an_attempt_that_did_not_run_has_no_times() -> None:
    row = row_of(an_attempt(status="rejected"), MASKER)
    assert (row["start"], row["end"], row["duration"]) == (None, None, None)


def test_everything_in_it_is_masked() -> None:
    death = Death("killed by SIGSEGV", output="password=hunter2")
    row = row_of(
        an_attempt(
            payload={"password": "hunter2", "list": ["password: hunter2"]},
            output='{"token": "hunter2"}',
            error="ValueError: Bearer hunter2-is-secret",
            cause=death.to_text(),
            name="token=hunter2",
        ),
        MASKER,
    )
    assert "hunter2" not in json.dumps(row)
    assert row["cause"] == {"how": "killed by SIGSEGV", "output": f"password={MASK}"}


def test_a_cause_that_is_no_record_stays_a_text() -> None:
    for cause in ("lease expired", "{no json", "[1]", "7"):
        assert row_of(an_attempt(cause=cause), MASKER)["cause"] == cause


@pytest.mark.parametrize(
    "text",
    ["x" * 3_000_000, "\0" * 300_000, "ü" * 300_000, "\ud800" * 300_000],
    ids=["x", "controls", "ü", "surrogates"],
)
def test_a_row_never_grows_too_large_for_a_key_store(text: str) -> None:
    line = encode(row_of(an_attempt(output=text, error=text, payload={"a": text}), MASKER))
    assert len(line) <= MAX_ROW_BYTES
    row = decode(line)
    assert row is not None
    assert "characters cut by the history" in row["output"]
    assert row["id"] == "a" * 16


def test_an_output_at_its_cap_is_kept_whole() -> None:
    capped = cap_text("begins" + "x" * 1_000_000 + "ends", DEFAULT_CAP)
    row = decode(encode(row_of(an_attempt(output=capped), MASKER)))
    assert row is not None
    assert row["output"] == capped


def test_what_is_cut_again_keeps_both_ends_and_says_what_was_cut() -> None:
    capped = cap_text("begins" + "\0" * 1_000_000 + "ends", DEFAULT_CAP)  # six bytes each, as JSON
    row = decode(encode(row_of(an_attempt(output=capped), MASKER)))
    assert row is not None
    output = row["output"]
    assert output.startswith("begins\0")
    assert output.endswith("\0ends")
    cut = re.search(r"\[… ([\d,]+) characters cut by the history, (\d+) bytes dropped before that …\]", output)
    assert cut is not None
    assert f"[… {cut[2]} bytes dropped …]" in capped
    kept = len(output) - len(cut[0]) - 2
    assert kept + int(cut[1].replace(",", "")) == len(capped)


def test_a_line_that_is_no_row_is_left_out() -> None:
    for line in (b"", b"{", b'{"name": "x"', b"[]", b'{"job": "x"}', b'{"name": 1}', b"\xff\xfe"):
        assert decode(line) is None, line


@given(st.text(max_size=300))
def test_every_name_can_be_kept(name: str) -> None:
    kept = log_name(name)
    assert 0 < len(kept) <= 255
    assert kept.isprintable()
    assert kept in (name, UNNAMED)


def test_long_fields_are_shortened_and_say_by_how_much() -> None:
    assert shortened("abcdef", 4) == "abcd… (2 characters more)"
    assert shortened({"a": 1}, 4) == '{"a"… (4 characters more)'
    assert [shortened(value, 4) for value in (None, 123456.5, "abcd", list[int]())] == [None, 123456.5, "abcd", []]


# --- what is gathered -------------------------------------------------------------------------------------------------


def test_the_newest_of_each_name_are_gathered_and_older_ones_are_no_loss() -> None:
    feed: Feed[int] = Feed(keep=2)
    for number in range(5):
        feed.add("a", number, 10)
    feed.add("b", 9, 10)
    assert (feed.items, feed.bytes) == (3, 30)
    assert feed.take() == [3, 4, 9]
    assert (feed.dropped, feed.items, feed.bytes, feed.take()) == (0, 0, 0, [])


def test_what_finds_no_room_is_dropped_and_counted() -> None:
    feed: Feed[int] = Feed(keep=100, max_items=3, max_bytes=100)
    for number in range(5):
        feed.add(str(number), number, 10)
    assert feed.dropped == 2
    assert feed.take() == [0, 1, 2]
    feed.add("large", 7, 101)
    assert (feed.dropped, feed.items) == (3, 0)
    feed.add("small", 8, 100)
    assert feed.take() == [8], "what was taken has made room"


# --- where it is kept -------------------------------------------------------------------------------------------------


def test_places_are_written_so(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_history(" OFF ") == History()
    assert parse_history("Table keep=7") == History(table=True, keep=7)
    assert parse_history("file:h.ndjson") == History(path=tmp_path / "h.ndjson")


def test_other_places_and_numbers_of_rows_are_refused_with_the_mend() -> None:
    for text in ("", "file:", "files:x", "yes", 7, None, "/var/log/h"):
        with in_row(text), pytest.raises(ValueError, match="'off', 'table' or 'file:PATH'"):
            parse_history(text)
    for keep in (0, 100_001):
        with in_row(keep), pytest.raises(ValueError, match="1 to 100000"):
            parse_history(f"table keep={keep}")


def test_a_place_that_cannot_be_is_refused_before_the_start(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="make it, or name another"):
        check_place(History(path=tmp_path / "missing" / "h"))
    with pytest.raises(ConfigurationError, match="is a directory"):
        check_place(History(path=tmp_path))
    check_place(History(path=tmp_path / "h"))
