"""Two hosts on one queue, one of which dies or sleeps: the program of docs/claims.md, on every backend."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.harness import Harness

import letters
from jobpool import Jobs, Queue

pytestmark = pytest.mark.needs("leases", "claims")


@pytest.fixture
def books() -> Iterator[sqlite3.Connection]:
    with closing(letters.open_books(":memory:")) as books:
        yield books


def a_host(harness: Harness) -> Queue:
    return Jobs(backend=harness.open()).queue("letters", max_claims=5)


def booked(books: sqlite3.Connection) -> list[str]:
    return [recipient for (recipient,) in books.execute("SELECT recipient FROM letters ORDER BY rowid")]


def test_every_letter_is_printed_once(harness: Harness, books: sqlite3.Connection) -> None:
    host = a_host(harness)
    host.post({"to": number} for number in range(23))
    assert [letters.print_letters(host, books) for _ in range(4)] == [10, 10, 3, 0]
    assert booked(books) == [str(number) for number in range(23)]


def test_the_letters_of_a_host_that_died_are_printed_by_another(harness: Harness, books: sqlite3.Connection) -> None:
    dead, alive = a_host(harness), a_host(harness)
    alive.post([{"to": "a"}, {"to": "b"}], ttl=60)
    assert dead.claim(ttl=60) is not None
    harness.advance(60 - harness.tick)
    assert letters.print_letters(alive, books) == 0
    harness.advance(harness.tick)
    assert letters.print_letters(alive, books) == 2
    assert booked(books) == ["a", "b"]


def test_the_late_delete_of_a_host_that_slept_is_told_and_rolls_back(
    harness: Harness, books: sqlite3.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, quick = a_host(harness), a_host(harness)
    quick.post([{"to": "a"}])
    claim = slow.claim(ttl=60)
    assert claim is not None
    harness.advance(60)
    assert letters.print_letters(quick, books) == 1
    assert not letters.print_one(claim.messages[0], books)
    assert booked(books) == ["a"]
    assert "rolled back" in capsys.readouterr().err


def test_it_is_told_also_while_the_other_still_works_on_it(harness: Harness, books: sqlite3.Connection) -> None:
    slow, quick = a_host(harness), a_host(harness)
    quick.post([{"to": "a"}])
    first = slow.claim(ttl=60)
    harness.advance(60)
    second = quick.claim()
    assert first is not None
    assert second is not None
    assert not letters.print_one(first.messages[0], books)
    assert letters.print_one(second.messages[0], books)
    assert booked(books) == ["a"]
