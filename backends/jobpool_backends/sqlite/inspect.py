"""The administrator's side: counts, lists, single messages, and bulk changes. Reads never wait for a writer.

A filter becomes SQL and index ranges. A range is read in enqueue order, and bounded by the page. So a page of queues
and states costs the same at any length of the queue. A handler, an age or a text is looked for message by message.

For a bulk change, messages are looked for without the lock, and changed in transactions of bounded size, in which the
filter must hold again. One that moved on meanwhile is left alone. Leased ones are never touched. An edit reads its job,
compares it with what was seen, and changes it, in one transaction with the others of its call.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from jobpool.broker import parts
from jobpool.broker.values import Edit, Edited, Message, MessageFilter, QueueStats, State, Verb
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.message.settlement import CANCELLED
from jobpool_backends.shared import EDITED, MICRO, micros
from jobpool_backends.sql import BULK_BATCH_MESSAGES, read_message
from jobpool_backends.sqlite.batches import CANCELLED as BATCH_CANCELLED
from jobpool_backends.sqlite.batches import end_members
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.schema import (
    DEAD,
    DELAYED,
    LEASED,
    POST_DELAYED,
    POSTED,
    STATS_CAP,
    WAITING,
    living,
    whole,
)
from jobpool_backends.sqlite.step import Step, Sweeper

_COUNTS = f"""
SELECT {whole("waiting, delayed, leased, dead")}, posts + posts_delayed + posts_claimed FROM queues WHERE name = ?
"""
_EVICTED = "SELECT evicted FROM queues WHERE name = ?"
_FALLEN_DUE = f"""
SELECT count(*), min(seq) FROM (
    SELECT seq FROM messages INDEXED BY messages_due
    WHERE queue = ? AND state = 1 AND available_at <= ? LIMIT {STATS_CAP}
)
"""
_FIRST_WAITING = "SELECT min(seq) FROM messages INDEXED BY messages_listed WHERE queue = ? AND state = 0"
_ENQUEUED_AT = f"SELECT {whole('enqueued_at')} FROM messages WHERE seq = ?"
_QUEUES = "SELECT name FROM queues ORDER BY name"
_ENDING = "SELECT 1 FROM messages INDEXED BY messages_ending WHERE queue = name AND ends_at"
# A queue that holds only posts is busy when one of them lives: look for one that ends later, or count those that ended.
_BUSY_QUEUES = f"""
SELECT name FROM queues WHERE waiting + delayed + leased + dead > 0 OR CASE
    WHEN posts + posts_delayed + posts_claimed = 0 THEN 0
    WHEN EXISTS ({_ENDING} > :now) THEN 1
    ELSE posts + posts_delayed + posts_claimed > (SELECT count(*) FROM ({_ENDING} <= :now)) END
ORDER BY name
"""
_ENDED = f"""
SELECT count(*) FROM (SELECT 1 FROM messages INDEXED BY messages_ending WHERE queue = ? AND ends_at <= ?
                      LIMIT {STATS_CAP})
"""

LIVING = living(":now")
"""Left out where only jobs or dead letters can be met, so that these are counted without a look at each."""
_BODY = "coalesce((SELECT CAST(body AS BLOB) FROM bodies WHERE bodies.seq = messages.seq), x'')"
# The length of a blob is known without reading it.
_IS_LARGE = "EXISTS (SELECT 1 FROM bodies WHERE bodies.seq = messages.seq AND length(body) > :largest)"
_COLUMNS = f"""
seq, id, queue, handler, priority, {whole("attempts, crashes, deliveries, enqueued_at, available_at")},
CASE WHEN {_IS_LARGE} THEN 0 ELSE {_BODY} END, reason, last_error, coalesce(nullif(forfeited, ''), cause),
{whole("died_at, deadline_wall")}, claim, {whole("claims, ends_at")}, state
"""
_STORED = {
    State.WAITING: (WAITING, POSTED),
    State.DELAYED: (DELAYED, POST_DELAYED),
    State.LEASED: (LEASED,),
    State.DEAD: (DEAD,),
}
_STATES = {number: state for state, numbers in _STORED.items() for number in numbers}
_CAN_END = (POSTED, POST_DELAYED, LEASED)
_CONDITIONS = {
    State.WAITING: "(state IN (0, 4) OR (state IN (1, 5) AND available_at <= :now))",
    State.DELAYED: "(state IN (1, 5) AND available_at > :now)",
    State.LEASED: "state = 2",
    State.DEAD: "state = 3",
}
_RAISE = f"""
UPDATE messages SET state = CASE handler WHEN '' THEN {POSTED} ELSE {WAITING} END, available_at = :now, reason = NULL,
    died_at = NULL, begun = 1
