"""docs/handlers.md: its code runs, and its names are the code's."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.built_in import attempt, output

import jobpool
from jobpool.handlers.builtin import MAKERS
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.outcome import ResultKind

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "handlers.md").read_text("utf-8")


def code(heading: str) -> str:
    section = PAGE.partition(f"# {heading}\n")[2].partition("\n#")[0]
    [found] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return found  # type: ignore[no-any-return]


def executed(heading: str, registry: HandlerRegistry) -> None:
    """Run the code below a heading, with what it registers in `registry`."""
    names = {name: getattr(registry, name) for name in ("handler", "command", "listener")}
    space: dict[str, Any] = {"__name__": "page", "jobpool": SimpleNamespace(JobContext=jobpool.JobContext, **names)}
    text = code(heading).replace("import jobpool\n", "")
    exec(compile(text, "handlers.md", "exec", dont_inherit=True), space)


def test_handlers_of_ones_own(registry: HandlerRegistry) -> None:
    executed("Your own", registry)
    assert registry.names() == ["report", "thumbnail"]
    assert output("report", {"customer": 7, "month": "06"}, registry) == "report of customer 7 for 06"
    assert output("thumbnail", {"path": "x"}, registry) == "[64,256]"
    assert attempt("report", {"customer": "7", "month": "06"}, registry).kind is ResultKind.UNRECOVERABLE


def test_commands_and_listeners(registry: HandlerRegistry) -> None:
    executed("command", registry)
    executed("event", registry)
    registry.prepare()
    assert output("command", "app:report --month 6 --tags a --tags b --dry-run", registry) == ""
    assert output("command", "app:raw a b", registry) == ""
    data = {"order": 1, "amount": 2}
    assert output("event", {"name": "order.paid", "data": data}, registry, allowed_events=["order.paid"]) == ""


def test_without_a_pool() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code("Without a pool"), "handlers.md", "exec", dont_inherit=True), {"__name__": "page"})
    assert printed.getvalue() == "acked\n"


def test_every_built_in_handler_and_every_allowance_is_there() -> None:
    for name in MAKERS:
        assert f"\n### {name}\n" in PAGE
    for name in jobpool.Allowances.__struct_fields__:
        assert f"`{name}`" in PAGE or name.startswith("url_")
