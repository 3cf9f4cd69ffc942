"""`handler.enqueue(…)` and `.define(…)`: what fits the function is sent as it reads it, the rest before anything is."""

# ruff: noqa: ARG001 - a handler takes its context, whether it looks at it or not
from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pydantic
import pytest
from support.built_in import context, output

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.client.jobs import Jobs
from jobpool.errors import InvalidJob
from jobpool.handlers.handler import CALLED_ELSEWHERE, Handler
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message import producer
from jobpool.message.context import JobContext


class Paper(Enum):
    A4 = "a4"


@dataclass
class Order:
    number: int
    note: str = ""


class Parcel(pydantic.BaseModel):
    weight: int = pydantic.Field(alias="Weight")
    key: uuid.UUID | None = None


def report(ctx: JobContext, customer: int, month: str = "06", *, dry: bool = False) -> str:
    return f"{customer} {month} {dry}"


def typed(ctx: JobContext, day: date, at: datetime, key: uuid.UUID, file: Path, price: Decimal, paper: Paper) -> str:
    return repr((day, at, key, file, price, paper))


def nested(ctx: JobContext, orders: list[Order], papers: set[Paper], parcel: Parcel | None = None) -> str:
    return repr((orders, papers, parcel))


def ship(ctx: JobContext, order: Order) -> str:
    return repr(order)


def post(ctx: JobContext, parcel: Parcel) -> str:
    return repr(parcel)


def add(a: int, b: int = 2) -> str:
    return str(a + b)


def untyped(job, y):  # type: ignore[no-untyped-def]
    return y


def mail(context):  # type: ignore[no-untyped-def]
    return repr(context.payload)


def raw(ctx: JobContext) -> str:
    return repr(ctx.payload)


def open_ended(ctx: JobContext, a: int, **more: Any) -> str:
    return repr((a, more))


REGISTRY = HandlerRegistry()
FUNCTIONS: list[Callable[..., Any]] = [report, typed, nested, ship, post, add, untyped, mail, raw, open_ended]
HANDLERS: dict[str, Handler[..., Any]] = {each.__name__: REGISTRY.handler(each) for each in FUNCTIONS}

KEY = uuid.UUID(int=7)
DAY, NOON = date(2026, 1, 31), datetime(2026, 1, 31, 12, tzinfo=UTC)


