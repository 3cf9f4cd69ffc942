"""The optional part of a broker for messages that are checked out by hand: `QueueBackend.claims`.

A *claim* holds up to 20 messages of one queue for a known time. A person, or a program other than a pool, works on
them, deletes each one when it is done, renews the claim meanwhile, and releases the rest. Messages not deleted by the
end of the claim are free again, and no crash is charged: a claim makes no promise to finish.

There are two kinds of messages in a queue. *Jobs* are wire envelopes, enqueued as ever: a pool runs them, and a claim
may take them. *Posted* messages are any bytes; a pool never fetches one. A posted message may have a life: at its end
the message is gone for everybody, from that moment on.

    post ──► free ◄──────────────────────────┐          delayed posts are free when their delay is over
              │ claim                        │ release, or the end of the claim
              ▼                              │
           claimed ── delete ──► gone        │
              │  └───────────────────────────┘
              └── claimed more than `max_claims` times ──► dead, reason `claim-limit`

A claimed message is a leased one (`State.LEASED`) that names its claim. It is fenced like any lease: no pool can fetch
it, and once its claim has ended, its holder cannot delete it without a new claim.

Ends are exact: a claim or a life ends at its moment, for every caller. The clean-up follows with the next call of
`claim`, `pop`, `list_free`, `stats` or `QueueBackend.reap`, up to 1,000 messages at a time. Until then
`QueueBackend.stats` counts messages of an ended claim as leased, and no pool fetches them. A given id is known for
`ENQUEUE_MEMORY` seconds after the end itself.

It cannot be made of `QueueBackend.fetch_many`, `renew_many` and `settle_many`. A fetch takes jobs alone, and the end of
a lease charges a crash. `max_claims`, lives and `grace` change in the same step as the claim.

Like `KeyStore` this is a template: the public methods check, the underscored ones are each one atomic step on the
broker's own clock. Safe to share between threads. Every method may raise `BackendUnavailable` (nothing is known) and
blocks for one round trip; all but `pop` are safe to call again.
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from jobpool.broker.values import MAX_PAGE, read_cursor
from jobpool.errors import ClaimNotFound, InvalidJob
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.message.names import check_identifier, check_queue, storable
from jobpool.message.units import check_count, check_seconds

MOST_MESSAGES = 20
"""Messages in one claim, one `pop`, and one `delete_many`."""

LEAST_TTL, MOST_TTL = 60.0, 43_200.0
"""Seconds: of a claim, and of its grace."""

LEAST_LIFE, MOST_LIFE = 60.0, 1_209_600.0
"""Seconds: of a posted message."""

MOST_DELAY = 900.0
"""Seconds for which a posted message can be delayed."""

CLAIM_ID = re.compile(r"[0-9a-f]{32}")
CLAIM_LIMIT = "claim-limit"
"""Reason of a dead letter that was claimed too often."""

POST_PRIORITY = 5
"""Of posted messages, among the jobs of their queue."""


@dataclass(frozen=True, slots=True)
class NewPost:
    """One message on its way in; its life counts from then on.

    Attributes:
        given: The producer chose the id: it is known like a job's (`QueueBackend.enqueue_many`).
        life: Seconds; None = forever.
        delay: Seconds until it is free.
    """

    id: str
    given: bool
    body: bytes = field(repr=False)
    life: float | None = None
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A message as claims and lists show it. Wall-clock times are Unix seconds on the broker's clock.

    Attributes:
        body: The posted bytes, or a job's wire bytes. Only lists show a body of more than MAX_BODY_BYTES, which `post`
            refuses; claims and `pop` return `OVERSIZED` instead.
        handler: Of a job; "" for a posted message.
        claims: How often it was claimed; neither a renewal nor a release resets it.
        claim: Id of the live claim that holds it; None = no claim does.
        ends_at: When its life ends; None = never.
        cursor: Opaque; `list_free(after=…)` continues after it.
    """

    id: str
    queue: str
    body: bytes = field(repr=False)
    handler: str
    priority: int
    enqueued_at: float
    claims: int = 0
    claim: str | None = None
    ends_at: float | None = None
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A live claim, as the broker told of it.

    Attributes:
        id: 32 lower-case hex characters.
        ttl: Seconds, as given when it was made or last renewed.
        grace: The same.
        age: Whole seconds since it was made or last renewed, on the broker's clock; never below 0.
        messages: The messages still in it, in the order in which they were claimed. A list of claims leaves them out.
        count: Number of these messages.
    """

    id: str
    queue: str
    ttl: float
    grace: float
    age: int
    messages: tuple[QueueMessage, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class ClaimStats:
    """Counts of one queue, dead letters left out. At most a few seconds of expired posts may be missing from `expired`.

    Attributes:
        claimed: Held by a live claim, or leased by a pool.
        free: A claim could take it now.
        delayed: Not yet due.
        total: All of these.
        expired: Posted messages that ended with their lives, since the queue was first used.
    """

    claimed: int = 0
    free: int = 0
    delayed: int = 0
    expired: int = 0

    @property
    def total(self) -> int:
        return self.claimed + self.free + self.delayed


class Deleted(Enum):
    """The result of one delete."""

    DONE = "done"
    """It is gone now, or was gone before."""
    FORBIDDEN = "forbidden"
    """It is held, and not by the claim that was named."""


class ClaimStore(ABC):
    """The claims of a broker, as the module describes them. Times in seconds."""

    def post(self, queue: str, posts: Sequence[NewPost]) -> list[str]:
        """Add messages, all or none; return their ids, in order.

        An id that is live or dead in the queue, or was given and is remembered, is left as it is (law 8).

        Raises:
            InvalidJob: An id is invalid, or a body has more than 1 MiB; nothing was added.
            ValueError: A life or a delay is out of its bounds; nothing was added.
        """
        check_queue(queue)
        for post in posts:
            _check_post(post)
        if posts:
            self._post(queue, posts)
        return [post.id for post in posts]

    def claim(
        self, queue: str, *, limit: int, ttl: float, grace: float, max_claims: int = 0, claim_id: str | None = None
    ) -> HeldClaim | None:
        """Claim up to `limit` messages in one atomic step; None when none is free.

        In the order of the queue, (priority, enqueue sequence): the oldest first, posts and jobs alike. Leased,
        claimed, delayed and ended ones are passed over. A message whose claim or life has ended counts as ended from
        that very moment on. Concurrent callers get disjoint sets.

        Each message that is taken has deliveries + 1 and claims + 1. It lives until max(its old end, the claim's end +
        `grace`), but not longer than 1,209,600 s from now. Its end never comes nearer, and a message without an end
        gets none. Jobs have no life.

        Args:
            limit: 1 to 20.
            ttl: 60 to 43,200.
            grace: 60 to 43,200.
            max_claims: A message that was claimed this often is made a dead letter, reason `claim-limit`, and the next
                one is looked at; 0 = no limit. Up to 1,000 in one call.
            claim_id: 32 lower-case hex characters of the caller's own, known in this queue only. A second call with the
                same id, while that claim lives, returns it as it is and claims nothing new: a lost reply freezes
                nothing. None = minted here.

        Raises:
            ValueError: A number is out of its bounds, which the text names.
        """
        check_queue(queue)
        check_count(limit, "limit", 1, MOST_MESSAGES)
        check_seconds(ttl, "ttl", LEAST_TTL, MOST_TTL)
        check_seconds(grace, "grace", LEAST_TTL, MOST_TTL)
        check_count(max_claims, "max_claims", 0, 2**31 - 1)
        if claim_id is not None and not _is_claim(claim_id):
            raise ValueError(f"a claim's id has 32 lower-case hex characters, not {str(claim_id)[:64]!r}")
        return self._claim(queue, claim_id or secrets.token_hex(16), limit, float(ttl), float(grace), max_claims)

    def get(self, queue: str, claim_id: str) -> HeldClaim:
        """Return the claim with the messages that are still in it.

        A claim lives until its end also when all its messages were deleted. At `now == end` it has ended.

        Raises:
            ClaimNotFound: It is unknown, malformed, ended, released, or another queue's.
        """
        found = self._get(check_queue(queue), claim_id) if _is_claim(claim_id) else None
        return _found(found, queue, claim_id)

    def renew(self, queue: str, claim_id: str, *, ttl: float, grace: float | None = None) -> HeldClaim:
        """Hold the messages still in it for `ttl` more, from now; age 0, and their lives as in `claim`.

        Args:
            grace: None = as it was.

        Raises:
            ValueError: As `claim`.
            ClaimNotFound: As `get`. At its end it is too late, also when nobody has taken its messages.
        """
        check_seconds(ttl, "ttl", LEAST_TTL, MOST_TTL)
        if grace is not None:
            check_seconds(grace, "grace", LEAST_TTL, MOST_TTL)
        check_queue(queue)
        held = self._renew(queue, claim_id, float(ttl), grace) if _is_claim(claim_id) else None
        return _found(held, queue, claim_id)

    def release(self, queue: str, claim_id: str) -> int:
        """Free the messages still in it, to their old places, and end it; how many.

        An id that is unknown, malformed, ended or another queue's is ignored: 0.
        """
        check_queue(queue)
        return self._release(queue, claim_id) if _is_claim(claim_id) else 0

    def delete_many(self, queue: str, idents: Sequence[str], claim_id: str | None = None) -> list[Deleted]:
        """Delete messages, up to 20; return an answer each, in order.

        With a claim, which must live: a message that it holds is deleted, and one that is gone is `DONE` too, so a
        repeat is fine. Every other is `FORBIDDEN`. Without a claim: a free or delayed message is deleted, one that is
        gone is `DONE`, and one that is leased or claimed is `FORBIDDEN`. A dead letter counts as gone, and is left
        alone. The unique key of a job deleted here is free at once, as if a person had deleted it.

        Raises:
            ClaimNotFound: The claim named has ended, as `get`: nothing was deleted, and others may do the work for
                these messages again. Roll it back.
            ValueError: More than 20.
        """
        check_queue(queue)
        check_count(len(idents), "the number of messages to delete", 0, MOST_MESSAGES)
        if claim_id is not None and not _is_claim(claim_id):
            raise _not_found(queue, str(claim_id))
        answers = self._delete(queue, [storable(ident) for ident in idents], claim_id) if idents else []
        if answers is None:
            raise _not_found(queue, str(claim_id))
        return answers

    def pop(self, queue: str, limit: int) -> list[QueueMessage]:
        """Take up to `limit` (1 to 20) free messages, as `claim` finds them, and delete them at once.

        `claims` stays as it is. Nothing holds the messages any more: unfinished ones are lost, and so are those in a
        lost reply. Claim messages that must not be lost.
        """
        check_queue(queue)
        return self._pop(queue, check_count(limit, "limit", 1, MOST_MESSAGES))

    def list_free(
        self, queue: str, *, after: str | None = None, limit: int = 50, claimed: bool = False
    ) -> list[QueueMessage]:
        """Return one page of messages in enqueue order, `limit` 1 to 1,000; go on with the last one's `cursor` as
        `after`.

        Delayed, dead and ended ones are left out, and without `claimed` also those that are leased or claimed.

        Raises `ValueError`: the limit is out of bounds, or `after` is not a cursor.
        """
        check_queue(queue)
        return self._list(queue, read_cursor(after), check_count(limit, "limit", 1, MAX_PAGE), claimed)

    def list_claims(self, queue: str, *, after: str | None = None, limit: int = 50) -> list[HeldClaim]:
        """Return one page of the live claims of a queue by id, `limit` 1 to 1,000, without their messages but with
        `count`.

        Go on with the last one's id as `after`.
        """
        check_queue(queue)
        return self._list_claims(queue, after or "", check_count(limit, "limit", 1, MAX_PAGE))

    def stats(self, queue: str) -> ClaimStats:
        """Return counts of one queue, in the same time at any length. Only ended messages not yet cleaned up cost more.
        Up to 1,000 are freed or removed in a call, and the rest may count as before until the next.
        """
        return self._stats(check_queue(queue))

    # --- for a broker to fill in: each one atomic step, arguments already checked --------------------

    @abstractmethod
    def _post(self, queue: str, posts: Sequence[NewPost]) -> None: ...

    @abstractmethod
    def _claim(
        self, queue: str, claim_id: str, limit: int, ttl: float, grace: float, max_claims: int
    ) -> HeldClaim | None: ...

    @abstractmethod
    def _get(self, queue: str, claim_id: str) -> HeldClaim | None: ...

    @abstractmethod
    def _renew(self, queue: str, claim_id: str, ttl: float, grace: float | None) -> HeldClaim | None: ...

    @abstractmethod
    def _release(self, queue: str, claim_id: str) -> int: ...

    @abstractmethod
    def _delete(self, queue: str, idents: Sequence[str], claim_id: str | None) -> list[Deleted] | None:
        """Delete; return None if the claim has ended."""

    @abstractmethod
    def _pop(self, queue: str, limit: int) -> list[QueueMessage]: ...

    @abstractmethod
    def _list(self, queue: str, after: int, limit: int, claimed: bool) -> list[QueueMessage]: ...

    @abstractmethod
    def _list_claims(self, queue: str, after: str, limit: int) -> list[HeldClaim]: ...

    @abstractmethod
    def _stats(self, queue: str) -> ClaimStats: ...


def _check_post(post: NewPost) -> None:
    check_identifier(post.id)
    if len(post.body) > MAX_BODY_BYTES:
        raise InvalidJob(f"a message has {len(post.body)} bytes; at most {MAX_BODY_BYTES}")
    if post.life is not None:
        check_seconds(post.life, "ttl of a message", LEAST_LIFE, MOST_LIFE)
    check_seconds(post.delay, "delay", 0.0, MOST_DELAY)


def _is_claim(claim_id: str) -> bool:
    return isinstance(claim_id, str) and CLAIM_ID.fullmatch(claim_id) is not None


def _not_found(queue: str, claim_id: str) -> ClaimNotFound:
    return ClaimNotFound(
        f"queue {queue!r} has no live claim {claim_id[:64]!r}: it has ended, was released, or never was; what was done"
        " for its messages may be done again by somebody else"
    )


def _found(held: HeldClaim | None, queue: str, claim_id: str) -> HeldClaim:
    if held is None:
        raise _not_found(queue, str(claim_id))
    return held
