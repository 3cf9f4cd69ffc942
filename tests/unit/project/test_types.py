"""Type checkers on a user's app: they know the arguments of a handler's jobs, and find each wrong call."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

APP = '''\
"""An app as a user writes it."""

from dataclasses import dataclass
from datetime import date
from typing import Any

import jobpool


@dataclass
class Order:
    number: int


@jobpool.handler("report", queue="reports", max_retries=3, backoff="exponential base=5s")
def report(ctx: jobpool.JobContext, customer: int, month: str = "06", *, day: date | None = None) -> str:
    return f"{customer} {month} {day} {ctx.attempt}"


@jobpool.handler
def ship(ctx: jobpool.JobContext, order: Order) -> None: ...


@jobpool.handler
def add(a: int, b: int = 2) -> int:
    return a + b


@jobpool.handler(queue="mails")
async def mail(ctx: jobpool.JobContext, to: str) -> None: ...


@jobpool.handler
def sweep(ctx: jobpool.JobContext, **more: Any) -> None: ...


async def right(ctx: jobpool.JobContext, jobs: jobpool.Jobs) -> None:
    ident: str = report.enqueue(7)
    ident = report.enqueue(customer=7, month="07", day=date(2026, 7, 1))
    report.define(7, "07").delay(60).priority(1).dispatch()
    ship.enqueue(Order(7))
    ship.enqueue(order=Order(7))
    add.enqueue(1, b=3)
    mail.enqueue(to="a@b.org")
    sweep.enqueue(days=90)
    jobs.enqueue_many(report.define(customer) for customer in range(9))
    ident = await report.aenqueue(7, day=date(2026, 7, 1))
    ident = await jobs.aenqueue(report.define(7).delay(60))
    many: list[str] = await jobs.aenqueue_many(ship.define(Order(number)) for number in range(9))
    text: str = report(ctx, 7, month="07")
    number: int = add(1, 2)
    print(ident, many, text, number)


'''

WRONG = [
    'report.enqueue(customer="7")',
    "report.enqueue()",
    'report.enqueue(7, mont="06")',
    "report.define(customer=None)",
    "report.define(7, 6)",
    "ship.enqueue(7)",
    "ship.define(Order(7), 1)",
    'add.enqueue("1")',
    "add.enqueue(1, 2, 3)",
    "mail.enqueue()",
    "mail.define(to=b'a@b.org')",
    "report.enqueue(7).priority(1)",
    "await report.aenqueue('7')",
    "await mail.aenqueue(too='a@b.org')",
    'add("1", 2)',
    "report(7)",
]
FIRST_WRONG = APP.count("\n") + 2


@pytest.fixture
def app(tmp_path: Path) -> Path:
    calls = "".join(f"    {call}\n" for call in WRONG)
    path = tmp_path / "shop.py"
    path.write_text(f"{APP}async def wrong() -> None:\n{calls}")
    return path


def found(lines: set[int], told: str) -> None:
    every = set(range(FIRST_WRONG, FIRST_WRONG + len(WRONG)))
    missed = [WRONG[line - FIRST_WRONG] for line in sorted(every - lines)]
    assert not missed, f"not found: {missed}\n{told}"
    assert lines <= every, f"lines {sorted(lines - every)} are right\n{told}"


def test_mypy_finds_each_wrong_call_and_no_other(app: Path) -> None:

    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir=cache", str(app)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=app.parent, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    found({int(line) for line in re.findall(r"shop\.py:(\d+): error:", done.stdout)}, done.stdout)


@pytest.mark.more
def test_pyright_finds_each_wrong_call_and_no_other(app: Path) -> None:
    """With basedpyright, which is pyright with its own node: pyright itself would fetch one from the internet."""
    options = {"typeCheckingMode": "strict", "include": [app.name], "reportUnusedCoroutine": True}
    (app.parent / "pyrightconfig.json").write_text(json.dumps(options))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", "."]
    done = subprocess.run(command, capture_output=True, text=True, cwd=app.parent, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)["generalDiagnostics"]
    found({one["range"]["start"]["line"] + 1 for one in told if one["severity"] == "error"}, done.stdout)
