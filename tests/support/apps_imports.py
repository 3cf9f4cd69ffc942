"""An app that does at its import what many do: opens sockets and a database, draws random numbers, takes locks.

Where it opens them anew in its after-fork hook, as docs/forking.md says, they are a child's own. IMPORT_TLS
(HOST:PORT:CA FILE) and IMPORT_POSTGRES (a URL) name the servers; without them it opens no more than an SQLite file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import socket
import sqlite3
import ssl
import threading
import time
from typing import Any

import psycopg

import jobpool
from jobpool_torture.ledger import LEDGER, Line, append

log = logging.getLogger(__name__)
LOCK = threading.RLock()
CONNECTIONS: dict[str, Any] = {}
UNATTENDED: dict[str, socket.socket] = {}
"""Opened at the import and never again: what an app's author has forgotten."""

DICE = random.Random()


def connect_tls() -> ssl.SSLSocket:
    host, port, authority = os.environ["IMPORT_TLS"].split(":")
    context = ssl.create_default_context(cafile=authority)
    return context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)


def connect() -> None:
    """Everything anew. Old connections are dropped without a word: their sockets are cut off in a child."""
    with LOCK:
        CONNECTIONS["sqlite"] = sqlite3.connect("app.db", isolation_level=None)
        if "IMPORT_POSTGRES" in os.environ:
            CONNECTIONS["postgres"] = psycopg.connect(os.environ["IMPORT_POSTGRES"], autocommit=True)
        if "IMPORT_TLS" in os.environ:
            CONNECTIONS["tls"] = connect_tls()
    log.info("connected")


def begin_anew() -> None:
    """In a child, before its first job."""
    DICE.seed()
    with contextlib.suppress(OSError):
        FORGOTTEN.append(CONNECTIONS.copy())  # not closed: what their destructors say would be for another process
    connect()


FORGOTTEN: list[dict[str, Any]] = []
connect()
CONNECTIONS["sqlite"].execute("CREATE TABLE IF NOT EXISTS seen (child INTEGER)")
if "IMPORT_TLS" in os.environ:
    UNATTENDED["tls"] = connect_tls()
os.register_at_fork(after_in_child=begin_anew)


def say(connection: socket.socket) -> str:
    """What an echo answers; the error's name where the socket does not work."""
    try:
        connection.sendall(f"{os.getpid()}\n".encode())
        return connection.recv(100).decode().strip()
    except OSError as error:
        return type(error).__name__


def sockets() -> list[str]:
    """The inodes of all sockets of this process, the pool's own two among them."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(link for link in links if link.startswith("socket:"))


@jobpool.handler
def look(ctx: jobpool.JobContext) -> None:
    """Uses everything, and notes what it found."""
    CONNECTIONS["sqlite"].execute("INSERT INTO seen VALUES (?)", (os.getpid(),))
    found: dict[str, Any] = {"pid": os.getpid(), "dice": DICE.random(), "random": random.random(), "sockets": sockets()}
    if "postgres" in CONNECTIONS:
        found["backend"] = CONNECTIONS["postgres"].execute("SELECT pg_backend_pid()").fetchone()[0]
    if "tls" in CONNECTIONS:
        found["echo"] = say(CONNECTIONS["tls"])
        found["unattended"] = say(UNATTENDED["tls"])
    line = Line("end", ctx.id, fence=ctx.fence, pid=os.getpid(), at=time.monotonic(), attempt=ctx.attempt)
    start = Line("start", ctx.id, fence=ctx.fence, pid=os.getpid(), at=line.at, attempt=ctx.attempt)
    append(os.environ[LEDGER], [start, Line("effect", ctx.id, fence=ctx.fence, tag=json.dumps(found)), line])
