"""The cook-book's programs for the built-in handlers that stay on the machine: typed as its page says.

All of them are served by one pool, which has the flags of all the pools on the page.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from pathlib import Path

from support.pages import DOCS, page, run

PAGE = page("cookbook")
APPS = ("ledger", "texts", "compress", "orders")
OTHERS = ("webhooks.py", "nightly.py", "shop_fastapi.py", "shop_flask.py", "shop_sqlalchemy.py")  # of other tests


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


def test_the_page_shows_lines_of_the_programs() -> None:
    shown = re.findall(r"^\[(\w+\.py)\](?:(?!^\[).)*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert {name for name, _ in shown} == {*(f"{app}.py" for app in APPS), *OTHERS}
    for name, lines in shown:
        assert lines in (DOCS / "cookbook" / name).read_text("utf-8"), name


def test_what_the_page_says_to_type_does_what_it_says(tmp_path: Path) -> None:
    for app in APPS:
        shutil.copy(DOCS / "cookbook" / f"{app}.py", tmp_path)
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
            run(tmp_path, *command)
    kept = tmp_path / "history"
    worked = ("--workers", "2", "--until-empty", "--fail-on-dead")
    run(tmp_path, "jobpool", *flags, "--history", f"file:{kept}", *worked)

    assert json.loads((tmp_path / "ledger.json").read_text()) == {"6": {"cents": 2000, "closed": True}}
    logs = {path.name: gzip.decompress(path.read_bytes()) for path in (tmp_path / "logs").iterdir()}
    assert logs == {"; rm -rf x.log.gz": b"odd", "shop.log.gz": b"plain"}
    assert [path.read_text() for path in (tmp_path / "mails").iterdir()] == ["Thank you for 49.90"]
    assert [path.read_text() for path in (tmp_path / "parcels").iterdir()] == ["Order 17, worth 49.90"]
    rows = [json.loads(line) for path in kept.parent.glob("history*") for line in path.read_text().splitlines()]
    counted = next(row for row in rows if row["name"] == "callable")
    assert json.loads(counted["output"]) == {"a": 3, "rose": 3}
