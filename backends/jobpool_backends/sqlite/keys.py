"""The key store: guards of leases (idempotency keys, places, rates), records that end by themselves, and logs.

A lease gets all that its delivery needs or nothing, a whole batch in one write transaction. A hold says which lease has
a place: the message's number and the holder. It is live exactly while that lease is, and the message itself tells that.
One that is not is removed when its name is next asked for, or when the sweep comes by. A start is known by its token
for longer than its window, so that a repeat whose first answer was lost is known for one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jobpool.broker.key_store import KeyStore
from jobpool.broker.values import REMEMBER_CALLS
from jobpool.message.guards import Begin, Begun, Guards, Rate
from jobpool.message.lease import JobLease
from jobpool_backends.shared import MAX_LISTED_LOGS, MICRO, all_holds, longest_windows, micros
from jobpool_backends.sql import number_of
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.schema import LEASED
from jobpool_backends.sqlite.settle import Fact, judge, read_facts
from jobpool_backends.sqlite.step import ClockReading, Step, Sweeper

_IS_DONE = "SELECT 1 FROM done WHERE queue = ? AND key = ? AND until > ?"
_DONE = "INSERT OR REPLACE INTO done VALUES (?, ?, ?)"
_FORGET = "DELETE FROM done WHERE queue = ? AND key = ?"
_HELD = """
SELECT holds.seq, messages.id, messages.state IS 2 AND messages.holder = holds.holder, boot, deadline, deadline_wall
FROM holds INDEXED BY holds_by_name LEFT JOIN messages ON messages.seq = holds.seq
WHERE holds.queue = ? AND holds.name = ?
"""
_OCCUPY = "INSERT OR REPLACE INTO holds (seq, name, queue, holder) VALUES (?, ?, ?, ?)"
_RELEASE_PLACES = "DELETE FROM holds WHERE seq = ? AND name = ?"

HOLD_SWEEP_PAGE = 200  # holds that one sweep looks at
_PAGE = f"""
SELECT page.seq, page.name, messages.state IS {LEASED} AND messages.holder = page.holder
FROM (SELECT seq, name, holder FROM holds WHERE (seq, name) > (?, ?) ORDER BY seq, name LIMIT {HOLD_SWEEP_PAGE}) AS page
LEFT JOIN messages ON messages.seq = page.seq
"""
# A clock that was set back leaves starts in the future: do not wait for those further off than a window.
_RECENT = """
SELECT at FROM starts INDEXED BY starts_by_time
WHERE queue = :queue AND name = :name AND at > :now - :window AND at < :now + :window
"""
_COUNT = f"SELECT count(*) FROM ({_RECENT} LIMIT :most)"
_LAST_BUT = f"{_RECENT} ORDER BY at DESC LIMIT 1 OFFSET :most - 1"
_IS_KNOWN = "SELECT 1 FROM starts WHERE queue = ? AND name = ? AND token = ?"
_START = "INSERT OR IGNORE INTO starts (queue, name, token, at, until) VALUES (?, ?, ?, ?, ?)"

_PUT = """
INSERT INTO records (space, key, until, value) VALUES (?, ?, ?, ?)
ON CONFLICT (space, key) DO UPDATE SET until = excluded.until, value = excluded.value
"""
_GET = "SELECT key, value FROM records WHERE space = ? AND key IN (SELECT value FROM json_each(?)) AND until > ?"
_LAST_CHARACTER = "\U0010ffff"  # behind every character that a key can have
_LIST = """
SELECT key, value FROM records INDEXED BY records_by_key
WHERE space = :space AND key > :after AND key < :end AND until > :now ORDER BY key LIMIT :limit
"""
_LIST_FROM = _LIST.replace("key > :after", "key >= :after")
_DELETE = "DELETE FROM records WHERE space = ? AND key IN (SELECT value FROM json_each(?))"
_LAST = "(SELECT max(place) FROM logs WHERE space = :space AND name = :name)"
_APPEND = f"INSERT INTO logs (space, name, place, line) VALUES (:space, :name, coalesce({_LAST}, 0) + 1, :line)"
_TRIM = f"DELETE FROM logs WHERE space = :space AND name = :name AND place <= {_LAST} - :keep"
_READ = "SELECT line FROM logs WHERE space = ? AND name = ? ORDER BY place DESC LIMIT ?"
# One search a name, however many lines it has.
_LOGS = f"""
WITH RECURSIVE names (name) AS (
    SELECT min(name) FROM logs WHERE space = :space
    UNION ALL
    SELECT (SELECT min(name) FROM logs WHERE space = :space AND name > names.name)
    FROM names WHERE names.name IS NOT NULL LIMIT {MAX_LISTED_LOGS + 1}
)
SELECT name FROM names WHERE name IS NOT NULL LIMIT {MAX_LISTED_LOGS}
"""


class SqliteKeys(KeyStore):
    """The key store of one database. Calls that write here sweep ended keys."""

    def __init__(self, database: Database, sweeper: Sweeper) -> None:
        self._database = database
        self._sweeper = sweeper
        self._swept: tuple[int, str] = (0, "")

    @contextmanager
    def _write(self) -> Iterator[Step]:
        with self._database.write() as step:
            yield step
            if self._sweeper.sweep(step):
                self._swept = _sweep_holds(step, self._swept)

    def _read(self, sql: str, asked: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        with self._database.read() as connection:
            return connection.execute(sql, asked).fetchall()

    def _begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        with self._write() as step:
            grants, facts = _Grants(step), read_facts(step, [number_of(lease) for lease, _ in asked])
            return [grants.begin(facts.get(number_of(lease)), lease, guards) for lease, guards in asked]

    def _first_run(self, queue: str, key: str, ttl: float) -> bool:
        with self._write() as step:
            if _is_done(step, queue, key):
                return False
            step.execute(_DONE, (queue, key, step.now.wall + micros(ttl)))
        return True

    def _forget(self, queue: str, key: str) -> bool:
        with self._write() as step:
            was_done = _is_done(step, queue, key)
            step.execute(_FORGET, (queue, key))
        return was_done

    def _take_many(self, queue: str, rates: Sequence[Rate], token: str) -> list[float]:
        with self._write() as step:
            return [_Rates(step).take(queue, rate, token) / MICRO for rate in rates]

    def _holders(self, queue: str, name: str) -> list[str]:
        now = self._database.moment()
        return sorted(_live(self._read(_HELD, (queue, name)), now).values())

    def _put_records(self, space: str, records: Mapping[str, bytes], ttl: float) -> None:
        with self._write() as step:
            until = step.now.wall + micros(ttl)
            step.connection.executemany(_PUT, [(space, key, until, value) for key, value in records.items()])

    def _get_records(self, space: str, keys: Sequence[str]) -> dict[str, bytes]:
        return dict(self._read(_GET, (space, json.dumps(keys), self._database.wall())))

    def _list_records(self, space: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        sql, first = (_LIST, after) if after >= prefix else (_LIST_FROM, prefix)
        asked = {"space": space, "after": first, "end": prefix + _LAST_CHARACTER, "limit": limit}
        return self._read(sql, asked | {"now": self._database.wall()})

    def _delete_records(self, space: str, keys: Sequence[str]) -> None:
        with self._write() as step:
            step.execute(_DELETE, (space, json.dumps(keys)))

    def _append_log(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        rows = [{"space": space, "name": name, "line": line} for name, line in lines]
        names = dict.fromkeys(name for name, _ in lines)
        with self._write() as step:
            step.connection.executemany(_APPEND, rows)
            step.connection.executemany(_TRIM, [{"space": space, "name": name, "keep": keep} for name in names])

    def _read_log(self, space: str, name: str, limit: int) -> list[bytes]:
        return [line for (line,) in self._read(_READ, (space, name, limit))]

    def _list_logs(self, space: str) -> list[str]:
        return [name for (name,) in self._read(_LOGS, {"space": space})]


class _Grants:
    """The grants of one call. Places under a name are read once, and then kept up to date."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._rates = _Rates(step)
        self._live: dict[tuple[str, str], dict[int, str]] = {}

    def begin(self, message: Fact | None, lease: JobLease, guards: Guards) -> Begun:
        if message is None or not judge(message, lease, self._step.now):
            return Begun(Begin.LOST)
        token = lease.owner_token
        refused = self._refusal(message, token, guards)
        if refused is not None:
            return refused
        for name, _, _ in all_holds(guards):  # instead of the place of an earlier lease
            self._step.execute(_OCCUPY, (message.seq, name, message.queue, message.holder))
            self._places(message.queue, name)[message.seq] = ""
        for name, window in longest_windows(guards.rates).items():
            self._rates.count(message.queue, name, window, token)
        return Begun(Begin.GRANTED)

    def _refusal(self, message: Fact, token: str, guards: Guards) -> Begun | None:
        queue = message.queue
        if guards.key is not None and _is_done(self._step, queue, guards.key):
            return Begun(Begin.DONE, guards.key)
        for name, most, shown in all_holds(guards):
            live = self._places(queue, name)
            if len(live) - (message.seq in live) >= most:
                return Begun(Begin.HELD, shown)
        for rate in guards.rates:
            after = self._rates.until_room(queue, rate, token)
            if after:
                return Begun(Begin.LIMITED, rate.name, after / MICRO)
        return None

    def _places(self, queue: str, name: str) -> dict[int, str]:
        """Return the messages that hold places under this name, by their numbers: their ids."""
        known = self._live.get((queue, name))
        if known is None:
            rows = self._step.execute(_HELD, (queue, name)).fetchall()
            self._step.connection.executemany(_RELEASE_PLACES, [(row[0], name) for row in rows if not row[2]])
            known = self._live[queue, name] = _live(rows, self._step.now)
        return known


