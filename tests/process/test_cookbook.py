"""The cook-book's programs: typed and run as its page says, with the real libraries and frameworks.

Those of the built-in handlers that stay on the machine are served by one pool, which has all flags of the page's pools.
"""

from __future__ import annotations

import gzip
import hmac
import json
import re
import shlex
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.cookbook import Rig
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


class Sentry(HTTPServer):
    """The receiving end of Sentry's protocol: the events of all envelopes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.events: list[dict[str, Any]] = []

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.server_port}/1"


class Receiver(BaseHTTPRequestHandler):
    server: Sentry

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        lines = body.split(b"\n")
        items = [json.loads(line) for line in lines[1:] if line.startswith(b"{")]
        self.server.events += [item for item in items if "event_id" in item and "level" in item]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    with Sentry() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_sentry_hears_of_failures_with_their_traceback_and_of_crashes(tmp_path: Path, sentry: Sentry) -> None:
    rig = Rig(tmp_path, "tracked.py")
    known = rig.enqueue(("order.ship", {"order": -1}), ("order.ship", {"order": 1}), ("order.crash", {}))
    log = rig.pool("--max-crashes", "1", SENTRY_DSN=sentry.dsn)
    failed, crashed = sorted(sentry.events, key=lambda event: "exception" not in event)
    [error] = failed["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no order has the number -1")
    assert error["stacktrace"]["frames"][-1]["vars"]["order"] == "-1"
    assert (failed["tags"]["handler"], failed["contexts"]["job"]["id"]) == ("order.ship", known[0])
    assert (crashed["tags"]["reason"], crashed["contexts"]["job"]["id"]) == ("crash-limit", known[2])
    assert "killed by SIGABRT" in crashed["message"]
    assert "in crash" in crashed["extra"]["stack"]
    assert "threads" not in log, "Sentry's worker is started by a hook, after the fork: no child is replaced for it"


def test_a_trace_goes_from_the_producer_to_the_handler_and_its_follow_up(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "traced.py")
    told = tmp_path / "telemetry"
    rig.run("python", "traced.py", "7", TELEMETRY=str(told))
    log = rig.pool(TELEMETRY=str(told))
    values = list(documents(told.read_text("utf-8")))
    spans = {value["name"]: value for value in values if "context" in value}
    assert set(spans) == {"checkout", "order.ship", "pack", "order.thank"}
    assert len({span["context"]["trace_id"] for span in spans.values()}) == 1
    parents = {name: span["parent_id"] for name, span in spans.items()}
    ids = {name: span["context"]["span_id"] for name, span in spans.items()}
    assert parents == {
        "checkout": None,
        "order.ship": ids["checkout"],
        "pack": ids["order.ship"],
        "order.thank": ids["checkout"],
    }
    metrics = values[-1]["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    counts = {point["attributes"]["handler"]: point["value"] for point in metrics[0]["data"]["data_points"]}
    assert counts == {"order.ship": 1, "order.thank": 1}, "both ran in one child, which kept its exporters' threads"
    assert "threads" not in log


def test_what_a_handler_logs_says_its_job(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "logged.py")
    first, second = rig.enqueue(("order.ship", {"order": 3}), ("order.ship", {"order": 4}))
    rig.pool("--history", f"file:{tmp_path}/history")
    rows = [json.loads(line) for line in (tmp_path / "history").read_text("utf-8").splitlines()]
    lines = [json.loads(line) for row in rows for line in row["output"].splitlines() if line]
    said = [(line["job"], line["event"], line.get("order"), line.get("outcome")) for line in lines]
    assert said == [
        (first, "shipping", 3, None),
        (first, "attempt ended", None, "succeeded"),
        (second, "shipping", 4, None),
        (second, "attempt ended", None, "succeeded"),
    ]


def documents(text: str) -> Iterator[Any]:
    """The JSON values that stand one after the other in a text."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        value, end = decoder.raw_decode(text, at)
        yield value
        at = end + len(text[end:]) - len(text[end:].lstrip())


FASTAPI = """
import asyncio, json, os
import httpx
from shop_fastapi import app

async def put(client, number, **order):
    answer = await client.put(f"/orders/{number}", json=order)
    return answer.status_code, answer.json(), answer.headers.get("Retry-After")

async def visit(*calls):
    transport = httpx.ASGITransport(app)
    client = httpx.AsyncClient(transport=transport, base_url="http://shop")
    async with app.router.lifespan_context(app), client:
        return await asyncio.gather(*(put(client, number, **order) for number, order in calls))

order = {"customer": "Ada", "cents": 1200}
placed = asyncio.run(visit(*((number % 20, order) for number in range(40)), (99, {"customer": "Ada"})))
os.environ["JOBPOOL_BACKEND"] = "redis://127.0.0.1:1/0"
[refused] = asyncio.run(visit((7, order)))
print(json.dumps([placed, refused]))
"""

