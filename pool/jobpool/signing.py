"""Signatures of envelopes: HMAC-SHA256, lower-case hex, with key rotation.

Without a key every signature is "" and everything verifies; with one, a missing or wrong signature is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from hmac import compare_digest

import orjson

from jobpool.errors import ConfigurationError

Key = str | bytes
ENVIRONMENT = ("JOBPOOL_SIGNING_KEY", "JOBS_SIGNING_KEY")
SIGNATURE_LENGTH = 64
_BLOCK = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


class EnvelopeSigner:
    """Signs and verifies. Immutable, safe to share between threads, usable after a fork.

    Args:
        keys: One key or several; the first signs, all verify. Text stands for its UTF-8 bytes. None = no signing.

    Raises:
        ConfigurationError: A key is empty, or the list is.
    """

    __slots__ = ("_keyed",)

    def __init__(self, keys: Key | Sequence[Key] | None = None) -> None:
        self._keyed = tuple(_Keyed(key) for key in _key_bytes(keys))

    @classmethod
    def from_settings(
        cls,
        argument: Key | Sequence[Key] | None,
        setting: Key | Sequence[Key] | None,
        environ: Mapping[str, str],
    ) -> EnvelopeSigner:
        """The signer that the first of these asks for: argument, setting, JOBPOOL_SIGNING_KEY, JOBS_SIGNING_KEY.

        A variable holds one key as it is, or a JSON list of keys: ``["new", "old"]``.

        Raises:
            ConfigurationError: The first that is set is empty, or no usable list. Unset it to turn signing off.
        """
        if argument is not None:
            return cls(argument)
        if setting is not None:
            return cls(setting)
        for variable in ENVIRONMENT:
            if variable in environ:
                return cls(_from_variable(variable, environ[variable]))
        return cls()

    @property
    def active(self) -> bool:
        """Whether there is a key."""
        return bool(self._keyed)

    def sign(self, canonical: bytes) -> str:
        """The signature of these bytes: 64 hex characters, or "" without a key."""
        return self._keyed[0].digest(canonical) if self._keyed else ""

    def verify(self, canonical: bytes, sig: object) -> bool:
        """Whether `sig` is one of ours for these bytes, under any key; always True without a key.

        Compares in constant time. Anything that is not 64 ASCII characters is refused, not an error.
        """
        if not self._keyed:
            return True
        if not isinstance(sig, str) or len(sig) != SIGNATURE_LENGTH or not sig.isascii():
            return False
        return any(compare_digest(keyed.digest(canonical), sig) for keyed in self._keyed)

    def __repr__(self) -> str:
        return f"<EnvelopeSigner with {len(self._keyed)} keys>"


class _Keyed:
    """HMAC with the key's two blocks hashed beforehand: half the time of `hmac.digest` for a small message."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER))
        self._outer = hashlib.sha256(block.translate(_OUTER))

    def digest(self, message: bytes) -> str:
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.hexdigest()


def _key_bytes(keys: Key | Sequence[Key] | None) -> list[bytes]:
    if keys is None:
        return []
    several: Sequence[Key] = [keys] if isinstance(keys, str | bytes) else keys
    if not several:
        raise ConfigurationError("the list of signing keys is empty: give a key, or leave the setting out")
    return [_one_key(key) for key in several]


def _one_key(key: Key) -> bytes:
    if not isinstance(key, str | bytes):
        raise ConfigurationError(f"a signing key is text or bytes, not {type(key).__name__}")
    if not key:
        raise ConfigurationError("a signing key is empty: give one, or unset it to turn signing off")
    return key.encode() if isinstance(key, str) else key


def _from_variable(variable: str, value: str) -> str | list[str]:
    if not value:
        raise ConfigurationError(f"{variable} is empty: give a key, or unset it to turn signing off")
    if not value.startswith("["):
        return value
    try:
        keys = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"{variable} starts with '[' and is no JSON list of keys: {error}") from None
    return list(keys)
