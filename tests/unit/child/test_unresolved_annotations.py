"""Annotations with names that only type checkers know: text, or from Python 3.14 on evaluated when asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.built_in import output, refusal

from jobpool.handlers.registry import HandlerRegistry

APP = """
import dataclasses, typing
from jobpool import HandlerRegistry, JobContext
if typing.TYPE_CHECKING:
    from nowhere import Unknown

registry = HandlerRegistry()

@registry.handler("function")
def function(ctx: JobContext, node: Node, fields: Fields, extra: Unknown | None) -> Unknown:
    return [node.next.value, fields["extra"], extra]

@registry.handler("method")
class Method:
    def __init__(self, made: Unknown = None): ...
    def run(self, ctx: JobContext, node: Node, extra: list[Unknown]) -> Unknown:
        return [node.next.value, extra]

@registry.before_attempt
def before(ctx: Unknown) -> None: ...

def called(extra: Unknown) -> Unknown:
    return extra

class More(typing.TypedDict):
    more: int

class Fields(More):
    extra: Unknown

@dataclasses.dataclass
class Node:
    value: int
    extra: Unknown = None
    next: Node | None = None
"""
NODE = {"value": 1, "extra": 2, "next": {"value": 3}}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandlerRegistry]:
    as_text = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    (tmp_path / "unresolved_app.py").write_text(as_text + APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("unresolved_app").registry
    del sys.modules["unresolved_app"]


def test_what_can_be_resolved_is_converted_and_the_rest_passes_unchanged(registry: HandlerRegistry) -> None:
    payload: dict[str, Any] = {"node": NODE, "fields": {"more": 4, "extra": 5}, "extra": 6}
    assert output("function", payload, registry) == "[3,5,6]"
    assert output("method", {"node": NODE, "extra": [6]}, registry) == "[3,[6]]"
    payload["fields"]["more"] = "four"
    assert "field 'fields.more' must be a whole number" in refusal("function", payload, registry)


def test_a_callable_has_some_too(registry: HandlerRegistry) -> None:
    name = "unresolved_app:called"
    assert output("callable", {"callable": name, "args": [7]}, registry, allowed_callables=[name]) == "7"


BASE = "import dataclasses, datetime\n\n@dataclasses.dataclass\nclass Base:\n    day: datetime.date\n"
HEIR = """
import dataclasses
from dated_base import Base
from jobpool import HandlerRegistry, JobContext

registry = HandlerRegistry()

@dataclasses.dataclass
class Heir(Base): ...

@registry.handler
def look(ctx: JobContext, heir: Heir) -> int:
    return heir.day.year
"""


def test_the_fields_of_a_base_class_are_read_by_the_names_of_its_own_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("dated_base", BASE), ("dated_heir", HEIR)):
        (tmp_path / f"{name}.py").write_text("from __future__ import annotations\n" + text)
    monkeypatch.syspath_prepend(str(tmp_path))
    heir = importlib.import_module("dated_heir")
    assert output("look", {"day": "2026-01-01"}, heir.registry) == "2026"
