"""What the template of claims refuses before a broker is asked, and what it hands on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from rich.pretty import pretty_repr

from jobpool.broker.claim_store import CLAIM_ID, ClaimStats, ClaimStore, Deleted, HeldClaim, NewPost, QueueMessage
from jobpool.errors import ClaimNotFound, InvalidJob

MINE = "0123456789abcdef" * 2


class Recorder(ClaimStore):
    """Writes down each step that was asked for, and knows no claim."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def _post(self, queue: str, posts: Sequence[NewPost]) -> None:
        self.asked.append(("post", queue, list(posts)))

    def _claim(
        self, queue: str, claim_id: str, limit: int, ttl: float, grace: float, max_claims: int
    ) -> HeldClaim | None:
        self.asked.append(("claim", queue, claim_id, limit, ttl, grace, max_claims))
        return None

    def _get(self, queue: str, claim_id: str) -> HeldClaim | None:
        self.asked.append(("get", queue, claim_id))
        return None

    def _renew(self, queue: str, claim_id: str, ttl: float, grace: float | None) -> HeldClaim | None:
        self.asked.append(("renew", queue, claim_id, ttl, grace))
        return None

    def _release(self, queue: str, claim_id: str) -> int:
        self.asked.append(("release", queue, claim_id))
        return 0

    def _delete(self, queue: str, idents: Sequence[str], claim_id: str | None) -> list[Deleted] | None:
        self.asked.append(("delete", queue, list(idents), claim_id))
        return [Deleted.DONE for _ in idents] if claim_id is None else None

    def _pop(self, queue: str, limit: int) -> list[QueueMessage]:
        self.asked.append(("pop", queue, limit))
        return []

    def _list(self, queue: str, after: int, limit: int, claimed: bool) -> list[QueueMessage]:
        self.asked.append(("list", queue, after, limit, claimed))
        return []

    def _list_claims(self, queue: str, after: str, limit: int) -> list[HeldClaim]:
        self.asked.append(("claims", queue, after, limit))
        return []

    def _stats(self, queue: str) -> ClaimStats:
        self.asked.append(("stats", queue))
        return ClaimStats()


@pytest.fixture
def store() -> Recorder:
    return Recorder()


def claim(store: ClaimStore, **numbers: Any) -> HeldClaim | None:
    return store.claim("mails", **{"limit": 1, "ttl": 60, "grace": 60, **numbers})


def post(store: ClaimStore, **fields: Any) -> list[str]:
    return store.post("mails", [NewPost(**{"id": "a", "given": True, "body": b"", **fields})])


Call = Callable[[ClaimStore], Any]

NO_TTL = (59.999, 43_200.001, 0, -60, math.inf, -math.inf, math.nan, True, "60")
NO_LIMIT = (0, 21, -1, 1.0, True, "1", None)
NO_PAGE = (0, 1001, 1.5)
SECONDS = "60 to 43,200 seconds (12h00m), not"
MESSAGES = "limit is a whole number from 1 to 20, not"

REFUSED: list[tuple[str, tuple[Any, ...], Callable[[ClaimStore, Any], Any]]] = [
    (f"ttl is {SECONDS}", (*NO_TTL, None), lambda store, bad: claim(store, ttl=bad)),
    (f"grace is {SECONDS}", (*NO_TTL, None), lambda store, bad: claim(store, grace=bad)),
    (f"ttl is {SECONDS}", (*NO_TTL, None), lambda store, bad: store.renew("mails", MINE, ttl=bad)),
    (f"grace is {SECONDS}", NO_TTL, lambda store, bad: store.renew("mails", MINE, ttl=60, grace=bad)),
    (MESSAGES, NO_LIMIT, lambda store, bad: claim(store, limit=bad)),
    (MESSAGES, NO_LIMIT, lambda store, bad: store.pop("mails", bad)),
    ("max_claims is a whole number from 0 to", (-1, 2**31, 1.5), lambda store, bad: claim(store, max_claims=bad)),
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
    store: Recorder, text: str, bad: Any, call: Callable[[ClaimStore, Any], Any]
) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - its text is looked at below
        call(store, bad)
    assert text in str(refused.value)
    assert store.asked == []


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
def test_what_is_no_queue_is_refused(store: Recorder, call: Call) -> None:
    with pytest.raises(InvalidJob, match="queue name 'a queue' is refused"):
        call(store)
    assert store.asked == []


