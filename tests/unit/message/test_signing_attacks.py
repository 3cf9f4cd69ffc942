"""Attacks on signed bodies: each is refused, or decodes to exactly what was signed: never to another job."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import examples

from jobpool.broker.opening import default_signer
from jobpool.errors import BadSignature, ConfigurationError, InvalidJob, MalformedEnvelope
from jobpool.message.definition import LONGEST, JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES, JobEnvelope, decode, decode_again, encode, sign_again, verify
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Rejected
from jobpool.message.payload import MAX_DEPTH
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import Inspector
from jobpool.settings import load

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
PLAIN = JobDefinition("report", None)


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


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in SIGNED for value in OTHERS[field]], ids=repr)
def test_a_signed_field_that_was_changed_is_refused(field: str, value: Any) -> None:
    assert accepted(dumped(WIRE | {field: value})) is None


@pytest.mark.parametrize("field", SIGNED)
def test_a_signed_field_that_was_removed_is_refused(field: str) -> None:
    assert accepted(dumped({name: value for name, value in WIRE.items() if name != field})) is None


TYPES: tuple[Any, ...] = (None, True, False, 0, 1, -1, 1.0, 5.0, 10**30, "", "5", "true", [], {}, [1], {"a": 1})


@pytest.mark.parametrize("field", SIGNED)
def test_a_signed_field_of_another_type_is_refused(field: str) -> None:
    for value in (*TYPES, str(WIRE[field]), [WIRE[field]], {field: WIRE[field]}):
        if repr(value) != repr(WIRE[field]):
            assert accepted(dumped(WIRE | {field: value})) is None, value


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"customer":7', b'"customer":7.0', id="whole to float"),
        pytest.param(b'"customer":7', b'"customer":true', id="whole to true"),
        pytest.param(b'"customer":7', b'"customer":"7"', id="whole to text"),
        pytest.param(b'"none":null', b'"none":1e999', id="null to infinity"),
        pytest.param(b'"none":null', b'"none":-1e999', id="null to minus infinity"),
        pytest.param(b'"none":null', b'"none":NaN', id="null to NaN"),
        pytest.param(b'"empty":null', b'"empty":1e400', id="null in the meta to infinity"),
        pytest.param(b'"none":null,', b"", id="null to nothing"),
        pytest.param(b'"a":{}', b'"a":[]', id="empty object to empty list"),
        pytest.param(b'"a":{}', b'"a":null', id="empty object to null"),
        pytest.param(b"[1,true]", b"[true,1]", id="order in a list"),
        pytest.param(b"[1,true]", b"[1,true,null]", id="longer list"),
        pytest.param("é".encode(), "e\u0301".encode(), id="the same letter composed otherwise"),
        pytest.param(b'"_timeout":60.0', b'"_timeout":60', id="timeout as a whole number"),
        pytest.param(b'"_singleInstance":true', b'"_singleInstance":1', id="flag as number"),
        pytest.param(b'"_timeout":60.0,', b"", id="timeout removed"),
        pytest.param(b'"_expires":', b'"_expire":', id="expiry renamed"),
        pytest.param(b'"tenant":"acme"', b'"tenant":"acme","_more":1', id="a reserved key added"),
    ],
)
def test_a_value_inside_a_signed_field(old: bytes, new: bytes) -> None:
    assert BODY.count(old) == 1
    assert accepted(BODY.replace(old, new)) is None


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(WIRE | {"attempts": 7}, id="attempts raised"),
        pytest.param(WIRE | {"attempts": None}, id="attempts null"),
        pytest.param({key: value for key, value in WIRE.items() if key != "attempts"}, id="attempts removed"),
        pytest.param(WIRE | {"schedule": "2026-01-01T00:00:00Z"}, id="schedule"),
        pytest.param({**WIRE, "extra": {"job": "shell"}}, id="an unknown field"),
    ],
)
def test_what_is_not_signed_changes_nothing_that_counts(wire: dict[str, Any]) -> None:
    envelope = decode(dumped(wire), attempts=4)
    verify(envelope, SIGNER, QUEUE)
    assert signed_part(envelope) == ORIGINAL
    assert envelope.attempts == 4  # the backend's counter, whatever the body says


# --- the text of the JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", [*SIGNED, *UNSIGNED, "_sig"])
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
def test_a_key_that_is_there_twice_is_one_job_for_everybody(field: str, first: bool) -> None:
    for value in OTHERS.get(field) or ["f" * 64, "", None, 7]:
        twin = b'"%b":%b' % (field.encode(), dumped({"": value})[5:-1])
        body = b"{" + twin + b"," + BODY[1:] if first else BODY[:-1] + b"," + twin + b"}"
        assert json.loads(body)  # a double key is JSON
        assert is_harmless(body)


@settings(max_examples=examples(100))
@given(st.permutations(sorted(WIRE)))
def test_the_order_of_the_fields_is_nothing(names: list[str]) -> None:
    body = dumped({name: WIRE[name] for name in names})
    assert accepted(body) is not None
    assert is_harmless(body)


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


@pytest.mark.parametrize(
    "job", [b"\\u0073hell", b"report\\u0000", b"\\ud800", b"r\\u0435port", b"report\\u202e"], ids=ascii
)
def test_escapes_make_no_other_handler(job: bytes) -> None:
    assert accepted(BODY.replace(b'"report"', b'"' + job + b'"')) is None


def test_every_byte_replaced_by_every_other() -> None:
    body = sealed(JobDefinition("report", {"x": None, "y": [1]}, max_retries=3))
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
    assert is_harmless(BODY[:to] + BODY[start:end] + BODY[to:])
    assert is_harmless(BODY[:start] + BODY[end:])


# --- the signature itself ---------------------------------------------------------------------------------------------

RIGHT: str = WIRE["_sig"]


NO_SIGNATURES: tuple[Any, ...] = (
    *(None, "", 0, 7, True, False, [], [RIGHT], {}, {"_sig": RIGHT}, RIGHT[:-1], RIGHT[1:], RIGHT + "0", RIGHT + " "),
    *(f" {RIGHT}", RIGHT.upper(), f"0x{RIGHT[2:]}", "0" * 64, "é" * 64, "\0" * 64, f"{RIGHT[:-1]}\u0660"),
    int(RIGHT, 16),
)


@pytest.mark.parametrize("sig", NO_SIGNATURES, ids=ascii)
def test_a_signature_that_is_none(sig: Any) -> None:
    assert accepted(dumped(WIRE | {"_sig": sig})) is None


@pytest.mark.parametrize("length", range(64))
def test_the_beginning_of_the_signature_is_not_enough(length: int) -> None:
    assert accepted(dumped(WIRE | {"_sig": RIGHT[:length]})) is None
    assert accepted(dumped(WIRE | {"_sig": RIGHT[:length].ljust(64, "0")})) is None or RIGHT.endswith(
        "0" * (64 - length)
    )


def test_two_signatures_are_the_last_one() -> None:
    wrong = b'"_sig":"%b"' % (b"0" * 64)
    right = b'"_sig":"%b"' % RIGHT.encode()
    assert accepted(BODY.replace(right, right + b"," + wrong)) is None
    evil = BODY.replace(b'"report"', b'"shell"')
    assert accepted(evil.replace(right, wrong + b"," + right)) is None
    assert is_harmless(BODY.replace(right, wrong + b"," + right))


def test_a_signature_of_another_message_fits_no_other() -> None:
    other = json.loads(sealed(JobDefinition("shell", "rm")))
    assert accepted(dumped(WIRE | {"_sig": other["_sig"]})) is None
    assert accepted(dumped(other | {"_sig": RIGHT})) is None


# --- keys -------------------------------------------------------------------------------------------------------------


def test_the_old_key_is_accepted_while_it_is_listed_and_refused_afterwards() -> None:
    old = sealed(signer=EnvelopeSigner("old"))
    rotating, rotated = EnvelopeSigner(["new", "old"]), EnvelopeSigner(["new"])
    assert accepted(old, rotating) is not None
    assert accepted(old, rotated) is None
    assert accepted(sealed(signer=rotating), rotated) is not None  # the first key signs


def test_a_body_without_a_signature_is_refused_as_soon_as_there_is_a_key() -> None:
    unsigned = sealed(signer=EnvelopeSigner())
    assert accepted(unsigned, EnvelopeSigner()) is not None
    assert accepted(unsigned) is None


@pytest.mark.parametrize("key", ["", b""], ids=["text", "bytes"])
def test_the_empty_key_is_refused_as_an_argument(key: str | bytes) -> None:
    for keys in (key, [key], ["good", key]):
        with pytest.raises(ConfigurationError, match="empty"):
            EnvelopeSigner.from_settings(keys, "fallback", {})


@pytest.mark.parametrize("setting", ['""', "[]", '["good", ""]'])
def test_the_empty_key_is_refused_as_a_setting(setting: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY", "fallback")
    (tmp_path / "jobpool.toml").write_text(f"signing_key = {setting}\n")
    with pytest.raises(ConfigurationError, match="empty"):
        load(start=tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="empty"):
        default_signer(None)


@pytest.mark.parametrize("variable", ["JOBPOOL_SIGNING_KEY", "JOBS_SIGNING_KEY"])
def test_the_empty_key_is_refused_in_the_environment(
    variable: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOBPOOL_SIGNING_KEY", raising=False)
    monkeypatch.setenv(variable, "")
    with pytest.raises(ConfigurationError, match=f"{variable}.*empty"):
        load(start=tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="empty"):
        default_signer(None)


@pytest.mark.parametrize("text", ["", "\n", " \n\t\n"], ids=["nothing", "a line", "blanks"])
def test_a_file_without_a_key_is_refused(text: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY", "fallback")
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="holds no key"):
        load({"signing_key_file": str(file)}, start=tmp_path).signing_keys()


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_message_put_into_another_queue_is_refused_there() -> None:
    with pytest.raises(MalformedEnvelope, match="was sent to queue 'reports' and fetched from 'admin'"):
        verify(decode(BODY, attempts=0), SIGNER, "admin")
    assert accepted(dumped(WIRE | {"queue": "admin"}), queue="admin") is None


def test_who_moves_signs_again_and_only_its_own_queue_is_new() -> None:
    moved = sign_again(decode(BODY, attempts=3), "big", SIGNER)
    envelope = accepted(moved, queue="big")
    assert envelope is not None
    assert signed_part(envelope) == ORIGINAL.replace("('queue', 'reports')", "('queue', 'big')")
    assert accepted(moved) is None


# --- bounds, before anything is parsed --------------------------------------------------------------------------------


@pytest.mark.parametrize("filling", [b" ", b"[", b'"', b"\\", b"\xff", b"9", b'{"a":'], ids=ascii)
def test_a_body_above_the_bound_is_not_even_parsed(filling: bytes) -> None:
    body = (filling * (MAX_BODY_BYTES + 1))[: 16 * MAX_BODY_BYTES]
    with pytest.raises(MalformedEnvelope, match=rf"the body has more than {MAX_BODY_BYTES} bytes"):
        decode(body, attempts=0)


def test_a_signed_body_that_was_padded_above_the_bound_is_refused() -> None:
    assert is_harmless(BODY + b" " * (MAX_BODY_BYTES - len(BODY)))
    assert accepted(BODY + b" " * (MAX_BODY_BYTES + 1 - len(BODY))) is None


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":['], ids=ascii)
def test_a_hundred_thousand_levels_are_refused_before_they_are_parsed(opening: bytes) -> None:
    body = b'{"job":"report","payload":' + opening * 100_000
    with pytest.raises(MalformedEnvelope, match=f"nested more than {MAX_DEPTH} deep"):
        decode(body, attempts=0)


NO_WIRE_OBJECTS = (
    *(
        b"",
        b" ",
        b"\0",
        b"{",
        b"}",
        b"{]",
        b"nul",
        b"{not json",
        b"\xff\xfe{\0}\0",
        b"\xef\xbb\xbf{}",
        b"[1, 2]",
        b"null",
    ),
    *(b"7", b'"report"', b"true", b"{}", b"{}{}", b"NaN", b'{"job":NaN}', b'{"payload":Infinity}', b'{"a":1,}'),
)


@pytest.mark.parametrize("body", NO_WIRE_OBJECTS, ids=ascii)
def test_what_is_no_wire_object(body: bytes) -> None:
    with pytest.raises(MalformedEnvelope):
        decode(body, attempts=0)


@pytest.mark.parametrize("field", ["priority", "maxRetries", "attempts"])
@pytest.mark.parametrize("value", [10**30, -1, 1e300, 0.5, "1", [], True], ids=repr)
def test_a_number_out_of_bounds_is_refused_with_and_without_a_key(field: str, value: Any) -> None:
    for signer in (SIGNER, EnvelopeSigner()):
        body = dumped(json.loads(sealed(PLAIN, signer)) | {field: value})
        assert accepted(body, signer) is None


@pytest.mark.parametrize(
    "meta",
    [
        {"_timeout": -1},
        {"_timeout": LONGEST * 2},
        {"_timeout": 1e300},
        {"_timeout": 10**18},
        {"_timeout": True},
        {"_timeout": "60"},
        {"_timeout": None},
        {"_expires": "never"},
        {"_expires": -1},
        {"_singleInstance": 1},
        {"_singleInstance": None},
        {"_concurrencyKey": ""},
        {"_concurrencyKey": "x" * 1000},
        {"_concurrencyKey": 7},
        {"v": 0},
        {"v": "1"},
        {"v": True},
        {"v": 1.0},
    ],
    ids=repr,
)
def test_a_reserved_key_of_the_meta_holds_what_it_should_also_unsigned(meta: dict[str, Any]) -> None:
    unsigned = EnvelopeSigner()
    with pytest.raises(MalformedEnvelope, match="'meta'"):
        decode(dumped(json.loads(sealed(PLAIN, unsigned)) | {"meta": meta}), attempts=0)


@pytest.mark.parametrize("key", ["_timeout", "_expires", "_singleInstance", "_concurrencyKey", "_anything", "v"])
def test_a_producer_cannot_set_a_reserved_key(key: str) -> None:
    with pytest.raises(InvalidJob, match="reserved"):
        JobDefinition("report", meta={key: 1})


@pytest.mark.parametrize("unit", [b'{"', b'\\"', b'"[', b"[]", b'{"a":0},', b"\\\\"], ids=ascii)
def test_no_hostile_body_takes_long(unit: bytes) -> None:
    body = (b'{"x":"' + unit * MAX_BODY_BYTES)[:MAX_BODY_BYTES]
    begun = time.process_time()
    assert accepted(body) is None
    assert time.process_time() - begun < 2.0  # linear: milliseconds; anything quadratic takes minutes


# --- the pool's eye ---------------------------------------------------------------------------------------------------


ATTACKS: dict[str, tuple[Callable[[bytes], bytes], bool]] = {
    "forged": (lambda body: dumped(json.loads(body) | {"job": "shell"}), True),
    "no signature": (lambda body: dumped(json.loads(body) | {"_sig": ""}), True),
    "too large": (lambda body: body + b" " * MAX_BODY_BYTES, False),
    "too deep": (lambda _: b"[" * 100_000, False),
    "not JSON": (lambda _: b"{", False),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_inspector_tells_a_wrong_signature_from_a_wrong_body(attack: str) -> None:
    change, about_signature = ATTACKS[attack]
    assert Inspector(SIGNER, {}).inspect(a_lease(BODY), float).outcome is None
    outcome = Inspector(SIGNER, {}).inspect(a_lease(change(BODY)), float).outcome
    assert isinstance(outcome, Rejected)
    assert outcome.signature is about_signature


def a_lease(body: bytes) -> JobLease:
    return JobLease("0123456789abcdef", QUEUE, body, 1, "f" * 32, 1e9, "memory")


def test_the_signature_error_is_one_of_the_malformed() -> None:
    with pytest.raises(BadSignature):
        verify(decode(BODY.replace(b'"report"', b'"shell"'), attempts=0), SIGNER, QUEUE)
    assert issubclass(BadSignature, MalformedEnvelope)
    assert orjson.loads(BODY) == WIRE
