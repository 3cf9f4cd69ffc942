"""From a payload to the handler's arguments."""

# ruff: noqa: ARG001, ARG002, ARG005 - a handler takes its context, whether it looks at it or not
from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Protocol, cast
from uuid import UUID

import pydantic
import pytest
from support.built_in import context, read
from support.tables import row

from jobpool.errors import ConfigurationError
from jobpool.handlers.binding import PayloadMismatch, bind, check_shape
from jobpool.handlers.conversion import Mismatch
from jobpool.message.context import JobContext

if TYPE_CHECKING:
    from nowhere import Unknown


def call(function: Any, payload: Any) -> Any:
    return bind(function, "report")(context(payload))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    text: str
    count: int = 1


@dataclass
class Order:
    customer: int
    lines: list[Line] = field(default_factory=list)
    note: str | None = None
    parent: Order | None = None


class Model(pydantic.BaseModel):
    customer: int
    month: str = "2026-06"


def only_context(ctx: JobContext) -> Any:
    return ctx.payload


def with_any(path: Any) -> Any:
    return path.payload


def with_keywords(ctx: JobContext, customer: int, month: str = "2026-06", *, dry: bool = False) -> Any:
    return (customer, month, dry)


def with_rest(ctx: JobContext, customer: int, **rest: Any) -> Any:
    return (customer, rest)


def with_order(ctx: JobContext, order: Order) -> Any:
    return order


def with_order_by_keyword(ctx: JobContext, *, order: Order) -> Any:
    return order


def with_model(ctx: JobContext, model: Model) -> Any:
    return (model.customer, model.month)


def with_unknown(ctx: JobContext, thing: Unknown, count: int = 1) -> Any:
    return (thing, count)


def without_context(customer: int, month: str = "2026-06") -> Any:
    return (customer, month)


def order_alone(order: Order | None = None, lines: list[Line] | None = None) -> Any:
    return (order, lines)


def order_only(order: Order) -> Any:
    return order


def nothing() -> Any:
    return "ran"


def fields_alone(**fields: Any) -> Any:
    return fields


def maybe_context(ctx: JobContext | None = None, a: int = 1) -> Any:
    assert ctx is not None
    return (ctx.id, a)


async def with_await(ctx: JobContext, a: int) -> Any:
    return a + 1


class Callable_:  # noqa: N801
    def __call__(self, ctx: JobContext, a: int) -> Any:
        return a


@functools.wraps(with_keywords)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return with_keywords(*args, **kwargs)


def test_the_payload_becomes_arguments() -> None:
    for case, function, payload, answer in [
        ("context alone, any payload", only_context, [1, 2], [1, 2]),
        ("context alone, null", only_context, None, None),
        ("context alone, declared, and a field of its name", only_context, {"ctx": 1}, {"ctx": 1}),
        ("context alone, no annotation", lambda ctx: ctx.payload, {"a": 1}, {"a": 1}),
        ("context alone, no annotation, no object", lambda ctx: ctx.payload, ["ctx"], ["ctx"]),
        ("defaults", with_keywords, {"customer": 7}, (7, "2026-06", False)),
        ("all keywords", with_keywords, {"customer": 7, "dry": True, "month": "x"}, (7, "x", True)),
        ("no context: its place is annotated as data", without_context, {"customer": 7}, (7, "2026-06")),
        ("no context, optional data", order_alone, {"order": {"customer": 7}}, (Order(7), None)),
        ("no context, a dataclass", order_only, {"customer": 7}, Order(7)),
        ("no parameters", nothing, {}, "ran"),
        ("no context, any fields", fields_alone, {"ctx": 1}, {"ctx": 1}),
        ("a context that may be None", maybe_context, {"a": 2}, ("a1", 2)),
        ("the rest", with_rest, {"customer": 7, "x": 1}, (7, {"x": 1})),
        ("dataclass", with_order, {"customer": 7}, Order(7)),
        (
            "nested dataclasses, one of them in itself",
            with_order,
            {"customer": 7, "lines": [{"text": "a"}], "parent": {"customer": 1}},
            Order(7, [Line("a")], parent=Order(1)),
        ),
        ("dataclass, keyword only", with_order_by_keyword, {"customer": 7}, Order(7)),
        ("pydantic model", with_model, {"customer": 7}, (7, "2026-06")),
        ("annotation for type checkers only", with_unknown, {"thing": [1]}, ([1], 1)),
        ("coroutine", with_await, {"a": 1}, 2),
        ("object with __call__", Callable_(), {"a": 1}, 1),
        ("decorated", wrapped, {"customer": 7}, (7, "2026-06", False)),
        ("partial", functools.partial(with_keywords, month="x"), {"customer": 7}, (7, "x", False)),
        ("no annotations", lambda ctx, a: a, {"a": "any"}, "any"),
        ("star args get the context", lambda *args: len(args), {"a": 1}, 1),
    ]:
        assert call(function, payload) == answer, case