"""
_THESE = "WHERE seq IN (SELECT value FROM json_each(:found))"
_CHANGES = {
    Verb.RETRY: f"{_RAISE}, attempts = 0, crashes = 0, claims = 0, last_error = NULL, cause = NULL, last_crash = NULL",
    Verb.RESUME: _RAISE,
    Verb.CANCEL: f"UPDATE messages SET state = {DEAD}, reason = '{CANCELLED}', died_at = :now",
}

_READ_WAITING = """
SELECT state, available_at, unique_key FROM messages
WHERE seq = ? AND id = ? AND queue = ? AND priority = ? AND state IN (0, 1) AND handler <> ''
"""
_EDIT = "UPDATE messages SET queue = ?, priority = ?, state = ?, available_at = ? WHERE seq = ?"
_EDIT_BODY = "UPDATE bodies SET body = ? WHERE seq = ?"
_HAS_KEY = """
SELECT EXISTS (SELECT 1 FROM messages INDEXED BY messages_unique WHERE queue = :queue AND unique_key = :key)
    OR EXISTS (SELECT 1 FROM spent WHERE queue = :queue AND key = :key AND until > :now)
"""
_LETTERS = {answer: letter for letter, answer in EDITED.items()}


class Inspector(parts.Inspector):
    """The view of one database, its bulk changes, and edits of jobs that wait."""

    def __init__(self, database: Database, sweeper: Sweeper) -> None:
        self._database = database
        self._sweeper = sweeper

    def stats(self, queue: str) -> QueueStats:
        with self._database.read() as connection:
            row = connection.execute(_COUNTS, (queue,)).fetchone()
            if row is None:
                return QueueStats()
            now = self._database.wall()
            due, first_due = connection.execute(_FALLEN_DUE, (queue, now)).fetchone()
            (first,) = connection.execute(_FIRST_WAITING, (queue,)).fetchone()
            seqs = [seq for seq in (first, first_due) if seq is not None]
            oldest = connection.execute(_ENQUEUED_AT, (min(seqs),)).fetchone()[0] if seqs else None
            waiting, delayed, leased, dead, posted = row
            ended = connection.execute(_ENDED, (queue, now)).fetchone()[0] if posted else 0
        age = max(0, now - oldest) / MICRO if oldest is not None else None
        cap = waiting + due if due == STATS_CAP else None
        return QueueStats(waiting + due, delayed - due, leased, dead, age, cap, posted - ended)

    def evicted(self, queue: str) -> int:
        with self._database.read() as connection:
            row = connection.execute(_EVICTED, (queue,)).fetchone()
        return row[0] if row else 0

    def queues(self) -> list[str]:
        with self._database.read() as connection:
            return [name for (name,) in connection.execute(_BUSY_QUEUES, {"now": self._database.wall()})]

    def page(self, where: MessageFilter, after: int, limit: int, largest: int = MAX_BODY_BYTES) -> list[Message]:
        with self._database.read() as connection:
            now = self._database.wall()
            rows = search_for(connection, where, now).find(connection, _COLUMNS, after, limit, largest)
        return [_message(row, now) for row in rows]

    def count(self, where: MessageFilter, cap: int) -> int:
        with self._database.read() as connection:
            wanted = search_for(connection, where, self._database.wall())
            found = 0
            for source in wanted.ranges:
                sql = f"SELECT count(*) FROM (SELECT 1 FROM {source} {wanted.where} LIMIT :left)"
                found += connection.execute(sql, wanted.arguments | {"left": cap - found}).fetchone()[0]
        return found

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        changed = first = 0
        while changed < limit:
            with self._database.read() as connection:
                search = search_for(connection, where, self._database.wall())
                rows = search.find(connection, "seq", first, min(BULK_BATCH_MESSAGES, limit - changed))
            if not rows:
                break
            changed += self._change(where, verb, [row[0] for row in rows])
            first = rows[-1][0]
        return changed

    def _change(self, where: MessageFilter, verb: Verb, found: list[int]) -> int:
        with self._database.write() as step:
            wanted = search_for(step.connection, where, step.now.wall)
            sql = f"SELECT seq, queue, state, id, given, handler FROM messages {_THESE} AND {LIVING} AND {wanted.where}"
            sql += " AND handler <> ''" * (verb is Verb.CANCEL)
            rows = step.execute(sql, wanted.arguments | {"found": json.dumps(found)}).fetchall()
            numbers = [row[0] for row in rows]
            if verb in (Verb.DELETE, Verb.CANCEL):
                end_members(step, numbers, BATCH_CANCELLED)
            if verb is Verb.DELETE:
                step.delete(numbers, [ident for _, _, _, ident, given, _ in rows if given])
            else:
                asked = {"now": step.now.wall, "found": json.dumps(numbers)}
                step.execute(f"{_CHANGES[verb]} {_THESE}", asked)
                step.frees_jobs = bool(rows) and verb is not Verb.CANCEL
            for _, queue, state, _, _, handler in rows:
                step.counts.add(queue, state, -1)
                if verb is Verb.CANCEL:
                    step.counts.add(queue, DEAD)
                elif verb is not Verb.DELETE:
                    step.counts.add(queue, WAITING if handler else POSTED)
        return len(rows)

    def edit(self, edits: Sequence[Edit], call_id: str) -> list[Edited]:
        call = f"edit:{call_id}"
        with self._database.write() as step:
            known = step.recall(call)
            if known is not None:
                return [EDITED[letter] for letter in known]
            self._sweeper.sweep(step)
            answers = [_edit(step, edit) for edit in edits]
            step.remember(call, "".join([_LETTERS[answer] for answer in answers]))
            step.frees_jobs = Edited.EDITED in answers
        return answers


def _edit(step: Step, edit: Edit) -> Edited:
    seen, number = edit.seen, int(edit.seen.cursor)
    row: tuple[Any, ...] | None = step.execute(_READ_WAITING, (number, seen.id, seen.queue, seen.priority)).fetchone()
    if row is None:
        return Edited.CHANGED
    before, available_at, key = row
    now = step.now.wall
    if edit.queue != seen.queue and key is not None:
        asked = {"queue": edit.queue, "key": key, "now": now}
        if step.execute(_HAS_KEY, asked).fetchone()[0]:
            return Edited.DUPLICATE
    after = before
    if edit.due is not None:
        available_at = max(now, micros(edit.due))
        after = DELAYED if available_at > now else WAITING
    step.execute(_EDIT, (edit.queue, edit.priority, after, available_at, number))
    if edit.body is not None:
        step.execute(_EDIT_BODY, (edit.body, number))
    step.counts.add(seen.queue, before, -1)
    step.counts.add(edit.queue, after)
    return Edited.EDITED


def _message(row: tuple[Any, ...], now: int) -> Message:
    *columns, stored = row
    state, available_at, deadline, claim = _STATES[stored], row[9], row[15], row[16]
    if state is State.DELAYED and available_at <= now:
        state = State.WAITING
    return read_message(columns, state, claim if claim is not None and now < deadline else None)


_ASKED = {
    "queue": "queue = :queue",
    "handler": "handler = :handler",
    "reason": "reason = :reason",
    "older_than": "coalesce(died_at, enqueued_at) <= :now - :older_than",
    "newer_than": "coalesce(died_at, enqueued_at) >= :now - :newer_than",
    "ids": "id IN (SELECT value FROM json_each(:ids))",
    "text": f"jobpool_contains(:text, {_BODY}, last_error, cause, forfeited)",
}
"""Conditions of a filter's fields."""

