"""A shop with SQLAlchemy 2, whose orders and jobs are committed together.

    SHOP_DATABASE=postgresql+psycopg://user:password@host/database python shop_sqlalchemy.py 1200 350
    SHOP_DATABASE=… JOBPOOL_BACKEND=postgresql://… jobpool --queue orders --app shop_sqlalchemy.py

`enqueue` needs the queue in the database of the orders: Postgres by psycopg 3, or one file of SQLite. With any other
broker use `enqueue_after_commit`. There a process that dies between the commit and the enqueueing loses the job. So
does an error of the broker, which comes out of `commit()` although the orders are there.
"""

from __future__ import annotations

import os
import sys
from functools import cache, partial
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, SessionTransaction, mapped_column

import jobpool

URL = os.environ["SHOP_DATABASE"]

engine = create_engine(URL)
# A child must not use connections that the import may have opened, nor close them: they are the parent's.
os.register_at_fork(after_in_child=partial(engine.dispose, close=False))

if engine.dialect.name == "sqlite":  # Python's driver begins no transaction before a savepoint or a read: we do

    @event.listens_for(engine, "connect")
    def begin_nothing(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int]
    booked: Mapped[bool] = mapped_column(default=False)


@jobpool.handler(queue="orders", max_retries=3, timeout=10, ack_in_transaction=True)
def book(ctx: jobpool.JobContext, order: int) -> None:
    with Session(engine) as session:
        session.get_one(Order, order).booked = True
        session.flush()
        ctx.ack(own_connection(session))  # last: the commit follows at once
        session.commit()


# --- enqueueing ---------------------------------------------------------------------------------------


@cache
def jobs() -> jobpool.Jobs:
    return jobpool.Jobs(URL.replace("postgresql+psycopg:", "postgresql:"))


def own_connection(session: Session) -> Any:
    """Return the driver's own connection, in the session's transaction."""
    return session.connection().connection.driver_connection


def enqueue(session: Session, job: jobpool.JobBuilder) -> str:
    """Enqueue within the session's transaction: the job is there if that commits, and never was if it rolls back."""
    return jobs().enqueue(job, connection=own_connection(session))


def enqueue_after_commit(session: Session, job: jobpool.JobBuilder) -> None:
    """Enqueue when the session has committed; drop the job if it, or the savepoint of now, rolls back."""
    session.connection()  # begins the transaction
    waiting = session.info.setdefault("jobs", [])
    waiting.append((session.get_nested_transaction() or session.get_transaction(), job))


@event.listens_for(Session, "after_commit")
def send(session: Session) -> None:
    if not session.in_nested_transaction():  # else it is the end of a savepoint
        jobs().enqueue_many(job for _, job in session.info.pop("jobs", ()))


@event.listens_for(Session, "after_soft_rollback")
def drop(session: Session, ended: SessionTransaction) -> None:
    session.info["jobs"] = [(begun, job) for begun, job in session.info.get("jobs", ()) if not within(begun, ended)]


def within(transaction: SessionTransaction | None, outer: SessionTransaction) -> bool:
    while transaction is not None and transaction is not outer:
        transaction = transaction.parent
    return transaction is outer


def main(amounts: list[int]) -> None:
    jobs().backend.prepare()  # the queue's tables
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        for cents in amounts:
            session.add(order := Order(cents=cents))
            session.flush()  # so that order.id is there
            print(order.id, enqueue(session, book.define(order.id)))
        session.commit()


if __name__ == "__main__":
    main([int(amount) for amount in sys.argv[1:]])
