"""The built-in handler `command`, and how words fill parameters."""

# ruff: noqa: ARG001, ARG005 - a command takes its context, whether it looks at it or not
from __future__ import annotations

import shlex
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.built_in import attempt, failure, output, refusal
from support.tables import row

from jobpool.errors import ConfigurationError, Unrecoverable
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.context import JobContext
from jobpool.message.outcome import ResultKind


class Colour(Enum):
    RED = "red"


def report(
    ctx: JobContext,
    month: int,
    customer: str = "all",
    share: float = 1.0,
    dry_run: bool = False,
    colour: Colour | None = None,
    since: date | None = None,
    size: Literal["a4", 5] = "a4",
    tags: list[str] | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    told = {**locals(), "colour": colour and colour.name, "since": since and since.isoformat(), "out": out and str(out)}
    del told["ctx"]
    defaults = {"customer": "all", "share": 1.0, "dry_run": False, "size": "a4"}
    return {key: value for key, value in told.items() if value != defaults.get(key)}


def copy(ctx: JobContext, source: Path, target: Path, *others: int, force: bool, level: int = 1) -> list[Any]:
    return [source.name, target.name, list(others), force, level]


@pytest.fixture
def registry() -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.command("app:report")(report)
    registry.command(copy)
    registry.command("words")(lambda ctx, argv: argv)
    registry.command("nothing")(lambda ctx: ctx.handler)

    @registry.command("later")
    async def later(ctx: JobContext, number: int) -> int:
        return number + 1

    @registry.command("fails")
    def fails(ctx: JobContext) -> None:
        raise ValueError("as it does")

    @registry.command("never")
    def never(ctx: JobContext) -> None:
        raise Unrecoverable("no such customer")

    return registry


def test_words_become_arguments(registry: HandlerRegistry) -> None:
    for case, payload, answer in [
        ("option", "app:report --month 6", '{"month":6}'),
        ("option with =", "app:report --month=6", '{"month":6}'),
        ("by its place", "app:report 6", '{"month":6}'),
        ("a number where text is wanted", "app:report 6 --customer 7", '{"month":6,"customer":"7"}'),
        ("empty text", "app:report 6 --customer ''", '{"month":6,"customer":""}'),
        ("= in a value", "app:report 6 --customer=a=b", '{"month":6,"customer":"a=b"}'),
        ("negative", "app:report --month -6", '{"month":-6}'),
        ("negative, by its place", "app:report -6", '{"month":-6}'),
        ("number", "app:report 6 --share 1e-1", '{"month":6,"share":0.1}'),
        ("whole number where any is wanted", "app:report 6 --share 2", '{"month":6,"share":2.0}'),
        ("flag", "app:report 6 --dry-run", '{"month":6,"dry_run":true}'),
        ("flag off", "app:report 6 --no-dry-run", '{"month":6}'),
        ("enum", "app:report 6 --colour red", '{"month":6,"colour":"RED"}'),
        ("date", "app:report 6 --since 2026-06-01", '{"month":6,"since":"2026-06-01"}'),
        ("literal number", "app:report 6 --size 5", '{"month":6,"size":5}'),
        ("repeated", "app:report 6 --tags a --tags 'b c'", '{"month":6,"tags":["a","b c"]}'),
        ("path", "app:report 6 --out /tmp/x", '{"month":6,"out":"/tmp/x"}'),
        ("two by place", "copy a b", '["a","b",[],false,1]'),
        ("and the rest", "copy a b 3 4 --force", '["a","b",[3,4],true,1]'),
        ("a place that an option has filled", "copy --target a b", '["b","a",[],false,1]'),
        ("behind --", "copy --level 2 -- --a -b", '["--a","-b",[],false,2]'),
        ("words as they are", "words --x '1 2' -- y", '["--x","1 2","--","y"]'),
        ("no words", "words", "[]"),
        ("no parameters", "nothing", "command"),
        ("async", "later 6", "7"),
    ]:
        assert output("command", payload, registry) == answer, case


def test_what_does_not_fit_is_refused_for_good(registry: HandlerRegistry) -> None:
    for case, payload, text in [
        ("empty", "", "the payload of a command must not be empty"),
        ("blank", " \t\n", "the payload of a command must not be empty"),
        ("object", {}, "must be a text such as 'app:report --month 6', not an object"),
        ("list", ["app:report"], "must be a text"),
        ("null", None, "must be a text"),
        (
            "open quote",
            "app:report --password 'hunter2",
            "the payload of a command cannot be split into words: No closing quotation",
        ),
        (
            "unknown",
            "app:repotr 6",
            "no command is named 'app:repotr' here; there are app:report, copy, fails, later, never, nothing, words",
        ),
        ("a long name", "a" * 900, f"no command is named '{'a' * 199} here"),
        ("no attribute is looked up", "__class__", "no command is named '__class__'"),
        ("missing", "app:report", "command 'app:report': option --month is missing"),
        ("no value", "app:report --month", "option --month needs a value"),
        ("no number", "app:report --month six", "field '--month' must be a whole number, not 'six'"),
        ("no whole number", "app:report --month 6.5", "field '--month' must be a whole number"),
        ("foreign digits", "app:report --month \uff16", "field '--month' must be a whole number"),
        ("endless number", f"app:report {'9' * 5000}", "must be a whole number"),
        ("infinite", "app:report 6 --share 1e999", "field '--share' must be a number"),
        ("nan", "app:report 6 --share nan", "field '--share' must be a number"),
        ("twice, once by place", "app:report 6 --month 6", "belongs to no option"),
        ("twice", "app:report --month 6 --month 7", "option --month is given twice"),
        ("too many words", "app:report 6 7", "the word '7' belongs to no option"),
        ("unknown", "app:report 6 --verbose", "there is no option --verbose; it takes --month, --cus"),
        ("underscore", "app:report 6 --dry_run", "there is no option --dry_run"),
        ("letter", "app:report 6 -v", "there is no option -v"),
        ("flag with a value", "app:report 6 --dry-run=yes", "option --dry-run takes no value"),
        ("no flag", "app:report 6 --no-month", "there is no option --no-month"),
        ("not in the enum", "app:report 6 --colour blue", "must be one of 'red', not 'blue'"),
        ("no date", "app:report 6 --since today", "must be a date in ISO 8601"),
        ("the context is not an option", "app:report 6 --ctx x", "there is no option --ctx"),
        ("takes nothing", "nothing more", "the word 'more' belongs to no option; it takes none"),
        ("one of the rest", "copy a b c", "field 'a word' must be a whole number, not 'c'"),
    ]:
        assert text in refusal("command", payload, registry), case


@pytest.mark.parametrize("word", ["--é\ny", "-v\x1b[2J", "--" + "x" * 1000])
def test_a_strange_option_is_shown_on_one_line_and_in_short(registry: HandlerRegistry, word: str) -> None:
    said = refusal("command", f"app:report 6 {shlex.quote(word)}", registry)
    assert said.startswith("command 'app:report': there is no option '-")
    assert said.isprintable()
    assert len(said) < 400


WORDS = st.sampled_from(
    ["--", "-", "--month", "--month=1", "--tags", "a", "7", "-7", "--force", "--no-force", "--x", "=", "é"]
)


@given(name=st.sampled_from(["app:report", "copy", "words", "nothing"]), words=st.lists(WORDS | st.text(), max_size=6))
def test_whatever_the_words_the_attempt_ends_well_or_in_one_sentence(name: str, words: list[str]) -> None:
    registry = HandlerRegistry()
    for function in (report, copy):
        registry.command("app:report" if function is report else None)(function)
    registry.command("words")(lambda ctx, argv: argv)
    registry.command("nothing")(lambda ctx: None)
    try:
        made = attempt("command", f"{name} {shlex.join(words)}", registry)
    except ValueError:
        return  # JSON cannot carry it: refused where it is enqueued
    assert made.kind in (ResultKind.SUCCEEDED, ResultKind.UNRECOVERABLE), made.error
    assert "\n" not in made.error
    assert len(made.error) < 600


def test_without_commands_it_says_how_to_make_one() -> None:
    assert refusal("command", "x") == (
        "no command is named 'x' here; there are none: decorate a function with @jobpool.command"
    )


def test_an_error_of_the_command_is_a_failed_attempt_with_its_traceback(registry: HandlerRegistry) -> None:
    said = failure("command", "fails", registry)
    assert said.splitlines()[1].startswith(f'  File "{__file__}"')
    assert said.endswith("ValueError: as it does")
    assert attempt("command", "never", registry).kind is ResultKind.UNRECOVERABLE


def one(ctx: JobContext) -> None: ...
def two(ctx: JobContext) -> None: ...
def fields(ctx: JobContext, **fields: Any) -> None: ...
def bare() -> None: ...
def by_place(ctx: JobContext, a: int, /) -> None: ...


def generator(ctx: JobContext) -> Any:
    yield 1


class Written:
    def run(self, ctx: JobContext) -> None: ...


def test_what_cannot_work_is_refused_when_it_is_registered() -> None:
    rows: list[tuple[str, Any, Any, str]] = [
        ("two words", "two words", one, "the name 'two words' of the command"),
        ("empty", "", one, "the name '' of the command"),
        ("an option", "--all", one, "must be one word"),
        ("quote", "it's", one, "without quotes"),
        ("two lines", "a\nb", one, "must be one word"),
        ("long", "x" * 256, one, "must be one word, 1 to 255"),
        ("no text", 7, one, "must be one word"),
        ("no context", "x", bare, "must take the job's context as its first parameter"),
        ("by place only", "x", by_place, "parameter 'a' cannot be filled by name"),
        ("generator", "x", generator, "is a generator and would never run"),
        ("class", "x", Written, "is a class: decorate a function"),
    ]
    for case, name, function, text in rows:
        registry = HandlerRegistry()
        with row(case), pytest.raises(ConfigurationError) as raised:
            registry.command(name)(function)
        assert text in str(raised.value), case
        assert function.__name__ in str(raised.value), case


def test_parameters_that_no_word_can_fill_are_told_when_the_app_is_loaded() -> None:
    registry = HandlerRegistry()
    registry.command("x")(fields)
    with pytest.raises(ConfigurationError, match=r"takes \*\*fields, which no word can fill"):
        registry.prepare()


def test_two_commands_of_one_name_are_refused_and_both_are_named() -> None:
    registry = HandlerRegistry()
    assert registry.command("x")(one) is one, "the function stays what it is"
    registry.command("x")(one)
    with pytest.raises(ConfigurationError) as raised:
        registry.command("x")(two)
    lines = [function.__code__.co_firstlineno for function in (one, two)]
    assert str(raised.value) == (
        f"two commands are named 'x': {__file__}:{lines[0]} (one) and {__file__}:{lines[1]} (two): rename one of them"
    )
