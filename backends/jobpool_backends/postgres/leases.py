"""Leases: taking messages, renewing, settling and reaping them; and leases as parameters of functions of the schema.

Each is one statement for a whole batch. Acks, nearly all that a pool sends, go together. The rest goes one by one, in
order, within the same statement: other settlements, acks that mark a key done, and messages named twice. Follow-ups and
messages that move are a second statement of the same transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import REAP_LIMIT, Reaped, ReapPolicy
from jobpool.clock import Clock
from jobpool.errors import LONGEST_WAIT_S, OUTAGES, BackendUnavailable
from jobpool.message.envelope import OVERSIZED
from jobpool.message.guards import IDEMPOTENCY_TTL, Guards
from jobpool.message.lease import JobLease
from jobpool.message.names import storable
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool_backends.postgres.connection import Connection
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.enqueue import Enqueuer
from jobpool_backends.postgres.in_transaction import or_null
from jobpool_backends.shared import MICRO, SETTLED, delay_micros, micros, more_than, with_past
from jobpool_backends.sql import number_of

HOLDERS = 1 << 63
_NOBODY = -1

_ACK = "SELECT {schema}.settle(%(call)b, %(ack_queues)s, %(ack_seqs)s, %(ack_holders)s)"
_SETTLE = """
SELECT {schema}.settle(%(call)b, %(ack_queues)s, %(ack_seqs)s, %(ack_holders)s, %(queues)s, %(seqs)s, %(holders)s,
    %(verbs)b, %(delays)s, %(reasons)b::text[], %(errors)b::text[], %(causes)b::text[], %(keys)b::text[],
    %(keeps)b::bigint[], %(starts)b::text[])
