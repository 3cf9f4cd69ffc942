"""What queue names, ids and other names may hold."""

from __future__ import annotations

from typing import Any

import pytest
from support.tables import row

from jobpool.errors import InvalidJob
from jobpool.message.names import check_identifier, check_name, check_queue


@pytest.mark.parametrize("queue", ["a", "reports", "9", "eu-west.pdf_v2", "A" * 100])
def test_queue_names_that_are_good(queue: str) -> None:
    assert check_queue(queue) == queue


def test_a_queue_name_with_odd_characters_is_refused() -> None:
    for case, queue in [
        ("empty", ""),
        ("too long", "A" * 101),
        ("starts with a dot", ".hidden"),
        ("starts with a dash", "-option"),
        ("space", "two words"),
        ("slash", "a/b"),
        ("colon", "a:b"),
        ("braces", "a{b}"),
        ("newline at the end", "reports\n"),
        ("not ASCII", "größe"),
        ("no text", 7),
        ("None", None),
    ]:
        with row(case), pytest.raises(InvalidJob, match=r"queue name .* is refused: 1 to 100 letters, digits"):
            check_queue(queue)


@pytest.mark.parametrize("ident", ["0123456789abcdef", "sync-0123456789ab", "order:2026/7@eu", "a" * 128])
def test_ids_that_are_good(ident: str) -> None:
    assert check_identifier(ident) == ident


@pytest.mark.parametrize("ident", ["", "a" * 129, "-x", "a b", "a\n", "é", "a*", 1])
def test_an_odd_id_is_refused(ident: Any) -> None:
    with pytest.raises(InvalidJob, match=r"identifier .* is refused: 1 to 128"):
        check_identifier(ident)


@pytest.mark.parametrize("name", ["report", "Bericht für Zoë", "app.jobs:run", "n" * 255])
def test_names_that_are_good(name: str) -> None:
    assert check_name(name, "job name") == name


@pytest.mark.parametrize("name", ["", "n" * 256, "a\nb", "a\x1b[31m", "\ud800", b"bytes"])
def test_a_name_that_cannot_be_shown_on_one_line_is_refused(name: Any) -> None:
    with pytest.raises(InvalidJob, match=r"job name .* is refused: 1 to 255 printable"):
        check_name(name, "job name")
