"""The key store: transactions, the time, and who is asked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from jobpool.broker.key_store import KeyStore
from jobpool.clock import Clock
from jobpool.message.guards import Begun, Guards, Rate
from jobpool.message.lease import JobLease
from jobpool_backends.shared import MICRO, micros
from jobpool_backends.sqlite import guarding, notes, places
from jobpool_backends.sqlite.calls import Sweeper
from jobpool_backends.sqlite.clock import Moment, read_moment
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.places import Places
from jobpool_backends.sqlite.rates import Rates


class SqliteKeys(KeyStore):
    """The key store of one database. Calls that write here sweep ended keys."""

    def __init__(self, database: Database, clock: Clock, boot: int, sweeper: Sweeper) -> None:
        self._database = database
        self._clock = clock
        self._boot = boot
        self._sweeper = sweeper
        self._swept: tuple[int, str] = (0, "")

    @contextmanager
    def _write(self) -> Iterator[tuple[sqlite3.Connection, Moment]]:
        with self._database.write() as connection:
            now = read_moment(self._clock, self._boot)
            yield connection, now
            if self._sweeper.sweep(connection, now.wall):
                self._swept = places.sweep(connection, self._swept)

    def _wall(self) -> int:
        return micros(self._clock.wall())

    # --- guards ------------------------------------------------------------------------------------

    def _begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        with self._write() as (connection, now):
            return guarding.begin(connection, now, asked)

    def _first_run(self, queue: str, key: str, ttl: float) -> bool:
        with self._write() as (connection, now):
            known = Places(connection, now)
            if known.is_done(queue, key):
                return False
            known.mark_done(queue, key, micros(ttl))
        return True

    def _forget(self, queue: str, key: str) -> bool:
        with self._write() as (connection, now):
            return Places(connection, now).forget(queue, key)

    def _take_many(self, queue: str, rates: Sequence[Rate], token: str) -> list[float]:
        answers = []
        with self._write() as (connection, now):
            for rate in rates:
                starts = Rates(connection, now.wall)
                after = starts.until_room(queue, rate, token)
                if not after:
                    starts.count(queue, rate.name, rate.window, token)
                answers.append(after / MICRO)
        return answers

    def _holders(self, queue: str, name: str) -> list[str]:
        with self._database.read() as connection:
            return places.holders(connection, queue, name, read_moment(self._clock, self._boot))

    # --- records -----------------------------------------------------------------------------------

    def _put_records(self, space: str, records: Mapping[str, bytes], ttl: float) -> None:
        with self._write() as (connection, now):
            notes.put(connection, space, records, now.wall + micros(ttl))

    def _get_record(self, space: str, key: str) -> bytes | None:
        with self._database.read() as connection:
            return notes.get(connection, space, key, self._wall())

    def _list_records(self, space: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        with self._database.read() as connection:
            return notes.page(connection, space, prefix, after, limit, self._wall())

    def _delete_records(self, space: str, keys: Sequence[str]) -> None:
        with self._write() as (connection, _):
            notes.delete(connection, space, keys)

    # --- logs --------------------------------------------------------------------------------------

    def _append_log(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        with self._write() as (connection, _):
            notes.append(connection, space, lines, keep)

    def _read_log(self, space: str, name: str, limit: int) -> list[bytes]:
        with self._database.read() as connection:
            return notes.read(connection, space, name, limit)

    def _list_logs(self, space: str) -> list[str]:
        with self._database.read() as connection:
            return notes.logs(connection, space)
