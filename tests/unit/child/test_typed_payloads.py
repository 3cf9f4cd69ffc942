"""Typed payloads against hostile input: the handler gets what its annotation says, or the attempt fails in words."""

# ruff: noqa: ARG001 - a handler takes its context, whether it looks at it or not
from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Required, TypedDict, TypeVar
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.built_in import attempt, failure, output, read, refusal
from support.tables import row

from jobpool.errors import InvalidJob
from jobpool.handlers.conversion import Mismatch, converter
from jobpool.handlers.handler import Handler
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.context import JobContext
from jobpool.message.definition import JobDefinition
from jobpool.message.outcome import ResultKind


class Colour(Enum):
    RED = "red"
    ONE = 1


class Level(IntEnum):
    LOW = 1


@dataclass
class Line:
    text: str
    share: float = 1.0
    colour: Colour = Colour.RED


@dataclass
class Order:
    customer: int
    lines: list[Line]
    paper: Literal["a4", "a5"] = "a4"
    total: Decimal | None = None
    due: datetime | None = None
    place: Path | None = None
    extra: dict[str, int] = field(default_factory=dict)
    inner: Order | None = None


class OrderModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    customer: int
    lines: list[Line]
    paper: Literal["a4", "a5"] = "a4"
    due: datetime | None = None
    key: UUID | None = None
    inner: OrderModel | None = None


class Checked(pydantic.BaseModel):
    numbers: list[int]
    password: str
    inner: Checked | None = None

    @pydantic.field_validator("password")
    @classmethod
    def is_long(cls, value: str) -> str:
        if len(value) < 8:
            raise ValueError("it is too short")
        return value


def test_what_a_model_refuses_is_one_sentence_without_the_values() -> None:
    for payload, text in [
        ({"numbers": [1]}, "it does not fit Checked: field 'password': Field required"),
        (
            {"numbers": [1, "x"], "password": "hunter2"},
            "it does not fit Checked: field 'numbers[1]': Input should be a valid integer, unable to parse string as an"
            " integer; field 'password': Value error, it is too short",
        ),
        (
            {"numbers": [], "password": "long enough", "inner": {"numbers": [], "password": 7}},
            "it does not fit Checked: field 'inner.password': Input should be a valid string",
        ),
        ([], "it does not fit Checked: it: Input should be a valid dictionary or instance of Checked"),
    ]:
        registry = HandlerRegistry()

        @registry.handler
        def take(ctx: JobContext, checked: Checked) -> None: ...

        assert refusal("take", payload, registry) == f"the payload does not fit handler 'take': {text}", payload


class Size(TypedDict):
    dpi: int
    note: NotRequired[str]
    colour: Annotated[NotRequired[str], "a remark"]


class Page(Size, total=False):
    inner: list[Page]


def test_a_typed_dict_is_checked_and_stays_a_dict() -> None:
    for payload, text in [
        ({"dpi": 1, "note": "a4"}, ""),
        ({"dpi": 1, "inner": [{"dpi": 2}]}, ""),
        ({"dip": 1}, "field 'page.dip' is unknown; Page has 'dpi', 'note', 'colour', 'inner'"),
        ({}, "field 'page.dpi' is missing"),
        ({"dpi": 1, "inner": [{"dpi": "x"}]}, "field 'page.inner[0].dpi' must be a whole number, not 'x'"),
        (7, "field 'page' must be an object with the fields of Page, not 7"),
    ]:
        if text:
            with row(payload), pytest.raises(Mismatch) as refused:
                read(Page, payload, "page")
            assert str(refused.value) == text, payload
        else:
            assert read(Page, payload, "page") == payload, payload


class Sheet(TypedDict, total=False):
    size: Annotated[Required[str], "a remark"]
    copies: int


def test_a_required_field_of_a_typed_dict_that_is_not_total_is_asked_for() -> None:
    assert converter(Sheet)({"size": "a4"}) == {"size": "a4"}
    with pytest.raises(Mismatch, match=r"field 'sheet.size' is missing"):
        read(Sheet, {"copies": 1}, "sheet")


def test_of_many_refused_fields_a_few_are_named() -> None:
    with pytest.raises(Mismatch) as refused:
        read(Checked, {"numbers": ["x"] * 1000, "password": "long enough"}, "order")
    assert str(refused.value).startswith("field 'order' does not fit Checked: field 'numbers[0]': Input should be a")
    assert str(refused.value).endswith("; and 995 more")


@dataclass
class Discounted:
    price: int
    discount: InitVar[int]
    _: KW_ONLY
    factor: InitVar[int] = 1
    final: int = field(init=False)

    def __post_init__(self, discount: int, factor: int) -> None:
        if discount > self.price:
            raise ValueError("it would cost less than nothing")
        self.final = (self.price - discount) * factor


