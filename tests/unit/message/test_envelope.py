"""The wire form: what is written, what is read, what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from payloads import json_values
from support.tiers import examples

from jobpool.errors import BadSignature, InvalidJob, MalformedEnvelope
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES, RULES, WIRE_VERSION, JobEnvelope, complaint, decode, encode, verify
from jobpool.message.payload import LARGEST_INT
from jobpool.message.signing import EnvelopeSigner, canonical_of

SIGNER = EnvelopeSigner("secret-key")
UNSIGNED = EnvelopeSigner()
ID = "0123456789abcdef"


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
        body = a_body(
            UNSIGNED,
            name="daily report",
            max_retries=3,
            timeout=60,
            single_instance=True,
            idempotency_key="k",
            expires_in=10.5,
            concurrency_key="printer",
            meta={"tenant": 7},
            scheduled_at=datetime(2026, 7, 1, 12, tzinfo=UTC),
        )

        assert body == (
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

    @pytest.mark.parametrize("payload", ["app:report", {"x": 1}], ids=["text", "object"])
    def test_the_published_check_values(self, payload: Any) -> None:
        job = JobDefinition("command", payload, priority=5, max_retries=3, name="daily-report")
        body = encode(job, identifier=ID, queue="reports", signer=SIGNER, now=0.0)

        assert (
            json.loads(body)["_sig"]
            == {
                "app:report": "a6f083171b2e4f09de675b040e55c829da9fd66076ac0311324a76216ea27a6f",
                "{'x': 1}": "a73d172fc8f0240f033f8463a39c4bf7538b7edee19b36efe89e620cc613d44b",
            }[str(payload)]
        )


class TestRead:
    def test_every_field(self) -> None:
        body = a_body(
            name="daily",
            priority=1,
            max_retries=3,
            timeout=60,
            single_instance=True,
            idempotency_key="k",
            expires_in=10,
            concurrency_key="printer",
            meta={"tenant": 7},
            scheduled_at=datetime(2026, 7, 1, 12, tzinfo=UTC),
        )

        envelope = decode(body, attempts=2)

        assert envelope.job == "report"
        assert envelope.payload == {"x": 1}
        assert envelope.queue == "reports"
        assert envelope.priority == 1
        assert envelope.max_retries == 3
        assert envelope.attempts == 2
        assert envelope.name == "daily"
        assert envelope.identifier == ID
        assert envelope.idempotency_key == "k"
        assert envelope.schedule == "2026-07-01T12:00:00Z"
        assert envelope.timeout == 60.0
        assert envelope.single_instance is True
        assert envelope.expires == 1_800_000_010.0
        assert envelope.concurrency_key == "printer"
        assert envelope.user_meta == {"tenant": 7}
        assert envelope.version == 1
        verify(envelope, SIGNER, "reports")

    def test_what_was_not_set(self) -> None:
        envelope = decode(a_body(), attempts=0)

        assert envelope.max_retries is None
        assert envelope.timeout is None
        assert envelope.single_instance is False
        assert envelope.expires is None
        assert envelope.concurrency_key is None
        assert envelope.user_meta == {}

    @pytest.mark.parametrize(
        ("meta", "trace_id"),
        [
            ({}, None),
            ({"traceparent": f"00-{'4b' * 16}-{'a1' * 8}-01"}, "4b" * 16),
            ({"traceparent": f"cc-{'4b' * 16}-{'a1' * 8}-00-of a later version"}, "4b" * 16),
            ({"traceparent": f"00-{'4B' * 16}-{'a1' * 8}-01"}, None),
            ({"traceparent": "00-4b"}, None),
            ({"traceparent": 7}, None),
        ],
    )
    def test_the_trace_is_that_of_traceparent(self, meta: dict[str, object], trace_id: str | None) -> None:
        assert replace(decode(a_body(), attempts=0), meta=meta).trace_id == trace_id

    def test_the_signature_is_not_shown(self) -> None:
        assert decode(a_body(), attempts=0).sig not in repr(decode(a_body(), attempts=0))

    @pytest.mark.parametrize("name", [rule.name for rule in RULES if not rule.required])
    def test_an_absent_field_is_a_null_one_also_under_the_signature(self, name: str) -> None:
        body = without(a_body(), name)

        envelope = decode(body, attempts=0)

        assert envelope == decode(a_body(), attempts=0)
        verify(envelope, SIGNER, "reports")

    def test_unknown_fields_are_ignored_and_unsigned(self) -> None:
        body = changed(a_body(), colour="red")

        verify(decode(body, attempts=0), SIGNER, "reports")

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


class TestRefused:
    @pytest.mark.parametrize(
        ("body", "text"),
        [
            pytest.param(b"", "the body is not JSON", id="empty"),
            pytest.param(b"{", "the body is not JSON", id="cut short"),
            pytest.param(b"\xff\xfe", "the body is not JSON", id="not UTF-8"),
            pytest.param(b"\x80\x04K\x01.", "the body is not JSON", id="pickle"),
            pytest.param(b'{"job":NaN}', "the body is not JSON", id="NaN"),
            pytest.param(b"[1]", r"the body is \[1\], not a JSON object", id="list"),
            pytest.param(b"null", "the body is null, not a JSON object", id="null"),
            pytest.param(b'"' + b"a" * 100 + b'"', "the body is .{60}…, not a JSON object", id="long text"),
            pytest.param(b"{}", "the body has no field 'job'", id="empty object"),
        ],
    )
    def test_a_body_that_is_no_wire_object(self, body: bytes, text: str) -> None:
        with pytest.raises(MalformedEnvelope, match=text):
            decode(body, attempts=0)

    @pytest.mark.parametrize("name", [rule.name for rule in RULES if rule.required])
    def test_a_missing_field_is_named(self, name: str) -> None:
        with pytest.raises(MalformedEnvelope, match=f"^the body has no field '{name}'$"):
            decode(without(a_body(), name), attempts=0)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("job", None),
            ("job", ""),
            ("job", 7),
            ("job", "a\nb"),
            ("job", "j" * 256),
            ("queue", None),
            ("queue", ["reports"]),
            ("priority", None),
            ("priority", True),
            ("priority", 5.0),
            ("priority", -1),
            ("priority", 256),
            ("priority", "5"),
            ("maxRetries", -1),
            ("maxRetries", 1.5),
            ("maxRetries", False),
            ("attempts", -1),
            ("attempts", "0"),
            ("name", ""),
            ("name", 7),
            ("name", "a\x1b[2J"),
            ("identifier", None),
            ("identifier", ""),
            ("identifier", "i" * 129),
            ("identifier", "a\x00"),
            ("identifier", 1),
            ("idempotencyKey", 7),
            ("schedule", 0),
            ("meta", []),
            ("meta", False),
            ("meta", ""),
            ("meta", {"v": 0}),
            ("meta", {"v": "2"}),
            ("meta", {"v": None}),
            ("meta", {"_timeout": -1}),
            ("meta", {"_timeout": True}),
            ("meta", {"_timeout": None}),
            ("meta", {"_expires": "soon"}),
            ("meta", {"_singleInstance": 1}),
            ("meta", {"_concurrencyKey": ""}),
        ],
    )
    def test_a_field_of_the_wrong_type_is_named_and_shown(self, name: str, value: Any) -> None:
        with pytest.raises(MalformedEnvelope, match=f"^the body's field '{name}' is .*, not "):
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

    def test_one_byte_above_the_bound(self) -> None:
        body = a_body(UNSIGNED)
        at_the_bound = body + b" " * (MAX_BODY_BYTES - len(body))

        assert decode(at_the_bound, attempts=0).job == "report"
        with pytest.raises(MalformedEnvelope, match=f"the body has more than {MAX_BODY_BYTES} bytes"):
            decode(at_the_bound + b" ", attempts=0)


def deep(levels: int, opening: str = "[", closing: str = "]", core: str = "1") -> bytes:
    """A body whose payload has `levels` containers, so that the body has one more."""
    body = a_body(UNSIGNED).decode()
    return body.replace('{"x":1}', opening * levels + core + closing * levels).encode()


class TestDepth:
    @pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
    def test_the_bound(self, opening: str, closing: str) -> None:
        assert decode(deep(63, opening, closing), attempts=0)
        with pytest.raises(MalformedEnvelope, match="nested more than 64 deep"):
            decode(deep(64, opening, closing), attempts=0)

    def test_a_hundred_thousand_levels(self) -> None:
        with pytest.raises(MalformedEnvelope, match="nested more than 64 deep"):
            decode(deep(100_000), attempts=0)

    def test_many_brackets_side_by_side_are_not_deep(self) -> None:
        payload = [{"a": [i]} for i in range(1000)]

        assert decode(a_body(payload=payload), attempts=0).payload == payload

    @pytest.mark.parametrize(
        "text", ["[" * 500, "]" * 500, '"[{' * 100, "\\" * 7 + '"[' * 99, '\\"' * 3 + "{" * 99], ids=repr
    )
    def test_brackets_inside_text_do_not_count(self, text: str) -> None:
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

    @pytest.mark.parametrize(
        "unit", [b"[", b"]", b"{", b'"', b"\\", b'\\"', b'"[', b"[]", b'{"a":', b"[" * 64 + b"]" * 64, b"\x00", b"\xff"]
    )
    def test_a_hostile_body_at_the_bound_is_refused(self, unit: bytes) -> None:
        body = unit * (MAX_BODY_BYTES // len(unit))

        for hostile in (body, b'{"job":' + body[: MAX_BODY_BYTES - 10]):
            with pytest.raises(MalformedEnvelope):
                decode(hostile, attempts=0)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


FULL: dict[str, Any] = {
    "payload": {"customer": 7, "note": 'a "quoted" [text] é', "deep": {"b": [1, 2.5, None], "a": True}},
    "name": "daily",
    "max_retries": 3,
    "idempotency_key": "k-1",
    "timeout": 60,
    "meta": {"tenant": "acme"},
}


class TestVerified:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("job", "shell"),
            ("payload", {"x": 2}),
            ("priority", 0),
            ("maxRetries", 1000),
            ("name", "other"),
            ("identifier", "fedcba9876543210"),
            ("idempotencyKey", "other"),
            ("meta", {"_timeout": 0}),
            ("meta", {}),
            ("_sig", "0" * 64),
        ],
    )
    def test_a_changed_field_is_refused(self, name: str, value: Any) -> None:
        body = changed(a_body(**FULL), **{name: value})

        with pytest.raises(BadSignature, match="the signature is wrong"):
            verify(decode(body, attempts=0), SIGNER, "reports")

    @pytest.mark.parametrize("sig", [None, "", 7, ["a"], {}], ids=repr)
    def test_a_missing_signature_is_refused(self, sig: Any) -> None:
        body = changed(a_body(), _sig=sig)

        with pytest.raises(BadSignature, match="the signature is missing"):
            verify(decode(body, attempts=0), SIGNER, "reports")

    def test_an_absent_signature_is_refused(self) -> None:
        body = without(a_body(), "_sig")

        with pytest.raises(BadSignature, match="the signature is missing"):
            verify(decode(body, attempts=0), SIGNER, "reports")

    def test_the_former_key_is_refused_and_accepted_during_a_rotation(self) -> None:
        body = a_body(EnvelopeSigner("old"))

        with pytest.raises(BadSignature):
            verify(decode(body, attempts=0), SIGNER, "reports")
        verify(decode(body, attempts=0), EnvelopeSigner(["secret-key", "old"]), "reports")

    @pytest.mark.parametrize("signer", [SIGNER, UNSIGNED], ids=["signed", "unsigned"])
    def test_a_message_of_another_queue_is_refused(self, signer: EnvelopeSigner) -> None:
        body = a_body(signer)

        with pytest.raises(MalformedEnvelope, match="was sent to queue 'reports' and fetched from 'mail'") as refused:
            verify(decode(body, attempts=0), signer, "mail")
        assert not isinstance(refused.value, BadSignature)

    def test_the_queue_renamed_in_the_body_is_refused(self) -> None:
        body = changed(a_body(), queue="mail")

        with pytest.raises(BadSignature):
            verify(decode(body, attempts=0), SIGNER, "mail")

    def test_without_a_key_everything_verifies(self) -> None:
        body = changed(a_body(), job="other", _sig=None)

        verify(decode(body, attempts=0), UNSIGNED, "reports")

    def test_attempts_and_schedule_are_not_signed(self) -> None:
        body = changed(a_body(), attempts=7, schedule="2026-01-01T00:00:00Z")

        verify(decode(body, attempts=0), SIGNER, "reports")

    def test_every_byte_flipped_in_every_way_is_refused_or_changes_nothing_signed(self) -> None:
        body = a_body(**FULL)
        signed = canonical_of(decode(body, attempts=0).to_wire())

        for index in range(len(body)):
            for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255, body[index], body[index] ^ ord("0"), body[index] ^ ord(" ")):
                self.assert_safe(body[:index] + bytes([body[index] ^ flip]) + body[index + 1 :], signed)

    @settings(max_examples=examples(300))
    @given(st.data())
    def test_bytes_cut_out_or_put_in_are_refused_or_change_nothing_signed(self, data: st.DataObject) -> None:
        body = a_body(**FULL)
        signed = canonical_of(decode(body, attempts=0).to_wire())
        start = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(start, min(len(body), start + 8)))
        put_in = data.draw(st.sampled_from([b"", b" ", b"0", b'"', b",", b'"job":"x",', b'{"a":1}', b"\\"]))

        self.assert_safe(body[:start] + put_in + body[end:], signed)

    @staticmethod
    def assert_safe(body: bytes, signed: bytes) -> None:
        try:
            envelope = decode(body, attempts=0)
            verify(envelope, SIGNER, "reports")
        except MalformedEnvelope:
            return
        assert canonical_of(envelope.to_wire()) == signed


def test_an_envelope_can_be_made_by_hand() -> None:
    envelope = JobEnvelope("report", {}, "reports", 5, None, 0, None, ID)

    assert envelope.meta == {}
    assert envelope.sig == ""
