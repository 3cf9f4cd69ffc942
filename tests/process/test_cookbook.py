"""The cook-book's programs for the built-in handlers that stay on the machine: typed as its page says.

All of them are served by one pool, which has the flags of all the pools on the page.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "cookbook.md").read_text("utf-8")
APPS = ("ledger", "texts", "compress", "orders")
OTHERS = ("webhooks.py", "nightly.py", "shop_fastapi.py", "shop_flask.py", "shop_sqlalchemy.py")  # of other tests
LIMIT = 60.0

Type = Callable[[list[str]], str]


def commands(heading: str) -> list[list[str]]:
    """What the page says to type below a heading, as words."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\$ (.*)$", section, re.MULTILINE)
    assert found, heading
    return [shlex.split(line) for line in found]


HEADINGS = (
    "Run a sub-command",
    "Call a function that knows nothing of jobs",
    "Run a program",
    "Tell everybody who listens",
)


@pytest.fixture
def type_(tmp_path: Path) -> Type:
    """Runs a command in a folder with the programs, with the settings of none but the page."""
    for app in APPS:
        shutil.copy(DOCS / "cookbook" / f"{app}.py", tmp_path)
    own = {name: value for name, value in os.environ.items() if not name.startswith("JOBPOOL_")}
    environment = {**own, "JOBPOOL_RUNTIME_DIR": str(tmp_path / "run")}
    programs = {"python": sys.executable, "jobpool": str(Path(sys.executable).with_name("jobpool"))}

    def run(words: list[str]) -> str:
        line = [programs[words[0]], *words[1:]]
        done = subprocess.run(
            line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_page_shows_lines_of_the_programs() -> None:
    shown = re.findall(r"^\[(\w+\.py)\](?:(?!^\[).)*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert {name for name, _ in shown} == {*(f"{app}.py" for app in APPS), *OTHERS}
    for name, lines in shown:
        assert lines in (DOCS / "cookbook" / name).read_text("utf-8"), name


def test_what_the_page_says_to_type_does_what_it_says(tmp_path: Path, type_: Type) -> None:
    (tmp_path / "payments.csv").write_text("payer,amount\nA,19.99\nB,0.01\n")
    (tmp_path / "book.txt").write_text("a rose is a rose is a rose")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "; rm -rf x.log").write_text("odd")
    (tmp_path / "logs" / "shop.log").write_text("plain")

    flags: list[str] = []
    for command in (command for heading in HEADINGS for command in commands(heading)):
        if command[0] == "jobpool" and command[1] != "enqueue":
            flags += command[1:]
        else:
            type_(command)
    kept = tmp_path / "history"
    type_(["jobpool", *flags, "--history", f"file:{kept}", "--workers", "2", "--until-empty", "--fail-on-dead"])

    assert json.loads((tmp_path / "ledger.json").read_text()) == {"6": {"cents": 2000, "closed": True}}
    logs = {path.name: gzip.decompress(path.read_bytes()) for path in (tmp_path / "logs").iterdir()}
    assert logs == {"; rm -rf x.log.gz": b"odd", "shop.log.gz": b"plain"}
    assert [path.read_text() for path in (tmp_path / "mails").iterdir()] == ["Thank you for 49.90"]
    assert [path.read_text() for path in (tmp_path / "parcels").iterdir()] == ["Order 17, worth 49.90"]
    rows = [json.loads(line) for path in kept.parent.glob("history*") for line in path.read_text().splitlines()]
    counted = next(row for row in rows if row["name"] == "callable")
    assert json.loads(counted["output"]) == {"a": 3, "rose": 3}
