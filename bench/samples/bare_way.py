"""The way of a job with no queue around it: what the start of one costs at least, with this machine and these clients.

A producer writes a job and wakes the taker. The taker marks the job as taken in a second round trip or transaction,
and writes its number into a pipe. A child notes the time. So there are the processes, round trips and commits of a pool
that leases before it runs. Nothing is signed, checked, timed, renewed or settled.
"""

from __future__ import annotations

import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import greenstalk
import psycopg
import redis

from bench.note_file import note
from bench.programs import answer
from jobpool_backends.sqlite.database import PRAGMAS


class Way(ABC):
    """One end of it: each process opens its own."""

    close: Callable[[], object]

    def listen(self) -> None:
        """Get ready to `take`: jobs that are put from now on wake this end."""
        return  # most brokers need nothing

    @abstractmethod
    def put(self, number: int) -> None:
        """Write a job, and wake the taker."""

    @abstractmethod
    def take(self) -> int:
        """Wait for a job; return its number when it is marked as taken. Blocks until there is one."""


class RedisWay(Way):
    """A list of jobs, and one to wait at."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self.close = self._client.close

    def put(self, number: int) -> None:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.rpush("bare:jobs", number)
        pipeline.rpush("bare:bell", "")
        pipeline.execute()

    def take(self) -> int:
        self._client.blpop("bare:bell")
        return int(cast(bytes, self._client.lpop("bare:jobs")))


class PostgresWay(Way):
    """A table, and a channel to listen to."""

    def __init__(self, url: str) -> None:
        self._client = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._client.execute("create table if not exists bare (number int primary key, taken bool)")
        self._url = url
        self.close = self._client.close

    def listen(self) -> None:
        listener = psycopg.connect(self._url, autocommit=True)
        listener.execute("listen bare")
        self._notices = listener.notifies()

    def put(self, number: int) -> None:
        self._client.execute(
            "with written as (insert into bare values (%s, false)) select pg_notify('bare', '')", [number]
        )

    def take(self) -> int:
        next(self._notices)
        [(number,)] = self._client.execute(
            "update bare set taken = true where number = "
            "(select number from bare where not taken for update skip locked limit 1) returning number"
        )
        return int(number)


class SQLiteWay(Way):
    """A table, and a named pipe beside the file. Every commit waits for the disk, as jobpool's does."""

    def __init__(self, url: str) -> None:
        path = url.removeprefix("sqlite:///")
        self._client = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode = WAL", *PRAGMAS):
            self._client.execute(f"pragma {pragma}")
        self._client.execute("create table if not exists bare (number integer primary key, taken int)")
        self._taken = -1  # the last one
        bell = f"{path}-bell"
        if not os.path.exists(bell):
            os.mkfifo(bell)
        self._bell = os.open(bell, os.O_RDWR)
        self.close = self._client.close

    def put(self, number: int) -> None:
        self._client.execute("begin immediate")
        self._client.execute("insert into bare values (?, 0)", [number])
        self._client.execute("commit")
        os.write(self._bell, b".")

    def take(self) -> int:
        os.read(self._bell, 1)
        self._client.execute("begin immediate")
        [(self._taken,)] = self._client.execute(
            "update bare set taken = 1 where number = (select min(number) from bare where number > ?) returning number",
            [self._taken],
        )
        self._client.execute("commit")
        return self._taken


class BeanstalkWay(Way):
    """A tube. A reserve waits and marks in one command."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._client = greenstalk.Client((str(parts.hostname), int(parts.port or 11300)), use="bare", watch="bare")
        self.close = self._client.close

    def put(self, number: int) -> None:
        self._client.put(str(number))

    def take(self) -> int:
        return int(self._client.reserve().body)


def open_way(url: str) -> Way:
    """Open one at a place that no other uses."""
    kinds: dict[str, Callable[[str], Way]] = {
        "redis": RedisWay,
        "postgresql": PostgresWay,
        "sqlite": SQLiteWay,
        "beanstalk": BeanstalkWay,
    }
    return kinds[urlsplit(url).scheme](url)


def run(url: str, notes: str) -> dict[str, object]:
    """Be the taker and its child, until killed: say `ready`; a line of `notes` is a job's number and its time."""
    readable, writable = os.pipe()
    if not os.fork():
        os.close(writable)
        with open(readable) as lines:
            for line in lines:
                now = time.monotonic()
                note(notes, line.strip(), now)
        os._exit(0)
    os.close(readable)
    way = open_way(url)
    way.listen()
    print("ready", flush=True)
    while True:
        os.write(writable, b"%d\n" % way.take())


if __name__ == "__main__":
    answer(run)
