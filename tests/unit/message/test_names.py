"""What names, ids, durations and sizes may be."""

from __future__ import annotations

from typing import Any

import pytest
from support.tables import row

from jobpool.errors import InvalidJob
from jobpool.message.names import check_identifier, check_name, check_queue
from jobpool.message.units import format_duration, format_size, parse_duration, parse_size

ODD_NAMES: tuple[Any, ...] = ("", "n" * 256, "a\nb", "a\x1b[31m", "\ud800", b"bytes")


def check_job_name(name: Any) -> str:
    return check_name(name, "job name")


def test_names_that_are_good() -> None:
    for check, names in {
        check_queue: ("a", "reports", "9", "eu-west.pdf_v2", "A" * 100),
        check_identifier: ("0123456789abcdef", "sync-0123456789ab", "order:2026/7@eu", "a" * 128),
        check_job_name: ("report", "Bericht für Zoë", "app.jobs:run", "n" * 255),
    }.items():
        for name in names:
            assert check(name) == name, (check, name)


def test_odd_names_are_refused_with_what_they_may_hold() -> None:
    odd_queues = ("", "A" * 101, ".hidden", "-option", "two words", "a/b", "a:b", "a{b}", "reports\n", "größe", 7, None)
    for check, told, names in [
        (check_queue, "queue name .* is refused: 1 to 100 letters, digits", odd_queues),
        (check_identifier, "identifier .* is refused: 1 to 128", ("", "a" * 129, "-x", "a b", "a\n", "é", "a*", 1)),
        (check_job_name, "job name .* is refused: 1 to 255 printable", ODD_NAMES),
    ]:
        for name in names:
            with row(check, name), pytest.raises(InvalidJob, match=told):
                check(name)


def test_a_duration_is_seconds_or_a_text_with_units() -> None:
    units: dict[object, float] = {"250ms": 0.25, "90s": 90.0, "5m": 300.0, "1h": 3600.0, "2d": 172800.0, "1w": 604800.0}
    several: dict[object, float] = {"1h30m": 5400.0, "1h 30m": 5400.0}
    for given, seconds in {90: 90.0, 0.5: 0.5, "0": 0.0, "90": 90.0, "1.5": 1.5, **units, **several}.items():
        assert parse_duration(given) == seconds, given
    texts = ["5x", "m", "5m3", "-1", "1h-3m", "nan", "inf", "1e400", "3.2e9"]
    for wrong in ("", *texts, "9" * 400, -1, True, None, list[int](), dict[str, int]()):
        with row(wrong), pytest.raises(ValueError, match='is not a duration: write seconds, such as 90, or "90s"'):
            parse_duration(wrong)


def test_a_size_is_bytes_or_a_text_with_units() -> None:
    units: dict[object, int] = {0: 0, "7B": 7, "64K": 65536, "64k": 65536, "1.5K": 1536, "512M": 2**29, "2G": 2**31}
    for given, size in {65536: 65536, "65536": 65536, **units, "1 T": 2**40, "2GB": 2**31, "2GiB": 2**31}.items():
        assert parse_size(given) == size, given
    for wrong in ("", "M", "5X", "-1", -1, "1e3", "9" * 400, "8388608T", True, None, 1.5):
        with row(wrong), pytest.raises(ValueError, match='is not a size: write bytes, such as 65536, or "64K"'):
            parse_size(wrong)


def test_durations_and_sizes_are_shown_short() -> None:
    short = {-3.0: "-3.0s", 0: "0s", 4: "4s", 0.44: "0.4s", 9.94: "9.9s", 59.9: "59s"}
    assert {seconds: format_duration(seconds) for seconds in short} == short
    longer = {250: "4m10s", 11100: "3h05m", 183600: "2d03h"}
    assert {seconds: format_duration(seconds) for seconds in longer} == longer
    sizes = {0: "0B", 999: "999B", 1000: "1.0K", 812 * 1024: "812K", 4404019: "4.2M", 2**31: "2.0G"}
    assert {size: format_size(size) for size in sizes} == sizes


class Markup(str):
    """Text of a class of its own."""


def test_a_name_is_plain_text_whatever_class_of_text_it_was() -> None:
    """The fork server died when it told of a handler whose name, or queue, was of another class."""
    assert [type(name) for name in (check_queue(Markup("a")), check_name(Markup("b"), "name"))] == [str, str]