"""
_KEEP = "SELECT {schema}.keep_results((SETTLE), %(places)s, %(ids)b::text[], %(lasts)s, %(records)b::bytea[])"
_RENEW = "SELECT {schema}.renew(%(queues)s, %(seqs)s, %(holders)s, %(length)b::bigint)"
_PAST = """
SELECT last_error, cause, batch FROM {schema}.messages WHERE queue = %(queue)s AND state IN (0, 2) AND seq = %(seq)s
"""

_ANSWERS = SETTLED | {"a": Settled.ALREADY}

_EVICT_BATCH_MESSAGES = 1000
_MAX_EVICTIONS = 5  # statements for one queue after one call; the next goes on: a cap was set on a long list


class _Term(NamedTuple):
    """A settlement that goes by itself, as the columns of the function `settle`."""

    verb: str
    delay: int = -1  # it does not come back by this
    reason: str | None = None
    error: str | None = None
    cause: str | None = None
    key: str | None = None
    keep: int | None = None
    starts: str | None = None


class Leases:
    def __init__(self, database: Database, clock: Clock, enqueuer: Enqueuer, scheme: str) -> None:
        self._database = database
        self._clock = clock
        self._enqueuer = enqueuer
        self._scheme = scheme
        self._caps = database.address.caps

    def fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        before = self._clock.boot()
        asked = (queue, min(limit, 2**31 - 1), micros(ttl), fetch_id, secrets.randbelow(HOLDERS), True)
        rows = self._database.call("take_leases", *asked)
        if not rows:
            return []
        self._database.sweep()
        rows.sort()  # by priority and sequence number, which no two have alike
        scheme = self._scheme
        holder = f"{rows[0][9]:016x}"  # they were all taken by one call
        return [
            JobLease(
                ident,
                queue,
                OVERSIZED if body is None else body,
                seq,
                f"{holder}{seq:016x}",
                before + remaining / MICRO,
                scheme,
                attempts,
                crashes,
                deliveries,
                enqueued_at / MICRO,
                begun,
            )
            for _, seq, ident, body, attempts, crashes, deliveries, enqueued_at, begun, _, remaining in rows
        ]

    def renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        end = self._clock.boot() + ttl
        [(letters,)] = self._database.run(_RENEW, lease_columns(leases) | {"length": micros(ttl)})
        return [
            replace(lease, expires_at=end) if letter == "r" else lease if letter == "k" else None
            for lease, letter in zip(leases, letters, strict=True)
        ]

    def settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        """Return the answers. `brought`: the messages that each settlement adds, by its place."""
        acks, rest = _sort_out(settlements)
        sql: str = _SETTLE if rest else _ACK
        asked = {"call": call_id, **lease_columns([settlements[place][0] for place in acks], "ack_")}
        if rest:
            asked |= lease_columns([settlements[place][0] for place in rest])
            asked |= _columns([_term(settlements[place][1], settlements[place][0].guards) for place in rest])
        if kept := _kept(settlements, acks + rest):  # for accepted acks, in the same step
            sql, asked = _KEEP.replace("SETTLE", sql), asked | kept

        def settle_and_bring(connection: Connection) -> list[Settled]:
            whole = self._with_pasts(connection, settlements, brought)
            rows = connection.execute(self._database.fill(sql), asked).fetchall()
            answers = _in_order(rows, acks + rest)
            new = [message for place, messages in whole.items() if answers[place] is Settled.OK for message in messages]
            if new:
                self._enqueuer.add_on(connection, new, brought=True)
            return answers

        if brought:
            answers = self._database.transaction(settle_and_bring)
        else:
            answers = _in_order(self._database.run(sql, asked), acks + rest)
        self._database.sweep()
        if self._caps:
            self._evict({lease.queue for lease, settlement in settlements if type(settlement) is Abandon})
        return answers

    def _with_pasts(self, connection: Connection, settlements: Settlements, brought: Brought) -> Brought:
        """Return `brought`, with the batches of messages that move, and the last error and cause without new ones."""
        whole = dict(brought)
        for place, messages in brought.items():
            lease, settlement = settlements[place]
            if isinstance(settlement, Move):
                asked = {"queue": lease.queue, "seq": number_of(lease)}
                past = connection.execute(self._database.fill(_PAST), asked).fetchone()
                *told, batch = past or (None, None, None)  # None: it is refused
                whole[place] = [replace(with_past(message, told), batch=batch) for message in messages]
        return whole

    def reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        """Take back messages whose lease has expired; changes nothing when there are none."""
        window = micros(min(policy.window, LONGEST_WAIT_S))
        back_off = [float(min(delay, LONGEST_WAIT_S)) for delay in (policy.back_off, policy.back_off_cap)]
        visible = None if visibility_timeout is None else more_than(visibility_timeout)
        crashes = min(policy.max_crashes, 2**31 - 1)
        rows = self._database.call("reap", queue, crashes, window, *back_off, visible, REAP_LIMIT)
        if self._caps:
            self._evict({queue})
        return [Reaped(ident, queue, crashes, cause, dead) for ident, crashes, cause, dead in rows]

    def _evict(self, queues: Iterable[str]) -> None:
        """Remove the dead letters that are too old or too many, when something may have died in these queues."""
        # The call that brought us here was answered; the next one will meet the error.
        with suppress(*OUTAGES):
            for queue in sorted(queues):
                self._shorten(queue)

    def _shorten(self, queue: str) -> None:
        asked = (queue, self._caps.most or None, self._caps.age or None, _EVICT_BATCH_MESSAGES)
        for _ in range(_MAX_EVICTIONS):
            if self._database.value("evict", *asked) < _EVICT_BATCH_MESSAGES:
                return


def holder_of(lease: JobLease) -> int:
    """Return the half of the owner token that the table has; one that nobody has for a token that is none of ours."""
    try:
        holder = int(lease.owner_token[:16], 16)
    except ValueError:
        return _NOBODY
    return holder if 0 <= holder < HOLDERS else _NOBODY


def lease_columns(leases: Sequence[JobLease], prefix: str = "") -> dict[str, str]:
    """Return the parameters `queues`, `seqs` and `holders` of functions that take leases."""
    return {
        f"{prefix}queues": _names([lease.queue for lease in leases]),
        f"{prefix}seqs": numbers(map(number_of, leases)),
        f"{prefix}holders": numbers(map(holder_of, leases)),
    }


def numbers(values: Iterable[int]) -> str:
    """Return an array of integers as Postgres reads it: a fifth of what psycopg takes to adapt a list."""
    return f"{{{','.join(map(str, values))}}}"


def _names(values: Sequence[str]) -> str:
    """Return an array of queue names as Postgres reads it; most often all names are the same."""
    if values and values.count(values[0]) == len(values):
        return f"{{{','.join([_quoted(values[0])] * len(values))}}}"
    return f"{{{','.join(map(_quoted, values))}}}"


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _sort_out(settlements: Settlements) -> tuple[list[int], list[int]]:
    """Return the places of plain acks and of all others. If a message comes twice, everything is in the second."""
    alone = len({number_of(lease) for lease, _ in settlements}) == len(settlements)
    acks: list[int] = []
    rest: list[int] = []
    for place, (lease, settlement) in enumerate(settlements):
        plain = alone and type(settlement) is Ack and (lease.guards is None or not _marks_keys(lease.guards))
        (acks if plain else rest).append(place)
    return acks, rest


def _kept(settlements: Settlements, order: list[int]) -> dict[str, Any]:
    """Return what is to be kept, as parameters of `keep_results`; `order` has the places of the answers."""
    found = [
        (number, settlements[place][0].id, settlement.result)
        for number, place in enumerate(order, 1)
        if type(settlement := settlements[place][1]) is Ack and settlement.result is not None
    ]
    if not found:
        return {}
    places, idents, results = zip(*found, strict=True)
    lasts, records = [micros(result.ttl) for result in results], [result.record for result in results]
    return {"places": numbers(places), "ids": list(idents), "lasts": numbers(lasts), "records": records}


def _term(settlement: Settlement, guards: Guards | None) -> _Term:
    match settlement:
        case Ack():
            key, keep = to_be_done(guards)
            return _Term("a", key=key, keep=keep)
        case Nack(delay, error, cause):
            return _Term("n", delay_micros(delay), error=error, cause=cause)
        case Release(delay, begun):
            # The names of rates whose starts are given back, a line each; they are printable, so no line ends in one.
            starts = "\n".join(rate.name for rate in guards.rates) if guards is not None and not begun else ""
            return _Term("s" if begun else "r", delay_micros(delay), starts=starts or None)
        case Abandon(reason, error, cause):
            return _Term("x" if settlement.attempts else "b", reason=reason, error=error, cause=cause)
        case Forfeit(cause):
            return _Term("f", reason=cause)
        case Move():
            return _Term("m")


def _columns(terms: list[_Term]) -> dict[str, Any]:
    verbs, delays, *texts = map(list, zip(*terms, strict=True))
    named = zip(("reasons", "errors", "causes", "keys", "keeps", "starts"), map(or_null, texts), strict=True)
    return {"verbs": "".join(verbs), "delays": numbers(delays), **dict(named)}


def _marks_keys(guards: Guards) -> bool:
    """Return whether an ack under these guards marks a key done, or changes how long a unique one is known."""
    return guards.key is not None or guards.keep != IDEMPOTENCY_TTL


def to_be_done(guards: Guards | None) -> tuple[str | None, int | None]:
    """Return the key that an ack marks done; and for how long, in microseconds, it and a unique key are known."""
    if guards is None or not _marks_keys(guards):
        return None, None
    return None if guards.key is None else storable(guards.key), micros(guards.keep)


def _in_order(rows: list[tuple[Any, ...]], order: list[int]) -> list[Settled]:
    """Return the answers in the order of the call; `order` has the place of each.

    Raises `BackendUnavailable`: a migration has changed the functions while this call ran. The same call, sent again,
    is answered by the new ones.
    """
    [(letters,)] = rows
    answers = [Settled.NOT_IN_FLIGHT] * len(order)
    try:
        for place, letter in zip(order, letters, strict=True):
            answers[place] = _ANSWERS[letter]
    except (KeyError, ValueError):
        raise BackendUnavailable(f"Postgres gave an answer that this version does not know: {letters!r:.100}") from None
    return answers
