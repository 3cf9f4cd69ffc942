"""Take secrets out of texts and values: values under telling keys, and tokens known by their form.

`Masker.value` walks JSON values, `Masker.text` looks into texts. A value deeper than `DEEPEST` cannot be judged; it is
left out and marked. `Masker.result` is for programs, which get all that is not a text as it is. Time is linear in the
size. Every pattern below begins with a fixed form of bounded length, or matches a run of characters once (possessive
quantifiers).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

MASK = "***"
TOO_DEEP = "*** (nested deeper than 10)"
DEEPEST = 10  # containers within containers that are looked into
SECRET_KEYS = (
    *("password", "passwd", "pwd", "passphrase", "token", "secret", "authorization", "cookie", "credential"),
    *("api_key", "access_key", "account_key", "private_key", "signing_key", "encryption_key"),
)
"""Values under these, and under keys that have one of them as a word (`dbPassword`, `access-token`), are masked."""

_HEADERS = ("authorization", "cookie")  # keys whose value goes to the end of the line
LONGEST_KEY = 200  # characters of a key that is looked at; the value under a longer one is masked unseen
LONGEST_RUN = 3  # words of a key that are put together: `api key` and `apikey` are one

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")

_TOKENS = re.compile(
    # Each begins with a letter that is fixed, so that a search skips all others. `(?<!…)`: not within a word.
    r"[spr](?<![A-Za-z0-9].)k_(?:live_|test_|prod_)?[A-Za-z0-9]{10}[A-Za-z0-9_-]*+"
    r"|s(?<![A-Za-z0-9].)k-(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{20}[A-Za-z0-9_-]*+"  # OpenAI, Anthropic
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}[A-Z0-9]*+"
    r"|gh[pousr]_[A-Za-z0-9]{20}[A-Za-z0-9_]*+"
    r"|github_pat_[A-Za-z0-9_]{20}[A-Za-z0-9_]*+"
    r"|gl(?:pat|dt|rt|cbt|ptt|ft|ffct|imt|agent|oas|soat)-[A-Za-z0-9_-]{20}[A-Za-z0-9_.-]*+"
    r"|xox[a-z]-[A-Za-z0-9-]{8}[A-Za-z0-9-]*+"
    r"|xapp-[A-Za-z0-9-]{8}[A-Za-z0-9-]*+"
    r"|hooks\.slack\.com/services/[A-Za-z0-9/_-]*+"
    r"|AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{20}[A-Za-z0-9_-]*+|ya29\.[A-Za-z0-9_-]{20}[A-Za-z0-9_-]*+"  # Google
    r"|SG\.[A-Za-z0-9_-]{16}[A-Za-z0-9_-]*+\.[A-Za-z0-9_-]{16}[A-Za-z0-9_-]*+"  # SendGrid
    r"|(?:npm|pnu|lin_api)_[A-Za-z0-9]{30}[A-Za-z0-9]*+|pypi-[A-Za-z0-9_-]{40}[A-Za-z0-9_-]*+"
    r"|(?:hf|gsk)_[A-Za-z0-9]{30}[A-Za-z0-9]*+|dckr_pat_[A-Za-z0-9_-]{20}[A-Za-z0-9_-]*+"
    r"|do[opr]_v1_[a-f0-9]{64}|shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}|dapi[a-f0-9]{32}"
    r"|hv[sb]\.[A-Za-z0-9_-]{20}[A-Za-z0-9_-]*+"  # Vault
    r"|glsa_[A-Za-z0-9_]{32}[A-Za-z0-9_]*+|glc_[A-Za-z0-9+/]{32}[A-Za-z0-9+/=]*+"  # Grafana
    r"|whsec_[A-Za-z0-9+/]{20}[A-Za-z0-9+/=]*+|sq0[a-z]{3}-[A-Za-z0-9_-]{20}[A-Za-z0-9_-]*+"
    r"|PMAK-[a-f0-9]{24}[a-f0-9-]*+|NRAK-[A-Z0-9]{27}|ATATT3[A-Za-z0-9_=-]{20}[A-Za-z0-9_=-]*+"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{20}[A-Z0-9]*+|LS0tLS1CRUdJTi[A-Za-z0-9+/]{20}[A-Za-z0-9+/=]*+"  # PEM in Base64
)
_RUN = re.compile(r"[A-Za-z0-9_.+/=-]{13,}+")
"""A run of characters that may hold a token: most texts have few of these, so that little is searched for all forms."""

# To its end, or, where that was cut off, to the end of the text.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-]*+(?:-(?!----END )[^-]*+)*+"
    r"(?:-----END [A-Z0-9 ]{0,60}-----)?"
)
_BEARER = re.compile(r"(bearer)\s++[A-Za-z0-9._~+/=-]{6}[A-Za-z0-9._~+/=-]*+", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^\s/:@]{0,200}+:)[^\s/@]++@")

# A whole run, dots included, so that no search begins in the middle of one: `eyJeyJeyJ…` is looked at once.
_DOTTED = re.compile(r"(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]{20,}+")
_JWT_HEAD = re.compile(r"eyJ[A-Za-z0-9_-]{8}")

_QUOTED = (
    # A backslash in it may mean quotes within quotes: where it ends is not known, so the rest of the line goes.
    r'[bBrRuUfF]{0,2}(?:"[^"\\\r\n]*+(?:"|\\[^\r\n]*+)?'
    r"|'[^'\\\r\n]*+(?:'|\\[^\r\n]*+)?"
    r"|\\++[\"'][^\r\n]*+)"
    r"|[{\[(][^\r\n]*+"  # a structure that is not JSON by itself: the same
)
_JSON_ENDS = {"{": "}", "[": "]", '"': '"'}
_VALUE = _QUOTED + r"|[^\s,;&\"'}\])]++"
_HEADER = _QUOTED + r"|[^\r\n]++"

_SIGN = r"s?\\*+[\"']?\s{0,4}(?:=>|[:=])\s{0,4}"
_NEXT_WORD = r"(?-i:[0-9_.-]|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]))"
# The key may have more words. With dots or humps it needs quotes or `=`: `app.TokenExpired: …` is an error's name.
_SIGN_AFTER_MORE = (
    rf"(?:{_SIGN}|s?[0-9_-][\w-]{{0,200}}+{_SIGN}"
    rf"|s?{_NEXT_WORD}[\w.-]{{0,200}}+(?:\\*+[\"']\s{{0,4}}[:=]|\s{{0,4}}=)>?\s{{0,4}})"
)

_OPTION = r"--?([A-Za-z][\w.-]{0,200}+)"
_OPTION_WORD = re.compile(_OPTION)
# Of a command line; an option followed by another one has no value of its own.
_OPTION_AND_VALUE = re.compile(rf"((?<![^\s\"'(\[,]){_OPTION}[ \t]{{1,4}})(?:{_QUOTED}|(?!-)[^\s\"'\[{{(][^\s\"']*+)")


class Masker:
    """A masker of secrets: only its results may be written. Safe to share between threads.

    `keys`: more keys whose values are secret, case-insensitive; words as in `SECRET_KEYS`.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        every = [key for key in (*SECRET_KEYS, *keys) if _joined(key)]
        self._secret = frozenset(map(_joined, every))
        words = max(len(_WORD.findall(key)) for key in every)
        self._assigned = _assignments(every, _SIGN_AFTER_MORE, _VALUE)
        self._headers = _assignments(list(_HEADERS), _SIGN, _HEADER)
        self._short_key = lru_cache(maxsize=4096)(self._plain)
        self.is_secret = lru_cache(maxsize=4096)(lambda key: _has_run(key, self._secret, max(words, LONGEST_RUN)))

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return a JSON value without its secrets. The value itself stays as it is.

        Anything that is neither a mapping, a list, a text, a number, a boolean nor None is shown as its masked `str`.
        """
        if isinstance(value, str):
            return self.text(value, depth)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if not isinstance(value, (dict, list, tuple, Mapping)):
            return self.text(str(value), depth)
        if depth >= DEEPEST:
            return TOO_DEEP
        if isinstance(value, (dict, Mapping)):
            return {
                self._key(str(key)): MASK if self._hides(str(key)) else self.value(inner, depth + 1)
                for key, inner in value.items()
            }
        return [
            MASK if self._is_of_option(before, inner) else self.value(inner, depth + 1)
            for before, inner in zip((None, *value), value, strict=False)
        ]

    def result(self, value: Any, hidden: bool = False) -> Any:
        """Return a JSON value without its secret texts. Numbers, booleans and None stay, at any depth.

        `hidden`: it is under a secret key, so each text in it is masked.
        """
        if isinstance(value, str):
            return MASK if hidden else self._masked(value, self.result)
        if isinstance(value, dict):
            masked = {}
            for key, inner in value.items():  # a loop: a comprehension would be another frame for each level
                masked[self._key(key)] = self.result(inner, hidden or self._hides(key))
            return masked
        if not isinstance(value, list):
            return value
        items = []
        for before, inner in zip((None, *value), value, strict=False):
            items.append(self.result(inner, hidden or self._is_of_option(before, inner)))
        return items

    def _key(self, key: str) -> str:
        return self._short_key(key) if len(key) <= LONGEST_KEY else self._plain(key)

    def _is_of_option(self, before: object, word: object) -> bool:
        """Return whether an item of an argument list is the value of a secret option: `["--password", "…"]`."""
        if not (isinstance(word, str) and isinstance(before, str) and before[:1] == "-"):
            return False
        option = _OPTION_WORD.fullmatch(before)
        return option is not None and word[:2] != "--" and self.is_secret(option[1])

    def _mask_option(self, found: re.Match[str]) -> str:
        return f"{found[1]}{MASK}" if self.is_secret(found[2]) else found[0]

    def _hides(self, key: str) -> bool:
        return len(key) > LONGEST_KEY or self.is_secret(key)

    def text(self, text: str, depth: int = 0) -> str:
        """Return a text without its secrets: tokens, private keys, `password=…`, `--password …`, passwords in URLs.

        JSON is masked by its structure: its keys then count wherever its values end.
        """
        return self._masked(text, lambda found: self.value(found, depth))

    def _masked(self, text: str, walk: Callable[[Any], Any]) -> str:
        if text[:1] in _JSON_ENDS and text.rstrip()[-1:] == _JSON_ENDS[text[0]]:
            with suppress(ValueError, RecursionError):
                # Written anew even if nothing was masked: of a key that stands there twice, only one was looked at.
                return json.dumps(walk(json.loads(text)), ensure_ascii=False)
        return self._plain(text)

    def _plain(self, text: str) -> str:
        if len(text) < 4:
            return text
        if "-----BEGIN" in text:
            text = _PRIVATE_KEY.sub(MASK, text)
        if "=" in text or ":" in text:
            text = self._headers.sub(rf"\1{MASK}", text)
            text = self._assigned.sub(rf"\1{MASK}", text)
        if "-" in text:
            text = _OPTION_AND_VALUE.sub(self._mask_option, text)
        if "://" in text:
            text = _URL_PASSWORD.sub(rf"\1{MASK}@", text)
        text = _BEARER.sub(rf"\1 {MASK}", text)
        if "eyJ" in text:
            text = _DOTTED.sub(_without_jwt, text)
        return _RUN.sub(lambda found: _TOKENS.sub(MASK, found[0]), text)


def _assignments(keys: list[str], sign: str, value: str) -> re.Pattern[str]:
    """Return a pattern for `key=value`, `"key": value`, `key: value`, with any separators between a key's words."""
    by_letter: dict[str, list[str]] = {}
    for key in sorted(keys, key=len, reverse=True):
        words = _WORD.findall(key)
        rest = r"[\s_.-]{0,2}".join(map(re.escape, (words[0][1:], *words[1:])))
        by_letter.setdefault(words[0][0].lower(), []).append(rest)
    # A set of letters before all else, so that a search skips all others; then only words that begin with it.
    letters = "".join(re.escape(first + first.upper()) for first in by_letter)
    spelt = "|".join(
        f"(?<=[{re.escape(first + first.upper())}])(?:{'|'.join(rest)})" for first, rest in by_letter.items()
    )
    return re.compile(rf"([{letters}](?i:(?:{spelt}){sign}))(?:{value})")


def _without_jwt(found: re.Match[str]) -> str:
    """Return the run up to its first JSON web token: a header, a body, and a signature that may be empty."""
    run = found[0]
    head = _JWT_HEAD.search(run)  # a later one has no more dots behind it than this
    if head is None:
        return run
    body = run.find(".", head.end())
    return run[: head.start()] + MASK if body >= 0 and run.find(".", body + 2) >= 0 else run


def _joined(key: str) -> str:
    return "".join(_WORD.findall(key)).lower()


def _has_run(key: str, secret: frozenset[str], longest: int) -> bool:
    """Return whether up to `longest` successive words of the key are a secret one; a plural counts."""
    words = [word.lower() for word in _WORD.findall(key)]
    for start in range(len(words)):
        joined = ""
        for word in words[start : start + longest]:
            joined += word
            if joined in secret or joined.removesuffix("s") in secret:
                return True
    return False
