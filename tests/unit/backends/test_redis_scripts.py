"""What the scripts are put together from."""

from __future__ import annotations

import re

import pytest

from jobpool_backends.redis import keyspace
from jobpool_backends.redis.connections import Script

FILES = {file.name: file.read_text("utf-8") for file in keyspace._FOLDER.iterdir()}
SCRIPTS = {name: script for name, script in vars(keyspace).items() if isinstance(script, Script)}
MAIN = {name: f"{name.lower()}.lua" for name in SCRIPTS}
PIECES = [text for file, text in FILES.items() if file not in {*MAIN.values(), "common.lua"}]


def code(text: str) -> str:
    return re.sub("--.*", "", text)


def defined(text: str) -> set[str]:
    return set(re.findall(r"^local function (\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_all_functions_that_it_calls_and_no_piece_that_it_never_uses(name: str) -> None:
    source, own = SCRIPTS[name].source, FILES[MAIN[name]]
    pieces = [text for text in PIECES if text in source]
    called = set(re.findall(r"(?<![\w.:])(\w+)\(", code("".join([own, *pieces]))))
    assert called & set().union(*map(defined, PIECES)) <= defined(source)
    for piece in pieces:
        rest = code(source.replace(piece, ""))
        names = re.findall(r"^local (?:function )?([\w, ]+)", piece, re.MULTILINE)
        assert any(re.search(rf"\b{each}\b", rest) for each in re.findall(r"\w+", " ".join(names))), piece