def test_a_payload_that_does_not_fit_names_handler_and_field() -> None:
    for function, payload, text in [
        (with_keywords, {}, "field 'customer' is missing"),
        (with_keywords, {"customer": 7, "moth": "x"}, "field 'moth' is unknown; it takes 'customer', 'month', 'dry'"),
        (with_keywords, {"customer": "7"}, "field 'customer' must be a whole number, not '7'"),
        (with_keywords, {"customer": True}, "field 'customer' must be a whole number, not True"),
        (with_keywords, {"customer": 7, "dry": 1}, "field 'dry' must be true or false, not 1"),
        (lambda job: job, {"job": "a"}, "field 'job' would be lost, as parameter 'job' has no type"),
        (lambda job, *_: job, {"job": "a", "b": 1}, "annotate it (job: str, or job: jobpool.JobContext"),
        (with_any, {"path": "a"}, "field 'path' would be lost"),
        (with_keywords, [7], "it must be an object with the handler's parameters, not list"),
        (with_order, {}, "field 'customer' is missing"),
        (with_order, {"customer": 7, "x": 1}, "field 'x' is unknown; Order has 'customer'"),
        (with_order, {"customer": 7, "lines": [{"text": 1}]}, "field 'lines[0].text' must be text, not 1"),
        (with_order, {"customer": 7, "parent": {}}, "field 'parent.customer' is missing"),
        (with_order, 7, "it must be an object with the fields of Order, not 7"),
        (with_model, {"month": "x"}, "customer"),
        (with_order, {"order": {"customer": 7}}, "field 'order' is unknown; Order has 'customer', 'lines', 'note', 'p"),
        (with_order, {"order": {"customer": 7}}, "'parent'; the whole payload is the Order"),
    ]:
        with row(function, payload), pytest.raises(PayloadMismatch) as raised:
            call(function, payload)
        assert str(raised.value).startswith("the payload does not fit handler 'report': "), (function, payload)
        assert text in str(raised.value), (function, payload)


@pytest.mark.parametrize(
    ("annotation", "value", "converted"),
    [
        (Any, [1], [1]),
        (float, 1, 1.0),
        (Optional[int], None, None),  # noqa: UP045 - the old way is written too
        (int | str, "x", "x"),
        (list[int], [1, 2], [1, 2]),
        (list, [1, "x"], [1, "x"]),
        (set[int], [1, 1], {1}),
        (tuple[int, str], [1, "x"], (1, "x")),
        (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Literal["a", 1], 1, 1),
        (Colour, "red", Colour.RED),
        (datetime, "2026-06-01T00:00:00+00:00", datetime(2026, 6, 1, tzinfo=UTC)),
        (date, "2026-06-01", date(2026, 6, 1)),
        (Decimal, "1.10", Decimal("1.10")),
        (Decimal, "1E+309", Decimal("1E+309")),
        (UUID, "12345678123456781234567812345678", UUID(int=0x12345678123456781234567812345678)),
        (Path, "a/b", Path("a/b")),
        (PurePosixPath, "a/b", PurePosixPath("a/b")),
        (Annotated[int, "positive"], 7, 7),
        (bytes, "passed on", "passed on"),
        (None, None, None),
    ],
)
def test_a_value_is_converted(annotation: Any, value: Any, converted: Any) -> None:
    answer = read(annotation, value)
    assert answer == converted
    assert type(answer) is type(converted)


