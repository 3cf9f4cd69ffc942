"""Signatures, and which key decides."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import decode, encode
from jobpool.message.signing import EnvelopeSigner

COMMAND = (
    b'{"job":"command","payload":"app:report","queue":"reports","priority":5,"maxRetries":3,"name":"daily-report",'
    b'"identifier":"0123456789abcdef","idempotencyKey":null}'
)


@pytest.mark.parametrize(
    ("canonical", "sig"),
    [
        (COMMAND, "a6f083171b2e4f09de675b040e55c829da9fd66076ac0311324a76216ea27a6f"),
        (
            COMMAND.replace(b'"app:report"', b'{"x":1}'),
            "a73d172fc8f0240f033f8463a39c4bf7538b7edee19b36efe89e620cc613d44b",
        ),
    ],
    ids=["text payload", "object payload"],
)
def test_the_published_check_values(canonical: bytes, sig: str) -> None:
    signer = EnvelopeSigner("secret-key")

    assert signer.sign(canonical) == sig
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


def test_what_a_producer_sends_verifies_as_a_dict() -> None:
    signer = EnvelopeSigner("secret-key")
    job = JobDefinition("report", {"b": 1, "a": [1.5, "ü"]}, timeout=3, meta={"z": 1})
    body = encode(job, identifier="x", queue="q", signer=signer, now=0.0)
    assert signer.verify(json.loads(body))


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=300))
def test_it_is_hmac_sha256_whatever_the_length_of_the_key(key: bytes, message: bytes) -> None:
    assert EnvelopeSigner(key).sign(message) == hmac.new(key, message, hashlib.sha256).hexdigest()


def test_without_a_key_everything_verifies() -> None:
    signer = EnvelopeSigner()

    assert not signer.active
    assert signer.sign(b"x") == ""
    assert signer.verify(b"x", "anything")
    assert signer.verify(b"x", None)


@pytest.mark.parametrize(
    "sig",
    [
        pytest.param(None, id="null"),
        pytest.param("", id="empty"),
        pytest.param(7, id="number"),
        pytest.param(["a"], id="list"),
        pytest.param(EnvelopeSigner("secret-key").sign(COMMAND)[:-1], id="short"),
        pytest.param(EnvelopeSigner("secret-key").sign(COMMAND) + "0", id="long"),
        pytest.param(EnvelopeSigner("secret-key").sign(COMMAND).upper(), id="upper case"),
        pytest.param("0" * 64, id="wrong"),
        pytest.param("é" * 64, id="not ASCII"),
        pytest.param(EnvelopeSigner("other").sign(COMMAND), id="another key"),
    ],
)
def test_with_a_key_anything_but_the_signature_is_refused(sig: Any) -> None:
    assert not EnvelopeSigner("secret-key").verify(COMMAND, sig)


def test_the_first_key_signs_and_all_verify() -> None:
    old, new = EnvelopeSigner("old"), EnvelopeSigner("new")
    rotating = EnvelopeSigner(["new", "old"])

    assert rotating.sign(b"x") == new.sign(b"x")
    assert rotating.verify(b"x", old.sign(b"x"))
    assert rotating.verify(b"x", new.sign(b"x"))
    assert not old.verify(b"x", new.sign(b"x"))


def test_text_stands_for_its_utf_8_bytes() -> None:
    assert EnvelopeSigner("schlüssel").sign(b"x") == EnvelopeSigner("schlüssel".encode()).sign(b"x")


@pytest.mark.parametrize("keys", ["", b"", [], ["good", ""], [b""]])
def test_an_empty_key_is_a_configuration_error(keys: Any) -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        EnvelopeSigner(keys)


def test_a_key_of_another_type_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="a signing key is text or bytes, not int"):
        EnvelopeSigner([7])  # type: ignore[list-item]


def test_no_key_is_shown() -> None:
    assert "topsecret" not in repr(EnvelopeSigner("topsecret"))


BOTH = {"JOBPOOL_SIGNING_KEY": "third", "JOBS_SIGNING_KEY": "fourth"}


class TestWhichKeyDecides:
    @pytest.mark.parametrize(
        ("argument", "setting", "environ", "key"),
        [
            pytest.param("first", "second", BOTH, "first", id="argument"),
            pytest.param(None, "second", BOTH, "second", id="setting"),
            pytest.param(None, None, BOTH, "third", id="JOBPOOL_SIGNING_KEY"),
            pytest.param(None, None, {"JOBS_SIGNING_KEY": "fourth"}, "fourth", id="JOBS_SIGNING_KEY"),
            pytest.param(["first", "old"], "second", {}, "first", id="argument with rotation"),
            pytest.param(None, None, {"JOBPOOL_SIGNING_KEY": '["new", "old"]'}, "new", id="variable with rotation"),
            pytest.param(None, None, {"JOBPOOL_SIGNING_KEY": "a,b c"}, "a,b c", id="a variable is one key"),
            pytest.param(None, None, {"JOBPOOL_SIGNING_KEY": " key\n"}, "key", id="a variable with a line end"),
            pytest.param(None, " key\n", {}, "key", id="a setting with a line end"),
            pytest.param(None, None, {"JOBPOOL_SIGNING_KEY": '["key\\n"]'}, "key\n", id="a list is as it is"),
        ],
    )
    def test_the_first_that_is_set(self, argument: Any, setting: Any, environ: dict[str, str], key: str) -> None:
        signer = EnvelopeSigner.from_settings(argument, setting, environ)

        assert signer.sign(b"x") == EnvelopeSigner(key).sign(b"x")

    def test_rotation_in_a_variable_verifies_both(self) -> None:
        signer = EnvelopeSigner.from_settings(None, None, {"JOBPOOL_SIGNING_KEY": '["new", "old"]'})

        assert signer.verify(b"x", EnvelopeSigner("old").sign(b"x"))

    def test_none_is_set(self) -> None:
        assert not EnvelopeSigner.from_settings(None, None, {"PATH": "/bin"}).active

    @pytest.mark.parametrize(
        ("argument", "setting", "environ"),
        [
            pytest.param("", "second", BOTH, id="argument"),
            pytest.param(None, "", BOTH, id="setting"),
            pytest.param(None, None, {**BOTH, "JOBPOOL_SIGNING_KEY": ""}, id="JOBPOOL_SIGNING_KEY"),
            pytest.param(None, None, {"JOBS_SIGNING_KEY": ""}, id="JOBS_SIGNING_KEY"),
            pytest.param(None, None, {"JOBPOOL_SIGNING_KEY": " \n"}, id="white space"),
            pytest.param(None, None, {"JOBS_SIGNING_KEY": "[]"}, id="empty list"),
            pytest.param(None, None, {"JOBS_SIGNING_KEY": '["a", ""]'}, id="empty key in a list"),
        ],
    )
    def test_an_empty_one_never_falls_through(self, argument: Any, setting: Any, environ: dict[str, str]) -> None:
        with pytest.raises(ConfigurationError, match="empty"):
            EnvelopeSigner.from_settings(argument, setting, environ)

    @pytest.mark.parametrize("value", ['["a"', "[1]", "[key]"])
    def test_a_broken_list_is_an_error_that_does_not_show_it_as_a_key(self, value: str) -> None:
        with pytest.raises(ConfigurationError):
            EnvelopeSigner.from_settings(None, None, {"JOBPOOL_SIGNING_KEY": value})
