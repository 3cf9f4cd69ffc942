"""The key store: places that leases hold, starts that rates count, records, logs. One function of the schema a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from jobpool.broker.key_store import KeyStore
from jobpool.errors import OUTAGES
from jobpool.message.guards import Begin, Begun, Guards, Rate
from jobpool.message.lease import JobLease
from jobpool.message.names import storable
from jobpool_backends.postgres.database import Database, calling
from jobpool_backends.postgres.in_transaction import or_null
from jobpool_backends.postgres.leases import lease_columns
from jobpool_backends.shared import MAX_LISTED_LOGS, MICRO, all_holds, micros

_BEGIN = """
SELECT * FROM {schema}.begin_leases(%(queues)s, %(seqs)s, %(holders)s, %(wants)b::text[], %(scopes)b::text[],
    %(names)b::text[], %(fulls)b::integer[], %(rate_scopes)b::text[], %(rate_names)b::text[],
    %(rate_fulls)b::integer[], %(rate_lengths)b::bigint[])
"""
_GET = "SELECT n.key, {schema}.get_record(%b, n.key) FROM unnest(%b::text[]) AS n (key)"
_RELEASE_PLACES = "SELECT {schema}.leave_places(%(queues)s, %(names)b::text[], %(seqs)s, %(holders)s)"

_ANSWERS = {"g": Begin.GRANTED, "d": Begin.DONE, "h": Begin.HELD, "l": Begin.LIMITED, "x": Begin.LOST}

_Asked = Sequence[tuple[JobLease, Guards]]


class PostgresKeys(KeyStore):
    """The key store of one database. `sql/guards.sql` says how two calls at once are kept apart.

    A call for guards, rates or log lines waits for the commits of calls for the same names.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._value = database.value
        self._sweep = database.sweep

    def _begin(self, asked: _Asked) -> list[Begun]:
        rows = self._database.run_committed(_BEGIN, _wanted(asked))
        self._sweep()
        return [Begun(_ANSWERS[answer], refused, after / MICRO) for answer, refused, after in rows]

    def leave(self, settled: Iterable[JobLease]) -> None:
        """Remove the places of leases that were settled. They count no more, with or without this."""
        left = [(lease, name) for lease in settled if lease.guards for name, _, _ in all_holds(lease.guards)]
        if left:
            asked = lease_columns([lease for lease, _ in left]) | {"names": [name for _, name in left]}
            with suppress(*OUTAGES):  # the settlements were answered; the sweep has the places later
                self._database.run(_RELEASE_PLACES, asked)

    def _first_run(self, queue: str, key: str, ttl: float) -> bool:
        first = self._value("first_run", queue, key, micros(ttl), repeatable=False)
        self._sweep()
        return bool(first)

    def _forget(self, queue: str, key: str) -> bool:
        return bool(self._value("forget", queue, key))

    def _take_many(self, queue: str, rates: Sequence[Rate], token: str) -> list[float]:
        mosts, windows = [rate.most for rate in rates], [micros(rate.window) for rate in rates]
        asked = (queue, [rate.name for rate in rates], mosts, windows, token)
        [(rests,)] = self._database.run_committed(calling("take_starts", 5), asked)
        self._sweep()
        return [rest / MICRO for rest in rests]

    def _holders(self, queue: str, name: str) -> list[str]:
        return sorted(self._value("holders", queue, name))

    def _put_records(self, space: str, records: Mapping[str, bytes], ttl: float) -> None:
        self._value("put_records", space, list(records), list(records.values()), micros(ttl))
        self._sweep()

    def _get_records(self, space: str, keys: Sequence[str]) -> dict[str, bytes]:
        return {key: value for key, value in self._database.run(_GET, (space, keys)) if value is not None}

    def _list_records(self, space: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        rows = self._database.call("list_records", space, prefix, after, limit)
        return [(key, value) for key, value in rows]

    def _delete_records(self, space: str, keys: Sequence[str]) -> None:
        self._value("delete_records", space, list(keys))

    def _append_log(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        asked = (space, [name for name, _ in lines], [line for _, line in lines], keep)
        self._database.run_committed(calling("append_log", 4), asked)

    def _read_log(self, space: str, name: str, limit: int) -> list[bytes]:
        return [line for (line,) in self._database.call("read_log", space, name, limit)]

    def _list_logs(self, space: str) -> list[str]:
        return list(self._value("list_logs", space, MAX_LISTED_LOGS))


def _wanted(asked: _Asked) -> dict[str, Any]:
    """Return the parameters of the function `begin_leases`.

    `fulls` and `rate_fulls`: how many places or starts must be taken for a call to be refused. With fewer taken, there
    is room for all that the call asks for. A rate's name is among the places, too, without a number.
    """
    places: dict[tuple[str, str], list[int]] = {}
    rates: dict[tuple[str, str], list[Rate]] = {}
    for lease, guards in asked:
        for name, most, _ in all_holds(guards):
            places.setdefault((lease.queue, name), []).append(most)
        for rate in guards.rates:
            rates.setdefault((lease.queue, rate.name), []).append(rate)
    fulls: dict[tuple[str, str], int | None] = dict.fromkeys(rates)
    fulls |= {place: min(mosts) - len(mosts) + 1 for place, mosts in places.items()}
    return lease_columns([lease for lease, _ in asked]) | {
        "rate_scopes": [queue for queue, _ in rates],
        "rate_names": [name for _, name in rates],
        "rate_fulls": [min(rate.most for rate in same) - len(same) + 1 for same in rates.values()],
        "rate_lengths": [micros(max(rate.window for rate in same)) for same in rates.values()],
        "wants": [_want(guards) for _, guards in asked],
        "scopes": [queue for queue, _ in fulls],
        "names": [name for _, name in fulls],
        "fulls": or_null(list(fulls.values())),
    }


def _want(guards: Guards) -> str:
    """Return the same as JSON, in the order in which it is tried."""
    want = {
        "key": None if guards.key is None else storable(guards.key),
        "holds": [(hold.name, hold.most) for hold in guards.holds],
        "rates": [(rate.name, rate.most, micros(rate.window)) for rate in guards.rates],
    }
    return orjson.dumps({name: value for name, value in want.items() if value not in (None, [])}).decode()