NESTED = """

@jobpool.handler(queue="orders")
async def count(upto: int) -> str:
    async with asyncio.TaskGroup() as group:
        found = [group.create_task(ship.aenqueue(100 + n, Order(customer="Bob", cents=1))) for n in range(upto)]
    return f"{len({each.result() for each in found})} ids"
"""

FLASK = """
import json
import jobpool
from shop_flask import create_app

client = create_app().test_client()
print(json.dumps([client.post("/orders", json={"cents": cents}).get_json() for cents in (1200, 350, 9900)]))
"""

AFTER_COMMIT = """
import json
from shop_sqlalchemy import *

jobs().backend.prepare()
Base.metadata.create_all(engine)

def later(number):
    enqueue_after_commit(session, book.define(number))

def waiting():
    found = jobs().backend.list_messages()
    return sorted(json.loads(message.body)["payload"]["order"] for message in found)

with Session(engine) as session:
    later(1)
    session.rollback()
    later(2)
    with session.begin_nested():
        later(3)
        with session.begin_nested():
            later(4)
    outer = session.begin_nested()
    with session.begin_nested():
        later(5)
    outer.rollback()
    later(6)
    before = waiting()
    session.commit()
    first = waiting()
    session.commit()
    later(7)
    session.add(Order(id=1, cents=None))
    try:
        session.commit()
    except Exception:
        session.rollback()
    enqueue(session, book.define(8))
    session.rollback()
    with session.begin_nested():
        enqueue(session, book.define(9))
    session.rollback()
print(json.dumps([before, first, waiting()]))
"""


def test_fastapi_answers_with_the_id_of_the_job_and_says_when_to_call_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "shop_fastapi.py")
    placed, refused = json.loads(rig.run("python", "-c", FASTAPI))
    assert placed[:-1] == [[202, {"job": f"order-{number % 20}"}, None] for number in range(40)]
    assert placed[-1][0] == 422
    assert (refused[0], refused[2]) == (503, "5")
    assert "127.0.0.1:1" in refused[1]["detail"]

    with (tmp_path / "shop_fastapi.py").open("a") as app:
        app.write(f"\n\nimport asyncio\n{NESTED}")
    rig.enqueue(("count", {"upto": 9}))
    log = rig.pool("--fail-on-dead", "--history", f"file:{tmp_path}/history")
    rows = [json.loads(line) for line in (tmp_path / "history").read_text("utf-8").splitlines()]
    said = sorted(row["output"] for row in rows)
    shipped = [
        f"order {number} of {who} is on its way"
        for who, first, upto in (("Ada", 0, 20), ("Bob", 100, 109))
        for number in range(first, upto)
    ]
    assert said == sorted(["9 ids", *shipped])
    assert "replaced" not in log, "the threads of `aenqueue` end with the attempt"


def test_flask_enqueues_after_its_commit_and_handlers_have_its_context(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "shop_flask.py")
    placed = json.loads(rig.run("python", "-c", FLASK))
    assert [answer["order"] for answer in placed] == [1, 2, 3]
    rig.pool("--fail-on-dead")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        rows = shop.execute("SELECT id, cents, booked FROM orders ORDER BY id").fetchall()
    assert rows == [
        (n, cents, answer["job"]) for n, (cents, answer) in enumerate(zip((1200, 350, 9900), placed, strict=True), 1)
    ]


def test_sqlalchemy_commits_orders_and_jobs_together_and_its_engine_outlives_the_fork(
    tmp_path: Path, database: str
) -> None:
    rig = Rig(tmp_path, "shop_sqlalchemy.py")
    rig.url = f"{database}?connect_timeout=30"
    own = database.replace("postgresql://", "postgresql+psycopg://")
    placed = rig.run("python", "shop_sqlalchemy.py", "1200", "350", "9900", SHOP_DATABASE=own)
    assert [line.split()[0] for line in placed.splitlines()] == ["1", "2", "3"]
    with (tmp_path / "shop_sqlalchemy.py").open("a") as app:
        app.write("\nengine.connect().close()  # stays in the engine's pool\n")
    log = rig.pool("--history", f"file:{tmp_path}/history", SHOP_DATABASE=own)
    assert "cut off" in log
    rows = [json.loads(line) for line in (tmp_path / "history").read_text("utf-8").splitlines()]
    assert [(row["attempt"], row["status"]) for row in rows] == [(1, "acked")] * 3
    with psycopg.connect(database) as shop:
        assert shop.execute("SELECT id, cents, booked FROM orders ORDER BY id").fetchall() == [
            (1, 1200, True),
            (2, 350, True),
            (3, 9900, True),
        ]


def test_sqlalchemy_enqueues_after_a_commit_what_was_not_rolled_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "shop_sqlalchemy.py")
    before, first, last = json.loads(
        rig.run("python", "-c", AFTER_COMMIT, SHOP_DATABASE=f"sqlite:///{tmp_path}/shop.db")
    )
    assert (before, first, last) == ([], [2, 3, 4, 6], [2, 3, 4, 6])
