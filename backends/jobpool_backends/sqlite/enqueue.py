"""Messages on their way in: jobs, and posted messages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from jobpool.broker.claim_store import POST_PRIORITY, NewPost
from jobpool.broker.values import NewMessage
from jobpool.errors import InvalidJob
from jobpool.message.batches import NOT_OPEN
from jobpool_backends.shared import delay_micros, micros
from jobpool_backends.sqlite.claim_rows import EndedPost, remove_posts
from jobpool_backends.sqlite.schema import DELAYED, EACH, POST_DELAYED, POSTED, WAITING
from jobpool_backends.sqlite.step import Step, sweeping

_LIVE_OR_DEAD = f"SELECT seq, queue, state, id, given, ends_at FROM messages WHERE id IN {EACH}"
_ENDED = f"SELECT id FROM ended WHERE id IN {EACH} AND until > ?"
_DROP_RESULTS = f"DELETE FROM results WHERE id IN {EACH}"  # of earlier jobs with these ids
_LAST_SEQ = "SELECT seq FROM sqlite_sequence WHERE name = 'messages'"
_COLUMNS = "seq, id, given, queue, handler, priority, state, enqueued_at, available_at"
_INSERT = f"INSERT INTO messages ({_COLUMNS}, batch) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_POST = f"INSERT INTO messages ({_COLUMNS}, ends_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_BODY = "INSERT INTO bodies (seq, body) VALUES (?, ?)"
_ENDOW = """
UPDATE messages
SET unique_key = ?, attempts = ?, crashes = ?, deliveries = ?, last_error = ?, cause = ?, last_crash = ?
WHERE seq = ?
"""
_ASKED = "json_each(:keys) AS asked CROSS JOIN"
_HAS_KEY = f"""
SELECT asked.key, messages.id FROM {_ASKED} messages INDEXED BY messages_unique
    ON queue = json_extract(asked.value, '$[0]') AND unique_key = json_extract(asked.value, '$[1]')
UNION ALL
SELECT asked.key, spent.id FROM {_ASKED} spent
    ON queue = json_extract(asked.value, '$[0]') AND spent.key = json_extract(asked.value, '$[1]') AND until > :now
