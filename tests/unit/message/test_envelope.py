"""The wire form: what is written, what is read, what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from payloads import json_values
from support.tables import row

from jobpool.errors import LONGEST_WAIT_S, InvalidJob, MalformedEnvelope
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import RULES, WIRE_VERSION, JobEnvelope, complaint, decode, encode, verify
from jobpool.message.payload import LARGEST_INT
from jobpool.message.signing import EnvelopeSigner, canonical_of

SIGNER = EnvelopeSigner("secret-key")
UNSIGNED = EnvelopeSigner()
ID = "0123456789abcdef"


FULL: dict[str, Any] = {
    "name": "daily report",
    "max_retries": 3,
    "timeout": 60,
    "single_instance": True,
    "idempotency_key": "k",
    "expires_in": 10.5,
    "concurrency_key": "printer",
    "meta": {"tenant": 7},
    "scheduled_at": datetime(2026, 7, 1, 12, tzinfo=UTC),
}
FIELDS: dict[str, Any] = {
    "job": "report",
    "payload": {"x": 1},
    "queue": "reports",
    "priority": 1,
    "max_retries": 3,
    "attempts": 2,
    "name": "daily report",
    "identifier": ID,
    "idempotency_key": "k",
    "schedule": "2026-07-01T12:00:00Z",
    "timeout": 60.0,
    "single_instance": True,
    "expires": 1_800_000_010.5,
    "concurrency_key": "printer",
    "user_meta": {"tenant": 7},
    "version": 1,
}


def a_body(signer: EnvelopeSigner = SIGNER, **given_fields: Any) -> bytes:
    job = JobDefinition(**{"handler": "report", "payload": {"x": 1}, **given_fields})
    return encode(job, identifier=ID, queue="reports", signer=signer, now=1_800_000_000.0)


def changed(body: bytes, **values: Any) -> bytes:
    return json.dumps({**json.loads(body), **values}).encode()


def without(body: bytes, *names: str) -> bytes:
    return json.dumps({key: value for key, value in json.loads(body).items() if key not in names}).encode()


class TestWritten:
    def test_the_fields_stand_in_wire_order(self) -> None:
        assert a_body(UNSIGNED) == (
            b'{"job":"report","payload":{"x":1},"queue":"reports","priority":5,"maxRetries":null,"attempts":0,'
            b'"name":null,"identifier":"0123456789abcdef","idempotencyKey":null,"schedule":null,"_sig":""}'
        )

    def test_the_meta_stands_before_the_signature(self) -> None:
        assert a_body(UNSIGNED, **FULL) == (
            b'{"job":"report","payload":{"x":1},"queue":"reports","priority":5,"maxRetries":3,"attempts":0,'
            b'"name":"daily report","identifier":"0123456789abcdef","idempotencyKey":"k",'
            b'"schedule":"2026-07-01T12:00:00Z","meta":{"tenant":7,"_timeout":60.0,"_singleInstance":true,'
            b'"_expires":1800000010.5,"_concurrencyKey":"printer"},"_sig":""}'
        )

    def test_the_payload_keeps_its_order_and_the_canonical_form_is_sorted(self) -> None:
        body = a_body(UNSIGNED, payload={"b": {"z": 1, "a": 2}, "a": [{"y": 1, "x": 2}]})
        assert b'"payload":{"b":{"z":1,"a":2},"a":[{"y":1,"x":2}]}' in body
        assert b'"payload":{"a":[{"x":2,"y":1}],"b":{"a":2,"z":1}}' in canonical_of(decode(body, attempts=0).to_wire())

    def test_the_definition_stays_as_it_was(self) -> None:
        job = JobDefinition("report", meta={"tenant": 7}, timeout=60)
        encode(job, identifier=ID, queue="reports", signer=SIGNER, now=0.0)
        assert job.meta == {"tenant": 7}

    def test_a_payload_changed_after_the_check_is_refused(self) -> None:
        job = JobDefinition("report", {"x": 1})
        job.payload["x"] = {1, 2}
        with pytest.raises(InvalidJob, match="the payload of job 'report' is not JSON any more"):
            encode(job, identifier=ID, queue="reports", signer=SIGNER, now=0.0)


class TestRead:
    def test_every_field(self) -> None:
        body = a_body(**FULL, priority=1)
        envelope = decode(body, attempts=2)
        assert {name: getattr(envelope, name) for name in FIELDS} == FIELDS
        verify(envelope, SIGNER, "reports")

    def test_what_was_not_set(self) -> None:
        unset: dict[str, Any] = {"max_retries": None, "timeout": None, "single_instance": False, "expires": None}
        unset |= {"concurrency_key": None, "user_meta": {}}
        envelope = decode(a_body(), attempts=0)
        assert {name: getattr(envelope, name) for name in unset} == unset

    def test_the_trace_is_that_of_traceparent(self) -> None:
        for meta, trace_id in [
            ({}, None),
            ({"traceparent": f"00-{'4b' * 16}-{'a1' * 8}-01"}, "4b" * 16),
            ({"traceparent": f"cc-{'4b' * 16}-{'a1' * 8}-00-of a later version"}, "4b" * 16),
            ({"traceparent": f"00-{'4B' * 16}-{'a1' * 8}-01"}, None),
            ({"traceparent": "00-4b"}, None),
            ({"traceparent": 7}, None),
        ]:
            assert replace(decode(a_body(), attempts=0), meta=meta).trace_id == trace_id, meta

    def test_the_signature_is_not_shown(self) -> None:
        assert decode(a_body(), attempts=0).sig not in repr(decode(a_body(), attempts=0))

    def test_an_absent_field_is_a_null_one_also_under_the_signature(self) -> None:
        for name in [rule.name for rule in RULES if not rule.required]:
            body = without(a_body(), name)
            envelope = decode(body, attempts=0)
            assert envelope == decode(a_body(), attempts=0), name
            verify(envelope, SIGNER, "reports")

    def test_a_newer_wire_is_read_and_says_so(self) -> None:
        body = changed(a_body(UNSIGNED), meta={"v": WIRE_VERSION + 1, "_timeout": "PT1M"})
        assert decode(body, attempts=0).version == WIRE_VERSION + 1

    @given(json_values, st.text(min_size=1, max_size=50).filter(str.isprintable), st.integers(0, 255))
    @example({"é": 1.0, "a": -0.0, "big": LARGEST_INT}, "jöb", 0)
    def test_any_payload_survives_and_verifies(self, payload: Any, name: str, priority: int) -> None:
        body = a_body(payload=payload, name=name, priority=priority)
        envelope = decode(body, attempts=0)
        assert envelope.payload == payload
        assert envelope.name == name
        verify(envelope, SIGNER, "reports")

    @given(json_values, st.randoms())
    def test_the_signature_does_not_mind_order_and_spacing(self, payload: Any, random: Any) -> None:
        def shuffled(value: Any) -> Any:
            if isinstance(value, dict):
                keys = list(value)
                random.shuffle(keys)
                return {key: shuffled(value[key]) for key in keys}
            return [shuffled(item) for item in value] if isinstance(value, list) else value

        other = orjson.dumps(shuffled(json.loads(a_body(payload=payload))), option=orjson.OPT_INDENT_2)
        verify(decode(other, attempts=0), SIGNER, "reports")


NO_JSON = [
    *(b"", b" ", b"\0", b"{", b"}", b"{]", b"nul", b"{not json", b"{}{}", b"NaN", b'{"a":1,}', b'{"job":NaN}'),
    *(b'{"payload":Infinity}', b"\xff\xfe", b"\xff\xfe{\0}\0", b"\xef\xbb\xbf{}", b"\x80\x04K\x01."),
]
NO_NUMBERS = [10**30, -1, 1e300, 0.5, 1.5, "1", [], True, False]
WRONG: dict[str, list[Any]] = {
    "job": [None, "", 7, "a\nb", "j" * 256],
    "queue": [None, ["reports"]],
    "priority": [None, 5.0, 256, *NO_NUMBERS],
    "maxRetries": NO_NUMBERS,
    "attempts": NO_NUMBERS,
    "name": ["", 7, "a\x1b[2J"],
    "identifier": [None, "", "i" * 129, "a\x00", 1],
    "idempotencyKey": [7],
    "schedule": [0],
    "meta": [
        *([], False, "", {"v": 0}, {"v": "1"}, {"v": "2"}, {"v": None}, {"v": True}, {"v": 1.0}),
        *({"_timeout": value} for value in (-1, LONGEST_WAIT_S * 2, 1e300, 10**18, True, "60", None)),
        *({"_expires": value} for value in ("soon", -1)),
        *({"_singleInstance": value} for value in (1, None)),
        *({"_concurrencyKey": value} for value in ("", "x" * 1000, 7)),
    ],
}


class TestRefused:
    def test_a_body_that_is_no_wire_object(self) -> None:
        for text, bodies in {
            "the body is not JSON": NO_JSON,
            r"the body is \[1\], not a JSON object": [b"[1]"],
            'the body is (null|7|true|"report"), not a JSON object': [b"null", b"7", b"true", b'"report"'],
            "the body is .{60}…, not a JSON object": [b'"' + b"a" * 100 + b'"'],
            "the body has no field 'job'": [b"{}"],
        }.items():
            for body in bodies:
                with row(body), pytest.raises(MalformedEnvelope, match=text):
                    decode(body, attempts=0)

    def test_a_missing_field_is_named(self) -> None:
        for name in [rule.name for rule in RULES if rule.required]:
            with pytest.raises(MalformedEnvelope, match=f"^the body has no field '{name}'$"):
                decode(without(a_body(), name), attempts=0)

    def test_a_field_of_the_wrong_type_is_named_and_shown(self) -> None:
        for name, values in WRONG.items():
            for value in values:
                with row(value), pytest.raises(MalformedEnvelope, match=f"^the body's field '{name}' is .*, not "):
                    decode(changed(a_body(UNSIGNED), **{name: value}), attempts=0)

    @given(st.sampled_from([rule.name for rule in RULES]), json_values)
    def test_the_quick_check_and_the_complaint_agree(self, name: str, value: Any) -> None:
        body = orjson.dumps({**json.loads(a_body(UNSIGNED)), name: value})
        try:
            decode(body, attempts=0)
            accepted = True
        except MalformedEnvelope:
            accepted = False
        assert accepted == (complaint(json.loads(body)) == "")


def deep(levels: int, opening: str = "[", closing: str = "]", core: str = "1") -> bytes:
    """A body whose payload has `levels` containers, so that the body has one more."""
    body = a_body(UNSIGNED).decode()
    return body.replace('{"x":1}', opening * levels + core + closing * levels).encode()


class TestDepth:
    def test_the_bound(self) -> None:
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            assert decode(deep(63, opening, closing), attempts=0), opening
            with row(opening), pytest.raises(MalformedEnvelope, match="nested more than 64 deep"):
                decode(deep(64, opening, closing), attempts=0)

    def test_brackets_inside_text_do_not_count(self) -> None:
        for text in ("[" * 500, "]" * 500, '"[{' * 100, "\\" * 7 + '"[' * 99, '\\"' * 3 + "{" * 99):
            payload = {"text": text, "again": [text, {text: text}]}
            assert decode(a_body(payload=payload), attempts=0).payload == payload

    def test_closing_brackets_inside_text_do_not_hide_the_depth(self) -> None:
        with pytest.raises(MalformedEnvelope, match="nested more than 64 deep"):
            decode(deep(64, '["]]]]\\"]",', "]"), attempts=0)

    @given(json_values, st.integers(0, 80))
    def test_it_agrees_with_a_walk_through_the_value(self, value: Any, wraps: int) -> None:
        for _ in range(wraps):
            value = [value, "]", '"[']
        body = orjson.dumps({**json.loads(a_body(UNSIGNED)), "payload": value})
        assume(body.count(b"[") + body.count(b"{") > 64)
        if depth_of(value) + 1 > 64:
            with pytest.raises(MalformedEnvelope, match="nested more than 64 deep"):
                decode(body, attempts=0)
        else:
            assert decode(body, attempts=0).payload == value


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def test_an_envelope_can_be_made_by_hand() -> None:
    envelope = JobEnvelope("report", {}, "reports", 5, None, 0, None, ID)
    assert envelope.meta == {}
    assert envelope.sig == ""
