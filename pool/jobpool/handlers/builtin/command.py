"""The built-in handler `command`: its payload is a line of words, the first of which names a function of the app.

`HandlerRegistry.command` says how the others fill its parameters. Behind `--` there are no options.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from inspect import Parameter
from typing import Any

from jobpool.errors import ConfigurationError
from jobpool.handlers.binding import FILLED_BY_NAME, F, hints_of, parameters_of, place_of
from jobpool.handlers.builtin import Kit, Refused, Registered, kind_of, split_words
from jobpool.handlers.conversion import Mismatch, converter
from jobpool.handlers.event_loop import awaited
from jobpool.message.context import JobContext
from jobpool.message.names import LONGEST_NAME, is_name

Call = Callable[[JobContext, list[str]], Any]

_NAME = re.compile(r"[^\s'\"\\-][^\s'\"\\]*")  # a word that needs no quotes in the payload, and that is not an option
_RAW = "argv"  # a function whose only parameter besides the context is called so gets the words as they are
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


def register(commands: dict[str, Registered], function: F, name: str | None) -> F:
    """Add a function to `commands`, and return it. The same again (a module imported twice) replaces itself.

    Raises `ConfigurationError`: the name is none, or another function has it; the text names both places.
    """
    name = getattr(function, "__name__", "") if name is None else name
    place = place_of(function)
    if not isinstance(name, str) or not is_name(name) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"the name {name!r} of the command {place} must be one word, 1 to {LONGEST_NAME} printable characters"
            " without quotes, and no '-' first"
        )
    command = Registered(function, name, "command", partial(_reader, function, f"command {name!r}", place))
    known = commands.get(name, command)
    if known.place != place:
        raise ConfigurationError(f"two commands are named {name!r}: {known.place} and {place}: rename one of them")
    commands[name] = command
    return function


def make(kit: Kit) -> Callable[[JobContext], Any]:
    def run(ctx: JobContext) -> Any:
        payload = ctx.payload
        if not isinstance(payload, str):
            shown = kind_of(payload)
            raise Refused(f"the payload of a command must be a text such as 'app:report --month 6', not {shown}")
        words = split_words(payload, "the payload of a command")
        if not words:
            raise Refused("the payload of a command must not be empty: it begins with the command's name")
        command = kit.commands.get(words[0])
        if command is None:
            known = ", ".join(sorted(kit.commands)) or "none: decorate a function with @jobpool.command"
            raise Refused(f"no command is named {words[0]!r:.200} here; there are {known}")
        return awaited(command.bound(ctx, words[1:]))

    return run


# --- words to arguments -------------------------------------------------------------------------------


def _reader(function: Callable[..., Any], named: str, place: str) -> Call:
    """Return a call of `function` with a context and words, which raises `Refused` if they do not fit.

    Raises `ConfigurationError`: it takes `**fields`, which no word can fill. `named`: its name in texts.
    """
    parameters = parameters_of(function)[1:]
    if [parameter.name for parameter in parameters] == [_RAW] and parameters[0].kind in FILLED_BY_NAME:
        return lambda ctx, words: function(ctx, **{_RAW: words})
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        raise ConfigurationError(f"{named}, {place}, takes **fields, which no word can fill: name its options")
    options = _Options(parameters, hints_of(function))

    def call(ctx: JobContext, words: list[str]) -> Any:
        try:
            by_place, by_name = options.read(words)
        except ValueError as wrong:
            raise Refused(f"{named}: {wrong}") from None
        return function(ctx, *by_place, **by_name)

    return call


class _Options:
    def __init__(self, parameters: list[Parameter], hints: Mapping[str, Any]) -> None:
        named = {p.name: p for p in parameters if p.kind in FILLED_BY_NAME}
        bare = {name: _bare(hints.get(name, str)) for name in named}
        self._flags = {name for name in named if bare[name] is bool}
        self._lists = {name for name in named if typing.get_origin(bare[name]) is list}
        self._convert = {
            name: _of_text((*typing.get_args(bare[name]), str)[0] if name in self._lists else hints.get(name, str))
            for name in named
        }
        self._defaults = {name: p.default for name, p in named.items() if p.default is not Parameter.empty}
        self._by_place = [name for name, p in named.items() if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
        rest = next((p for p in parameters if p.kind is Parameter.VAR_POSITIONAL), None)
        self._rest = None if rest is None else _of_text(hints.get(rest.name, str))

    def read(self, words: list[str]) -> tuple[list[Any], dict[str, Any]]:
        """Parse the words: arguments by position, and by name. Raises `ValueError`."""
        given: dict[str, Any] = {}
        plain: list[str] = []
        todo = iter(words)
        for word in todo:
            if word == "--":
                plain.extend(todo)
            elif word.startswith("--"):
                self._take(word, todo, given)
            elif word.startswith("-") and len(word) > 1 and not _DECIMAL.fullmatch(word):
                raise self._unknown(word)
            else:
                plain.append(word)
        rest = self._place(plain, given)
        for name in self._convert:
            if name not in given and name not in self._defaults:
                if name not in self._flags and name not in self._lists:
                    raise ValueError(f"option {_option(name)} is missing")
                given[name] = False if name in self._flags else []
        if not rest:
            return [], given
        # With more words for `*args`, the parameters before it have to be filled by position.
        before = [given.pop(name) if name in given else self._defaults[name] for name in self._by_place]
        return [*before, *rest], given

    def _take(self, word: str, todo: Iterator[str], given: dict[str, Any]) -> None:
        """Take an option, and its value from `todo` if it needs one and has none after '='."""
        option, sign, text = word.partition("=")
        name = option[2:].replace("-", "_")
        off = name.removeprefix("no_")
        value: Any = True
        if name not in self._convert or _option(name) != option:
            if off not in self._flags or not option.startswith("--no-"):
                raise self._unknown(option)
            name, value = off, False
        if name not in self._flags:
            following = text if sign else next(todo, None)
            if following is None:
                raise ValueError(f"option {option} needs a value")
            value = self._convert[name](following, option)
        elif sign:
            raise ValueError(f"option {option} takes no value: write {_option(name)} or --no-{_option(name)[2:]}")
        if name in self._lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise ValueError(f"option {_option(name)} is given twice")
        else:
            given[name] = value

    def _place(self, plain: list[str], given: dict[str, Any]) -> list[Any]:
        """Fill what is still open, in order, with plain words; those that are left, for `*args`."""
        filled = {*given, *self._defaults, *self._flags, *self._lists}
        still_open = [name for name in self._convert if name not in filled]
        for name, word in zip(still_open, plain, strict=False):
            given[name] = self._convert[name](word, _option(name))
        left = plain[len(still_open) :]
        if left and self._rest is None:
            raise ValueError(f"the word {left[0]!r:.80} belongs to no option; it takes {self._known()}")
        return [self._rest(word, "a word") for word in left] if self._rest else []

    def _unknown(self, word: str) -> ValueError:
        shown = word if word.isprintable() and len(word) <= 80 else f"{word!r:.80}"
        return ValueError(f"there is no option {shown}; it takes {self._known()}")

    def _known(self) -> str:
        return ", ".join(map(_option, self._convert)) or "none"


def _of_text(annotation: Any) -> Callable[[str, str], Any]:
    """Return a `converter` of a text and its name: one that is written as a number is taken for it where need be."""
    convert = converter(annotation)

    def from_text(text: str, name: str) -> Any:
        try:
            return convert(text)
        except Mismatch as mismatch:
            number = int if _INTEGER.fullmatch(text) else float if _DECIMAL.fullmatch(text) else None
            if number is not None:
                with suppress(Mismatch):
                    return convert(number(text))
            mismatch.steps.append(name)
            raise

    return from_text


def _bare(annotation: Any) -> Any:
    """Strip `Annotated[...]` and `| None`."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _bare(typing.get_args(annotation)[0])
    args = typing.get_args(annotation)
    inner = [one for one in args if one is not type(None)]
    return _bare(inner[0]) if type(None) in args and len(inner) == 1 else annotation


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