def by_class(ctx: JobContext, order: Order) -> str:
    assert isinstance(order, Order)
    return type(order.lines).__name__


def by_model(ctx: JobContext, order: OrderModel) -> str:
    assert isinstance(order, OrderModel)
    return type(order.lines).__name__


def by_name(ctx: JobContext, customer: int, lines: list[Line], share: float = 1.0, colour: Colour | None = None) -> str:
    assert type(customer) is int
    assert type(share) is float
    return type(lines).__name__


def any_fields(me: JobContext, **fields: Any) -> str:
    return ",".join(sorted(fields))


def discounted(ctx: JobContext, discounted: Discounted) -> int:
    return discounted.final


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "by_class": by_class,
    "by_model": by_model,
    "by_name": by_name,
    "any_fields": any_fields,
    "discounted": discounted,
}
REGISTRY = HandlerRegistry()
for name, function in FUNCTIONS.items():
    REGISTRY.handler(name)(function)

GOOD: dict[str, Any] = {"customer": 7, "lines": [{"text": "a", "share": 2, "colour": "red"}]}


@pytest.mark.parametrize("handler", ["by_class", "by_model", "by_name"])
def test_what_fits_is_what_the_annotation_says(handler: str) -> None:
    assert output(handler, GOOD, REGISTRY) == "list"


def test_values_that_look_alike_are_told_apart() -> None:
    for case, annotation, value in [
        ("true is not the member 1", Colour, True),
        ("true is not the member 1 of an IntEnum", Level, True),
        ("1.0 is not the member 1", Level, 1.0),
        ("null is not a member", Colour, None),
        ("an object is not a member", Colour, {}),
        ("true is not a number", int, True),
        ("1 is not true", bool, 1),
        ("a number that no float can hold", float, 10**400),
        ("infinite", float, math.inf),
        ("no number at all", float, math.nan),
        ("decimal nan", Decimal, "NaN"),
        ("signalling nan", Decimal, "sNaN"),
        ("infinite decimal", Decimal, "Infinity"),
        ("a float is not an exact decimal", Decimal, 1.1),
        ("no uuid", UUID, "x" * 100),
        ("no month", datetime, "2026-13-01"),
        ("a number is not a path", Path, 7),
        ("true is not the literal 1", Literal[1], True),
        ("in a list", list[Colour], [True]),
        ("in an object", dict[str, float], {"a": math.inf}),
    ]:
        with row(case), pytest.raises(Mismatch, match="must be"):
            read(annotation, value)


@pytest.mark.parametrize("field", ["me", "self"])
def test_a_field_cannot_take_the_contexts_place(field: str) -> None:
    assert output("any_fields", {"a": 1, "ctx": 2}, REGISTRY) == "a,ctx"
    assert f"field {field!r} is unknown" in refusal("any_fields", {field: 1}, REGISTRY)


def test_fields_for_the_post_init_are_asked_for_too() -> None:
    assert output("discounted", {"price": 10, "discount": 3}, REGISTRY) == "7"
    assert output("discounted", {"price": 10, "discount": 3, "factor": 2}, REGISTRY) == "14"
    assert "field 'discount' is missing" in refusal("discounted", {"price": 10}, REGISTRY)
    assert "field 'discount' must be a whole number" in refusal("discounted", {"price": 1, "discount": "1"}, REGISTRY)
    assert "field 'final' is unknown" in refusal("discounted", {"price": 1, "discount": 1, "final": 2}, REGISTRY)
    assert failure("discounted", {"price": 1, "discount": 2}, REGISTRY).endswith("it would cost less than nothing")


def test_what_is_deep_is_no_trouble() -> None:
    payload: Any = GOOD
    for _ in range(29):
        payload = {**GOOD, "inner": payload}
    for handler in ("by_class", "by_model"):
        assert output(handler, payload, REGISTRY) == "list"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(
    ["customer", "lines", "paper", "total", "due", "place", "extra", "inner", "key", "self", "ctx"]
)


@given(payload=st.dictionaries(FIELDS, VALUES, max_size=5) | VALUES, handler=st.sampled_from(sorted(FUNCTIONS)))
def test_whatever_comes_the_attempt_ends_well_or_in_words(payload: Any, handler: str) -> None:
    try:
        made = attempt(handler, payload, REGISTRY)
    except ValueError:
        return  # JSON cannot carry it: refused where it is enqueued
    assert made.kind in (ResultKind.SUCCEEDED, ResultKind.UNRECOVERABLE)
    assert made.kind is ResultKind.SUCCEEDED or made.error.startswith("the payload does not fit handler")


@dataclass
class Cat:
    name: str


@dataclass
class Dog(Cat): ...


