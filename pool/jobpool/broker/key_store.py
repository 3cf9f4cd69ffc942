"""The optional part of a broker that keeps keys: `QueueBackend.keys`, where `Capabilities.key_store` says so.

Three things are kept, all scoped by queue and all on the broker's clock:

* **guards**: idempotency keys, single-instance locks, concurrency places and rates, granted to a lease (guards.py);
* **records**: small values of a pool's own under (space, key), which end by themselves;
* **logs**: the newest lines under (space, name).

Safe to share between threads. Every method may raise `BackendUnavailable` (nothing is known; all of them are safe to
call again) and blocks for one round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec import MsgspecError, json

from jobpool.errors import InvalidJob
from jobpool.message.guards import IDEMPOTENCY_TTL, LONGEST_RECORD_KEPT, MOST_LINES, Begun, Guards, Rate, check_keep
from jobpool.message.lease import JobLease
from jobpool.message.names import check_name, check_queue, storable
from jobpool.message.units import check_int

Kind = TypeVar("Kind")

LONGEST_RECORD = 256 * 1024  # bytes of one record, or of one line of a log


class KeyStore:
    """The key store of a broker, as the module describes it. Unique enqueue is a part of `enqueue`, in the same step.

    A broker fills in the underscored methods: each is one atomic step with the arguments of the public one, checked.
    """

    _begin: Callable[[Sequence[tuple[JobLease, Guards]]], list[Begun]]
    _first_run: Callable[[str, str, float], bool]
    _forget: Callable[[str, str], bool]
    _take_many: Callable[[str, Sequence[Rate], str], list[float]]
    _holders: Callable[[str, str], list[str]]
    _put_records: Callable[[str, Mapping[str, bytes], float], None]
    _get_records: Callable[[str, Sequence[str]], dict[str, bytes]]
    _list_records: Callable[[str, str, str, int], list[tuple[str, bytes]]]
    _delete_records: Callable[[str, Sequence[str]], None]
    _append_log: Callable[[str, Sequence[tuple[str, bytes]], int], None]
    _read_log: Callable[[str, str, int], list[bytes]]
    _list_logs: Callable[[str], list[str]]

    # --- guards ------------------------------------------------------------------------------------

    def begin_many(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        """Ask for the guards that deliveries need before their handlers run; return an answer each, in order.

        For each lease one atomic step: everything in its guards is granted, or nothing is changed. Tried in this order:

        1. The lease itself, as `ack` would try it: not live, or not ours → `LOST`.
        2. The key: done → `DONE`; held by another message's live lease → `HELD`. A key held by an earlier delivery of
           the *same* message is taken over.
        3. Each hold: `most` other messages hold the name, each by a live lease → `HELD`.
        4. Each rate: `most` starts, of other leases, in the `window` seconds up to now → `LIMITED`. The answer
           holds the seconds (> 0) until the oldest of them leaves the window.

        A repeated grant to the same lease counts nothing twice: a lost reply does no harm.

        A grant lives exactly as long as its lease: it ends with every settlement, a forfeit, a reap, and at the
        deadline. A renewal prolongs it. The caller puts `guards` on the lease (`JobLease.guarded`). Then an accepted
        `Ack` marks its key done for `keep` seconds, in the same step; nothing else does. The count of a start stays,
        except for a `Release` whose `begun` is False.
        """
        return self._begin(asked) if asked else []

    def first_run(self, queue: str, key: str, ttl: float = IDEMPOTENCY_TTL) -> bool:
        """Mark a key done for `ttl` seconds, and tell whether it was not done before. Atomic.

        A key that a running job holds counts as not done; that job's own ack then marks it anew. Raises `InvalidJob`:
        the key is not 1 to 255 printable characters; `ConfigurationError`: ttl is not above 0 and at most a year.
        """
        return self._first_run(check_queue(queue), check_name(key, "idempotency key"), check_keep(ttl, "ttl"))

    def forget(self, queue: str, key: str) -> bool:
        """Forget that a key is done; return whether it was. A key that a running job holds is left alone."""
        return self._forget(check_queue(queue), check_name(key, "idempotency key"))

    def take(self, queue: str, rate: Rate, token: str) -> float:
        """Count a start of the caller's own under a rate, by the names of `Guards.rates`.

        Return 0.0 if it is within the rate, else seconds (> 0) until there is room. `token`: 1 to 64 characters, of
        this start alone; the same token again counts nothing.
        """
        return self.take_many(queue, [rate], token)[0]

    def take_many(self, queue: str, rates: Sequence[Rate], token: str) -> list[float]:
        """Take one start under each of several rates: each is counted, or not, by itself; return an answer each."""
        if not 0 < len(token) <= 64:
            raise InvalidJob(f"the token of a start has 1 to 64 characters, not {len(token)}")
        return self._take_many(check_queue(queue), rates, storable(token)) if rates else []

    def holders(self, queue: str, name: str) -> list[str]:
        """Return the sorted ids of the messages that hold places under `name`, or under `key:` and a key, now."""
        return self._holders(check_queue(queue), storable(name))

    # --- records -----------------------------------------------------------------------------------

    def put_records(self, space: str, records: Mapping[str, bytes], ttl: float) -> None:
        """Write each value under its key, in place of an older one; each ends `ttl` seconds from now.

        `space`: a name as queues have. Keys have 1 to 255 printable characters, values at most 256 KiB; `ttl` is above
        0 and at most five years.
        """
        for key, value in records.items():
            check_name(key, "the key of a record")
            _check_size(value)
        if records:
            self._put_records(check_queue(space), records, check_keep(ttl, "ttl", LONGEST_RECORD_KEPT))

    def get_record(self, space: str, key: str) -> bytes | None:
        """Return the value, or None when there is none or it has ended."""
        return self.get_records(space, [key]).get(key)

    def get_records(self, space: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the values of those of these keys that have one, by their keys; in any order."""
        keys = [key for key in keys if key == storable(key)]  # no broker has the others
        return self._get_records(check_queue(space), keys) if keys else {}

    def list_records(
        self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """Return (key, value) of at most `limit` (1 to 10,000) records, by key in the order of their UTF-8 bytes.

        Only keys that begin with `prefix`, and come after `after`.
        """
        check_int(limit, "limit", 1, 10_000)
        return self._list_records(check_queue(space), storable(prefix), storable(after), limit)

    def delete_records(self, space: str, keys: Sequence[str]) -> None:
        """Remove records; ignore those that are not there."""
        if keys:
            self._delete_records(check_queue(space), [storable(key) for key in keys])

    # --- logs --------------------------------------------------------------------------------------

    def append_log(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        """Add lines, each a (name, line), to the logs of their names; the newest `keep` (1 to 100,000) of each stay.

        All or none; but a call repeated after `BackendUnavailable` may write its lines twice.
        """
        check_int(keep, "keep", 1, MOST_LINES)
        for name, line in lines:
            check_name(name, "the name of a log")
            _check_size(line)
        if lines:
            self._append_log(check_queue(space), lines, keep)

    def read_log(self, space: str, name: str, *, limit: int = 100) -> list[bytes]:
        """Return the newest `limit` (1 to 100,000) lines, the newest first."""
        check_int(limit, "limit", 1, MOST_LINES)
        return self._read_log(check_queue(space), storable(name), limit)

    def list_logs(self, space: str) -> list[str]:
        """Return the names of the logs of a space that have lines, sorted; at most 10,000."""
        return self._list_logs(check_queue(space))


def all_records(keys: KeyStore, space: str, *, after: str = "", page: int = 1000) -> Iterator[tuple[str, bytes]]:
    """Yield all records of a space that come after `after`, by key. Blocks for a round trip each `page` of them."""
    while found := keys.list_records(space, after=after, limit=page):
        yield from found
        if len(found) < page:
            return
        after = found[-1][0]


def read_record(value: bytes | None, kind: type[Kind]) -> Kind | None:
    """Return what a record holds, also one of a newer version, with more fields; None for what cannot be read."""
    with suppress(MsgspecError, ValueError, RecursionError):
        return json.decode(value or b"", type=kind)
    return None


def _check_size(value: bytes) -> None:
    if len(value) > LONGEST_RECORD:
        raise ValueError(f"a record or line has at most {LONGEST_RECORD} bytes, not {len(value)}")