def call(name: str, *args: Any, **kwargs: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return name, args, kwargs


FITTING = [
    (call("report", 7), "7 06 False"),
    (call("report", 7, "07", dry=True), "7 07 True"),
    (call("report", customer=7, month="07"), "7 07 False"),
    (call("typed", DAY, NOON, KEY, Path("/a b"), Decimal("1.50"), Paper.A4),
     repr((DAY, NOON, KEY, Path("/a b"), Decimal("1.50"), Paper.A4))),
    (call("nested", [Order(7)], {Paper.A4}, parcel=Parcel(Weight=3, key=KEY)),
     repr(([Order(7)], {Paper.A4}, Parcel(Weight=3, key=KEY)))),
    (call("nested", orders=[], papers=frozenset()), repr(([], set(), None))),
    (call("ship", Order(7, "x")), repr(Order(7, "x"))),
    (call("ship", order=Order(7)), repr(Order(7))),
    (call("ship", number=7), repr(Order(7))),
    (call("post", Parcel(Weight=3)), repr(Parcel(Weight=3))),
    (call("post", Weight=3), repr(Parcel(Weight=3))),
    (call("add", 1), "3"),
    (call("add", a=1, b=1), "2"),
    (call("untyped", "why"), "why"),
    (call("mail", to="a"), "{'to': 'a'}"),
    (call("raw", a=1, ctx=2), "{'a': 1, 'ctx': 2}"),
    (call("open_ended", 1, x="y"), "(1, {'x': 'y'})"),
]  # fmt: skip

UNFIT = [
    (call("report"), "field 'customer' is missing"),
    (call("report", custmer=7), "field 'custmer' is unknown; it takes 'customer'"),
    (
        call("report", customer=7, connection=object()),
        "field 'connection' is unknown; it takes 'customer', 'month', 'dry'; to enqueue within your transaction:"
        " jobs.enqueue(handler.define(…), connection=…)",
    ),
    (
        call("report", customer=7, countdown=5),
        "field 'countdown' is unknown; it takes 'customer', 'month', 'dry'; to start later:"
        " handler.define(…).delay(seconds).dispatch()",
    ),
    (call("report", "7"), "field 'customer' must be a whole number, not '7'"),
    (call("report", customer=7, month=6), "field 'month' must be text, not 6"),
    (call("report", customer=7, mont="06"), "field 'mont' is unknown; it takes 'customer', 'month', 'dry'"),
    (call("report", 7, "06", True), "it takes 2 by position, not 3; its first parameter 'ctx' is the job's context"),
    (call("report", 7, customer=7), "field 'customer' is given twice"),
    (call("report", ctx=1, customer=7), "field 'ctx' must be left out; its first parameter 'ctx' is the job's context"),
    (call("typed", NOON, NOON, KEY, Path("a"), Decimal(1), Paper.A4), "field 'day' must be a date in ISO 8601"),
    (call("typed", DAY, NOON, "7", Path("a"), Decimal(1), Paper.A4), "field 'key' must be a UUID, not '7'"),
    (call("typed", DAY, NOON, KEY, Path("a"), 1.5, Paper.A4), "field 'price' must be a decimal number as text"),
    (call("nested", [Order("x")], set()), "field 'orders[0].number' must be a whole number"),  # type: ignore[arg-type]
    (call("nested", [], {"a5"}), "field 'papers[0]' must be one of 'a4', not 'a5'"),
    (call("ship"), "field 'number' is missing"),
    (call("ship", Parcel(Weight=3)), "field 'order' must be Order, not Parcel"),
    (call("ship", order=Parcel(Weight=3)), "field 'order' is unknown; Order has 'number', 'note'"),
    (call("post", Order(7)), "field 'parcel' must be Parcel, not Order"),
    (call("post", weight=3), "it does not fit Parcel: field 'Weight': Field required"),
    (call("add", 1, 2, 3), "it takes 2 by position, not 3"),
    (call("untyped", 1, 2), "it takes 1 by position, not 2; its first parameter 'job' is the job's context"),
    (
        call("mail", context="a"),
        "field 'context' would be lost, as parameter 'context' has no type, and so is the job's context: annotate",
    ),
    (call("mail", "a"), "it takes 0 by position, not 1; its first parameter 'context' is the job's context"),
    (call("raw", 1), "it takes 0 by position, not 1"),
    (call("open_ended", x=1), "field 'a' is missing"),
]


@pytest.fixture
def backend() -> Iterator[QueueBackend]:
    opened = open_backend("memory://")
    producer.set_default(opened)
    yield opened
    producer.set_default(None)
    opened.close()


def test_the_function_gets_what_the_call_gave(backend: QueueBackend) -> None:
    for (name, args, kwargs), answer in FITTING:
        HANDLERS[name].enqueue(*args, **kwargs)
        [lease] = backend.fetch_many("default", limit=1)
        assert output(name, lease.envelope.payload, REGISTRY) == answer, (name, args, kwargs)
        assert output(name, HANDLERS[name].define(*args, **kwargs).payload, REGISTRY) == answer


def test_a_call_that_does_not_fit_sends_nothing(backend: QueueBackend) -> None:
    for (name, args, kwargs), text in UNFIT:
        for way in (HANDLERS[name].enqueue, HANDLERS[name].define):
            with pytest.raises(InvalidJob) as refused:
                way(*args, **kwargs)
            assert f"handler {name!r} cannot take these arguments: {text}" in str(refused.value), (name, args, kwargs)
            assert refused.value.__cause__ is None
            assert refused.value.__suppress_context__ or refused.value.__context__ is None
    assert backend.stats("default").waiting == 0


def test_of_many_jobs_none_is_sent_if_one_does_not_fit(backend: QueueBackend) -> None:
    jobs = Jobs(backend=backend)
    with pytest.raises(InvalidJob, match="field 'customer' must be a whole number, not '1'"):
        jobs.enqueue_many(HANDLERS["report"].define(customer) for customer in [0, "1", 2])
    assert backend.stats("default").waiting == 0
    assert len(jobs.enqueue_many(HANDLERS["report"].define(customer) for customer in range(3))) == 3


def test_what_json_cannot_carry_is_named_by_its_parameter(backend: QueueBackend) -> None:
    with pytest.raises(InvalidJob, match=r"payload\.x: JSON has no bytes"):
        HANDLERS["open_ended"].enqueue(1, x=b"y")


def test_a_direct_call_keeps_the_functions_own_signature() -> None:
    assert HANDLERS["report"](context(None), 7, month="07") == "7 07 False"
    assert HANDLERS["add"](1, b=1) == "2"  # type: ignore[arg-type]


@pytest.mark.parametrize(("word", "instead"), CALLED_ELSEWHERE.items())
def test_the_word_of_another_library_names_ours(word: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"no attribute {word!r}; use .{instead}")):
        getattr(HANDLERS["add"], word)
    assert not hasattr(HANDLERS["add"], "priority")
