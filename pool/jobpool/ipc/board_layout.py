"""Where each field of the scoreboard lies and who writes it: one declarative table, from which offsets are computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jobpool.message.outcome import SUMS

VERSION = 3
"""Raise it with any change of a table below."""

PAGE = 4096
WORD = 8
FRONT_WORDS = 8
"""Words kept for magic, version, slots and page size at the start of the header page, and unused on slots' pages."""

MAX_COUNT = 2**53
MAX_REAL = 1e12
"""Above these is rubbish: a child's page holds what a handler's stray pointer has written there, too."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    `kind` is "word" (unsigned 64 bits), "count" (the same, read as 0 above `MAX_COUNT`), "real" (float64, read as 0
    unless it is finite and between plus and minus `MAX_REAL`) or "text" (a length word, then `room` bytes).
    """

    name: str
    kind: str
    room: int = 0

    @property
    def words(self) -> int:
        """Its size in 8-byte words."""
        return 1 + self.room // WORD if self.kind == "text" else 1


def words(names: str) -> Iterator[Field]:
    """Unsigned numbers, of which all 64 bits count."""
    return (Field(name, "word") for name in names.split())


def counts(names: str) -> Iterator[Field]:
    """Unsigned numbers below 2**53."""
    return (Field(name, "count") for name in names.split())


def reals(names: str) -> Iterator[Field]:
    """Floats: seconds, or fractions."""
    return (Field(name, "real") for name in names.split())


def texts(room: int, names: str) -> Iterator[Field]:
    """UTF-8 of at most `room` bytes, a multiple of 8; longer text is cut between two characters."""
    return (Field(name, "text", room) for name in names.split())


class Memory:
    """A part's memory, as words, as floats and as bytes. Index 0 is the part's sequence."""

    __slots__ = ("bytes", "reals", "words")

    def __init__(self, raw: memoryview) -> None:
        self.bytes = raw
        self.words = raw.cast("Q")
        self.reals = raw.cast("d")

    def release(self) -> None:
        for view in (self.words, self.reals, self.bytes):
            view.release()


class Layout:
    """A part: its fields in order, the first word of the page that it takes, and who writes it."""

    def __init__(self, start: int, writer: str, *groups: Iterator[Field]) -> None:
        self.start = start
        self.writer = writer
        self.fields = {field.name: field for group in groups for field in group}
        self.at: dict[str, int] = {}
        at = 1
        for field in self.fields.values():
            self.at[field.name] = at
            at += field.words
        self.size = at
        self.end = start + at
        if self.end * WORD > PAGE:
            raise ValueError(f"a part that ends at word {self.end} does not fit in a page of {PAGE} bytes")

    def of(self, page: memoryview) -> Memory:
        """This part of that page."""
        return Memory(page[self.start * WORD : self.end * WORD])


HEADER = Layout(
    FRONT_WORDS,
    "the master",
    counts("pid workers ready boot_failures draining generation"),
    reals("started started_wall loop_at broker_ok_at broker_interval reaped_at reap_interval"),
    counts(" ".join(SUMS)),
    texts(64, "name version"),
    texts(512, "queues backend problem"),
)

CHILD = Layout(
    FRONT_WORDS,
    "the child that fills the slot, its main thread",
    counts("pid state"),
    words("nonce"),
    counts("attempt done failed"),
    reals("since started deadline"),
    texts(200, "ident queue handler"),
)

PROGRESS = Layout(
    CHILD.end,
    "the child that fills the slot, any one of its threads",
    words("nonce"),
    reals("fraction"),
    texts(200, "text"),
)

MASTER = Layout(
    FRONT_WORDS,
    "the master, on a page that no child has mapped",
    counts("pid child generation rss peak_rss restarts crashes timeouts"),
    reals("cpu since"),
    texts(16, "state"),
    texts(200, "last_death"),
)

PRINTED = Layout(
    PROGRESS.end,
    "the child that fills the slot, any one of its threads; without the lock, for it is read once the child is dead",
    words("nonce total"),
    texts(2048, "ring"),
)