class _Rates:
    """The rates that one call sees and counts. Each rate's room is read once, in at most as many steps as its limit."""

    def __init__(self, step: Step) -> None:
        self._execute = step.execute
        self._now = step.now.wall
        self._room: dict[tuple[str, Rate], int] = {}

    def take(self, queue: str, rate: Rate, token: str) -> int:
        """Count a start that is within the rate; else return microseconds until there is room."""
        after = self.until_room(queue, rate, token)
        if not after:
            self.count(queue, rate.name, rate.window, token)
        return after

    def until_room(self, queue: str, rate: Rate, token: str) -> int:
        """Return 0 if this start is within the rate, or was counted before; else microseconds until there is room."""
        asked = {"queue": queue, "name": rate.name, "now": self._now, "window": micros(rate.window), "most": rate.most}
        room = self._room.get((queue, rate))
        if room is None:
            counted = self._execute(_COUNT, asked).fetchone()[0]
            room = self._room[queue, rate] = rate.most - counted
        if room > 0 or self._execute(_IS_KNOWN, (queue, rate.name, token)).fetchone():
            return 0
        oldest: int = self._execute(_LAST_BUT, asked).fetchone()[0]
        return oldest + micros(rate.window) - self._now

    def count(self, queue: str, name: str, window: float, token: str) -> None:
        until = self._now + micros(window + REMEMBER_CALLS)
        if self._execute(_START, (queue, name, token, self._now, until)).rowcount:
            for where, other in self._room:
                if (where, other.name) == (queue, name):
                    self._room[where, other] -= 1


def _is_done(step: Step, queue: str, key: str) -> bool:
    return bool(step.execute(_IS_DONE, (queue, key, step.now.wall)).fetchone())


def _live(rows: list[Any], now: ClockReading) -> dict[int, str]:
    """Return the ids of messages whose places count, by their numbers, from rows of `_HELD`."""
    return {row[0]: row[1] for row in rows if row[2] and not now.is_past(*row[3:])}


def _sweep_holds(step: Step, after: tuple[int, str]) -> tuple[int, str]:
    """Remove the holds of a page after `after` whose lease has ended; return where the next sweep begins."""
    rows = step.execute(_PAGE, after).fetchall()
    step.connection.executemany(_RELEASE_PLACES, [row[:2] for row in rows if not row[2]])
    return rows[-1][:2] if len(rows) == HOLD_SWEEP_PAGE else (0, "")
