from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any

from jobpool.handlers.ending import join, rendered

CAP = 1000


@dataclass
class Report:
    pages: int


class Colour(Enum):
    RED = "red"


class Model:
    def model_dump(self, *, mode: str, by_alias: bool) -> dict[str, Any]:
        return {"a": 1} if mode == "json" and by_alias else {}


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_output_is_composed() -> None:
    loop: list[object] = []
    loop.append(loop)
    for case, value, printed, output in [
        ("nothing", None, "", ""),
        ("None and text: the text", None, "text\n", "text\n"),
        ("string", "string", "", "string"),
        ("string, newline, text", "string", "text", "string\ntext"),
        ("empty string and text", "", "text", "text"),
        ("object as JSON", {"a": 1}, "", '{"a":1}'),
        ("object with the text beside it", {"a": 1}, "text", '{"a":1}\ntext'),
        ("list", [1, "x", None], "", '[1,"x",null]'),
        ("tuple", (1, 2), "", "[1,2]"),
        ("int", 7, "", "7"),
        ("scalar with text", 7, "text", "7\ntext"),
        ("float", 1.5, "", "1.5"),
        ("bool", True, "", "true"),
        ("False is a value", False, "", "false"),
        ("0 is a value", 0, "", "0"),
        ("set", {"k": {1}}, "", '{"k":[1]}'),
        ("bytes", b"raw", "", '"raw"'),
        ("dataclass", Report(3), "", '{"pages":3}'),
        ("date", date(2026, 6, 1), "", '"2026-06-01"'),
        ("enum", Colour.RED, "", '"red"'),
        ("number as a key", {1: "x"}, "", '{"1":"x"}'),
        ("model", Model(), "", '{"a":1}'),
        ("large int", 2**70, "", str(2**70)),
        ("neither JSON nor repr", Shy(), "", '"<Shy>"'),
        ("a class", object, "", "\"<class 'object'>\""),
        ("a value in itself", loop, "", "[[...]]"),
    ]:
        assert join(rendered(value, None, CAP)[0], printed, CAP) == output, case


def test_value_and_text_are_capped_together() -> None:
    output = join("x" * 600, "y" * 600, CAP)
    assert len(output) < CAP + 50
    assert output.startswith("xxx")
    assert output.endswith("yyy")
    assert "bytes dropped" in output
    assert len(rendered("x" * 5000, None, CAP)[0]) < CAP + 50
