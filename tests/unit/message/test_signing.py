"""Signatures: which key decides, and attacks on signed bodies. None of these becomes another job."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import row
from support.tiers import examples

from jobpool.errors import BadSignature, ConfigurationError, InvalidJob, MalformedEnvelope
from jobpool.message.batches import BatchStatus, with_end
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES, JobEnvelope, decode, decode_again, encode, sign_again, verify
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Rejected
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import LeaseInspector

COMMAND = (
    b'{"job":"command","payload":"app:report","queue":"reports","priority":5,"maxRetries":3,"name":"daily-report",'
    b'"identifier":"0123456789abcdef","idempotencyKey":null}'
)


def test_the_published_check_values() -> None:
    signer = EnvelopeSigner("secret-key")
    for payload, sig in [
        ("app:report", "a6f083171b2e4f09de675b040e55c829da9fd66076ac0311324a76216ea27a6f"),
        ({"x": 1}, "a73d172fc8f0240f033f8463a39c4bf7538b7edee19b36efe89e620cc613d44b"),
    ]:
        canonical = COMMAND.replace(b'"app:report"', orjson.dumps(payload))
        job = JobDefinition("command", payload, priority=5, max_retries=3, name="daily-report")
        body = encode(job, identifier="0123456789abcdef", queue="reports", signer=signer, now=0.0)
        assert signer.sign(canonical) == json.loads(body)["_sig"] == sig
        assert signer.verify(canonical, sig)


def test_the_wire_object_is_signed_as_it_goes_over_the_wire() -> None:
    signer, old = EnvelopeSigner(["secret-key", "old"]), EnvelopeSigner("old")
    wire = json.loads(COMMAND)
    assert signer.sign(wire) == signer.sign(dict(reversed(wire.items()))) == signer.sign(COMMAND)
    assert signer.sign(wire | {"attempts": 3, "schedule": None, "meta": None}) == signer.sign(COMMAND)
    assert signer.verify(wire, signer.sign(COMMAND))
    signed = wire | {"meta": {"tenant": 7, "_timeout": 3}}
    signed["_sig"] = old.sign(signed)
    assert signer.verify(signed)
    assert not signer.verify(signed | {"payload": "app:other"})
    assert not signer.verify(wire), "it has no signature"
    envelope = decode(json.dumps(signed).encode(), attempts=0)
    assert (old.sign(envelope), signer.verify(envelope)) == (signed["_sig"], True)
    with pytest.raises(InvalidJob, match="the wire object is not JSON"):
        signer.sign(wire | {"payload": {1, 2}})


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=300))
def test_it_is_hmac_sha256_whatever_the_length_of_the_key(key: bytes, message: bytes) -> None:
    assert EnvelopeSigner(key).sign(message) == hmac.new(key, message, hashlib.sha256).hexdigest()


def test_without_a_key_everything_verifies() -> None:
    signer = EnvelopeSigner()
    assert not signer.active
    assert signer.sign(b"x") == ""
    assert signer.verify(b"x", "anything")
    assert signer.verify(b"x", None)


def test_the_first_key_signs_and_all_verify() -> None:
    old, new = EnvelopeSigner("old"), EnvelopeSigner("new")
    rotating = EnvelopeSigner(["new", "old"])
    assert rotating.sign(b"x") == new.sign(b"x")
    assert rotating.verify(b"x", old.sign(b"x"))
    assert rotating.verify(b"x", new.sign(b"x"))
    assert not old.verify(b"x", new.sign(b"x"))


def test_text_stands_for_its_utf_8_bytes() -> None:
    assert EnvelopeSigner("schlüssel").sign(b"x") == EnvelopeSigner("schlüssel".encode()).sign(b"x")


def test_an_empty_key_and_one_of_another_type_are_configuration_errors() -> None:
    with pytest.raises(ConfigurationError, match="a signing key is text or bytes, not int"):
        EnvelopeSigner([7])  # type: ignore[list-item]
    for empty in ("", b"", ["good", ""]):  # not "no signing"
        with row(empty), pytest.raises(ConfigurationError, match="a signing key is empty"):
            EnvelopeSigner(empty)
    for keys in (7, {"key": "x"}, {"key"}, True):
        with row(keys), pytest.raises(ConfigurationError, match="signing keys are a text, or a list of texts, not "):
            EnvelopeSigner(keys)  # type: ignore[arg-type]


def test_no_key_is_shown() -> None:
    assert "topsecret" not in repr(EnvelopeSigner("topsecret"))


SIGNER = EnvelopeSigner("secret-key")
QUEUE = "reports"
SIGNED = ("job", "payload", "queue", "priority", "maxRetries", "name", "identifier", "idempotencyKey", "meta")
UNSIGNED = ("attempts", "schedule")
WORDS = {"job": "job", "payload": "payload", "queue": "queue", "priority": "priority", "maxRetries": "max_retries"}
WORDS |= {"name": "name", "identifier": "identifier", "idempotencyKey": "idempotency_key", "meta": "meta"}

FULL = JobDefinition(
    "report",
    {"customer": 7, "rate": 2.5, "note": 'a "quoted" é', "none": None, "deep": {"b": [1, True], "a": {}}},
    name="daily",
    max_retries=3,
    idempotency_key="k-1",
    timeout=60,
    single_instance=True,
    expires_in=3600,
    concurrency_key="acme",
    meta={"tenant": "acme", "empty": None},
)


def sealed(job: JobDefinition = FULL, signer: EnvelopeSigner = SIGNER) -> bytes:
    return encode(job, identifier="0123456789abcdef", queue=QUEUE, signer=signer, now=1_800_000_000.0)


BODY = sealed()
WIRE: dict[str, Any] = json.loads(BODY)


def accepted(body: bytes, signer: EnvelopeSigner = SIGNER, queue: str = QUEUE) -> JobEnvelope | None:
    """What a pool would run of this body; None = rejected."""
    try:
        envelope = decode(body, attempts=0)
        verify(envelope, signer, queue)
    except MalformedEnvelope:
        return None
    return envelope


def signed_part(envelope: JobEnvelope) -> str:
    """All that a handler or the pool can see of what is signed. `repr` tells 1 from 1.0, True from 1, inf from null."""
    return repr([(word, getattr(envelope, word)) for word in WORDS.values()])


ORIGINAL = signed_part(decode(BODY, attempts=0))


def is_harmless(body: bytes) -> bool:
    """Rejected, or the very same job; and the child, who reads the body once more, reads the same."""
    envelope = accepted(body)
    if envelope is None:
        return True
    return signed_part(envelope) == ORIGINAL == signed_part(decode_again(body, attempts=0))


def dumped(wire: Mapping[str, Any]) -> bytes:
    return json.dumps(wire).encode()


def test_the_body_itself_is_accepted() -> None:
    envelope = accepted(BODY)
    assert envelope is not None
    assert set(WIRE) == {*SIGNED, *UNSIGNED, "_sig"}


# --- one field at a time ----------------------------------------------------------------------------------------------

OTHERS: dict[str, list[Any]] = {
    "job": ["shell", "Report", "report ", "os:system"],
    "payload": [None, {}, {"customer": 8}, [], "text", 0],
    "queue": ["mail", "Reports", ""],
    "priority": [0, 4, 255],
    "maxRetries": [None, 0, 4, 10**9],
    "name": [None, "nightly"],
    "identifier": ["fedcba9876543210", "0123456789ABCDEF"],
    "idempotencyKey": [None, "k-2", ""],
    "meta": [None, {}, {"tenant": "other"}, {**WIRE["meta"], "_timeout": 0}, {**WIRE["meta"], "v": 2}],
}
TYPES: tuple[Any, ...] = (None, True, False, 0, 1, -1, 1.0, 5.0, 10**30, "", "5", "true", [], {}, [1], {"a": 1})


def test_a_signed_field_that_was_changed_is_refused() -> None:
    for field in SIGNED:
        for value in (*OTHERS[field], *TYPES, str(WIRE[field]), [WIRE[field]], {field: WIRE[field]}):
            if repr(value) != repr(WIRE[field]):
                assert accepted(dumped(WIRE | {field: value})) is None, (field, value)


def test_a_signed_field_that_was_removed_is_refused() -> None:
    for field in SIGNED:
        assert accepted(dumped({name: value for name, value in WIRE.items() if name != field})) is None, field


def test_a_value_inside_a_signed_field() -> None:
    for case, old, new in [
        ("whole to float", b'"customer":7', b'"customer":7.0'),
        ("whole to true", b'"customer":7', b'"customer":true'),
        ("whole to text", b'"customer":7', b'"customer":"7"'),
        ("null to infinity", b'"none":null', b'"none":1e999'),
        ("null to minus infinity", b'"none":null', b'"none":-1e999'),
        ("null to NaN", b'"none":null', b'"none":NaN'),
        ("null in the meta to infinity", b'"empty":null', b'"empty":1e400'),
        ("null to nothing", b'"none":null,', b""),
        ("empty object to empty list", b'"a":{}', b'"a":[]'),
        ("empty object to null", b'"a":{}', b'"a":null'),
        ("order in a list", b"[1,true]", b"[true,1]"),
        ("longer list", b"[1,true]", b"[1,true,null]"),
        ("the same letter composed otherwise", "é".encode(), "e\u0301".encode()),
        ("timeout as a whole number", b'"_timeout":60.0', b'"_timeout":60'),
        ("flag as number", b'"_singleInstance":true', b'"_singleInstance":1'),
        ("timeout removed", b'"_timeout":60.0,', b""),
        ("expiry renamed", b'"_expires":', b'"_expire":'),
        ("a reserved key added", b'"tenant":"acme"', b'"tenant":"acme","_more":1'),
    ]:
        assert BODY.count(old) == 1, case
        assert accepted(BODY.replace(old, new)) is None, case


def test_what_is_not_signed_changes_nothing_that_counts() -> None:
    for wire in (
        WIRE | {"attempts": 7},
        WIRE | {"attempts": None},
        {key: value for key, value in WIRE.items() if key != "attempts"},
        WIRE | {"schedule": "2026-01-01T00:00:00Z"},
        {**WIRE, "extra": {"job": "shell"}},
    ):
        envelope = decode(dumped(wire), attempts=4)
        verify(envelope, SIGNER, QUEUE)
        assert signed_part(envelope) == ORIGINAL, wire
        assert envelope.attempts == 4, "the backend's counter, whatever the body says"


def test_the_end_of_a_batch_is_taken_in_its_callbacks_alone() -> None:
    end = BatchStatus("june", False, 3, 2, 1, 0, ("a",), 0.0).end()
    by_mark = encode(FULL, identifier="own", queue=QUEUE, signer=SIGNER, now=0.0, callback_of="june")
    by_id = encode(FULL, identifier="june:on_done", queue=QUEUE, signer=SIGNER, now=0.0)
    for body in (by_mark, by_id):
        envelope = accepted(with_end(body, end))
        assert envelope is not None
        assert envelope.ended == json.loads(dumped(end))
        for other in (
            end | {"id": "july"},
            end | {"account": "another's"},
            end | {"succeeded": "2"},
            end | {"succeeded": True},
            end | {"succeeded": -2},
            end | {"failed_ids": [1]},
            {"id": "june"},
            {"batch": end},
        ):
            assert accepted(with_end(body, other)) is None, other
    with pytest.raises(MalformedEnvelope, match=r"an older jobpool .* enqueue the callback anew by hand"):
        decode(dumped(WIRE | {"ended": end}), attempts=0)
    for value in (end, {"account": "another's"}, {}, list[str](), 1, "june"):
        assert accepted(dumped(WIRE | {"ended": value})) is None, value
    assert accepted(dumped(WIRE | {"ended": None})) is not None


# --- the text of the JSON ---------------------------------------------------------------------------------------------


def test_a_key_that_is_there_twice_is_one_job_for_everybody() -> None:
    for field in (*SIGNED, *UNSIGNED, "_sig"):
        for value in OTHERS.get(field) or ["f" * 64, "", None, 7]:
            twin = b'"%b":%b' % (field.encode(), dumped({"": value})[5:-1])
            for body in (b"{" + twin + b"," + BODY[1:], BODY[:-1] + b"," + twin + b"}"):
                assert json.loads(body), "a double key is JSON"
                assert is_harmless(body), body


def escaped(text: bytes) -> bytes:
    """Every character of every string as \\uXXXX."""
    parts = text.split(b'"')
    parts[1::2] = [b"".join(b"\\u%04x" % byte for byte in part) for part in parts[1::2]]
    return b'"'.join(parts)


def test_escapes_are_the_characters_that_they_stand_for() -> None:
    body = escaped(sealed(JobDefinition("report", {"a": "b"}, name="daily")))
    envelope = accepted(body)
    assert b"report" not in body
    assert envelope is not None
    assert (envelope.job, envelope.payload, envelope.name) == ("report", {"a": "b"}, "daily")


def test_escapes_make_no_other_handler() -> None:
    for job in (b"\\u0073hell", b"report\\u0000", b"\\ud800", b"r\\u0435port", b"report\\u202e"):
        assert accepted(BODY.replace(b'"report"', b'"' + job + b'"')) is None, job


def test_every_byte_replaced_by_every_other() -> None:
    payload = {"x": None, "y": [1, 2.5, True], "note": 'a "quoted" [text] é'}
    body = sealed(JobDefinition("report", payload, max_retries=3, timeout=60, meta={"tenant": "acme"}))
    original = signed_part(decode(body, attempts=0))
    for place in range(len(body)):
        for byte in range(256):
            envelope = accepted(body[:place] + bytes([byte]) + body[place + 1 :])
            assert envelope is None or signed_part(envelope) == original, (place, byte)


@settings(max_examples=examples(300))
@given(st.data())
def test_pieces_of_the_body_in_other_places(data: st.DataObject) -> None:
    start, end = sorted((data.draw(st.integers(0, len(BODY))), data.draw(st.integers(0, len(BODY)))))
    to = data.draw(st.integers(0, len(BODY)))
    put_in = data.draw(st.sampled_from([b"", b" ", b"0", b'"', b",", b'"job":"x",', b'{"a":1}', b"\\"]))
    assert is_harmless(BODY[:to] + BODY[start:end] + BODY[to:])
    assert is_harmless(BODY[:start] + put_in + BODY[end:])


# --- the signature itself ---------------------------------------------------------------------------------------------

RIGHT: str = WIRE["_sig"]


NO_SIGNATURES: tuple[Any, ...] = (
    *(None, "", 0, 7, True, False, [], [RIGHT], {}, {"_sig": RIGHT}, RIGHT[:-1], RIGHT[1:], RIGHT + "0", RIGHT + " "),
    *(f" {RIGHT}", RIGHT.upper(), f"0x{RIGHT[2:]}", "0" * 64, "é" * 64, "\0" * 64, f"{RIGHT[:-1]}\u0660"),
    int(RIGHT, 16),
)


def test_a_signature_that_is_none() -> None:
    another = EnvelopeSigner("other").sign(WIRE)
    for sig in (*NO_SIGNATURES, another):
        body = dumped(WIRE | {"_sig": sig})
        said = "wrong" if isinstance(sig, str) and sig else "missing"
        with row(sig), pytest.raises(MalformedEnvelope, match=f"the signature is {said}"):
            verify(decode(body, attempts=0), SIGNER, QUEUE)
        assert sig is None or not SIGNER.verify(WIRE, sig), sig
    assert not SIGNER.verify(dumped(WIRE), None)
    with pytest.raises(BadSignature, match="the signature is missing"):
        verify(decode(dumped({name: WIRE[name] for name in SIGNED}), attempts=0), SIGNER, QUEUE)


def test_the_beginning_of_the_signature_is_not_enough() -> None:
    for length in range(64):
        padded = RIGHT[:length].ljust(64, "0")
        assert accepted(dumped(WIRE | {"_sig": RIGHT[:length]})) is None, length
        assert padded == RIGHT or accepted(dumped(WIRE | {"_sig": padded})) is None, length


def test_two_signatures_are_the_last_one() -> None:
    wrong = b'"_sig":"%b"' % (b"0" * 64)
    right = b'"_sig":"%b"' % RIGHT.encode()
    assert accepted(BODY.replace(right, right + b"," + wrong)) is None
    evil = BODY.replace(b'"report"', b'"shell"')
    assert accepted(evil.replace(right, wrong + b"," + right)) is None
    assert is_harmless(BODY.replace(right, wrong + b"," + right))


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_body_without_a_signature_is_refused_as_soon_as_there_is_a_key() -> None:
    unsigned = sealed(signer=EnvelopeSigner())
    assert accepted(unsigned, EnvelopeSigner()) is not None
    assert accepted(unsigned) is None
    assert accepted(dumped(WIRE | {"job": "other", "_sig": None}), EnvelopeSigner()) is not None


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_message_put_into_another_queue_is_refused_there() -> None:
    for signer in (SIGNER, EnvelopeSigner()):
        body = sealed(signer=signer)
        with pytest.raises(MalformedEnvelope, match="was sent to queue 'reports' and fetched from 'admin'") as refused:
            verify(decode(body, attempts=0), signer, "admin")
        assert not isinstance(refused.value, BadSignature)
    assert accepted(dumped(WIRE | {"queue": "admin"}), queue="admin") is None


def test_who_moves_signs_again_and_only_its_own_queue_is_new() -> None:
    moved = sign_again(decode(BODY, attempts=3), "big", SIGNER)
    envelope = accepted(moved, queue="big")
    assert envelope is not None
    assert signed_part(envelope) == ORIGINAL.replace("('queue', 'reports')", "('queue', 'big')")
    assert accepted(moved) is None


# --- bounds, before anything is parsed --------------------------------------------------------------------------------


def test_a_body_above_the_bound_is_not_even_parsed() -> None:
    for filling in (b" ", b"[", b'"', b"\\", b"\xff", b"9", b'{"a":'):
        body = (filling * (MAX_BODY_BYTES + 1))[: 16 * MAX_BODY_BYTES]
        with row(filling), pytest.raises(MalformedEnvelope, match=rf"the body has more than {MAX_BODY_BYTES} bytes"):
            decode(body, attempts=0)


def test_a_signed_body_is_accepted_up_to_the_bound_and_refused_above() -> None:
    at_the_bound = BODY + b" " * (MAX_BODY_BYTES - len(BODY))
    assert accepted(at_the_bound) is not None
    assert accepted(at_the_bound + b" ") is None


HOSTILE = (
    *(b"[", b"]", b"{", b'"', b"\\", b'\\"', b'"[', b"[]", b'{"a":', b'{"', b'{"a":0},', b"\\\\", b"\x00", b"\xff"),
    b"[" * 64 + b"]" * 64,
)


def test_no_hostile_body_takes_long() -> None:
    for unit in HOSTILE:
        for opening in (b"", b'{"job":', b'{"x":"'):
            body = (opening + unit * MAX_BODY_BYTES)[:MAX_BODY_BYTES]
            begun = time.process_time()
            with row(opening, unit), pytest.raises(MalformedEnvelope):
                decode(body, attempts=0)
            assert time.process_time() - begun < 2.0, (opening, unit)  # linear: milliseconds; quadratic: minutes


# --- the pool's eye ---------------------------------------------------------------------------------------------------


ATTACKS: dict[str, tuple[Callable[[bytes], bytes], bool]] = {
    "forged": (lambda body: dumped(json.loads(body) | {"job": "shell"}), True),
    "no signature": (lambda body: dumped(json.loads(body) | {"_sig": ""}), True),
    "too large": (lambda body: body + b" " * MAX_BODY_BYTES, False),
    "too deep": (lambda _: b"[" * 100_000, False),
    "not JSON": (lambda _: b"{", False),
}


def test_an_inspector_tells_a_wrong_signature_from_a_wrong_body() -> None:
    assert LeaseInspector(SIGNER, {}).inspect(a_lease(BODY), float) is None
    for attack, (change, about_signature) in ATTACKS.items():
        outcome = LeaseInspector(SIGNER, {}).inspect(a_lease(change(BODY)), float)
        assert isinstance(outcome, Rejected), attack
        assert outcome.signature is about_signature, attack


def a_lease(body: bytes) -> JobLease:
    return JobLease("0123456789abcdef", QUEUE, body, 1, "f" * 32, 1e9, "memory")
