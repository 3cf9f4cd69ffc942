"""The one line of an error that logs and tables show."""

from __future__ import annotations

import traceback

import pytest

from jobpool.message.printable import MAX_HEADLINE_CHARS, headline


def test_of_a_text() -> None:
    for text, line in [
        (None, None),
        ("", None),
        (" \n", None),
        ("refused (address): no\nmore", "refused (address): no"),
        ("Traceback (most recent call last):\n  File …\nValueError: no\n", "ValueError: no"),
        ("| no group", "no group"),
        ("| ", "|"),
        ("x" * 1000, "x" * MAX_HEADLINE_CHARS),
    ]:
        assert headline(text) == line, text


FRAME = '  File "app.py", line 3, in greet\n    check(name)\n    ~~~~~^^^^^^\n'
HEAD = "Traceback (most recent call last):\n" + FRAME
HOOK = "the hook failed: ValueError: boom"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def test_of_a_traceback_it_is_the_first_line_below_the_frames_of_the_last_error() -> None:
    for text, line in [
        (f"{HEAD}ValueError: boom\nsecond line", "ValueError: boom"),
        (f"{HEAD}ValueError: boom\n\n  indented\nlast", "ValueError: boom"),
        (f"{HEAD}KeyError: 'a'\n{DURING}{HEAD}ValueError: boom\na note", "ValueError: boom"),
        (f"{HEAD}{FRAME * 2}  [Previous line repeated 9 more times]\nRecursionError: deep\n", "RecursionError: deep"),
        (f"{HEAD}\n[… 9 bytes dropped …]\nck(name)\n{FRAME}ValueError: boom\na note", "ValueError: boom"),
        (f"{HEAD}ValueError: long\n[… 9 bytes dropped …]\nend", "ValueError: long"),
        (HEAD, "    ~~~~~^^^^^^"),
        (f"KeyError: 'never raised'\n{DURING}{HEAD}ValueError: boom", "ValueError: boom"),
        (f"the hook failed: ValueError: boom\n{HEAD}KeyError: 'a'\n{DURING}{HEAD}ValueError: boom", HOOK),
    ]:
        assert headline(text) == line, text


def noted(error: Exception, note: str) -> Exception:
    error.add_note(note)
    return error


@pytest.mark.parametrize("error", [noted(ValueError("boom"), "a note"), ValueError("boom\nsecond line")])
def test_neither_a_note_nor_a_second_line_hides_what_an_error_says(error: Exception) -> None:
    assert headline("".join(traceback.format_exception(raised(error)))) == "ValueError: boom"


def test_of_a_group_that_was_raised_while_an_error_was_handled_it_is_the_groups() -> None:
    group = ExceptionGroup("two failed", [ValueError("first")])
    group.__context__ = raised(KeyError("x"))
    text = "".join(traceback.format_exception(raised(group)))
    assert headline(text) == "ExceptionGroup: two failed: ValueError: first"


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - a group may be of any kind
        return caught


def test_of_a_group_it_is_what_the_group_says_and_the_first_in_it() -> None:
    for error, line in [
        (ExceptionGroup("two failed", [ValueError("first"), KeyError("x")]), "two failed: ValueError: first"),
        (raised(ExceptionGroup("it", [raised(ValueError("first"))])), "it: ValueError: first"),
        (raised(ExceptionGroup("it\nin two lines", [ValueError("first")])), "it: ValueError: first"),
        (
            raised(ExceptionGroup("outer", [raised(ExceptionGroup("inner", [ValueError("first")]))])),
            "outer: ExceptionGroup: inner (1 sub-exception)",
        ),
    ]:
        assert headline("".join(traceback.format_exception(error))) == f"ExceptionGroup: {line}", error
