"""What a payload may hold, and what the refusal says."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
import zoneinfo
from collections import OrderedDict, namedtuple
from typing import Any

import orjson
import pydantic
import pytest
from hypothesis import given
from payloads import json_values
from support.tables import row

from jobpool.errors import InvalidJob
from jobpool.handlers.ending import plain as result_of
from jobpool.message.payload import LARGEST_INT, MAX_DEPTH, SMALLEST_INT, check_payload


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def inside_itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    day: datetime.date
    tags: frozenset[str] = frozenset()
    colour: Colour = Colour.RED
    shown: str = dataclasses.field(init=False, default="not sent: it is not an argument")


class Model(pydantic.BaseModel):
    key: uuid.UUID
    amount: decimal.Decimal = pydantic.Field(alias="Amount")


DAY = datetime.date(2026, 1, 31)
NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
KEY = uuid.UUID(int=7)

TYPED = [
    (DAY, "2026-01-31"),
    (NOON, "2026-01-31T12:00:00+00:00"),
    (datetime.time(6, 30), "06:30:00"),
    (KEY, "00000000-0000-0000-0000-000000000007"),
    (pathlib.PurePosixPath("/srv/a b"), "/srv/a b"),
    (decimal.Decimal("1.50"), "1.50"),
    (Colour.RED, "red"),
    (Line(DAY, frozenset({"a"})), {"day": "2026-01-31", "tags": ["a"], "colour": "red"}),
    (Model(key=KEY, Amount=decimal.Decimal("1.50")), {"key": str(KEY), "Amount": "1.50"}),
]


def test_what_annotations_read_from_json_can_be_given_at_any_depth() -> None:
    for value, plain in TYPED:
        assert check_payload(value) == plain, value
        assert check_payload({"a": [(value,)]}) == {"a": [[plain]]}, value
        assert result_of({"a": [(value,)]}) == {"a": [[plain]]}, "the same rule holds for what a handler returns"
    assert check_payload({"line": Line(DAY)})["line"]["tags"] == []


@given(json_values)
def test_what_is_accepted_comes_back_from_the_wire_as_it_was(value: Any) -> None:
    copy = check_payload(value)

    assert copy == value
    assert orjson.loads(orjson.dumps(copy)) == value


@pytest.mark.parametrize("edge", [SMALLEST_INT, LARGEST_INT, 0, -1, True, 5e-324, -0.0, "\x00", "", "🦆", None])
def test_edges_that_json_can_carry(edge: Any) -> None:
    assert check_payload({"value": edge}) == {"value": edge}


class Tint(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 1


class Price(float):
    pass


Point = namedtuple("Point", "x y")


def test_relatives_of_json_types_become_the_plain_type() -> None:
    for case, value, plain in [
        ("tuples become lists", (1, (2, 3)), [1, [2, 3]]),
        ("named tuple", Point(1, 2), [1, 2]),
        ("OrderedDict", OrderedDict(a=1), {"a": 1}),
        ("StrEnum", Tint.RED, "red"),
        ("IntEnum", Level.HIGH, 1),
        ("subclass of float", Price(2.5), 2.5),
        ("StrEnum as a key", {Tint.RED: 1}, {"red": 1}),
    ]:
        copy = check_payload(value)

        assert copy == plain, case
        assert type(copy) is type(plain), case
        if isinstance(copy, dict):
            assert {type(key) for key in copy} == {str}, case


def test_what_json_cannot_carry_is_refused_with_its_path() -> None:
    for case, value, text in [
        ("nan", {"items": [0, 1, 2, {"price": float("nan")}]}, r"payload\.items\[3\]\.price: nan is not"),
        ("infinity at the top", float("-inf"), r"payload: -inf is not a number in JSON"),
        ("integer too large", {"n": LARGEST_INT + 1}, r"payload\.n: the integer is beyond 64 bits"),
        ("integer too small", [SMALLEST_INT - 1], r"payload\[0\]: the integer is beyond 64 bits"),
        ("set", {"tags": {"a"}}, r"payload\.tags: JSON has no set"),
        ("bytes", {"raw": b"x"}, r"payload\.raw: JSON has no bytes"),
        ("time span", [datetime.timedelta(1)], r"payload\[0\]: JSON has no timedelta"),
        ("decimal nan", [decimal.Decimal("nan")], r"payload\[0\]: Decimal\('NaN'\) is not a number"),
        ("a class, not a member", {"a": Line}, r"payload\.a: JSON has no classes, such as Line"),
        ("object", [object()], r"payload\[0\]: JSON has no object"),
        ("key", {"a": {7: 1}}, r"payload\.a\[7\]: the key 7 is of type int; JSON keys are strings"),
        ("odd key in the path", {"a b": {"c": {1}}}, r"payload\['a b'\]\.c: JSON has no set"),
        ("lone surrogate", {"t": "\ud800"}, r"payload\.t: the text holds a lone surrogate"),
        ("surrogate in a key", {"\udfff": 1}, r"payload\['\\udfff'\]: the text holds a lone surrogate"),
        ("loop", inside_itself(), r"payload(\[0\]){5}…(\[0\]){5}: nested more than 63 deep, or inside itself"),
        ("nan in a subclass", Price("nan"), r"payload: nan is not"),
    ]:
        with row(case), pytest.raises(InvalidJob, match=f"^{text}"):
            check_payload(value)


def test_the_depth_leaves_room_for_the_envelope() -> None:
    assert check_payload(nested(MAX_DEPTH - 1)) == nested(MAX_DEPTH - 1)
    with pytest.raises(InvalidJob, match="nested more than 63 deep"):
        check_payload(nested(MAX_DEPTH))


def test_the_error_names_the_place_it_was_given() -> None:
    with pytest.raises(InvalidJob, match=r"^meta\.trace: JSON has no bytes"):
        check_payload({"trace": b""}, "meta")


class Base(pydantic.BaseModel):
    at: datetime.datetime | None = None
    _seen: object = pydantic.PrivateAttr(default_factory=object)


class Wider(Base):
    more: int = 0


class Secret(pydantic.BaseModel):
    password: pydantic.SecretStr


class Hidden(pydantic.BaseModel):
    note: str = pydantic.Field(default="", exclude=True)


class Aliases(pydantic.BaseModel):
    n: int = pydantic.Field(0, validation_alias="in", serialization_alias="out")


class Outer(pydantic.BaseModel):
    inner: list[Base]


class Raw(pydantic.BaseModel):
    body: bytes


def test_a_model_that_would_change_on_its_way_is_refused() -> None:
    for name, model, told in [
        ("a secret", Secret(password=pydantic.SecretStr("x")), "field 'password' of Secret does not come back"),
        ("an excluded field", Hidden(note="x"), "field 'note' of Hidden does not come back"),
        ("two aliases", Aliases.model_validate({"in": 4}), "field 'n' of Aliases does not come back"),
        ("a wider model inside", Outer(inner=[Wider(more=1)]), "field 'inner' of Outer does not come back"),
        ("bytes that are no text", Raw(body=b"\xff"), "Raw cannot be written as JSON"),
    ]:
        with row(name), pytest.raises(InvalidJob, match=told):
            check_payload({"a": [model]})


def test_a_model_with_private_attributes_or_a_time_that_is_there_twice_is_sent() -> None:
    twice = datetime.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1)
    assert check_payload(Outer(inner=[Base(at=twice)])) == {"inner": [{"at": "2026-10-25T02:30:00+01:00"}]}
    assert check_payload(Hidden()) == {}
