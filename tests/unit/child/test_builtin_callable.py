"""The built-in handler `callable`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.built_in import attempt, failure, output, refusal

from jobpool.message.outcome import ResultKind

MODULE = """
from jobpool import HandlerRegistry
constant = 7
def add(a, b=0, *, c=0): return a + b + c
async def soon(): return "soon"
def several(): yield 1
def breaks(): raise ValueError("as it does")
def mistaken(): return add(1, 2, 3)
@HandlerRegistry().handler("of_the_module")
def handled(ctx): ...
class Maker:
    def __init__(self, n): self.n = n
    def __repr__(self): return f"<made {self.n}>"
    def method(self): return 1
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "shop_calls.py").write_text(MODULE)
    (tmp_path / "shop_broken.py").write_text("import shop_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("shop_calls", None)


def allowed(*names: str) -> dict[str, Any]:
    return {"allowed_callables": [f"shop_calls:{name}" for name in names]}


def test_it_calls_what_is_allowed_with_the_arguments_of_the_payload() -> None:
    for payload, answer in [
        ("shop_calls:soon", "soon"),
        ({"callable": "shop_calls:soon"}, "soon"),
        ({"callable": "shop_calls:add", "args": [1]}, "1"),
        ({"callable": "shop_calls:add", "args": [1, 2], "kwargs": {"c": 4}}, "7"),
        ({"callable": "shop_calls:add", "kwargs": {"a": 1.5}}, "1.5"),
        ({"callable": "shop_calls:Maker", "args": [1]}, '"<made 1>"'),
    ]:
        assert output("callable", payload, **allowed("add", "soon", "Maker")) == answer, payload


def test_everything_else_is_refused_for_good_and_nothing_is_imported() -> None:
    for payload, text in [
        ({}, "field 'callable' must be 'module:function', not None"),
        (None, "the payload must be 'module:function', or an object"),
        ("", "field 'callable' must be 'module:function', not ''"),
        ([1], "the payload must be 'module:function', or an object"),
        ({"callable": 1}, "field 'callable' must be 'module:function', not 1"),
        ({"callable": "shop_calls:add", "args": {}}, "field 'args' must be a list, not an object"),
        ({"callable": "shop_calls:add", "args": "ab"}, "field 'args' must be a list, not a text"),
        ({"callable": "shop_calls:add", "kwargs": []}, "field 'kwargs' must be an object, not a list"),
        ({"callable": "shop_calls:add", "argz": []}, "field 'argz' is unknown"),
        ("os:system", "callable 'os:system' is not allowed here; allowed_callables names shop_calls:add"),
        ("shop_calls:add.__globals__", "is not allowed here"),
        ("shop_calls:add:", "is not allowed here"),
        (" shop_calls:add", "is not allowed here"),
        ("shop_calls:add\n", "is not allowed here"),
        ("SHOP_CALLS:ADD", "is not allowed here"),
        ("shop_calls.add", "is not allowed here"),
        ("shop_calls:__import__", "is not allowed here"),
        ("shop_calls:\uff41dd", "is not allowed here"),
        ("x" * 1000, "is not allowed here"),
    ]:
        assert text in refusal("callable", payload, **allowed("add")), payload
        assert "shop_calls" not in sys.modules, payload


def test_by_default_nothing_may_be_called() -> None:
    said = refusal("callable", "shop_calls:add")
    assert said == "callable 'shop_calls:add' is not allowed here; allowed_callables names none"


def test_what_is_allowed_and_cannot_be_called_is_refused() -> None:
    for name, text in [
        ("constant", "callable 'shop_calls:constant' cannot be called: it is int"),
        ("several", "callable 'shop_calls:several' is a generator and would never run"),
        ("handled", "callable 'shop_calls:handled' is the handler 'of_the_module': enqueue a job for that"),
    ]:
        assert refusal("callable", f"shop_calls:{name}", **allowed(name)) == text, name


def test_what_may_be_mended_by_a_deploy_is_a_failed_attempt_in_one_sentence() -> None:
    for payload, text in [
        ("shop_calls:gone", "callable 'shop_calls:gone': module 'shop_calls' has no 'gone'"),
        ("shop_gone.deep:f", "callable 'shop_gone.deep:f': there is no module 'shop_gone' here"),
        ("shop_calls:add", "the payload does not fit callable 'shop_calls:add': missing a required argument: 'a'"),
        (
            {"callable": "shop_calls:add", "kwargs": {"a": 1, "d": 2}},
            "the payload does not fit callable 'shop_calls:add': got an unexpected keyword argument 'd'",
        ),
    ]:
        names = ["shop_calls:gone", "shop_calls:add", "shop_gone.deep:f"]
        assert failure("callable", payload, allowed_callables=names) == text, payload


def test_an_error_of_its_own_is_told_with_its_traceback() -> None:
    for name, last in [
        ("shop_calls:breaks", "ValueError: as it does"),
        ("shop_calls:mistaken", "TypeError: add() takes from 1 to 2 positional arguments but 3 were given"),
        ("shop_broken:f", "ModuleNotFoundError: No module named 'shop_missing'"),
    ]:
        made = attempt("callable", name, allowed_callables=[name])
        assert made.kind is ResultKind.FAILED, name
        lines = made.error.splitlines()
        assert lines[0] == "Traceback (most recent call last):", name
        assert lines[-1] == last, name
        assert not any("/jobpool/child/" in line for line in lines), name
