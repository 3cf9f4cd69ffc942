"""The cook-book's programs for the built-in handlers and for cron: typed as its page says.

Those that stay on the machine are served by one pool, which has the flags of all the pools on the page.
"""

from __future__ import annotations

import gzip
import hmac
import json
import re
import shlex
import shutil
from pathlib import Path

from support.pages import DOCS, page, run, section
from support.webserver import WebServer, answer

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


def test_what_the_page_says_to_type_sums_up_the_day_before_the_night(tmp_path: Path) -> None:
    shutil.copy(DOCS / "cookbook" / "nightly.py", tmp_path)
    (tmp_path / "sales.csv").write_text("day,amount\n2026-05-31,19.99\n2026-06-01,5.00\n2026-05-31,0.01\n")
    coming, trial, pool = map(
        shlex.split, re.findall(r"^\$ (.*)$", section(PAGE, "Run something every night"), re.MULTILINE)
    )
    assert len(run(tmp_path, *coming).stdout.splitlines()) == 4
    assert re.search(r"sum-up +2026-06-01T00:30:00Z +fired", run(tmp_path, *trial).stdout)
    told = run(tmp_path, *pool, "--workers", "1", "--until-empty", "--fail-on-dead").stderr
    assert "WARNING" not in told, told
    assert (tmp_path / "reports" / "2026-05-31.txt").read_text() == "20.00\n"


def test_subscribers_are_called_with_signed_bodies_and_no_one_gets_a_call_inward(tmp_path: Path) -> None:
    with WebServer() as server:
        server.answers = {"/hook": answer(b"thanks"), "/gone": answer(b"moved away", "410 Gone")}
        here = f"http://127.0.0.1:{server.port}"
        urls = {
            "acme": f"{here}/hook",
            "closed": f"{here}/gone",
            "sly": "http://169.254.169.254/latest/meta-data/",
            "slier": f"http://acme.example@127.0.0.1:{server.port}/hook",
        }
        subscribers = {name: {"url": url, "secret": f"secret of {name}"} for name, url in urls.items()}
        (tmp_path / "subscribers.json").write_text(json.dumps(subscribers))

        shutil.copy(DOCS / "cookbook" / "webhooks.py", tmp_path)
        announce, pool = (
            shlex.split(line) for line in re.findall(r"^\$ (.*)$", section(PAGE, "Call a URL"), re.MULTILINE)
        )
        run(tmp_path, *announce)
        run(tmp_path, *pool, "--workers", "1", "--until-empty", "--allowed-url-networks", "127.0.0.0/8")

        calls = {seen.path: seen for seen in server.seen}
        dead = json.loads(run(tmp_path, "jobpool", "dead", "list", "--json").stdout)

    assert len(server.seen) == len(calls) == 2
    assert json.loads(calls["/hook"].body) == {"event": "order.paid", "data": {"order": 7}}
    signature = hmac.new(b"secret of acme", calls["/hook"].body, "sha256").hexdigest()
    assert calls["/hook"].headers["x-signature"] == f"sha256={signature}"
    reasons = {letter["name"]: json.dumps(letter) for letter in dead}
    assert sorted(reasons) == ["webhook-closed", "webhook-slier", "webhook-sly"]
    assert "answered 410: moved away" in reasons["webhook-closed"]
    assert "refused (address)" in reasons["webhook-sly"]
    assert "refused (userinfo)" in reasons["webhook-slier"]
    assert "secret of" not in "".join(reasons.values())
