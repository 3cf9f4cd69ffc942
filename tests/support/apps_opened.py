"""An app that opens at its import what many do, and uses it in its handlers: files, a database, a socket."""

from __future__ import annotations

import logging
import os
import random
import socket
import sqlite3
import threading
import time
import zipfile
from logging.handlers import RotatingFileHandler, WatchedFileHandler

import jobpool

with zipfile.ZipFile("data.zip", "w") as made:
    made.writestr("text", "zipped")
with open("removed.txt", "w") as removed:
    removed.write("first second")

LOG = logging.getLogger("opened")
LOG.setLevel("INFO")
LOG.propagate = False
LOG.addHandler(logging.FileHandler("appended.log"))
LOG.addHandler(logging.FileHandler("written.log", mode="w"))
LOG.addHandler(RotatingFileHandler("rotating.log", maxBytes=10_000_000))
LOG.addHandler(WatchedFileHandler("watched.log"))

ROWS = open("rows.txt", "w")  # noqa: SIM115
ROWS.write("header\n")
DICE = random.SystemRandom()
NOISE = open("/dev/urandom", "rb")  # noqa: SIM115
ARCHIVE = zipfile.ZipFile("data.zip")
CLOSED_BY_A_HANDLER = zipfile.ZipFile("data.zip")
REMOVED = open("removed.txt")  # noqa: SIM115
assert REMOVED.read(6) == "first "
os.unlink("removed.txt")

DATABASE = sqlite3.connect("own.db")
DATABASE.execute("create table if not exists orders (number int)")
DATABASE.commit()
SERVER = socket.create_server(("127.0.0.1", 0))
CLIENT = socket.create_connection(SERVER.getsockname())


@jobpool.handler
def write(_: jobpool.JobContext, number: int) -> None:
    LOG.info("line %d", number)
    ROWS.write(f"row {number}\n")
    time.sleep(DICE.random() / 1000)


@jobpool.handler("read")
def read_all(_: jobpool.JobContext) -> None:
    found = len(NOISE.read(4)), ARCHIVE.read("text"), REMOVED.read()
    if found != (4, b"zipped", "second"):
        raise LookupError(found)


@jobpool.handler
def query(_: jobpool.JobContext) -> None:
    DATABASE.execute("select * from orders")


@jobpool.handler
def call(_: jobpool.JobContext) -> None:
    CLIENT.send(b"hello")


@jobpool.handler
def begin_thread(_: jobpool.JobContext) -> None:
    threading.Thread(target=time.sleep, args=(60,)).start()


@jobpool.handler
def close_archive(_: jobpool.JobContext) -> None:
    CLOSED_BY_A_HANDLER.close()
