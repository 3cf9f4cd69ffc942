from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any

import pytest

from jobpool.handlers.ending import join, rendered

CAP = 1000


@dataclass
class Report:
    pages: int


class Colour(Enum):
    RED = "red"


class Model:
    def model_dump(self) -> dict[str, Any]:
        return {"a": 1}


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "printed", "output"),
    [
        pytest.param(None, "", "", id="nothing"),
        pytest.param(None, "text\n", "text\n", id="None and text: the text"),
        pytest.param("string", "", "string", id="string"),
        pytest.param("string", "text", "string\ntext", id="string, newline, text"),
        pytest.param("", "text", "text", id="empty string and text"),
        pytest.param({"a": 1}, "", '{"a":1}', id="object as JSON"),
        pytest.param({"a": 1}, "text", '{"a":1}\ntext', id="object with the text beside it"),
        pytest.param([1, "x", None], "", '[1,"x",null]', id="list"),
        pytest.param((1, 2), "", "[1,2]", id="tuple"),
        pytest.param(7, "", "7", id="int"),
        pytest.param(7, "text", "7\ntext", id="scalar with text"),
        pytest.param(1.5, "", "1.5", id="float"),
        pytest.param(True, "", "true", id="bool"),
        pytest.param(False, "", "false", id="False is a value"),
        pytest.param(0, "", "0", id="0 is a value"),
        pytest.param({"k": {1}}, "", '{"k":[1]}', id="set"),
        pytest.param(b"raw", "", '"raw"', id="bytes"),
        pytest.param(Report(3), "", '{"pages":3}', id="dataclass"),
        pytest.param(date(2026, 6, 1), "", '"2026-06-01"', id="date"),
        pytest.param(Colour.RED, "", '"red"', id="enum"),
        pytest.param({1: "x"}, "", '{"1":"x"}', id="number as a key"),
        pytest.param(Model(), "", '{"a":1}', id="model"),
        pytest.param(2**70, "", str(2**70), id="large int"),
        pytest.param(Shy(), "", '"<Shy>"', id="neither JSON nor repr"),
    ],
)
def test_output_is_composed(value: object, printed: str, output: str) -> None:
    assert join(rendered(value, None, CAP)[0], printed, CAP) == output


def test_what_json_does_not_know_is_shown() -> None:
    assert rendered(object, None, CAP)[0] == "\"<class 'object'>\""


def test_value_and_text_are_capped_together() -> None:
    output = join("x" * 600, "y" * 600, CAP)
    assert len(output) < CAP + 50
    assert output.startswith("xxx")
    assert output.endswith("yyy")
    assert "bytes dropped" in output


def test_a_value_in_itself_is_shown() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert rendered(loop, None, CAP)[0] == "[[...]]"
