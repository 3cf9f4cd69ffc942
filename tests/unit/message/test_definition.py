"""`JobDefinition`: defaults, bounds, copies, and the way over a socket."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import row

from jobpool.errors import LONGEST_WAIT_S, InvalidJob, Unsupported
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import encode
from jobpool.message.signing import EnvelopeSigner

NOON = datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)

CHANGED: dict[str, Any] = {
    "handler": "other",
    "payload": [1, 2],
    "name": "daily report",
    "queue": "reports",
    "priority": 1,
    "max_retries": 0,
    "timeout": 1.5,
    "scheduled_at": NOON,
    "single_instance": True,
    "environments": ("production", "staging"),
    "depends_on": ("import",),
    "cron_expression": "0 3 * * 1-5",
    "zone": "Europe/Berlin",
    "misfire": "all(3)",
    "meta": {"tenant": 7, "traceparent": "00-a-b-01"},
    "enabled": False,
    "idempotency_key": "order-7",
    "unique": True,
    "identifier": "order-7",
    "expires_in": 60.0,
    "concurrency_key": "printer",
    "result_ttl": 60.0,
    "batch": "june",
    "then": (JobDefinition("next"),),
    "previous": [7],
}


def test_the_defaults() -> None:
    plain = JobDefinition("report")

    assert {part.name: getattr(plain, part.name) for part in fields(plain)} == {
        "handler": "report",
        "payload": {},
        "name": None,
        "queue": None,
        "priority": 5,
        "max_retries": None,
        "timeout": None,
        "scheduled_at": None,
        "single_instance": False,
        "environments": (),
        "depends_on": (),
        "cron_expression": "* * * * *",
        "zone": "UTC",
        "misfire": "one",
        "meta": {},
        "enabled": True,
        "idempotency_key": None,
        "unique": False,
        "identifier": None,
        "expires_in": None,
        "concurrency_key": None,
        "result_ttl": None,
        "batch": None,
        "then": (),
        "previous": None,
    }


def test_it_is_immutable_and_keeps_copies() -> None:
    payload = {"customer": 7}
    meta = {"tenant": [1]}
    job = JobDefinition("report", payload, meta=meta)

    payload["customer"] = 8
    meta["tenant"].append(2)

    assert job.payload == {"customer": 7}
    assert job.meta == {"tenant": [1]}
    with pytest.raises(FrozenInstanceError):
        job.priority = 1  # type: ignore[misc]


def test_every_field_has_a_copy_helper_that_changes_nothing_else() -> None:
    before = JobDefinition("report", {"x": 1})
    for name in [part.name for part in fields(JobDefinition)]:
        after = getattr(before, f"with_{name}")(CHANGED[name])
        assert getattr(after, name) == CHANGED[name], name
        assert before == JobDefinition("report", {"x": 1}), name
        for other in fields(JobDefinition):
            if other.name != name:
                assert getattr(after, other.name) == getattr(before, other.name), (name, other.name)


JUNK: list[Any] = [
    *(0, -1, False, [], "", None, (), {}, {1: 2}, object(), math.nan, b"", 1.5, set(), [[]], "\ud800", 10**400),
]


def test_what_is_accepted_can_be_sent() -> None:
    """A value that only breaks later would take a whole bulk enqueue with it."""
    for name in [part.name for part in fields(JobDefinition)]:
        for junk in JUNK:
            try:
                definition = JobDefinition(**{"handler": "report", name: junk})
            except InvalidJob:
                continue
            assert encode(definition, identifier="x", queue="q", signer=EnvelopeSigner(), now=0.0), (name, junk)


def test_what_is_out_of_bounds_is_refused_by_name() -> None:
    for case, given_fields, text in [
        ("no handler", {"handler": ""}, r"handler name '' is refused"),
        ("handler with a newline", {"handler": "a\nb"}, r"handler name .* printable"),
        ("handler None", {"handler": None}, r"handler name None is refused"),
        ("payload", {"payload": {"a": {1}}}, r"payload\.a: JSON has no set"),
        ("empty name", {"name": ""}, r"job name '' is refused"),
        ("queue", {"queue": "a b"}, r"queue name 'a b' is refused"),
        ("priority low", {"priority": -1}, r"priority must be a whole number from 0 to 255, not -1"),
        ("priority high", {"priority": 256}, r"priority must be .* not 256"),
        ("priority bool", {"priority": True}, r"priority must be .* not True"),
        ("priority float", {"priority": 5.0}, r"priority must be .* not 5.0"),
        ("retries low", {"max_retries": -1}, r"max_retries must be a whole number from 0"),
        ("retries high", {"max_retries": 2**31}, r"max_retries must be"),
        ("timeout low", {"timeout": -0.1}, r"timeout must be 0 to \d+ seconds, or a timedelta, not -0.1"),
        ("timeout infinite", {"timeout": float("inf")}, r"timeout must be .* not inf"),
        ("timeout nan", {"timeout": float("nan")}, r"timeout must be .* not nan"),
        ("timeout bool", {"timeout": True}, r"timeout must be .* not True"),
        ("timeout text", {"timeout": "60"}, r"timeout must be .* not '60'"),
        ("timeout over a century", {"timeout": LONGEST_WAIT_S * 2}, r"timeout must be"),
        ("naive", {"scheduled_at": datetime(2026, 1, 1)}, r"scheduled_at 2026-.* has no timezone"),
        ("moment as a number", {"scheduled_at": 1.5}, r"scheduled_at is a datetime, not float"),
        (
            "after the end of time",
            {"scheduled_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
            r"scheduled_at .* outside the years 1 to 9999",
        ),
        ("flag", {"single_instance": 1}, r"single_instance is True or False, not 1"),
        ("enabled None", {"enabled": None}, r"enabled is True or False"),
        ("unique text", {"unique": "yes"}, r"unique is True or False"),
        ("environments as text", {"environments": "production"}, r"environments is a list of names"),
        ("empty environment", {"environments": ("",)}, r"a name in environments"),
        ("depends_on as a number", {"depends_on": 7}, r"depends_on is a list of names, not 7"),
        ("cron", {"cron_expression": "* * *"}, r"cron_expression .* five fields"),
        ("cron field", {"cron_expression": "60 * * * *"}, r"the minute holds 0\.\.59"),
        ("cron type", {"cron_expression": 5}, r"cron_expression is text, .* not 5"),
        ("zone", {"zone": "Europe/Berln"}, r"no time zone .* did you mean 'Europe/Berlin'"),
        ("misfire", {"misfire": "two"}, r"misfire 'two' is refused: 'skip', 'one' or 'all\(n\)'"),
        ("meta list", {"meta": [1]}, r"meta is an object, not \[1\]: write meta=\{\.\.\.\}, or leave"),
        ("meta zero", {"meta": 0}, r"meta is an object, not 0"),
        ("meta False", {"meta": False}, r"meta is an object, not False"),
        ("meta empty list", {"meta": []}, r"meta is an object, not \[\]"),
        ("meta empty text", {"meta": ""}, r"meta is an object, not ''"),
        ("meta None", {"meta": None}, r"meta is an object, not None"),
        ("cron list", {"cron_expression": []}, r"cron_expression is text, .* not \[\]"),
        ("meta bytes", {"meta": {"a": b""}}, r"meta\.a: JSON has no bytes"),
        ("meta reserved", {"meta": {"_timeout": 1}}, r"meta key '_timeout' is reserved"),
        ("meta version", {"meta": {"v": 2}}, r"meta key 'v' is reserved"),
        ("key number", {"idempotency_key": 7}, r"idempotency_key is text, not int"),
        ("key long", {"idempotency_key": "k" * 256}, r"idempotency_key .* 1 to 255"),
        ("concurrency key", {"concurrency_key": "a\tb"}, r"concurrency_key .* printable"),
        ("id long", {"identifier": "a" * 129}, r"identifier .* 1 to 128"),
        ("id empty", {"identifier": ""}, r"identifier '' is refused"),
        ("expires_in 0", {"expires_in": 0}, r"expires_in must be more than 0 and at most"),
        ("expires_in negative", {"expires_in": -1}, r"expires_in must be more than 0 and at most"),
        ("expires_in nan", {"expires_in": float("nan")}, r"expires_in must be"),
    ]:
        with row(case), pytest.raises(InvalidJob, match=text):
            JobDefinition(**{"handler": "report", **cast(dict[str, Any], given_fields)})


def test_the_bounds_themselves_are_good() -> None:
    for edge in ({"priority": 0}, {"priority": 255}, {"max_retries": 0}, {"timeout": 0}):
        assert JobDefinition("report", **cast(dict[str, Any], edge)), edge


def test_keys_are_trimmed_and_an_empty_one_is_none() -> None:
    for key in ("idempotency_key", "concurrency_key"):
        for raw, kept in (("  order-7\n", "order-7"), ("", None), (" \t", None), (None, None)):
            assert getattr(JobDefinition("report", **cast(dict[str, Any], {key: raw})), key) == kept, (key, raw)


class TestRequire:
    def test_what_needs_a_key_store_is_refused_without_one(self) -> None:
        for case, asks, named in [
            ("single instance", {"single_instance": True}, "single_instance"),
            ("concurrency", {"concurrency_key": "x"}, "concurrency_key"),
            ("idempotency", {"idempotency_key": "x"}, "idempotency_key"),
            ("unique", {"unique": True, "idempotency_key": "x"}, "unique and idempotency_key"),
        ]:
            job = JobDefinition("report", **cast(dict[str, Any], asks))

            with (
                row(case),
                pytest.raises(
                    Unsupported, match=rf"^sqlite:// keeps no keys .* 'report' needs for {named}: leave {named} out"
                ),
            ):
                job.require(False, "sqlite")
            job.require(True, "sqlite")
            with row(f"{case}, in a chain"), pytest.raises(Unsupported, match="'report' needs for"):
                JobDefinition("first", then=(JobDefinition("next"), job)).require(False, "sqlite")

    def test_a_plain_job_needs_nothing_and_unique_needs_a_key(self) -> None:
        JobDefinition("report").require(False, "sqlite")
        with pytest.raises(InvalidJob, match="unique needs an idempotency_key"):
            JobDefinition("report", unique=True).require(True, "redis")


class TestOverASocket:
    def test_every_field_survives(self) -> None:
        job = JobDefinition(**CHANGED)

        assert JobDefinition.from_dict(json.loads(json.dumps(job.to_dict()))) == job

    def test_defaults_are_left_out(self) -> None:
        assert JobDefinition("report", {"x": 1}).to_dict() == {"handler": "report", "payload": {"x": 1}}

    def test_the_moment_is_rfc_3339(self) -> None:
        assert JobDefinition("report", scheduled_at=NOON).to_dict()["scheduled_at"] == "2026-07-01T12:00:00.123456Z"

    @given(
        st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=st.timezones() | st.just(UTC)),
        st.integers(0, 255),
        st.floats(0, LONGEST_WAIT_S, exclude_min=True) | st.none(),
    )
    def test_any_moment_and_number_survive(self, moment: datetime, priority: int, seconds: float | None) -> None:
        job = JobDefinition("r", scheduled_at=moment, priority=priority, timeout=seconds, expires_in=seconds)

        assert JobDefinition.from_dict(json.loads(json.dumps(job.to_dict()))) == job

    def test_rubbish_is_refused(self) -> None:
        for case, values, text in [
            ("list", [], "a definition is an object with a handler"),
            ("no handler", {"payload": 1}, "a definition is an object with a handler"),
            ("unknown field", {"handler": "r", "colour": 1}, "a definition has no field 'colour'"),
            ("moment", {"handler": "r", "scheduled_at": "soon"}, "'soon' is not an RFC 3339"),
            ("naive moment", {"handler": "r", "scheduled_at": "2026-01-01T00:00"}, "has no timezone"),
            ("bounds", {"handler": "r", "priority": 999}, "priority must be"),
        ]:
            with row(case), pytest.raises(InvalidJob, match=text):
                JobDefinition.from_dict(cast(dict[str, Any], values))