@pytest.mark.parametrize("ident", ["", "x", MINE[1:], MINE + "0", MINE.upper(), MINE + "\n", "é" * 32, None, 7, b"x"])
def test_what_is_no_id_of_a_claim_is_not_found_without_asking(store: Recorder, ident: Any) -> None:
    for call in (
        lambda: store.get("mails", ident),
        lambda: store.renew("mails", ident, ttl=60),
        lambda: store.delete_many("mails", ["a"], ident if ident is not None else ""),
    ):
        with pytest.raises(ClaimNotFound, match="queue 'mails' has no live claim"):
            call()
    assert store.release("mails", ident) == 0
    assert store.asked == []


def test_a_claim_that_the_broker_does_not_know_is_not_found(store: Recorder) -> None:
    for call in (
        lambda: store.get("mails", MINE),
        lambda: store.renew("mails", MINE, ttl=60),
        lambda: store.delete_many("mails", ["a"], MINE),
    ):
        with pytest.raises(ClaimNotFound, match=f"{MINE}.* may be done again"):
            call()
    assert store.release("mails", MINE) == 0
    assert [asked[0] for asked in store.asked] == ["get", "renew", "delete", "release"]


def test_an_error_does_not_repeat_all_of_a_long_id(store: Recorder) -> None:
    with pytest.raises(ClaimNotFound) as refused:
        store.get("mails", "x" * 10_000)
    assert len(str(refused.value)) < 300


def test_bounds_belong_to_what_is_allowed(store: Recorder) -> None:
    claim(store, limit=1, ttl=60, grace=43_200, claim_id=MINE)
    claim(store, limit=20, ttl=43_200, grace=60, max_claims=2**31 - 1, claim_id=MINE)
    assert store.asked == [
        ("claim", "mails", MINE, 1, 60.0, 43_200.0, 0),
        ("claim", "mails", MINE, 20, 43_200.0, 60.0, 2**31 - 1),
    ]
    assert all(type(number) is float for asked in store.asked for number in asked[4:6])


def test_an_id_is_minted_for_a_claim_without_one(store: Recorder) -> None:
    for _ in range(2):
        claim(store)
    first, second = (asked[2] for asked in store.asked)
    assert CLAIM_ID.fullmatch(first)
    assert CLAIM_ID.fullmatch(second)
    assert first != second


def test_posts_are_handed_on_all_or_none(store: Recorder) -> None:
    posts = [NewPost("a", True, b"x" * 2**20, 60.0, 0.0), NewPost("b", False, b"", 1_209_600.0, 900.0)]
    assert store.post("mails", posts) == ["a", "b"]
    assert store.post("mails", []) == []
    with pytest.raises(ValueError, match="delay"):
        store.post("mails", [*posts, NewPost("c", False, b"", None, 901.0)])
    assert store.asked == [("post", "mails", posts)]


def test_nothing_to_delete_asks_nobody(store: Recorder) -> None:
    assert store.delete_many("mails", []) == []
    assert store.delete_many("mails", ["a"] * 20) == [Deleted.DONE] * 20
    assert len(store.asked) == 1


def test_bodies_are_not_shown() -> None:
    posted = NewPost("a", True, b"a secret")
    message = QueueMessage("a", "mails", b"a secret", "", 5, 0.0)
    assert "secret" not in f"{posted} {message}"
    assert "secret" not in pretty_repr([posted, message])


def test_total_is_the_sum_of_what_is_there() -> None:
    assert ClaimStats(claimed=1, free=2, delayed=4, expired=8).total == 7
