"""The one line of an error that logs and tables show."""

from __future__ import annotations

import traceback

import pytest

from jobpool.message.printable import MAX_HEADLINE_CHARS, headline


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, None),
        ("", None),
        (" \n", None),
        ("refused (address): no\nmore", "refused (address): no"),
        ("Traceback (most recent call last):\n  File …\nValueError: no\n", "ValueError: no"),
        ("| no group", "no group"),
        ("| ", "|"),
        ("x" * 1000, "x" * MAX_HEADLINE_CHARS),
    ],
)
def test_of_a_text(text: str | None, line: str | None) -> None:
    assert headline(text) == line


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - a group may be of any kind
        return caught


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ExceptionGroup("two failed", [ValueError("first"), KeyError("x")]), "two failed: ValueError: first"),
        (raised(ExceptionGroup("it", [raised(ValueError("first"))])), "it: ValueError: first"),
        (raised(ExceptionGroup("it\nin two lines", [ValueError("first")])), "it: ValueError: first"),
        (
            raised(ExceptionGroup("outer", [raised(ExceptionGroup("inner", [ValueError("first")]))])),
            "outer: ExceptionGroup: inner (1 sub-exception)",
        ),
    ],
)
def test_of_a_group_it_is_what_the_group_says_and_the_first_in_it(error: BaseException, line: str) -> None:
    assert headline("".join(traceback.format_exception(error))) == f"ExceptionGroup: {line}"
