"""What a message needs before it may run, what a limited queue lets start, and how long contended messages wait."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

import pytest
from msgspec.structs import replace
from support.tables import row

from jobpool.errors import ConfigurationError, MalformedEnvelope
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import JobEnvelope, decode, encode
from jobpool.message.guards import Begin, Begun, Guards, Hold, Rate
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.limits import (
    MAX_SHUT_S,
    MIN_SHUT_S,
    Limits,
    LocalLimits,
    QueueLimits,
    contention_delay,
    guards_of,
    refusal,
)
from jobpool.policy.retry import REMEMBERED_MESSAGES, count_one_more

# --- what a message needs ------------------------------------------------------------------------------------------


FREE = Limits().of("reports")
LIMITED = Limits(
    idempotency_ttl=60.0,
    concurrency={"reports": 4},
    concurrency_per_key={"reports": 2},
    rates={"reports": 100},
    rates_per_key={"reports": 10},
).of("reports")


def an_envelope(**options: Any) -> JobEnvelope:
    job = JobDefinition("report", **options)
    return decode(encode(job, identifier="a", queue="reports", signer=EnvelopeSigner(), now=0.0), attempts=0)


ACME = {"concurrency_key": "acme"}
EVERYTHING = Guards(
    "k",
    60.0,
    (Hold("queue", 4), Hold("job:report"), Hold("concurrency:acme", 2)),
    (Rate("queue", 100), Rate("concurrency:acme", 10)),
)


def test_what_is_asked_for() -> None:
    for case, options, limits, guards in [
        ("a plain job", {}, FREE, None),
        ("meta that asks for nothing", {"timeout": 5.0, "meta": {"a": 1}}, FREE, None),
        ("a key", {"idempotency_key": " k "}, FREE, Guards("k")),
        ("alone by its handler", {"single_instance": True}, FREE, Guards(holds=(Hold("job:report"),))),
        ("alone by its name", {"single_instance": True, "name": "n"}, FREE, Guards(holds=(Hold("job:n"),))),
        ("a concurrency key that nothing limits", ACME, FREE, None),
        ("the queue's limits", {}, LIMITED, Guards(None, 86400.0, (Hold("queue", 4),), (Rate("queue", 100),))),
        ("everything", ACME | {"idempotency_key": "k", "single_instance": True}, LIMITED, EVERYTHING),
        ("per key", ACME, QueueLimits(per_key=3), Guards(holds=(Hold("concurrency:acme", 3),))),
        ("rate per key", ACME, QueueLimits(rate_per_key=3), Guards(rates=(Rate("concurrency:acme", 3),))),
        ("limits per key, and no key", {}, QueueLimits(per_key=3, rate_per_key=3), None),
    ]:
        assert guards_of(an_envelope(**cast(dict[str, Any], options)), limits) == guards, case


def test_limits_are_a_queues_own() -> None:
    assert Limits(concurrency={"reports": 4}).of("mails") == QueueLimits()
    assert not Limits(idempotency_ttl=5.0)
    assert Limits(rates_per_key={"reports": 1})


@pytest.mark.parametrize("key", ["", "   "])
def test_a_key_of_nothing_is_none(key: str) -> None:
    assert guards_of(replace(an_envelope(), idempotency_key=key), FREE) is None


def test_a_key_that_can_be_none_is_refused() -> None:
    for key, shown in [
        ("k" * 256, "kk… (256 characters)"),
        ("a\nb", "'a\\nb'"),
        ("\ud800", "'\\ud800'"),
    ]:
        with (
            row(key),
            pytest.raises(MalformedEnvelope, match="idempotencyKey must be 1 to 255 printable characters") as refused,
        ):
            guards_of(replace(an_envelope(), idempotency_key=key), FREE)
        assert shown in str(refused.value), key


def test_without_a_key_store_it_is_refused_in_the_words_of_the_enqueue() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"idempotency_key": "k"}, "idempotency_key"),
        ({"single_instance": True}, "single_instance"),
        ({"concurrency_key": "acme"}, "concurrency_key"),
        ({"single_instance": True, "idempotency_key": "k"}, "single_instance and idempotency_key"),
    ]
    for options, names in rows:
        said = refusal(an_envelope(**options), "sync")
        with row(options), pytest.raises(Exception, match=f"needs for {names}: leave {names} out") as refused:
            JobDefinition("report", **options).require(False, "sync")
        assert said == str(refused.value), options
    assert [refusal(an_envelope(**plain), "sync") for plain in ({}, {"timeout": 5.0})] == [None, None]


def test_a_limit_that_cannot_be_is_refused() -> None:
    bound = "queue 'reports' is a whole number from 1 to 1000000"
    parts = ("concurrency", "concurrency_per_key", "rates", "rates_per_key")
    rows: list[tuple[dict[str, Any], str]] = [
        *(({part: {"reports": most}}, bound) for part in parts for most in (0, -1, 1_000_001, 1.5, True, "4")),
        *(({part: {"my queue": 1}}, "queue name 'my queue' is refused") for part in parts),
        *(({"idempotency_ttl": ttl}, "idempotency_ttl is more than 0") for ttl in (0, -1.0, math.nan, 367 * 86400)),
    ]
    for fields, told in rows:
        with row(fields), pytest.raises(ConfigurationError, match=told):
            Limits(**fields)


# --- limited queues: what cannot start is not leased, and nothing spins --------------------------------------------


HELD = Begun(Begin.HELD, "queue")


def limited(after: float) -> Begun:
    return Begun(Begin.LIMITED, "queue", after)


def four_places() -> LocalLimits:
    return LocalLimits(Limits(concurrency={"a": 4}))


def ten_a_minute() -> LocalLimits:
    return LocalLimits(Limits(rates={"a": 10}))


def test_a_queue_without_limits_has_no_gate() -> None:
    limits = four_places()
    limits.begun("b", 0, HELD, now=0.0)
    assert limits.room("b", 64, now=0.0) == 64
    assert limits.wait("b", now=0.0) == 0.0


def test_no_more_is_fetched_than_this_pool_may_run() -> None:
    limits = four_places()
    assert limits.room("a", 64, now=0.0) == 4
    limits.hold({"a": 3}, (), now=0.0)
    assert limits.room("a", 64, now=0.0) == 1
    limits.hold({"a": 4}, (), now=0.0)
    assert limits.room("a", 64, now=0.0) == 0
    assert limits.wait("a", now=0.0) > 0.0


def test_a_place_that_is_given_back_opens_it() -> None:
    limits = four_places()
    limits.hold({"a": 4}, (), now=0.0)
    assert limits.may_open_early(now=0.0)
    assert limits.hold({"a": 3}, (), now=0.0), "it was shut, and is open"
    assert not limits.hold({"a": 2}, (), now=0.0), "it was open already"


def test_what_other_pools_hold_shuts_it_for_a_while() -> None:
    limits = four_places()
    limits.begun("a", 0, HELD, now=100.0)
    wait = limits.wait("a", now=100.0)
    assert 0.0 < wait <= 1.0
    assert limits.room("a", 4, now=100.0) == 0
    assert not limits.may_open_early(now=100.0), "nothing of this pool's own could open it"
    assert limits.room("a", 4, now=100.0 + wait) == 1, "and then one is tried"


def test_refused_again_and_again_it_stays_shut_for_longer_and_never_too_long() -> None:
    limits, now, waits = four_places(), 0.0, []
    for _ in range(60):
        limits.begun("a", 0, HELD, now)
        waits.append(limits.wait("a", now))
        now += MAX_SHUT_S
    assert 1.0 < max(waits) <= MAX_SHUT_S


def test_a_settlement_of_its_own_opens_what_was_refused() -> None:
    limits = four_places()
    limits.begun("a", 2, HELD, now=0.0)
    assert not limits.hold({"a": 2}, (), now=0.0), "what was granted is now known to the loop"
    assert limits.may_open_early(now=0.0)
    assert limits.hold({"a": 1}, (), now=0.0)
    assert limits.room("a", 64, now=0.0) == 2, "as many as were granted last"


def test_what_is_granted_in_full_is_asked_for_twice_as_much() -> None:
    limits = ten_a_minute()
    limits.begun("a", 1, limited(1.0), now=0.0)
    rooms = []
    for _ in range(4):
        rooms.append(limits.room("a", 64, now=10.0))
        limits.begun("a", rooms[-1], None, now=10.0)
    assert rooms == [1, 2, 4, 8]


def test_a_rate_keeps_it_shut_for_exactly_as_long_as_the_store_says() -> None:
    limits = ten_a_minute()
    limits.begun("a", 3, limited(17.5), now=100.0)
    assert limits.wait("a", now=100.0) == 17.5
    assert limits.room("a", 64, now=117.4) == 0
    assert limits.room("a", 64, now=117.5) == 3


def test_a_job_that_ends_does_not_open_what_a_rate_shut() -> None:
    limits = ten_a_minute()
    limits.hold({"a": 3}, (), now=0.0)
    limits.begun("a", 3, limited(17.5), now=0.0)
    assert not limits.may_open_early(now=0.0)
    assert not limits.hold({"a": 2}, (), now=0.0)


def test_a_start_that_was_not_used_does() -> None:
    limits = ten_a_minute()
    limits.begun("a", 3, limited(17.5), now=0.0)
    assert limits.hold({}, {"a"}, now=0.0)
    assert limits.room("a", 64, now=0.0) == 3


def test_a_quick_rate_is_asked_for_in_batches() -> None:
    limits = ten_a_minute()
    limits.begun("a", 3, limited(0.000001), now=0.0)
    assert limits.wait("a", now=0.0) == MIN_SHUT_S


def test_one_shut_gate_does_not_shut_another() -> None:
    limits = LocalLimits(Limits(concurrency={"a": 1, "b": 1}))
    limits.begun("a", 0, HELD, now=0.0)
    assert limits.room("b", 1, now=0.0) == 1


# --- how long contended messages wait ------------------------------------------------------------------------------


DRAWN = 400


@pytest.mark.parametrize(("times", "edge"), [(1, 1.0), (2, 2.0), (4, 8.0), (5, 16.0), (6, 30.0), (5000, 30.0)])
def test_full_jitter_up_to_an_edge_that_doubles_to_30_seconds(times: int, edge: float) -> None:
    delays = [contention_delay(times) for _ in range(DRAWN)]
    assert 0.0 <= min(delays) < edge / 5
    assert edge * 4 / 5 < max(delays) <= edge


def test_the_edge_may_be_lower() -> None:
    assert max(contention_delay(9, 5.0) for _ in range(DRAWN)) <= 5.0


def test_what_is_remembered_is_bounded_and_who_was_met_lately_stays() -> None:
    met = partial(count_one_more, {})
    assert [met("first"), met("second"), met("first")] == [1, 1, 2]
    for place in range(REMEMBERED_MESSAGES - 1):
        met(f"other {place}")
    assert [met("first"), met("second")] == [3, 1]
