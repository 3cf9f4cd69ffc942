"""`RedisClaimStore`: claims and posted messages.

A posted message is kept like a job, in the same hashes and with the same form of member. But it has sorted sets of its
own, so no fetch ever meets one. Claimed messages stand in none of the sets that pools look at: `fetch.lua` and
`renew.lua` know nothing of claims. A claim is one field of a hash, its *checkout*, with its end and its members; a
message's record names the claim that holds it. So the cost of a claim does not grow with their number. Its renewal
writes one field, and the lives that it prolongs.

A claim ends at its end, because every script compares. The next script that sweeps the queue frees its messages before
its own work. Such scripts are a claim, a `pop`, a post, a list, a count or a reap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from jobpool.broker.claim_store import ClaimStats, ClaimStore, Deleted, HeldClaim, NewPost, QueueMessage
from jobpool.broker.values import MessageFilter, State
from jobpool.errors import InvalidJob
from jobpool_backends.redis import keyspace
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.connections import Script
from jobpool_backends.redis.enqueue import MAX_MESSAGES_PER_CALL, Enqueuer
from jobpool_backends.redis.inspect import Inspector
from jobpool_backends.redis.records import cursor_of, queue_message, read_tail
from jobpool_backends.shared import MICRO, DeadCaps, body_or_oversized, micros, unix_time

_AGAIN = 1  # answer of a script that found nothing, but has not looked at everything
_DELETED = {ord("d"): Deleted.DONE, ord("f"): Deleted.FORBIDDEN}


class RedisClaimStore(ClaimStore):
    """Claims of one prefix. `caps` bound the dead letters, for messages that were claimed too often."""

    def __init__(self, keys: keyspace.Keyspace, caps: DeadCaps, enqueuer: Enqueuer, inspector: Inspector) -> None:
        self._keys = keys
        self._caps = caps
        self._enqueuer = enqueuer
        self._inspector = inspector

    def _post(self, queue: str, posts: Sequence[NewPost]) -> None:
        if len(posts) > MAX_MESSAGES_PER_CALL:
            raise InvalidJob(f"{len(posts)} messages in one call are too many: at most {MAX_MESSAGES_PER_CALL}")
        self._enqueuer.list_queues([queue])
        words: list[Word] = [queue, len(posts), *(post.id for post in posts)]
        for post in posts:
            life = "" if post.life is None else micros(post.life)
            words += ("q" if post.given else "p", life, micros(post.delay) or "", post.body)
        given = all(post.given for post in posts)
        self._keys.run(keyspace.POST, [queue], words, self._keys.one(queue, "last"), repeatable=given)

    def _claim(
        self, queue: str, claim_id: str, limit: int, ttl: float, grace: float, max_claims: int
    ) -> HeldClaim | None:
        asked = (claim_id, limit, micros(ttl), micros(grace), max_claims, self._caps.most, self._caps.age)
        return _held(queue, claim_id, self._take(keyspace.CLAIM, queue, asked, repeatable=True))

    def _get(self, queue: str, claim_id: str) -> HeldClaim | None:
        return _held(queue, claim_id, self._run(keyspace.CLAIM_SHOW, queue, claim_id))

    def _renew(self, queue: str, claim_id: str, ttl: float, grace: float | None) -> HeldClaim | None:
        kept = "" if grace is None else micros(grace)
        return _held(queue, claim_id, self._run(keyspace.CLAIM_RENEW, queue, claim_id, micros(ttl), kept))

    def _release(self, queue: str, claim_id: str) -> int:
        return int(self._run(keyspace.CLAIM_RELEASE, queue, claim_id))

    def _delete(self, queue: str, idents: Sequence[str], claim_id: str | None) -> list[Deleted] | None:
        asked = [ident.encode("utf-8", "replace") for ident in idents]
        letters: bytes | None = self._run(keyspace.CLAIM_DELETE, queue, claim_id or "", queue, *asked)
        return None if letters is None else [_DELETED[letter] for letter in letters]

    def _pop(self, queue: str, limit: int) -> list[QueueMessage]:
        answer = self._take(keyspace.CLAIM_POP, queue, (limit,), repeatable=False)
        return list(_messages(queue, None, *answer)) if answer else []

    def _list(self, queue: str, after: int, limit: int, claimed: bool) -> list[QueueMessage]:
        states = (State.WAITING, State.LEASED) if claimed else (State.WAITING,)
        where = MessageFilter(queue=queue, states=states)
        return [queue_message(message) for message in self._inspector.page(where, after, limit, sys.maxsize)]

    def _list_claims(self, queue: str, after: str, limit: int) -> list[HeldClaim]:
        claims: list[HeldClaim] = []
        behind: bytes | None = after.encode("utf-8", "replace")
        while behind is not None and len(claims) < limit:
            now, more, *told = self._run(keyspace.CLAIM_LIST, queue, behind, limit - len(claims))
            for ident, head, count in zip(told[::3], told[1::3], told[2::3], strict=True):
                claims.append(_read_claim(queue, ident.decode(), now, head, (), count))
            behind = more or None
        return claims

    def _stats(self, queue: str) -> ClaimStats:
        counts = self._inspector.counts(queue)
        free, delayed, claimed, _ = counts.by_state().values()
        return ClaimStats(claimed, free, delayed, counts.expired)

    def _run(self, script: Script, queue: str, *words: Word) -> Any:
        return self._keys.run(script, [queue], words)

    def _take(self, script: Script, queue: str, words: Sequence[Word], *, repeatable: bool) -> Any:
        """Return the messages that a script took, None for none. Each further run of it removes what was in the way."""
        answer = _AGAIN
        while answer == _AGAIN:
            answer = self._keys.run(script, [queue], words, repeatable=repeatable)
        return answer or None


def _held(queue: str, claim_id: str, answer: Any) -> HeldClaim | None:
    if answer is None:
        return None
    now, head, *columns = answer
    messages = tuple(_messages(queue, claim_id, *columns))
    return _read_claim(queue, claim_id, now, head, messages, len(messages))


def _read_claim(
    queue: str, claim_id: str, now: bytes, head: bytes, messages: tuple[QueueMessage, ...], count: int
) -> HeldClaim:
    _, ttl, grace, made = map(int, head.split(b" "))
    age = max(0, int(now) - made) // MICRO
    return HeldClaim(claim_id, queue, ttl / MICRO, grace / MICRO, age, messages, count)


def _messages(queue: str, claim_id: str | None, *columns: list[Any]) -> Iterator[QueueMessage]:
    """Yield the messages of these members, records and bodies."""
    for name, record, body in zip(*columns, strict=True):
        if record is None or body is None:  # changed by hand
            continue
        member = name.decode()
        *_, enqueued, ident, rest = record.decode().split(" ", 6)
        handler, claims, ends_at, _ = read_tail(rest)
        yield QueueMessage(
            ident[1:],
            queue,
            body_or_oversized(body),
            handler,
            int(member[:3]),
            int(enqueued) / MICRO,
            claims,
            claim_id,
            unix_time(ends_at),
            cursor_of(queue, member),
        )
