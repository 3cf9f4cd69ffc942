"""Twenty messages leased, renewed and settled, and twenty claimed, renewed and deleted, by turns; or many claims."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from bench.programs import answer
from bench.samples.cycles import WARM_UP, Spent, timed
from bench.samples.fill_queue import CALL_TIMEOUT_S, QUEUE
from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import Deleted, NewPost
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Ack

BATCH = 20
LEASE = ("fetch", "renew", "settle")
CLAIM = ("claim", "renew claim", "delete")
TTL, GRACE = 43_200.0, 60.0
POSTS = 500


def run(urls: Sequence[str], cycles: int = 0, claims: int = 0, first: int = 0) -> dict[str, Any]:
    """Return, for each store, milliseconds of each call by its verb; with `claims`, make that many in the first
    store.
    """
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_backend(url, timeout=CALL_TIMEOUT_S))) for url in urls]
        if claims:
            _fill(stores[0], claims, first)
            return {}
        spent: list[Spent] = [{verb: [] for verb in (*LEASE, *CLAIM)} for _ in urls]
        for turn in range(WARM_UP + cycles):
            for backend, found in zip(stores, spent, strict=True):
                kept = found if turn >= WARM_UP else {verb: [] for verb in found}
                _lease(backend, kept)
                _claim(backend, kept)
    return {"spent": spent}


def _fill(backend: QueueBackend, claims: int, first: int) -> None:
    """Make claims of one message each."""
    for begin in range(first, first + claims, POSTS):
        names = [f"held-{number}" for number in range(begin, min(begin + POSTS, first + claims))]
        backend.claims.post(QUEUE, [NewPost(name, True, b"held") for name in names])
        for _ in names:
            if backend.claims.claim(QUEUE, limit=1, ttl=TTL, grace=GRACE) is None:
                raise RuntimeError("nothing was free to claim")


def _lease(backend: QueueBackend, spent: Spent) -> None:
    _enqueue(backend)
    leases = timed(spent["fetch"], lambda: backend.fetch_many(QUEUE, limit=BATCH))
    renewed = timed(spent["renew"], lambda: backend.renew_many(leases, 30.0))
    done = timed(spent["settle"], lambda: backend.settle_many([(lease, Ack()) for lease in leases]))
    if not (len(leases) == BATCH and all(renewed) and all(done)):
        raise RuntimeError(f"{len(leases)} leases, {sum(map(bool, done))} acks")


def _claim(backend: QueueBackend, spent: Spent) -> None:
    _enqueue(backend)
    store = backend.claims
    held = timed(spent["claim"], lambda: store.claim(QUEUE, limit=BATCH, ttl=TTL, grace=GRACE))
    if held is None or len(held.messages) != BATCH:
        raise RuntimeError("fewer messages were claimed than there are")
    ids = [message.id for message in held.messages]
    timed(spent["renew claim"], lambda: store.renew(QUEUE, held.id, ttl=TTL))
    answers = timed(spent["delete"], lambda: store.delete_many(QUEUE, ids, held.id))
    store.release(QUEUE, held.id)
    if any(answer is not Deleted.DONE for answer in answers):
        raise RuntimeError(f"not all were deleted: {answers}")


def _enqueue(backend: QueueBackend) -> None:
    backend.enqueue_many([JobDefinition("noop", {}, queue=QUEUE)] * BATCH)


if __name__ == "__main__":
    answer(run)
