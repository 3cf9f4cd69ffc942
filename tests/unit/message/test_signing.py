"""Signatures, and which key decides."""

from __future__ import annotations

import hashlib
import hmac
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import row

from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import decode, encode
from jobpool.message.signing import EnvelopeSigner

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
