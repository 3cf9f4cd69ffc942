"""The optional part of a broker for messages that are checked out by hand: `QueueBackend.claims`.

A *claim* holds up to 20 messages of one queue for a known time. A person, or a program other than a pool, works on
them. It deletes each finished one, renews the claim meanwhile, and releases the rest. Messages not deleted by its end
are free again. No crash is charged, unlike at the end of a lease: a claim makes no promise to finish.

*Jobs* are wire envelopes, enqueued as ever: a pool runs them, and a claim may take them. *Posted* messages are any
bytes; a pool never fetches one. A posted message may have a life: at its end it is gone for everybody.

    post ──► free ◄──────────────────────────┐          delayed posts are free when their delay is over
              │ claim                        │ release, or the end of the claim
              ▼                              │
           claimed ── delete ──► gone        │
              │  └───────────────────────────┘
              └── claimed more than `max_claims` times ──► dead, reason `claim-limit`

A claimed message is a leased one (`State.LEASED`) that names its claim. It is fenced like any lease: no pool can fetch
it. Once its claim has ended, its holder cannot delete it without a new claim.

Ends are exact: a claim or a life ends at its moment, for every caller. The clean-up follows with the next call of
`claim`, `pop`, `list_free`, `stats` or `QueueBackend.reap`, up to 1,000 messages at a time. Until then
no pool fetches messages of an ended claim, and `QueueBackend.stats` counts them as leased; on Redis it cleans up first.
A given id is known for `ENQUEUE_MEMORY` seconds after the end itself.

Safe to share between threads. Every method may raise `BackendUnavailable` (nothing is known) and blocks for one round
trip; all but `pop` are safe to call again. A number out of its bounds is a `ValueError`, which names them.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from enum import Enum

from msgspec import Struct

from jobpool.broker.values import MAX_PAGE, read_cursor
from jobpool.errors import ClaimNotFound, InvalidJob
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.message.names import check_identifier, check_queue, storable
from jobpool.message.printable import hides
from jobpool.message.units import check_int, check_seconds_between

MOST_MESSAGES = 20  # in one claim, one `pop`, and one `delete_many`
LEAST_TTL, MOST_TTL = 60.0, 43_200.0  # seconds: of a claim, and of its grace
LEAST_LIFE, MOST_LIFE = 60.0, 1_209_600.0  # seconds: of a posted message
MOST_DELAY = 900.0  # seconds, of a posted message
CLAIM_ID = re.compile(r"[0-9a-f]{32}")
CLAIM_LIMIT = "claim-limit"  # reason of a dead letter that was claimed too often
POST_PRIORITY = 5  # of posted messages, among the jobs of their queue


@hides("body")
class NewPost(Struct, frozen=True):
    """One message on its way in; its life counts from then on."""

    id: str
    given: bool  # the producer chose the id: it is known like a job's (`QueueBackend.enqueue_many`)
    body: bytes
    life: float | None = None  # seconds; None = forever
    delay: float = 0.0  # seconds until it is free


@hides("body")
class QueueMessage(Struct, frozen=True):
    """A message as claims and lists show it. Wall-clock times are Unix seconds on the broker's clock.

    Only lists show a body of more than MAX_BODY_BYTES, which `post` refuses; claims and `pop` return `OVERSIZED`.
    """

    id: str
    queue: str
    body: bytes  # the posted bytes, or a job's wire bytes
    handler: str  # of a job; "" for a posted message
    priority: int
    enqueued_at: float
    claims: int = 0  # how often it was claimed; neither a renewal nor a release resets it
    claim: str | None = None  # id of the live claim that holds it; None = no claim does
    ends_at: float | None = None  # when its life ends; None = never
    cursor: str = ""  # opaque; `list_free(after=…)` continues after it


class HeldClaim(Struct, frozen=True):
    """A live claim, as the broker told of it."""

    id: str  # 32 lower-case hex characters
    queue: str
    ttl: float  # seconds; this and `grace` as given when it was made or last renewed
    grace: float
    age: int  # whole seconds since then, on the broker's clock; never below 0
    messages: tuple[QueueMessage, ...] = ()  # those still in it, in the order of their claim; a list leaves them out
    count: int = 0  # of these messages


class ClaimStats(Struct, frozen=True):
    """Counts of one queue, dead letters left out.

    `expired`: posted messages that ended with their lives, since the queue was first used; the last seconds may miss.
    """

    claimed: int = 0  # held by a live claim, or leased by a pool
    free: int = 0  # a claim could take it now
    delayed: int = 0  # not yet due
    expired: int = 0

    @property
    def total(self) -> int:
        return self.claimed + self.free + self.delayed


class Deleted(Enum):
    """The result of one delete."""

    DONE = "done"  # it is gone now, or was gone before
    FORBIDDEN = "forbidden"  # it is held, and not by the claim that was named


class ClaimStore:
    """The claims of a broker, as the module describes them. Times in seconds.

    A broker fills in the underscored methods: each is one atomic step on its own clock, with checked arguments.
    """

    _post: Callable[[str, Sequence[NewPost]], None]
    _claim: Callable[[str, str, int, float, float, int], HeldClaim | None]
    """Of queue, claim id, limit, ttl, grace and `max_claims`."""
    _get: Callable[[str, str], HeldClaim | None]
    _renew: Callable[[str, str, float, float | None], HeldClaim | None]
    _release: Callable[[str, str], int]
    _delete: Callable[[str, Sequence[str], str | None], list[Deleted] | None]
    """None: the claim has ended."""
    _pop: Callable[[str, int], list[QueueMessage]]
    _list: Callable[[str, int, int, bool], list[QueueMessage]]
    """Of queue, cursor, limit and `claimed`."""
    _list_claims: Callable[[str, str, int], list[HeldClaim]]
    _stats: Callable[[str], ClaimStats]

    def post(self, queue: str, posts: Sequence[NewPost]) -> list[str]:
        """Add messages, all or none; return their ids, in order.

        An id that is live or dead in the queue, or was given and is remembered, is left as it is (law 8). Raises
        `InvalidJob`: an id is invalid, or a body has more than 1 MiB; nothing was added.
        """
        check_queue(queue)
        for post in posts:
            check_identifier(post.id)
            if len(post.body) > MAX_BODY_BYTES:
                raise InvalidJob(f"a message has {len(post.body)} bytes; at most {MAX_BODY_BYTES}")
            if post.life is not None:
                check_seconds_between(post.life, "ttl of a message", LEAST_LIFE, MOST_LIFE)
            check_seconds_between(post.delay, "delay", 0.0, MOST_DELAY)
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
            ttl, grace: 60 to 43,200.
            max_claims: A message that was claimed this often is made a dead letter, reason `claim-limit`, and the next
                one is looked at; 0 = no limit. Up to 1,000 in one call.
            claim_id: 32 lower-case hex characters of the caller's own, known in this queue only. A second call with the
                same id, while that claim lives, returns it as it is and claims nothing new: a lost reply freezes
                nothing. None = minted here.
        """
        check_queue(queue)
        check_int(limit, "limit", 1, MOST_MESSAGES)
        check_seconds_between(ttl, "ttl", LEAST_TTL, MOST_TTL)
        check_seconds_between(grace, "grace", LEAST_TTL, MOST_TTL)
        check_int(max_claims, "max_claims", 0, 2**31 - 1)
        if claim_id is not None and not _is_claim(claim_id):
            raise ValueError(f"a claim's id has 32 lower-case hex characters, not {str(claim_id)[:64]!r}")
        return self._claim(queue, claim_id or secrets.token_hex(16), limit, float(ttl), float(grace), max_claims)

    def get(self, queue: str, claim_id: str) -> HeldClaim:
        """Return the claim with the messages that are still in it.

        A claim lives until its end also when all its messages were deleted. At `now == end` it has ended. Raises
        `ClaimNotFound`: it is unknown, malformed, ended, released, or another queue's.
        """
        found = self._get(check_queue(queue), claim_id) if _is_claim(claim_id) else None
        return _found(found, queue, claim_id)

    def renew(self, queue: str, claim_id: str, *, ttl: float, grace: float | None = None) -> HeldClaim:
        """Hold the messages still in it for `ttl` more, from now; age 0, and their lives as in `claim`.

        `grace` None = as it was. Raises `ClaimNotFound`, as `get`: at its end it is too late, also when nobody has
        taken its messages.
        """
        check_seconds_between(ttl, "ttl", LEAST_TTL, MOST_TTL)
        if grace is not None:
            check_seconds_between(grace, "grace", LEAST_TTL, MOST_TTL)
        check_queue(queue)
        held = self._renew(queue, claim_id, float(ttl), grace) if _is_claim(claim_id) else None
        return _found(held, queue, claim_id)

    def release(self, queue: str, claim_id: str) -> int:
        """Free the messages still in it, to their old places, and end it; how many. 0 for an id that `get` refuses."""
        check_queue(queue)
        return self._release(queue, claim_id) if _is_claim(claim_id) else 0

    def delete_many(self, queue: str, idents: Sequence[str], claim_id: str | None = None) -> list[Deleted]:
        """Delete messages, up to 20; return an answer each, in order.

        With a claim, which must live: a message that it holds is deleted. One that is gone is `DONE` too, so a repeat
        is fine. Every other is `FORBIDDEN`. Without a claim: a free or delayed message is deleted, one that is
        gone is `DONE`, and one that is leased or claimed is `FORBIDDEN`. A dead letter counts as gone, and is left
        alone. The unique key of a job deleted here is free at once, as if a person had deleted it.

        Raises `ClaimNotFound`: the claim named has ended. Nothing was deleted, and others may do the work for these
        messages again. Roll it back.
        """
        check_queue(queue)
        check_int(len(idents), "the number of messages to delete", 0, MOST_MESSAGES)
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
        return self._pop(queue, check_int(limit, "limit", 1, MOST_MESSAGES))

    def list_free(
        self, queue: str, *, after: str | None = None, limit: int = 50, claimed: bool = False
    ) -> list[QueueMessage]:
        """Return one page of messages, `limit` 1 to 1,000, in enqueue order, after the one with the cursor `after`.

        Delayed, dead and ended ones are left out, and without `claimed` also those that are leased or claimed.
        """
        check_queue(queue)
        return self._list(queue, read_cursor(after), check_int(limit, "limit", 1, MAX_PAGE), claimed)

    def list_claims(self, queue: str, *, after: str | None = None, limit: int = 50) -> list[HeldClaim]:
        """Return one page of the live claims by id, `limit` 1 to 1,000, after this id; without their messages."""
        check_queue(queue)
        return self._list_claims(queue, after or "", check_int(limit, "limit", 1, MAX_PAGE))

    def stats(self, queue: str) -> ClaimStats:
        """Return counts of one queue, in the same time at any length; only ended messages to clean up cost more."""
        return self._stats(check_queue(queue))


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
