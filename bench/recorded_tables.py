"""The tables of bench/README.md, read back: what was measured last, and under which circumstances."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bench.figures import Figure
from bench.peers.environment import VERSIONS
from bench.report import BEGIN, END, NEVER, tables

_ROW = re.compile(r"^\| (?P<name>[^|]+) \| (?P<measured>[^|]+) \| (?P<spread>[^|]*) \| (?P<count>\d+) \|")
_NOISE = re.compile(r"^Other programs had .+$", re.MULTILINE)
_FACTS = re.compile(rf"^(?:Measured: |{VERSIONS})(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One section as it was written.

    Attributes:
        figures: By name; as exact as the table, which has three digits.
        noise: The sentence about other programs.
        about: Date, machine and versions.
    """

    figures: Mapping[str, Figure]
    noise: str
    about: Mapping[str, str]


def sections(readme: str) -> dict[str, Recorded]:
    """Return all sections of a README, by name."""
    return {name: _section(text) for name, text in tables(readme.partition(BEGIN)[2].partition(END)[0]).items()}


def _section(text: str) -> Recorded:
    rows = [found for line in text.splitlines() if (found := _ROW.match(line))]
    noise = _NOISE.search(text)
    about = dict(fact.split(" ", 1) for facts in _FACTS.findall(text) for fact in facts.split(", "))
    return Recorded({row["name"]: _figure(row) for row in rows}, noise[0] if noise else "", about)


def _figure(row: re.Match[str]) -> Figure:
    value, _, unit = row["measured"].strip().partition(" ")
    low, _, high = (row["spread"].strip() or f"{value} … {value}").partition(" … ")
    return Figure(row["name"], _number(value), unit, _number(low), _number(high), int(row["count"]))


def _number(text: str) -> float:
    return float("inf" if text == NEVER else text.replace(",", ""))