def test_a_value_that_the_handler_would_get_as_another_type_is_refused(registry: HandlerRegistry) -> None:
    @registry.handler
    def groom(cat: Cat) -> None: ...

    @registry.handler
    def walk(pets: list[Cat | Dog], day: datetime | date = date(2026, 1, 1)) -> None: ...

    with pytest.raises(InvalidJob, match="it is a Dog, but the handler would get a Cat"):
        groom.define(Dog("Rex"))
    with pytest.raises(InvalidJob, match=r"field 'pets\[1\]' is a Dog, but the handler would get a Cat"):
        walk.define([Cat("Tom"), Dog("Rex")])
    with pytest.raises(InvalidJob, match="field 'day' is a date, but the handler would get a datetime"):
        walk.define([], date(2026, 1, 1))
    assert walk.define([Cat("Tom")]).payload == {"pets": [{"name": "Tom"}]}


class Stay(NamedTuple):
    guest: str
    until: date


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    value: T
    more: list[T] = field(default_factory=list)


@dataclass
class Owner:
    pet: Cat


def test_named_tuples_generic_dataclasses_and_iterables_are_read_as_they_are_annotated() -> None:
    day = date(2026, 1, 1)
    for annotation, value in ((Stay, Stay("Ann", day)), (Box[date], Box(day, [day])), (Iterable[date], [day])):
        asked = JobDefinition("any", [value]).payload[0]
        assert converter(annotation)(asked) == value
    with pytest.raises(Mismatch, match="field 'value' must be a date"):
        converter(Box[date])({"value": 3})
    with pytest.raises(Mismatch, match="must be a list of 2"):
        converter(Stay)(["Ann"])


def test_further_fields_are_read_as_they_are_annotated() -> None:
    def sums(ctx: JobContext, **amounts: int) -> None: ...

    def orders(ctx: JobContext, **lines: Line) -> None: ...

    with pytest.raises(InvalidJob, match="field 'tax' must be a whole number, not '3'"):
        Handler(sums).define(net=1, tax="3")  # type: ignore[arg-type]
    assert Handler(orders).define(first=Line("a")).payload == {"first": {"text": "a", "share": 1.0, "colour": "red"}}  # type: ignore[arg-type]


def test_an_object_inside_a_dataclass_or_of_a_union_does_not_change_its_type() -> None:
    def adopt(ctx: JobContext, owner: Owner) -> None: ...

    def book(ctx: JobContext, days: list[str | date]) -> None: ...

    with pytest.raises(InvalidJob, match="field 'pet' is a Dog, but the handler would get a Cat"):
        HandlerRegistry().handler(adopt).define(Owner(Dog("Rex")))
    with pytest.raises(InvalidJob, match=r"field 'days\[1\]' is a date, but the handler would get a str"):
        HandlerRegistry().handler(book).define(["today", date(2026, 1, 1)])


def test_an_argument_named_self_is_refused_in_words() -> None:
    with pytest.raises(InvalidJob, match="field 'self' is unknown"):
        Handler(any_fields).define(self=1)  # type: ignore[arg-type]


@dataclass
class Stop:
    place: str
    sights: list[int] = field(default_factory=list)


def test_a_wrong_value_of_a_union_is_told_by_the_member_that_was_meant() -> None:
    for annotation, value, text in [
        (int | str, [], "field 'f' must be a whole number or text, not []"),
        (int | None, "x", "field 'f' must be a whole number, not 'x'"),
        (None | int, "x", "field 'f' must be a whole number, not 'x'"),
        (int | list[int], [1, "x"], "field 'f[1]' must be a whole number, not 'x'"),
        (Line | Stop, {"place": 7}, "field 'f.place' must be text, not 7"),
        (Line | Stop, {"place": "a", "sights": ["x"]}, "field 'f.sights[0]' must be a whole number, not 'x'"),
        (Line | Stop, {"note": 7}, "field 'f.note' is unknown; Line has 'text', 'share', 'colour'"),
    ]:
        with row(annotation, value), pytest.raises(Mismatch) as refused:
            read(annotation, value)
        assert str(refused.value) == text, (annotation, value)


@dataclass(init=False)
class OfOwnInit:
    number: int

    def __init__(self, number: int = 7) -> None:
        self.number = number


@pydantic.dataclasses.dataclass
class Renamed:
    number: int = pydantic.Field(alias="Number")


def test_a_dataclass_is_made_by_the_parameters_of_its_init() -> None:
    assert read(OfOwnInit, {}).number == 7
    assert read(Renamed, {"Number": 8}).number == 8
    with pytest.raises(Mismatch, match=r"field 'f.number' is unknown; Renamed has 'Number'"):
        read(Renamed, {"number": 8})
