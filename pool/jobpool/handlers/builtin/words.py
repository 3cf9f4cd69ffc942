"""Words of a command line to the parameters of a function, by its signature: worked out once a function.

A parameter `month: int` is filled by `--month 6` or `--month=6`, `dry_run: bool` by `--dry-run` or `--no-dry-run`, and
`tags: list[str]` by any number of `--tags x`. Words that belong to no option fill the parameters without a default that
no option has filled, in their order, and then `*args`. Behind `--` there are no options.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from jobpool.errors import ConfigurationError
from jobpool.handlers.builtin import Refused
from jobpool.handlers.conversion import Convert, Mismatch, converter
from jobpool.handlers.invocation import hints_of, parameters_of
from jobpool.message.context import JobContext

Call = Callable[[JobContext, list[str]], Any]

RAW = "argv"
"""A function whose only parameter besides the context is called so gets the words as they are."""

_MAX_WORD_CHARS = 80
"""Characters that are shown of a word."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_FILLED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def reader(function: Callable[..., Any], named: str, place: str) -> Call:
    """Return a call of `function` with a context and words. `named`: its name in texts.

    Raises:
        ConfigurationError: It takes `**fields`, which no word can fill.

    The call raises `Refused` for words that do not fit, or the errors of `function`.
    """
    parameters = (parameters_of(function) or [])[1:]
    if (
        [parameter.name for parameter in parameters if parameter.kind in _FILLED]
        == [RAW]
        == [parameter.name for parameter in parameters]
    ):
        return lambda ctx, words: function(ctx, **{RAW: words})
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        raise ConfigurationError(f"{named}, {place}, takes **fields, which no word can fill: name its options")
    options = _Options(parameters, hints_of(function))

    def call(ctx: JobContext, words: list[str]) -> Any:
        try:
            values, rest = options.read(words)
        except Mismatch as mismatch:
            raise Refused(f"{named}: {mismatch}") from None
        # With more words for `*args`, the parameters before it have to be filled by position.
        before = [values.pop(name) for name in options.before_rest] if rest else []
        return function(ctx, *before, *rest, **values)

    return call


class _Options:
    """The parameters of one function."""

    def __init__(self, parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> None:
        named = {p.name: p for p in parameters if p.kind in _FILLED}
        rest = next((p for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
        self._flags = {name for name in named if _bare(hints.get(name)) is bool}
        self._lists = {name for name in named if typing.get_origin(_bare(hints.get(name))) is list}
        self._convert = {name: _converter(hints.get(name, str), name in self._lists) for name in named}
        self._defaults = {name: p.default for name, p in named.items() if p.default is not inspect.Parameter.empty}
        self._in_order = [name for name, p in named.items() if name not in self._defaults and name not in self._flags]
        self._rest = None if rest is None else converter_of_text(hints.get(rest.name, str))
        self.before_rest = [name for name, p in named.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]

    def read(self, words: list[str]) -> tuple[dict[str, Any], list[Any]]:
        """Parse the words: keyword arguments, and those of `*args`. Raises `Mismatch`."""
        given: dict[str, Any] = {}
        plain: list[str] = []
        todo = iter(words)
        for word in todo:
            if word == "--":
                plain.extend(todo)
            elif word.startswith("--"):
                self._take(word, todo, given)
            elif word.startswith("-") and len(word) > 1 and not _DECIMAL.fullmatch(word):
                raise Mismatch(f"there is no option {_shown(word)}; it takes {self._known()}")
            else:
                plain.append(word)
        rest = self._place(plain, given)
        missing = [name for name in self._convert if name not in given and name not in self._defaults]
        for name in missing:
            if name not in self._flags and name not in self._lists:
                raise Mismatch(f"option {_option(name)} is missing")
            given[name] = False if name in self._flags else []
        if rest:  # parameters before `*args` are filled by position, so they need values
            given = {**{name: self._defaults[name] for name in self.before_rest if name not in given}, **given}
        return given, rest

    def _take(self, word: str, todo: typing.Iterator[str], given: dict[str, Any]) -> None:
        """Take an option, and its value from `todo` if it needs one and has none after '='."""
        option, sign, value = word.partition("=")
        name, on = self._find(option)
        if name in self._flags:
            if sign:
                raise Mismatch(f"option {option} takes no value: write {_option(name)} or --no-{_option(name)[2:]}")
            self._give(name, on, given)
            return
        if not sign:
            following = next(todo, None)
            if following is None:
                raise Mismatch(f"option {option} needs a value")
            value = following
        self._give(name, self._convert[name](value, option), given)

    def _find(self, option: str) -> tuple[str, bool]:
        """Return the parameter of an option, and what a flag sets."""
        name = option[2:].replace("-", "_")
        if name in self._convert and _option(name) == option:
            return name, True
        off = name.removeprefix("no_")
        if off in self._flags and option.startswith("--no-"):
            return off, False
        raise Mismatch(f"there is no option {_shown(option)}; it takes {self._known()}")

    def _give(self, name: str, value: Any, given: dict[str, Any]) -> None:
        if name in self._lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise Mismatch(f"option {_option(name)} is given twice")
        else:
            given[name] = value

    def _place(self, plain: list[str], given: dict[str, Any]) -> list[Any]:
        """Fill what is still open, in order, with plain words; those that are left, for `*args`."""
        open_ = [name for name in self._in_order if name not in given and name not in self._lists]
        for name, word in zip(open_, plain, strict=False):
            given[name] = self._convert[name](word, _option(name))
        left = plain[len(open_) :]
        if left and self._rest is None:
            raise Mismatch(f"the word {left[0]!r:.80} belongs to no option; it takes {self._known()}")
        return [self._rest(word, "a word") for word in left] if self._rest else []

    def _known(self) -> str:
        return ", ".join(map(_option, self._convert)) or "none"


def converter_of_text(annotation: Any) -> Convert:
    """Return a `converter` of texts: one that is written as a number is taken for it where a text does not fit."""
    convert = converter(annotation)

    def from_text(text: str, where: str) -> Any:
        first: Mismatch | None = None
        for value in _readings(text):
            try:
                return convert(value, where)
            except Mismatch as mismatch:
                first = first or mismatch
        raise first or Mismatch(where)

    return from_text


def _readings(text: str) -> list[Any]:
    """Return the values that a text may stand for, the likeliest first."""
    if _INTEGER.fullmatch(text):
        return [text, int(text)]
    return [text, float(text)] if _DECIMAL.fullmatch(text) else [text]


def _converter(annotation: Any, is_list: bool) -> Convert:
    if not is_list:
        return converter_of_text(annotation)
    inner = typing.get_args(_bare(annotation))
    return converter_of_text(inner[0] if inner else str)


def _bare(annotation: Any) -> Any:
    """Strip `Annotated[...]` and `| None`."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _bare(typing.get_args(annotation)[0])
    inner = [one for one in typing.get_args(annotation) if one is not type(None)]
    return _bare(inner[0]) if _is_optional(annotation) and len(inner) == 1 else annotation


def _is_optional(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def _shown(word: str) -> str:
    """Return a word of somebody's, on one line and not at any length."""
    return word if word.isprintable() and len(word) <= _MAX_WORD_CHARS else f"{word!r:.{_MAX_WORD_CHARS}}"


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
