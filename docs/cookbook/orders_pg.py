"""Books orders on Postgres: rows, jobs and the end of a job in one commit. docs/transactions.md explains it.

    export SHOP_DATABASE=postgresql://user:password@host/database
    python orders_pg.py
    jobpool --backend "$SHOP_DATABASE" --queue orders --app orders_pg.py --until-empty --fail-on-dead

Each order is in the ledger once, whatever died on the way.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg

import jobpool

SHOP = os.environ["SHOP_DATABASE"]
jobs = jobpool.Jobs(SHOP)


@jobpool.handler("receipt", queue="orders", max_retries=3)
def receipt(order: int) -> None:
    print(f"receipt for order {order}")


@jobpool.handler("book", queue="orders", max_retries=3, timeout=10, ack_in_transaction=True)
def book(ctx: jobpool.JobContext, order: int) -> None:
    with psycopg.connect(SHOP) as shop:
        cents = first(shop.execute("SELECT cents FROM orders WHERE id = %s", [order]))
        shop.execute("INSERT INTO ledger (order_id, cents) VALUES (%s, %s)", [order, cents])
        ctx.enqueue(receipt.define(order=order))
        ctx.ack(shop)  # last: the commit follows at once


def place_order(cents: int) -> int:
    with psycopg.connect(SHOP) as shop:
        order = first(shop.execute("INSERT INTO orders (cents) VALUES (%s) RETURNING id", [cents]))
        jobs.enqueue(book.define(order=order), connection=shop)
        return order


def first(found: psycopg.Cursor[Any]) -> int:
    """Return the one column of the one row."""
    row = found.fetchone()
    assert row
    return int(row[0])


def create_tables() -> None:
    jobs.backend.prepare()  # the queue's tables
    with psycopg.connect(SHOP) as shop:
        shop.execute("CREATE TABLE IF NOT EXISTS orders (id serial PRIMARY KEY, cents integer NOT NULL)")
        shop.execute("CREATE TABLE IF NOT EXISTS ledger (order_id integer NOT NULL, cents integer NOT NULL)")


if __name__ == "__main__":
    create_tables()
    for cents in (1200, 350, 9900):
        print(f"placed order {place_order(cents)}")