"""
_CAN_JOIN = "SELECT 1 FROM batches WHERE id = ? AND"
_JOIN = "UPDATE batches SET total = total + ? WHERE id = ?"
# A call with such keys also drops those that need not be remembered any longer, a piece at a time.
_SWEEP = sweeping("spent", "queue, key")

New = TypeVar("New", NewMessage, NewPost)
Row = tuple[Any, ...]


def add(step: Step, messages: Sequence[NewMessage], brought: bool = False) -> dict[str, str]:
    """Insert those that are not known yet, in their order; the id of each whose unique key is known → who has it.

    `brought`: by a settlement. Raises `InvalidJob`: the batch of one is not open.
    """
    fresh = _leave_out_known(step, messages)
    existing = _leave_out_unique(step, fresh)
    insert(step, _join(step, list(fresh.values()), brought))
    if given := [message.id for message in fresh.values() if message.given]:
        step.execute(_DROP_RESULTS, (json.dumps(given),))
    return existing


def insert(step: Step, messages: Sequence[NewMessage]) -> None:
    """Insert these, even if their ids are known."""
    now = step.now.wall
    rows: list[Row] = []
    endowed: list[Row] = []  # the few that bring a key, or a past
    for seq, new in enumerate(messages, _next_seq(step)):
        due = micros(new.due) if new.due is not None else now
        state, available_at = (DELAYED, due) if due > now else (WAITING, now)
        facts = new.id, new.given, new.queue, new.handler, new.priority
        rows.append((seq, *facts, state, now, available_at, new.batch))
        counters, texts = (new.attempts, new.crashes, new.deliveries), (new.last_error, new.cause)
        if new.unique_key is not None or any(counters) or texts != (None, None):
            last_crash = now if new.crashes else None  # crashes that come with it count from here on
            endowed.append((new.unique_key, *counters, *texts, last_crash, seq))
    _put_in(step, _INSERT, rows, messages)
    if endowed:
        step.connection.executemany(_ENDOW, endowed)
    step.frees_jobs = step.frees_jobs or bool(rows)


def post(step: Step, queue: str, posts: Sequence[NewPost]) -> None:
    """Insert those that are not known yet, in their order."""
    fresh = list(_leave_out_known(step, posts).values())
    first, now = _next_seq(step), step.now.wall
    rows: list[Row] = []
    for seq, new in enumerate(fresh, first):
        delay = delay_micros(new.delay)
        state = POST_DELAYED if delay else POSTED
        ends_at = None if new.life is None else now + micros(new.life)
        rows.append((seq, new.id, new.given, queue, "", POST_PRIORITY, state, now, now + delay, ends_at))
    _put_in(step, _INSERT_POST, rows, fresh)


def _put_in(step: Step, sql: str, rows: list[Row], messages: Sequence[NewMessage | NewPost]) -> None:
    step.connection.executemany(sql, rows)
    bodies = [(row[0], message.body) for row, message in zip(rows, messages, strict=True)]
    step.connection.executemany(_INSERT_BODY, bodies)
    for row in rows:
        step.counts.add(row[3], row[6])


def _next_seq(step: Step) -> int:
    row = step.connection.execute(_LAST_SEQ).fetchone()
    return row[0] + 1 if row else 1


def _leave_out_known(step: Step, messages: Iterable[New]) -> dict[str, New]:
    by_id: dict[str, New] = {}
    for message in messages:
        by_id.setdefault(message.id, message)
    now = step.now.wall
    rows = step.execute(_LIVE_OR_DEAD, (json.dumps(list(by_id)),)).fetchall()
    ended = [EndedPost._make(row) for row in rows if row[5] is not None and row[5] <= now]
    remove_posts(step, ended)
    known = {row[3] for row in rows} - {gone.id for gone in ended}
    given = [message.id for message in by_id.values() if message.given]
    if given:
        known.update(row[0] for row in step.execute(_ENDED, (json.dumps(given), now)))
    for ident in known:
        del by_id[ident]
    return by_id


def _leave_out_unique(step: Step, fresh: dict[str, NewMessage]) -> dict[str, str]:
    """Take out of `fresh` what has the unique key of another; those ids → the ids that have the keys."""
    asking = [message for message in fresh.values() if message.unique_key is not None]
    if not asking:
        return {}
    now = step.now.wall
    step.execute(_SWEEP, (now,))
    keys = [(message.queue, message.unique_key) for message in asking]
    rows = step.execute(_HAS_KEY, {"keys": json.dumps(keys), "now": now})
    known = {keys[place]: ident for place, ident in rows}
    existing = {}
    for message, key in zip(asking, keys, strict=True):
        if key in known:
            existing[message.id] = known[key]
            del fresh[message.id]
        else:
            known[key] = message.id
    return existing


def _join(step: Step, messages: Sequence[NewMessage], brought: bool) -> Sequence[NewMessage]:
    """Count messages that are about to be added; return them, without batches that they join too late.

    `brought`: by a settlement, which nothing may hold up. Raises `InvalidJob`: the batch of one is not open.
    """
    counts = Counter(new.batch for new in messages if new.batch is not None)
    asked = f"{_CAN_JOIN} {'ended_at IS NULL' if brought else 'open'}"
    late = {batch for batch in counts if not step.execute(asked, (batch,)).fetchone()}
    if late and not brought:
        raise InvalidJob(NOT_OPEN.format(min(late)))
    step.connection.executemany(_JOIN, [(count, batch) for batch, count in counts.items() if batch not in late])
    return [replace(new, batch=None) if new.batch in late else new for new in messages] if late else messages
