"""What the template of claims refuses before a broker is asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
from rich.pretty import pretty_repr

from jobpool.broker.claim_store import CLAIM_ID, ClaimStats, ClaimStore, HeldClaim, NewPost, QueueMessage
from jobpool.errors import ClaimNotFound, InvalidJob
from jobpool_backends.memory import MemoryBackend

MINE = "0123456789abcdef" * 2


@pytest.fixture
def store() -> ClaimStore:
    """Of a broker that must not be asked."""

    def asked(*_: object) -> None:
        raise AssertionError("the broker was asked")

    return cast(ClaimStore, type("NeverAsked", (ClaimStore,), dict.fromkeys(ClaimStore.__annotations__, asked))())


def claim(store: ClaimStore, **numbers: Any) -> HeldClaim | None:
    return store.claim("mails", **{"limit": 1, "ttl": 60, "grace": 60, **numbers})


def post(store: ClaimStore, **fields: Any) -> list[str]:
    return store.post("mails", [NewPost(**{"id": "a", "given": True, "body": b"", **fields})])


Call = Callable[[ClaimStore], Any]

NO_TTL = (59.999, 43_200.001, 0, -60, math.inf, -math.inf, math.nan, True, "60")
NO_LIMIT = (0, 21, -1, 1.0, True, "1", None)
NO_PAGE = (0, 1001, 1.5)
SECONDS = "60 to 43,200 seconds (12h00m), not"
MESSAGES = "limit must be a whole number from 1 to 20, not"

REFUSED: list[tuple[str, tuple[Any, ...], Callable[[ClaimStore, Any], Any]]] = [
    (f"ttl is {SECONDS}", (*NO_TTL, None), lambda store, bad: claim(store, ttl=bad)),
    (f"grace is {SECONDS}", (*NO_TTL, None), lambda store, bad: claim(store, grace=bad)),
    (f"ttl is {SECONDS}", (*NO_TTL, None), lambda store, bad: store.renew("mails", MINE, ttl=bad)),
    (f"grace is {SECONDS}", NO_TTL, lambda store, bad: store.renew("mails", MINE, ttl=60, grace=bad)),
    (MESSAGES, NO_LIMIT, lambda store, bad: claim(store, limit=bad)),
    (MESSAGES, NO_LIMIT, lambda store, bad: store.pop("mails", bad)),
    ("max_claims must be a whole number from 0 to", (-1, 2**31, 1.5), lambda store, bad: claim(store, max_claims=bad)),
    ("claim's id has 32", ("", MINE[1:], MINE.upper(), 7), lambda store, bad: claim(store, claim_id=bad)),
    ("from 0 to 20, not", (21, 1000), lambda store, bad: store.delete_many("mails", ["a"] * bad)),
    ("1 to 1000, not", NO_PAGE, lambda store, bad: store.list_free("mails", limit=bad)),
    ("1 to 1000, not", NO_PAGE, lambda store, bad: store.list_claims("mails", limit=bad)),
    ("60 to 1,209,600 seconds (14d00h), not", (59.999, 1_209_600.001, True), lambda store, bad: post(store, life=bad)),
    ("0 to 900 seconds (15m00s), not", (-0.001, 900.001, math.nan, None), lambda store, bad: post(store, delay=bad)),
    ("identifier", ("", "two words", "-a", "x" * 129), lambda store, bad: post(store, id=bad)),
    ("at most 1048576", (2**20 + 1,), lambda store, bad: post(store, body=b"x" * bad)),
]


@pytest.mark.parametrize(("text", "bad", "call"), [(text, bad, call) for text, many, call in REFUSED for bad in many])
def test_what_is_out_of_bounds_is_refused_by_name(
    store: ClaimStore, text: str, bad: Any, call: Callable[[ClaimStore, Any], Any]
) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - its text is looked at below
        call(store, bad)
    assert text in str(refused.value)


QUEUES: list[Call] = [
    lambda store: store.post("a queue", []),
    lambda store: store.claim("a queue", limit=1, ttl=60, grace=60),
    lambda store: store.get("a queue", MINE),
    lambda store: store.renew("a queue", MINE, ttl=60),
    lambda store: store.release("a queue", "malformed"),
    lambda store: store.delete_many("a queue", [], "malformed"),
    lambda store: store.pop("a queue", 1),
    lambda store: store.list_free("a queue"),
    lambda store: store.list_claims("a queue"),
    lambda store: store.stats("a queue"),
]


@pytest.mark.parametrize("call", QUEUES)
def test_what_is_no_queue_is_refused(store: ClaimStore, call: Call) -> None:
    with pytest.raises(InvalidJob, match="queue name 'a queue' is refused"):
        call(store)


@pytest.mark.parametrize("ident", ["", "x", MINE[1:], MINE + "0", MINE.upper(), MINE + "\n", "é" * 32, None, 7, b"x"])
def test_what_is_no_id_of_a_claim_is_not_found(store: ClaimStore, ident: Any) -> None:
    for call in (
        lambda: store.get("mails", ident),
        lambda: store.renew("mails", ident, ttl=60),
        lambda: store.delete_many("mails", ["a"], ident if ident is not None else ""),
    ):
        with pytest.raises(ClaimNotFound, match="queue 'mails' has no live claim"):
            call()
    assert store.release("mails", ident) == 0


def test_an_error_does_not_repeat_all_of_a_long_id(store: ClaimStore) -> None:
    with pytest.raises(ClaimNotFound, match=r"x{64}'.* may be done again") as refused:
        store.get("mails", "x" * 10_000)
    assert len(str(refused.value)) < 300


def test_an_id_is_minted_for_a_claim_without_one() -> None:
    store = MemoryBackend().claims
    store.post("mails", [NewPost("a", True, b"x" * 2**20), NewPost("b", False, b"")])
    first, second = (held.id for held in (claim(store), claim(store)) if held)
    assert first != second
    assert CLAIM_ID.fullmatch(first)


def test_nothing_is_nothing_to_post_or_delete(store: ClaimStore) -> None:
    assert (store.post("mails", []), store.delete_many("mails", [])) == ([], [])


def test_bodies_are_not_shown() -> None:
    posted = NewPost("a", True, b"a secret")
    message = QueueMessage("a", "mails", b"a secret", "", 5, 0.0)
    assert "secret" not in f"{posted} {message}"
    assert "secret" not in pretty_repr([posted, message])


def test_total_is_the_sum_of_what_is_there() -> None:
    assert ClaimStats(claimed=1, free=2, delayed=4, expired=8).total == 7
