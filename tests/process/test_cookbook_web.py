"""The cook-book's shops with FastAPI, Flask and SQLAlchemy: the real frameworks, served in a process of their own."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
from support.cookbook import Rig

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
