"""An app whose handlers ack in a transaction of their own, on the SQLite file or the Postgres database in OWN_DATABASE.

The table `effects` holds what they did. `then` says what goes wrong, and where.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from typing import Any

import jobpool

LEFT_OPEN: list[Any] = []


def connect() -> Any:
    place = os.environ["OWN_DATABASE"]
    if not place.startswith("postgres"):
        return sqlite3.connect(place)
    import psycopg

    return psycopg.connect(place)


@jobpool.handler(ack_in_transaction=True)
def transfer(ctx: jobpool.JobContext, then: str = "") -> None:
    connection = connect()
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    connection.execute(f"INSERT INTO effects VALUES ({mark}, {mark})", (ctx.id, ctx.attempt))
    if then == "not acked":
        connection.commit()
        return
    ctx.enqueue("after", {"of": ctx.id})
    ctx.ack(connection)
    if then == "raise":
        raise RuntimeError("before the commit")
    if then == "roll back":
        connection.rollback()
        return
    if then == "leave open":
        LEFT_OPEN.append(connection)
        return
    if then == "kill before" and ctx.crashes == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    connection.commit()
    if then == "kill after":
        os.kill(os.getpid(), signal.SIGKILL)
    connection.close()


@jobpool.handler
def after(ctx: jobpool.JobContext, of: str) -> None:
    del ctx
    connection = connect()
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    connection.execute(f"INSERT INTO effects VALUES ({mark}, 0)", (f"after {of}",))
    connection.commit()
    connection.close()
