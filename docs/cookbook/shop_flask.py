"""A shop with Flask: an application factory, enqueueing after the commit, and handlers within the app's context.

flask --app shop_flask run
jobpool --app shop_flask.py --queue orders
"""

from __future__ import annotations

import os
import sqlite3
from functools import cache

from flask import Flask, current_app, g, request
from flask.ctx import AppContext

import jobpool

jobs = jobpool.Jobs()  # one for the process; it connects at the first job


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["DATABASE"] = os.environ.get("SHOP_DATABASE", "shop.db")
    app.teardown_appcontext(close_database)

    @app.post("/orders")
    def place_order() -> tuple[dict[str, object], int]:
        with database():  # commits at its end
            order = (
                database().execute("INSERT INTO orders (cents) VALUES (?)", (request.get_json()["cents"],)).lastrowid
            )
        assert order is not None
        return {"order": order, "job": jobs.enqueue(book.define(order))}, 202

    return app


def database() -> sqlite3.Connection:
    """Return the connection of this request, or of this attempt of a job."""
    if "database" not in g:
        g.database = sqlite3.connect(current_app.config["DATABASE"], timeout=5)
        g.database.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, cents INTEGER, booked TEXT)")
    connection: sqlite3.Connection = g.database
    return connection


def close_database(_: BaseException | None) -> None:
    if "database" in g:
        g.database.close()


# --- jobs ---------------------------------------------------------------------------------------------

the_app = cache(create_app)  # one for each process
entered: list[AppContext] = []


@jobpool.before_attempt
def enter(_: jobpool.JobContext) -> None:
    entered.append(the_app().app_context())
    entered[-1].push()


@jobpool.after_attempt
def leave(_: jobpool.JobContext, result: jobpool.ExecutionResult) -> None:
    while entered:
        entered.pop().pop(result.exception)


@jobpool.handler(queue="orders", max_retries=3)
def book(ctx: jobpool.JobContext, order: int) -> None:
    with database():
        database().execute("UPDATE orders SET booked = ? WHERE id = ?", (ctx.id, order))
