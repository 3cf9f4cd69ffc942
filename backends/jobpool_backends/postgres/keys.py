"""The key store: what leases hold, what rates count; records and logs. One function of the schema a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from jobpool.broker.key_store import KeyStore
from jobpool.errors import BackendUnavailable
from jobpool.message.guards import Begin, Begun, Guards, Rate
from jobpool.message.lease import JobLease
from jobpool.message.names import storable
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.fetch import lease_columns
from jobpool_backends.postgres.retention import Sweeper
from jobpool_backends.shared import KEY_PLACE, MICRO, micros

MAX_LISTED_LOGS = 10_000

_BEGIN = """
SELECT * FROM {schema}.begin_leases(%(queues)s, %(seqs)s, %(holders)s, %(wants)b::text[], %(scopes)b::text[],
    %(names)b::text[], %(fulls)b::integer[], %(rate_scopes)b::text[], %(rate_names)b::text[],
    %(rate_fulls)b::integer[], %(rate_lengths)b::bigint[])
"""
_LEAVE = "SELECT {schema}.leave_places(%(queues)s, %(names)b::text[], %(seqs)s, %(holders)s)"
_FIRST_RUN = "SELECT {schema}.first_run(%(queue)b, %(key)b, %(length)b::bigint)"
_FORGET = "SELECT {schema}.forget(%(queue)b, %(key)b)"
_TAKE = """
SELECT {schema}.take_starts(%(queue)b, %(names)b::text[], %(mosts)b::integer[], %(lengths)b::bigint[], %(token)b)
"""
_HOLDERS = "SELECT {schema}.holders(%(queue)b, %(name)b)"
_PUT = "SELECT {schema}.put_records(%(space)b, %(keys)b::text[], %(values)b::bytea[], %(length)b::bigint)"
_GET = "SELECT {schema}.get_record(%(space)b, %(key)b)"
_LIST = "SELECT key, value FROM {schema}.list_records(%(space)b, %(prefix)b, %(after)b, %(most)b::integer)"
_DELETE = "SELECT {schema}.delete_records(%(space)b, %(keys)b::text[])"
_APPEND = "SELECT {schema}.append_log(%(space)b, %(names)b::text[], %(lines)b::bytea[], %(keep)b::integer)"
_READ = "SELECT * FROM {schema}.read_log(%(space)b, %(name)b, %(most)b::integer)"
_LOGS = "SELECT {schema}.list_logs(%(space)b, %(most)b::integer)"

_ANSWERS = {"g": Begin.GRANTED, "d": Begin.DONE, "h": Begin.HELD, "l": Begin.LIMITED, "x": Begin.LOST}

_Asked = Sequence[tuple[JobLease, Guards]]


class PostgresKeys(KeyStore):
    """The key store of one database. `sql/guarding.sql` says how two calls at once are kept apart.

    A call for guards, rates or log lines waits for the commits of calls for the same names.
    """

    def __init__(self, database: Database, sweeper: Sweeper) -> None:
        self._database = database
        self._sweeper = sweeper

    # --- guards --------------------------------------------------------------------------------------

    def _begin(self, asked: _Asked) -> list[Begun]:
        rows = self._decide(_BEGIN, _wanted(asked))
        self._sweeper.sweep()
        return [Begun(_ANSWERS[answer], refused, after / MICRO) for answer, refused, after in rows]

    def leave(self, settled: Iterable[JobLease]) -> None:
        """Remove the places of leases that were settled. They count no more, with or without this."""
        left = [(lease, name) for lease in settled if lease.guards for name, _ in _places(lease.guards)]
        if not left:
            return
        leases = [lease for lease, _ in left]
        asked = lease_columns(leases) | {"names": [name for _, name in left]}
        with contextlib.suppress(BackendUnavailable):  # the settlements were answered; the sweep has the places later
            self._run(_LEAVE, asked)

    def _first_run(self, queue: str, key: str, ttl: float) -> bool:
        first: bool = self._one(_FIRST_RUN, queue=queue, key=key, length=micros(ttl))
        self._sweeper.sweep()
        return first

    def _forget(self, queue: str, key: str) -> bool:
        forgotten: bool = self._one(_FORGET, queue=queue, key=key)
        return forgotten

    def _take_many(self, queue: str, rates: Sequence[Rate], token: str) -> list[float]:
        asked = {
            "queue": queue,
            "names": [rate.name for rate in rates],
            "mosts": [rate.most for rate in rates],
            "lengths": [micros(rate.window) for rate in rates],
            "token": storable(token),
        }
        [(rests,)] = self._decide(_TAKE, asked)
        self._sweeper.sweep()
        return [rest / MICRO for rest in rests]

    def _holders(self, queue: str, name: str) -> list[str]:
        return sorted(self._one(_HOLDERS, queue=queue, name=storable(name)))

    # --- records -------------------------------------------------------------------------------------

    def _put_records(self, space: str, records: Mapping[str, bytes], ttl: float) -> None:
        self._one(_PUT, space=space, keys=list(records), values=list(records.values()), length=micros(ttl))
        self._sweeper.sweep()

    def _get_record(self, space: str, key: str) -> bytes | None:
        value: bytes | None = self._one(_GET, space=space, key=storable(key))
        return value

    def _list_records(self, space: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        asked = {"space": space, "prefix": storable(prefix), "after": storable(after), "most": limit}
        return [(key, value) for key, value in self._run(_LIST, asked)]

    def _delete_records(self, space: str, keys: Sequence[str]) -> None:
        self._one(_DELETE, space=space, keys=[storable(key) for key in keys])

    # --- logs ----------------------------------------------------------------------------------------

    def _append_log(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        asked = {"names": [name for name, _ in lines], "lines": [line for _, line in lines], "keep": keep}
        self._decide(_APPEND, {"space": space, **asked})

    def _read_log(self, space: str, name: str, limit: int) -> list[bytes]:
        return [line for (line,) in self._run(_READ, {"space": space, "name": storable(name), "most": limit})]

    def _list_logs(self, space: str) -> list[str]:
        return list(self._one(_LOGS, space=space, most=MAX_LISTED_LOGS))

    # --- asking --------------------------------------------------------------------------------------

    def _run(self, sql: str, asked: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return self._database.run(sql, asked)

    def _one(self, sql: str, **asked: Any) -> Any:
        [(answer,)] = self._run(sql, asked)
        return answer

    def _decide(self, sql: str, asked: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return self._database.run_committed(sql, asked)


def _wanted(asked: _Asked) -> dict[str, Any]:
    """Return the parameters of the function `begin_leases`."""
    fulls, rates = _fulls(asked), _rates(asked)
    return lease_columns([lease for lease, _ in asked]) | {
        "rate_scopes": [queue for queue, _ in rates],
        "rate_names": [name for _, name in rates],
        "rate_fulls": [full for full, _ in rates.values()],
        "rate_lengths": [length for _, length in rates.values()],
        "wants": [_want(guards) for _, guards in asked],
        "scopes": [queue for queue, _ in fulls],
        "names": [name for _, name in fulls],
        "fulls": list(fulls.values()),
    }


def _fulls(asked: _Asked) -> dict[tuple[str, str], int | None]:
    """Return, by queue and name, how many places must be taken for a call to be refused; None under a rate's name.

    With fewer taken, there is room for all that the call asks for.
    """
    wanted: dict[tuple[str, str], list[int]] = {}
    for lease, guards in asked:
        for name, most in _places(guards):
            wanted.setdefault((lease.queue, name), []).append(most)
    fulls: dict[tuple[str, str], int | None] = {
        (lease.queue, rate.name): None for lease, guards in asked for rate in guards.rates
    }
    return fulls | {place: min(mosts) - len(mosts) + 1 for place, mosts in wanted.items()}


def _rates(asked: _Asked) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the same for rates, by queue and name: starts in the longest window, and that window in microseconds."""
    wanted: dict[tuple[str, str], list[Rate]] = {}
    for lease, guards in asked:
        for rate in guards.rates:
            wanted.setdefault((lease.queue, rate.name), []).append(rate)
    return {
        place: (min(rate.most for rate in rates) - len(rates) + 1, micros(max(rate.window for rate in rates)))
        for place, rates in wanted.items()
    }


def _places(guards: Guards) -> list[tuple[str, int]]:
    """Return all names under which places are wanted, each with how many there are."""
    places = [(hold.name, hold.most) for hold in guards.holds]
    return places if guards.key is None else [*places, (f"{KEY_PLACE}{storable(guards.key)}", 1)]


def _want(guards: Guards) -> str:
    """Return the same as JSON, in the order in which it is tried."""
    want: dict[str, Any] = {}
    if guards.key is not None:
        want["key"] = storable(guards.key)
    if guards.holds:
        want["holds"] = [(hold.name, hold.most) for hold in guards.holds]
    if guards.rates:
        want["rates"] = [(rate.name, rate.most, micros(rate.window)) for rate in guards.rates]
    return orjson.dumps(want).decode()
