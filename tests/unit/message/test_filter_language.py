"""The filter language of list, dead, retry, cancel and purge."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import row

from jobpool.broker.filters import FIRST_PAGE, PAGE_BYTES, BadFilter, matching, parse_filter
from jobpool.broker.values import Message, MessageFilter, State
from jobpool.message.definition import JobDefinition
from jobpool_backends.memory import MemoryBackend


def test_what_a_filter_says() -> None:
    for case, text, expected in [
        ("empty", "", MessageFilter()),
        ("blank", "  \t ", MessageFilter()),
        ("queue", "queue:reports", MessageFilter(queue="reports")),
        ("handler", "handler:report", MessageFilter(handler="report")),
        ("handler in quotes", 'handler:"my report"', MessageFilter(handler="my report")),
        ("handler with a colon", "handler:app.jobs:run", MessageFilter(handler="app.jobs:run")),
        ("state", "state:dead", MessageFilter(states=(State.DEAD,))),
        ("states", "state:waiting,delayed", MessageFilter(states=(State.WAITING, State.DELAYED))),
        ("state twice", "state:dead state:leased", MessageFilter(states=(State.DEAD, State.LEASED))),
        ("reason", "reason:timeout", MessageFilter(reason="timeout")),
        ("older", "age:>1h", MessageFilter(older_than=3600.0)),
        ("older, two units", "age:>=1h30m", MessageFilter(older_than=5400.0)),
        ("newer", "age:<2d", MessageFilter(newer_than=172800.0)),
        ("seconds", "age:<90", MessageFilter(newer_than=90.0)),
        ("range", "age:>1m age:<1w", MessageFilter(older_than=60.0, newer_than=604800.0)),
        ("ids", "id:a1,b2 id:c3", MessageFilter(ids=("a1", "b2", "c3"))),
        ("bare text", "timeout", MessageFilter(text="timeout")),
        ("quoted text", '"division by zero"', MessageFilter(text="division by zero")),
        ("quotes take the key away", '"queue:reports"', MessageFilter(text="queue:reports")),
        ("escapes", 'text:"say \\"hi\\" \\\\"', MessageFilter(text='say "hi" \\')),
        (
            "all together",
            'queue:reports handler:report state:dead reason:timeout age:>1h "text"',
            MessageFilter(
                queue="reports",
                handler="report",
                states=(State.DEAD,),
                reason="timeout",
                older_than=3600.0,
                text="text",
            ),
        ),
        ("any order and spacing", ' "text"   queue:a ', MessageFilter(queue="a", text="text")),
    ]:
        assert parse_filter(text) == expected, case


def test_what_is_not_clear_is_refused_with_the_mend() -> None:
    for case, text, error in [
        ("unknown key", "colour:red", "no filter key 'colour': use one of queue, handler, state"),
        ("an id with a colon", "queue:a order:7", "and an id is written id:order:7"),
        ("key in capitals", "Queue:a", "no filter key 'Queue'"),
        ("no value", "queue:", "the filter term queue: has no value"),
        ("empty value", 'reason:""', "the filter term reason: has no value"),
        ("empty text", '""', "the filter term text: has no value"),
        ("queue name", "queue:a/b", "queue name 'a/b' is refused"),
        ("state", "state:done", "no state 'done': use one of waiting, delayed, leased, dead"),
        ("empty state", "state:dead,", "no state ''"),
        ("no id", "id:", "the filter term id: has no value"),
        ("empty id", "id:a,", "the filter term id:a, has an empty id in it"),
        ("age, no sign", "age:1h", "age:1h is not clear: write age:>1h for older, age:<1h for newer"),
        ("age", "age:>soon", "age:>soon is not clear: .* write seconds"),
        ("negative age", "age:>-5", "age:>-5 is not clear"),
        ("age nan", "age:>nan", "age:>nan is not clear"),
        ("age without a time", "age:>", "age:> is not clear"),
        ("age twice", "age:>1h age:>2h", "more than one age:> term"),
        ("queue twice", "queue:a queue:b", "more than one queue term"),
        ("words", "division by zero", "more than one text term: put the words in one pair of quotes"),
        ("open quote", 'queue:a "open', "cannot be read from '\"open' on: is a quote left open"),
        ("text glued to a quote", '"a"b', "cannot be read from"),
    ]:
        with row(case), pytest.raises(BadFilter, match=error):
            parse_filter(text)


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(BadFilter):
        assert isinstance(parse_filter(text), MessageFilter)


@given(st.text(min_size=1, max_size=30))
def test_any_text_can_be_quoted(text: str) -> None:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')

    assert parse_filter(f'queue:a "{quoted}"') == MessageFilter(queue="a", text=text)


@pytest.mark.parametrize("limit", [0, 1, 300])
def test_large_bodies_come_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    backend = MemoryBackend()
    idents = backend.enqueue_many([JobDefinition("report", "x" * 100_000) for _ in range(300)])
    listing, sizes = backend.list_messages, list[int]()

    def measured(*args: Any, **named: Any) -> list[Message]:
        page = listing(*args, **named)
        sizes.append(sum(len(message.body) for message in page))
        return page

    monkeypatch.setattr(backend, "list_messages", measured)
    assert [message.id for message in matching(backend, MessageFilter(), limit)] == idents[: limit or None]
    assert sizes[0] <= 101 * FIRST_PAGE * 1000
    assert all(size <= PAGE_BYTES for size in sizes[1:])