def test_a_wrong_value_is_named() -> None:
    for annotation, value, text in [
        (float, "1", "field 'f' must be a number, not '1'"),
        (float, True, "must be a number"),
        (str, None, "must be text, not None"),
        (int | None, "x", "must be a whole number, not 'x'"),
        (list[int], "x", "must be a list"),
        (list[int], [1, "x"], "field 'f[1]' must be a whole number"),
        (tuple[int, str], [1], "must be a list of 2"),
        (dict[str, int], {"a": "x"}, "field 'f.a' must be a whole number"),
        (dict[str, int], [1], "must be an object"),
        (Literal["a", 1], True, "must be one of 'a', 1, not True"),
        (Colour, "green", "must be one of 'red', 'blue', not 'green'"),
        (Colour, [1], "must be one of"),
        (date, "yesterday", "must be a date in ISO 8601"),
        (Decimal, "x", "must be a decimal number"),
        (str, 10**200, "..."),
        (None, 1, "must be null"),
    ]:
        with row(annotation, value), pytest.raises(Mismatch) as raised:
            read(annotation, value)
        assert text in str(raised.value), (annotation, value)


def test_a_dataclass_of_a_function_is_found_through_its_closure() -> None:
    @dataclass
    class Inner:
        a: int

    def takes_inner(ctx: JobContext, inner: Inner) -> Any:
        return isinstance(inner, Inner)

    assert call(takes_inner, {"a": 1})


def generator(ctx: JobContext) -> Any:
    yield 1


async def async_generator(ctx: JobContext) -> Any:
    yield 1


def keyword_context(*, ctx: JobContext) -> None: ...


def late_context(a: int, ctx: JobContext) -> None: ...


def positional_data(a: int, /) -> None: ...


def positional(ctx: JobContext, a: int, /) -> None: ...


def of_bytes(data: bytes) -> None: ...


def later_bytes(ctx: JobContext, data: bytes) -> None: ...


def with_default_bytes(ctx: JobContext, data: bytes = b"") -> None: ...


def of_abstract_kinds(ctx: JobContext, key: Hashable, like: Like, words: UserText, to: pydantic.EmailStr) -> None: ...


class UserText(str): ...


class Plain:
    def method(self, a: int) -> None: ...

    def of_class(cls, a: int) -> None: ...  # noqa: N805 - as `@classmethod` above the decorator has it


class Like(Protocol):
    attempt: int


class Own(JobContext): ...


def of_protocol(ctx: Like) -> None: ...


def of_own(ctx: Own) -> None: ...


def of_any(ctx: Any, a: int) -> None: ...


def star(*args: Any) -> None: ...


def unused(_job: Any, a: int) -> None: ...


def bound(self, a: int) -> None: ...  # type: ignore[no-untyped-def]


def of_celery(path, width):  # type: ignore[no-untyped-def]
    return path


def of_any_data(path: Any, width: int) -> None: ...


def of_context_alone(c): ...  # type: ignore[no-untyped-def]


def two_contexts(ctx: JobContext, again: JobContext) -> None: ...


@pytest.mark.parametrize(
    "function",
    [of_protocol, of_own, of_any, star, unused, bound, of_context_alone, with_default_bytes, of_abstract_kinds],
)
def test_an_annotation_that_a_context_or_a_json_value_may_have_is_no_obstacle(function: Callable[..., Any]) -> None:
    check_shape(function, "report")


def test_a_function_that_no_job_could_call_is_refused() -> None:
    for function, text in [
        (generator, "is a generator and would never run"),
        (async_generator, "is a generator and would never run"),
        (late_context, "must take the job's context as its first parameter"),
        (keyword_context, "must take the job's context as its first parameter"),
        (two_contexts, "takes the job's context twice: no payload fills 'again'"),
        (positional, "parameter 'a' cannot be filled by name: drop the '/'"),
        (positional_data, "parameter 'a' cannot be filled by name: drop the '/'"),
        (of_bytes, "parameter 'data' cannot be a bytes, which no payload is converted to"),
        (later_bytes, "parameter 'data' cannot be a bytes, which no payload is converted to: choose another type"),
        (of_celery, "'path' has no type, and so is the job's context: annotate it (path: str, or path: jobpool."),
        (of_any_data, "parameter 'path' has no type, and so is the job's context"),
        (Plain.method, "is a method: decorate its class"),
        (Plain.of_class, "is a method: decorate its class"),
    ]:
        with row(function), pytest.raises(ConfigurationError) as raised:
            check_shape(cast(Callable[..., Any], function), "report")
        assert text in str(raised.value), function
        assert f"'report', {__file__}:" in str(raised.value), function
