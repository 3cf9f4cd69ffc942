"""`RedisKeyStore`: the key store's contract, put together from `guarding` and `spaces`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobpool.broker.key_store import KeyStore
from jobpool.message.guards import Begun, Guards, Rate
from jobpool.message.lease import JobLease
from jobpool_backends.redis.connections import Link
from jobpool_backends.redis.guarding import GuardStore
from jobpool_backends.redis.key_names import KeyNames
from jobpool_backends.redis.spaces import SpaceStore


class RedisKeyStore(KeyStore):
    """Keys beside the messages of a prefix; every method is one script or one command.

    Its values are as durable as the server makes them.
    """

    def __init__(self, link: Link, keys: KeyNames) -> None:
        self._guards = GuardStore(link, keys)
        self._spaces = SpaceStore(link, keys)

    def _begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        return self._guards.begin(asked)

    def _first_run(self, queue: str, key: str, ttl: float) -> bool:
        return self._guards.first_run(queue, key, ttl)

    def _forget(self, queue: str, key: str) -> bool:
        return self._guards.forget(queue, key)

    def _take_many(self, queue: str, rates: Sequence[Rate], token: str) -> list[float]:
        return self._guards.take(queue, rates, token)

    def _holders(self, queue: str, name: str) -> list[str]:
        return self._guards.holders(queue, name)

    def _put_records(self, space: str, records: Mapping[str, bytes], ttl: float) -> None:
        self._spaces.put(space, records, ttl)

    def _get_record(self, space: str, key: str) -> bytes | None:
        return self._spaces.get(space, key)

    def _list_records(self, space: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        return self._spaces.page(space, prefix, after, limit)

    def _delete_records(self, space: str, keys: Sequence[str]) -> None:
        self._spaces.drop(space, keys)

    def _append_log(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        self._spaces.append(space, lines, keep)

    def _read_log(self, space: str, name: str, limit: int) -> list[bytes]:
        return self._spaces.read(space, name, limit)

    def _list_logs(self, space: str) -> list[str]:
        return self._spaces.logs(space)
