"""Arguments out of range are one clear `ValueError` on every broker; no text of a handler holds up a settlement."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.claims import ids
from support.jobs import QUEUE, numbered

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, Verb
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement

NAN = float("nan")
EVERYTHING = MessageFilter()


def fetch(backend: QueueBackend, **options: Any) -> object:
    return backend.fetch_many(QUEUE, **{"limit": 1, **options})


WRONG: dict[str, tuple[Callable[[QueueBackend, Any], object], tuple[Any, ...]]] = {
    "fetch limit": (lambda backend, value: fetch(backend, limit=value), (2.5, True, 0, -1, "1", None, NAN)),
    "fetch ttl": (
        lambda backend, value: fetch(backend, ttl=value),
        (0, -1.0, True, "30", None, NAN, float("inf"), 1e9),
    ),
    "fetch wait": (lambda backend, value: fetch(backend, wait=value), (True, "1", None, NAN)),
    "wait": (lambda backend, value: backend.wait_any([QUEUE], value), (True, "1", None, NAN)),
    "renew ttl": (lambda backend, value: backend.renew_many([], value), (0, -1.0, True, "30", NAN)),
    "reap age": (lambda backend, value: backend.reap_expired(QUEUE, value), (0, True, "30", NAN)),
    "page": (lambda backend, value: backend.list_messages(limit=value), (2.5, True, 0, -1, "1", NAN, 1001)),
    "count": (lambda backend, value: backend.count(EVERYTHING, cap=value), (2.5, True, 0, "1", NAN)),
    "bulk": (lambda backend, value: backend.bulk(EVERYTHING, Verb.RETRY, limit=value), (2.5, True, 0, "1", NAN)),
    "age": (lambda backend, value: backend.count(MessageFilter(older_than=value)), (True, "1", NAN)),
}


@pytest.mark.needs("leases")
def test_a_number_out_of_its_range_is_refused_with_a_sentence(backend: QueueBackend) -> None:
    for what, (call, values) in WRONG.items():
        for value in values:
            with pytest.raises(ValueError, match=r"is a|is 1|must be") as refused:
                call(backend, value)
            assert str(value)[:3] in str(refused.value), what


@pytest.mark.above
@pytest.mark.needs("leases")
@pytest.mark.parametrize("delay", [True, "5"])
def test_a_delay_that_is_not_a_number_is_refused_before_anything_is_done(backend: QueueBackend, delay: Any) -> None:
    backend.enqueue_many(numbered(1))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    for call in (partial(backend.nack, lease, delay), partial(backend.release, lease, delay)):
        with pytest.raises(ValueError, match="delay is a number of seconds"):
            call()
    with pytest.raises(ValueError, match="error is text, not ValueError"):
        backend.nack(lease, error=ValueError("boom"))  # type: ignore[arg-type]
    assert backend.ack(lease) is Settled.OK


UGLY = "bro\ud800ken \x00 \udfff text"
NICE = "bro\\ud800ken \ufffd \\udfff text"


@pytest.mark.spans
@pytest.mark.needs("leases")
def test_texts_that_no_broker_can_keep_are_mended_and_hold_up_no_settlement(backend: QueueBackend) -> None:
    settlements: list[Settlement] = [
        Ack(),
        Nack(error=UGLY, cause=UGLY),
        Abandon("ugly", UGLY, UGLY),
        Abandon(UGLY),
        Move("mails", error=UGLY, cause=UGLY),
        Release(),
    ]
    if backend.capabilities.leases:
        settlements.append(Forfeit(UGLY))
    backend.enqueue_many(numbered(len(settlements)))
    leases = backend.fetch_many(QUEUE, limit=len(settlements))
    assert len(leases) == len(settlements)
    assert backend.settle_many(list(zip(leases, settlements, strict=True))) == [Settled.OK] * len(settlements)
    asked = MessageFilter(queue=QUEUE, ids=tuple(ids(leases)))
    died = {message.reason: message for message in backend.list_messages(asked)}
    assert (died["ugly"].last_error, died["ugly"].cause) == (NICE, NICE)
    assert [message.id for message in backend.list_messages(MessageFilter(reason=UGLY))] == [died[NICE].id]


@pytest.mark.needs("leases")
def test_a_filter_with_such_a_text_finds_nothing_and_is_no_error(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(1))
    odd = MessageFilter(text=UGLY), MessageFilter(reason=UGLY), MessageFilter(handler=UGLY), MessageFilter(ids=(UGLY,))
    for where in odd:
        assert backend.list_messages(where) == []
        assert backend.count(where) == 0
