"""What a message needs before it may run."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.tables import row

from jobpool.errors import ConfigurationError, MalformedEnvelope
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import JobEnvelope, decode, encode
from jobpool.message.guards import Guards, Hold, Rate
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.limits import Limits, QueueLimits, guards_of, refusal

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


def test_what_is_asked_for() -> None:
    for case, options, limits, guards in [
        ("a plain job", {}, FREE, None),
        ("meta that asks for nothing", {"timeout": 5.0, "meta": {"a": 1}}, FREE, None),
        ("a key", {"idempotency_key": " k "}, FREE, Guards("k")),
        ("alone by its handler", {"single_instance": True}, FREE, Guards(holds=(Hold("job:report"),))),
        ("alone by its name", {"single_instance": True, "name": "n"}, FREE, Guards(holds=(Hold("job:n"),))),
        ("a concurrency key that nothing limits", {"concurrency_key": "acme"}, FREE, None),
        ("the queue's limits", {}, LIMITED, Guards(None, 86400.0, (Hold("queue", 4),), (Rate("queue", 100),))),
        (
            "everything",
            {"concurrency_key": "acme", "idempotency_key": "k", "single_instance": True},
            LIMITED,
            Guards(
                "k",
                60.0,
                (Hold("queue", 4), Hold("job:report"), Hold("concurrency:acme", 2)),
                (Rate("queue", 100), Rate("concurrency:acme", 10)),
            ),
        ),
        ("per key", {"concurrency_key": "acme"}, QueueLimits(per_key=3), Guards(holds=(Hold("concurrency:acme", 3),))),
        (
            "rate per key",
            {"concurrency_key": "acme"},
            QueueLimits(rate_per_key=3),
            Guards(rates=(Rate("concurrency:acme", 3),)),
        ),
        ("limits per key, and no key", {}, QueueLimits(per_key=3, rate_per_key=3), None),
    ]:
        assert guards_of(an_envelope(**options), limits) == guards, case


def test_limits_are_a_queues_own() -> None:
    assert Limits(concurrency={"reports": 4}).of("mails") == QueueLimits()


@pytest.mark.parametrize("key", ["", "   "])
def test_a_key_of_nothing_is_none(key: str) -> None:
    assert guards_of(replace(an_envelope(), idempotency_key=key), FREE) is None


def test_a_key_that_can_be_none_is_refused() -> None:
    for key, shown in [
        ("k" * 256, "of 256 characters"),
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
    for options, names in [
        ({"idempotency_key": "k"}, "idempotency_key"),
        ({"single_instance": True}, "single_instance"),
        ({"concurrency_key": "acme"}, "concurrency_key"),
        ({"single_instance": True, "idempotency_key": "k"}, "single_instance and idempotency_key"),
    ]:
        said = refusal(an_envelope(**options), "sync")
        with row(options), pytest.raises(Exception, match=f"needs for {names}: leave {names} out") as refused:
            JobDefinition("report", **options).require(False, "sync")
        assert said == str(refused.value), options


@pytest.mark.parametrize("options", [{}, {"timeout": 5.0}])
def test_without_a_key_store_plain_jobs_run(options: dict[str, Any]) -> None:
    assert refusal(an_envelope(**options), "sync") is None


@pytest.mark.parametrize("most", [0, -1, 1_000_001, 1.5, True, "4"])
@pytest.mark.parametrize("part", ["concurrency", "concurrency_per_key", "rates", "rates_per_key"])
def test_a_limit_out_of_bounds_is_refused(part: str, most: Any) -> None:
    with pytest.raises(ConfigurationError, match="queue 'reports' is a whole number from 1 to 1000000"):
        Limits(**{part: {"reports": most}})


def test_a_limit_for_what_is_no_queue_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="queue name 'my queue' is refused"):
        Limits(rates={"my queue": 1})


@pytest.mark.parametrize("ttl", [0, -1.0, float("nan"), 367 * 86400])
def test_a_key_is_kept_for_some_time_and_at_most_a_year(ttl: float) -> None:
    with pytest.raises(ConfigurationError, match="idempotency_ttl is more than 0"):
        Limits(idempotency_ttl=ttl)


def test_limits_say_whether_there_are_any() -> None:
    assert not Limits(idempotency_ttl=5.0)
    assert Limits(rates_per_key={"reports": 1})
