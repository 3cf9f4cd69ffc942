"""The order of words on the command line: options may stand before the verb, and `jobpool` alone means `jobpool run`.

    jobpool -w 4 -Q reports        →  run -w 4 -Q reports
    jobpool -C prod.toml dead list →  dead list -C prod.toml

Words only move; click parses them after their verb. Which word is the verb depends on which options
take a value (`-Q stats` is a queue), so that is asked of the commands themselves.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

import click

FOR_THE_GROUP = frozenset({"-h", "--help", "-V", "--version"})

DESTRUCTIVE_VERBS = frozenset({"purge", "delete", "pop"})
NEAR, VERY_NEAR = 0.5, 0.8
"""How alike a word and a verb must be (difflib) for a hint. A destructive verb is only named for its own misspelling:
`pause` does not mean `purge`."""


def arrange(group: click.Group, words: Sequence[str], default: str, *, complete: bool = False) -> list[str]:
    """Return `words` with the verb (or `default`) in front, and options that preceded it after it.

    Args:
        complete: The words are an unfinished line: where nothing is written yet, any verb may follow.

    Raises:
        click.UsageError: The first word after the options is not a verb; the text names the nearest one.
    """
    place = _first_plain(words, _values_taken(group))
    if place is None:
        asks_group = FOR_THE_GROUP & set(words) or (complete and not words)
        return list(words) if asks_group else [default, *words]
    verb = words[place]
    command = group.commands.get(verb)
    if command is None:
        raise click.UsageError(unknown_verb(verb, group.commands))
    rest = [*words[:place], *words[place + 1 :]]
    if isinstance(command, click.Group):
        rest = arrange(command, rest, "list", complete=complete)
    return [verb, *rest]


def unknown_verb(word: str, verbs: Iterable[str]) -> str:
    """Return the sentence for a word that is not a verb."""
    verbs = sorted(verbs)
    near = [verb for verb in difflib.get_close_matches(word, verbs, cutoff=NEAR) if _may_be_meant(word, verb)]
    hint = f"did you mean {near[0]!r}?" if near else f"the verbs are {', '.join(verbs)}"
    return f"{word!r} is no verb of jobpool; {hint}"


def _may_be_meant(word: str, verb: str) -> bool:
    return verb not in DESTRUCTIVE_VERBS or bool(difflib.get_close_matches(word, [verb], cutoff=VERY_NEAR))


def _first_plain(words: Sequence[str], takes: dict[str, bool]) -> int | None:
    """Return the place of the first word that is neither an option nor its value; None if there is none."""
    place = 0
    while place < len(words):
        word = words[place]
        if not word.startswith("-") or word == "-":
            return place
        name, attached = _split(word, takes)
        if name not in takes:
            return None
        place += 2 if takes[name] and not attached else 1
    return None


def _split(word: str, takes: dict[str, bool]) -> tuple[str, bool]:
    """Return the option that decides about the next word, and True if its value is in this word already."""
    if word.startswith("--"):
        name, sign, _ = word.partition("=")
        return name, bool(sign)
    for index in range(1, len(word)):
        letter = "-" + word[index]
        if takes.get(letter, True):
            return letter, index + 1 < len(word)
    return "-" + word[-1], False


def _values_taken(group: click.Group) -> dict[str, bool]:
    """Return every option of every verb, and whether it takes a value."""
    takes = dict.fromkeys(FOR_THE_GROUP, False)
    for command in walk(group):
        for option in command.params:
            if isinstance(option, click.Option):
                takes_value = not (option.is_flag or option.count)
                takes.update(dict.fromkeys([*option.opts, *option.secondary_opts], takes_value))
    return takes


def walk(group: click.Group) -> Iterator[click.Command]:
    """Yield the group, its commands, and theirs."""
    yield group
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from walk(command)
        else:
            yield command