_CONVERTED: dict[str, Callable[[Any], object]] = {"older_than": micros, "newer_than": micros, "ids": json.dumps}


class Search(Struct):
    """`where` holds for each living message that is wanted; `ranges` are FROM clauses that together hold them all."""

    where: str
    ranges: list[str]
    arguments: dict[str, object]

    def find(
        self, connection: sqlite3.Connection, columns: str, first: int, limit: int, largest: int = 0
    ) -> list[tuple[Any, ...]]:
        """Return the first `limit` messages after sequence number `first`; bodies of these alone are read."""
        arguments = self.arguments | {"first": first, "limit": limit}
        found: list[int] = []
        for source in self.ranges:
            sql = f"SELECT seq FROM {source} {self.where} AND seq > :first ORDER BY seq LIMIT :limit"
            found += [seq for (seq,) in connection.execute(sql, arguments)]
        page = {"found": json.dumps(sorted(found)[:limit]), "largest": largest}
        return connection.execute(f"SELECT {columns} FROM messages {_THESE} ORDER BY seq", page).fetchall()


def search_for(connection: sqlite3.Connection, wanted: MessageFilter, now: int) -> Search:
    arguments: dict[str, object] = {"now": now}
    conditions = ["1"]
    if wanted.states:
        conditions.append("(" + " OR ".join(_CONDITIONS[State(state)] for state in wanted.states) + ")")
    for name, condition in _ASKED.items():
        value = getattr(wanted, name)
        if value is not None and value != ():
            convert = _CONVERTED.get(name)
            arguments[name] = convert(value) if convert else value
            conditions.append(condition)
    return Search(" AND ".join(conditions), _ranges(connection, wanted, arguments), arguments)


def _ranges(connection: sqlite3.Connection, wanted: MessageFilter, arguments: dict[str, object]) -> list[str]:
    if wanted.ids:
        return [f"messages INDEXED BY messages_by_id WHERE {LIVING} AND"]
    if wanted.queue is None and not wanted.states:
        return [f"messages NOT INDEXED WHERE {LIVING} AND"]
    ranges, queues = [], connection.execute(_QUEUES) if wanted.queue is None else [(wanted.queue,)]
    for number, (queue,) in enumerate(queues):
        name = f"range{number}"
        arguments[name] = queue
        ranges += [source.format(name=name) for source in _sources(wanted.states or tuple(State))]
    return ranges


def _sources(states: tuple[State, ...]) -> list[str]:
    sources = []
    for stored in [stored for state in dict.fromkeys(states) for stored in _STORED[State(state)]]:
        end = f"{LIVING} AND" if stored in _CAN_END else ""
        sources.append(f"messages INDEXED BY messages_listed WHERE queue = :{{name}} AND state = {stored} AND {end}")
    if State.WAITING in states and State.DELAYED not in states:  # delayed, fallen due, and not fetched since
        sources += [
            "messages INDEXED BY messages_due WHERE queue = :{name} AND state = 1 AND available_at <= :now AND",
            "messages INDEXED BY messages_posts_due WHERE queue = :{name} AND state = 5 AND available_at <= :now"
            f" AND {LIVING} AND",
        ]
    return sources
