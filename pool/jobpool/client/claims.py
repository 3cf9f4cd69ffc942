"""Claims for people and for programs other than pools: `jobs.queue("mail")`, and its claims and messages.

    mail = Jobs("redis://localhost/0").queue("mail")
    mail.post([{"to": "a@example.org"}, {"to": "b@example.org"}], ttl=86400)

    while claim := mail.claim(limit=10, ttl=300, grace=60):
        with claim:
            for message in claim:
                send(message.payload)

Each message is deleted when the loop goes on to the next one, because then it was handled. Messages left when the block
ends, also by an exception or a `break`, are free again, the message in hand included. If the claim ended meanwhile, the
next delete raises `ClaimNotFound`. By then another holder may work on the same messages, so roll back the work for the
message in hand. The rules are those of claim_store.py; docs/claims.md has a complete example.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Self, TypeVar

import orjson

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import ClaimStats, ClaimStore, Deleted, HeldClaim, NewPost, QueueMessage
from jobpool.broker.filters import next_page
from jobpool.broker.packing import in_batches
from jobpool.errors import BackendUnavailable, Forbidden, InvalidJob
from jobpool.message.envelope import decode, verify
from jobpool.message.names import check_queue, check_text
from jobpool.message.payload import check_payload

Reply = TypeVar("Reply")

BATCH, BATCH_BYTES = 500, 4 * 2**20  # of a round trip of `post`: messages, and bytes
FIRST_PAGE, PAGE, PAGE_BYTES = 20, 200, 4 * 2**20  # of a round trip of `messages`: the first, and each later one


class Queue:
    """One queue, as claims see it. Safe to share between threads.

    Args:
        backend: Gives the open backend; asked at each call.
        name: Of the queue.
        max_claims: A message that was claimed this often becomes a dead letter, reason `claim-limit`, when the
            next claim meets it; 0 = never.

    Raises `InvalidJob`: `name` is not a queue name, or `max_claims` is below 0.

    Its methods, and those of its claims and messages, block for one round trip, if they say nothing else. They raise
    `InvalidJob` for a number out of its bounds, and `Unsupported` where the broker has no claims
    (`Capabilities.key_store`); after `BackendUnavailable` nothing is known.
    """

    def __init__(self, backend: Callable[[], QueueBackend], name: str, max_claims: int = 0) -> None:
        if type(max_claims) is not int or max_claims < 0:
            raise InvalidJob(f"max_claims is a whole number, 0 (no limit) or more, not {max_claims!r}")
        self.name = check_queue(name)
        self.max_claims = max_claims
        self._backend = backend

    def post(self, messages: Iterable[Any], *, ttl: float | None = None, delay: float = 0.0) -> list[str]:
        """Add messages that no pool runs; return their ids, in order.

        Args:
            messages: JSON values, or bytes, which stay as they are; at most 1 MiB each. Read as they are sent.
            ttl: Seconds, 60 to 1,209,600, after which a message that nobody deleted is gone; None = never. A claim
                prolongs it: see `claim`.
            delay: Seconds, 0 to 900, until they can be claimed.

        Raises `InvalidJob`: `messages` is a single one, or JSON cannot carry one, or one is too large.

        Blocks for a round trip each 500 messages, or 4 MiB; each batch is added all or none. A batch whose reply was
        lost is sent once more, which adds nothing twice.
        """
        if isinstance(messages, str | bytes | bytearray | dict):
            raise InvalidJob(f"post takes a list of messages, not one {type(messages).__name__}: put it into a list")
        return [ident for batch in self.post_in_batches(messages, ttl, delay) for ident in batch]

    def post_in_batches(self, messages: Iterable[Any], ttl: float | None, delay: float) -> Iterator[list[str]]:
        """Add messages; yield the ids of each batch when it has been added, because an error does not undo it."""
        store = self._store
        bodies = (_body(message, number) for number, message in enumerate(messages))
        posts = (NewPost(secrets.token_hex(8), True, body, ttl, delay) for body in bodies)
        for batch in in_batches(posts, BATCH, BATCH_BYTES, lambda post: len(post.body)):
            yield _once_more(partial(store.post, self.name, batch))

    def claim(self, limit: int = 10, ttl: float = 300, grace: float = 60) -> Claim | None:
        """Claim the oldest free messages; None when there are none.

        Args:
            limit: 1 to 20. There may be fewer.
            ttl: Seconds, 60 to 43,200, for which they are held.
            grace: Seconds, 60 to 43,200, that a message lives on after the claim, at least, so that others still find
                it after its holder died.
        """
        asked, ident = self._boot(), secrets.token_hex(16)
        ask = partial(self._store.claim, self.name, limit=limit, ttl=ttl, grace=grace, claim_id=ident)
        held = _once_more(partial(ask, max_claims=self.max_claims))
        return None if held is None else Claim(self, held, asked)

    def get_claim(self, claim_id: str) -> Claim:
        """Return the claim with this id, of any holder, with the messages that are still in it.

        Raises `ClaimNotFound`: it has ended, was released, is another queue's, or never was.
        """
        asked = self._boot()
        return Claim(self, self._store.get(self.name, claim_id), asked)

    def claims(self) -> Iterator[HeldClaim]:
        """Yield the live claims by id, without their messages. Blocks for a round trip each 200."""
        after = ""
        while page := self._store.list_claims(self.name, after=after, limit=PAGE):
            yield from page
            after = page[-1].id

    def messages(self, *, claimed: bool = False) -> Iterator[ClaimMessage]:
        """Yield the free messages in the order of their enqueue, with `claimed` those that are held too.

        Nothing is changed. Blocks for a round trip each 200 messages, of large ones each few.
        """
        after, limit = None, FIRST_PAGE
        while page := self._store.list_free(self.name, after=after, limit=limit, claimed=claimed):
            for message in page:
                yield ClaimMessage(self, message)
            after, limit = page[-1].cursor, next_page([len(message.body) for message in page], PAGE, PAGE_BYTES)

    def pop(self, n: int = 1) -> list[ClaimMessage]:
        """Take up to `n` (1 to 20) free messages and delete them at once: those not finished then are lost.

        After `BackendUnavailable` they may be gone.
        """
        return [ClaimMessage(self, message) for message in self._store.pop(self.name, n)]

    def delete(self, *messages: str, claim: str | None = None) -> None:
        """Delete up to 20 messages by id, that the claim of this id holds, or that are free; ignore missing ones.

        Raises `Forbidden`: one is held by a pool or by another claim, or by any when none was named; the others are
        deleted. `ClaimNotFound`: the claim has ended; roll back the work for them. `InvalidJob`: one is not an id.
        After these two nothing was deleted.
        """
        for ident in messages:
            check_text(ident, "id")
        answers = self._store.delete_many(self.name, messages, claim)
        if held := [ident for ident, answer in zip(messages, answers, strict=True) if answer is Deleted.FORBIDDEN]:
            by = f"not by claim {claim}" if claim else "name its claim, or leave it to its holder"
            raise Forbidden(f"in queue {self.name!r} somebody holds {', '.join(held)}: {by}")

    def stats(self) -> ClaimStats:
        """Return how many messages are claimed, free, delayed, in total; and how many have ended with their lives."""
        return self._store.stats(self.name)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    def _boot(self) -> float:
        return self._backend().clock.boot()

    @property
    def _store(self) -> ClaimStore:
        return self._backend().claims


class ClaimMessage:
    """One message, as it was when it was claimed, listed or popped.

    Attributes:
        body: The bytes that were posted; of a job the wire bytes.
        handler: Name of the handler of a job; None for a posted message.
        claims: How often it was claimed, this time included.
        claim: Id of the claim that holds it; None = none did.
        enqueued_at: Unix time, on the broker's clock.
        ends_at: The same, when it ends; None = never. A renewal of its claim may put it off.
    """

    def __init__(self, queue: Queue, message: QueueMessage) -> None:
        self._queue = queue
        self.id = message.id
        self.body = message.body
        self.handler = message.handler or None
        self.claims = message.claims
        self.claim = message.claim
        self.enqueued_at = message.enqueued_at
        self.ends_at = message.ends_at

    @property
    def payload(self) -> Any:
        """Return the posted JSON value, or other posted bytes as they are; of a job its payload.

        Raises `MalformedEnvelope`: the body of a job is invalid, or (`BadSignature`) not signed by a key of ours.
        """
        if self.handler is None:
            return posted_value(self.body)
        envelope = decode(self.body, attempts=0)
        verify(envelope, self._queue._backend().signer, self._queue.name)
        return envelope.full_payload

    def delete(self) -> None:
        """Remove the message, because it is done. A second call changes nothing.

        Raises `ClaimNotFound`: its claim has ended, and somebody else may work on it by now: roll back what was done.
        `Forbidden`: it was claimed by nobody when it was listed, and is held now.
        """
        self._queue.delete(self.id, claim=self.claim)

    def __repr__(self) -> str:
        return f"<{self.handler or 'message'} {self.id} in {self._queue!r}>"


class Claim:
    """Messages that are held together. Made by `Queue.claim` and `Queue.get_claim`.

    For one thread, except for `renew`, which another thread may call meanwhile.

    As a context manager it is released at the end of the block. An exception of the block goes on as it is, even if the
    broker does not answer the release. Iterated, it deletes each message when the next is asked for: see the module.

    Attributes:
        id: 32 lower-case hex characters; anyone who knows it can renew, release, and delete by it.
        queue: Its queue.
        ttl, grace: Seconds, as they were last given.
        messages: Its messages by the broker's last answer, in the order of the queue.
    """

    def __init__(self, queue: Queue, held: HeldClaim, asked: float) -> None:
        self.queue = queue
        self.id = held.id
        self._boot = queue._backend().clock.boot  # as the broker's clock, it goes on while this machine is suspended
        self._take(held, asked)
        self._rest: Iterator[ClaimMessage] | None = None
        self._in_hand: ClaimMessage | None = None

    @property
    def age(self) -> int:
        """Whole seconds since it was made or last renewed."""
        return self._age + int(self._boot() - self._asked)

    @property
    def remaining(self) -> float:
        """Seconds for which it certainly holds; 0.0 when it may have ended. Up to one more may be left."""
        return max(0.0, self.ttl - self._age - 1 - (self._boot() - self._asked))

    def renew(self, ttl: float | None = None, grace: float | None = None) -> None:
        """Hold what is still in it for `ttl` more seconds, 60 to 43,200 (None = as before); its age is 0 again.

        Raises `ClaimNotFound`: it has ended; messages not deleted are free, or held by others.
        """
        asked = self._boot()
        chosen = self.ttl if ttl is None else ttl
        self._take(self.queue._store.renew(self.queue.name, self.id, ttl=chosen, grace=grace), asked)

    def release(self) -> None:
        """Free the messages still in it; after its end nothing is changed."""
        self.queue._store.release(self.queue.name, self.id)

    def __iter__(self) -> Iterator[ClaimMessage]:
        """Return each message once, however often the claim is iterated; deleted when the next one is asked for.

        Raises as `ClaimMessage.delete`, from the loop. Another loop then begins with this delete, and continues.
        """
        if self._rest is None:
            self._rest = iter(self.messages)
        while True:
            if self._in_hand is not None:
                self._in_hand.delete()
            self._in_hand = next(self._rest, None)
            if self._in_hand is None:
                return
            yield self._in_hand

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.release()
        except BackendUnavailable:
            if kind is None:
                raise
            # The block's own error matters more, for the roll-back; the messages are free at the end of the claim.

    def __repr__(self) -> str:
        return f"<Claim {self.id} of {len(self.messages)} messages in {self.queue!r}>"

    def _take(self, held: HeldClaim, asked: float) -> None:
        self.ttl, self.grace = held.ttl, held.grace
        self.messages = tuple(ClaimMessage(self.queue, message) for message in held.messages)
        self._age, self._asked = held.age, asked


def posted_value(body: bytes) -> Any:
    """Return the posted JSON value, or other posted bytes as they are."""
    try:
        return orjson.loads(body)
    except ValueError:
        return body


def _body(message: Any, number: int) -> bytes:
    if isinstance(message, bytes | bytearray):
        return bytes(message)
    return orjson.dumps(check_payload(message, f"messages[{number}]"))


def _once_more(call: Callable[[], Reply]) -> Reply:
    """Make a call that is safe to make again, and again when its reply was lost."""
    try:
        return call()
    except BackendUnavailable:
        return call()
