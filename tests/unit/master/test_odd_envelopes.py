"""Bodies that anybody could write, on their way through the loop: none may raise there, or it would end the pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from jobpool.broker.control import CancelMark
from jobpool.broker.opening import open_backend
from jobpool.ipc.frames import HandlerInfo
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.observer import Recorded, attempt_of, is_history
from jobpool.master.plan import Planner
from jobpool.master.state import Pool
from jobpool.message.envelope import MAX_BODY_BYTES, OVERSIZED
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Failed
from jobpool.message.settlement import Abandon, Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import Inspected, LeaseInspector
from jobpool.policy.retry import RetryPolicy
from jobpool.settings import Settings

IDENT = "a" * 16
KEYS = ("k" * 20,)
BASE: dict[str, Any] = {"job": "h", "payload": {}, "queue": "q", "priority": 5, "identifier": IDENT, "_sig": ""}
OPTIONAL = {"maxRetries", "attempts", "name", "idempotencyKey", "schedule", "ended", "meta"}
RESERVED = ("_timeout", "_expires", "_singleInstance", "_concurrencyKey", "_resultTtl", "_batch", "_then", "_previous")
META = ("v", *RESERVED, "_callback", "traceparent", "own")
NUMBERS: list[Any] = [None, True, 0, -1, 2**63, 1e308]
TEXTS: list[Any] = ["", "x", "é" * 64, "\x00", "a" * 300, "0001-01-01T00:00:00+23:59"]
OTHERS: list[Any] = [[], {}, [1], ["x"], [None], [{}], [{"handler": 5}], [{"handler": "h", "then": 5}], {"id": "b"}]
ODD = NUMBERS + TEXTS + OTHERS
RAW = [b"", b"null", b"[]", b"{", b"\xff", b"5", b"{}", b"[" * 2000, b'{"job":' * 100, bytes(MAX_BODY_BYTES), OVERSIZED]


def odd_bodies() -> Iterator[bytes]:
    yield from RAW
    for name in (*BASE, *OPTIONAL):
        for value in ODD:
            yield orjson.dumps(BASE | {name: value})
    for version in ({}, {"v": 2}):
        for key in META:
            for value in ODD:
                yield orjson.dumps(BASE | {"meta": version | {key: value}})


class Broker:
    """A broker that hands out one body after the other, and answers as it is told; the pool has no children."""

    def __init__(self, keys: tuple[str, ...] | None, cancelled: bool) -> None:
        self.pool = Pool(Settings(queues=(("q", 1.0),), dead_letter_queue="dead"), now=0.0)
        self.pool.handlers = {"h": HandlerInfo("h", queues=["q"])}
        self.pool.closed_to_hooks = frozenset()
        self.pool.cancels = {IDENT: CancelMark()} if cancelled else {}
        self.planner = Planner(RetryPolicy(), open_backend("memory://").pack)
        self.inspector = LeaseInspector(EnvelopeSigner(keys), {})

    def lease(self, body: bytes) -> list[tuple[Any, Settlement]]:
        """Lease it; return what is to be settled."""
        lease = JobLease(IDENT, "q", body, 1, "b" * 32, 100.0, "memory")
        apply(self.pool, ev.Leased([Inspected(lease, self.inspector.inspect(lease, lambda: 1e9))]), 1.0)
        actions = self.planner.plan(self.pool, 1.0, 1.0)
        # None of what may be run has a child: it fails for good, which makes jobs for others of it.
        self.pool.outcomes = [(delivery, Failed("why", permanent=True)) for delivery in self.pool.ready]
        self.pool.ready.clear()
        actions += self.planner.plan(self.pool, 1.0, 1.0)
        return [each for action in actions if isinstance(action, act.Settle) for each in action.work]

    def answer(self, work: list[tuple[Any, Settlement]], answer: Settled) -> None:
        for delivery, settlement in work:
            if is_history(delivery, settlement, answer):
                attempt_of(Recorded(delivery, settlement, answer, 0.0))
        apply(self.pool, ev.Answered([(*each, answer) for each in work]), 2.0)

    def lose(self) -> None:
        """Tell that the leases of all that is held have ended, whatever is under way for them."""
        for delivery in self.pool.held.values():
            delivery.settling = False
        apply(self.pool, ev.Renewed([(delivery, None) for delivery in self.pool.held.values()]), 2.0)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("keys", [None, KEYS])
def test_no_body_raises_in_the_loop_however_its_delivery_ends(keys: tuple[str, ...] | None, cancelled: bool) -> None:
    broker = Broker(keys, cancelled)
    for body in odd_bodies():
        for answer in (Settled.OK, Settled.NOT_OWNER, None):
            try:
                work = broker.lease(body)
                if answer is not None:
                    broker.answer(work, answer)
                broker.lose()
            except Exception as error:
                raise AssertionError(f"{body[:300]!r}, answered {answer}") from error
            assert not broker.pool.held
            broker.pool.notes.clear()


@pytest.mark.parametrize("then", [["x"], 5, True, [None]])
def test_a_forged_chain_of_a_newer_version_is_rejected(then: object) -> None:
    broker = Broker(KEYS, cancelled=False)
    [(_, settlement)] = broker.lease(orjson.dumps(BASE | {"meta": {"v": 2, "_then": then}, "_sig": "0" * 64}))
    assert isinstance(settlement, Abandon)
    assert settlement.reason == "rejected"


def test_the_chain_of_a_forged_message_is_not_told() -> None:
    broker = Broker(KEYS, cancelled=False)
    broker.lease(orjson.dumps(BASE | {"meta": {"_then": [{"handler": "forged"}]}}))
    assert broker.pool.notes == []


def test_what_is_remembered_of_a_lost_lease_is_not_read_from_a_body_that_is_not_to_be_believed() -> None:
    broker = Broker(KEYS, cancelled=False)
    broker.lease(orjson.dumps(BASE | {"name": "forged"}))
    broker.lose()
    assert broker.pool.unsettled == {IDENT: {"handler": "", "attempts": 0}}
