"""The fields of the scoreboard: the place of each, in one declarative table, and the views that readers get of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from msgspec import Struct

from jobpool.message.outcome import SUMS, Counts

VERSION = 7  # raise it with any change of a table below
READ_LIMIT_S = 0.001  # seconds after which a reader gives up on a part that is being written
PAGE = 4096
WORD = 8
FRONT_WORDS = 8  # for magic, version, slots and page size at the start of the header page; unused on slots' pages
MAX_COUNT = 2**53
MAX_REAL = 1e12  # above these is rubbish: a child's page holds what a handler's stray pointer has written there, too


class Field(NamedTuple):
    """A field of a part.

    `kind` is "word" (unsigned 64 bits), "count" (the same, read as 0 above `MAX_COUNT`), "real" (float64) or "text". A
    text is a length word, then `room` bytes of UTF-8. A real not between plus and minus `MAX_REAL` is read as 0.
    """

    kind: str
    room: int  # of a text, a multiple of 8; longer text is cut between two characters
    at: int  # its first word


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
    """A part: the first word that it takes of a page, and its fields in order: "KIND NAME…" or "text ROOM NAME…"."""

    def __init__(self, start: int, *groups: str) -> None:
        self.start = start
        self.fields: dict[str, Field] = {}
        at = 1
        for kind, *names in map(str.split, groups):
            room = int(names.pop(0)) if kind == "text" else 0
            for name in names:
                self.fields[name] = Field(kind, room, at)
                at += 1 + room // WORD
        self.end = start + at
        if self.end * WORD > PAGE:
            raise ValueError(f"a part that ends at word {self.end} does not fit in a page of {PAGE} bytes")

    def of(self, page: memoryview) -> Memory:
        """Return this part of that page."""
        return Memory(page[self.start * WORD : self.end * WORD])

    def read(self, memory: Memory) -> list[Any]:
        """Return the fields in order, then True if they may be torn. Blocks for `READ_LIMIT_S` seconds at most."""
        give_up = 0.0
        while True:
            before = memory.words[0]
            raw = bytes(memory.bytes)
            if not before & 1 and memory.words[0] == before:
                return [*self._values(raw), False]
            now = time.monotonic()
            if not give_up:
                give_up = now + READ_LIMIT_S
            elif now >= give_up:
                return [*self._values(raw), True]
            os.sched_yield()  # the writer may be waiting for this very core

    def _values(self, raw: bytes) -> Iterator[int | float | str]:
        view = memoryview(raw)
        words, reals = view.cast("Q"), view.cast("d")
        for kind, room, at in self.fields.values():
            if kind == "word":
                yield words[at]
            elif kind == "count":
                yield words[at] if words[at] < MAX_COUNT else 0
            elif kind == "real":
                yield reals[at] if -MAX_REAL <= reals[at] <= MAX_REAL else 0.0  # NaN neither
            else:
                start = (at + 1) * WORD
                length = min(words[at], room)  # a torn length word must not lead outside
                yield raw[start : start + length].decode("utf-8", "replace")


# Written by the master.
HEADER = Layout(
    FRONT_WORDS,
    "count pid workers ready boot_failures draining reloading generation waiting",
    "real started started_wall loop_at broker_ok_at broker_interval reaped_at reap_interval",
    " ".join(["count", *SUMS]),
    "text 64 name version",
    "text 512 queues backend problem paused",
    "text 1280 depths",
)

# Written by the child that fills the slot, on its main thread.
CHILD = Layout(
    FRONT_WORDS,
    "count pid state",
    "word nonce",
    "count attempt done failed",
    "real since started deadline",
    "text 200 ident queue handler name",
)

# Written by the same child, on any one of its threads.
PROGRESS = Layout(CHILD.end, "word nonce", "real fraction", "text 200 text")

# Written by the master, on a page that no child has mapped.
MASTER = Layout(
    FRONT_WORDS,
    "count pid rss restarts",
    "real cpu since",
    "text 16 state",
    "text 200 last_death",
)

# Written by the child, on any one of its threads; without the lock, for it is read once the child is dead.
PRINTED = Layout(PROGRESS.end, "word nonce total", "text 2048 ring")

# Written by the master: the attempt that a person has cancelled. One word, without the lock.
CANCEL = Layout(PRINTED.end, "word nonce")


class QueueDepth(Struct, frozen=True):
    """A line of `depths`: one queue, as the broker counted it last."""

    queue: str
    waiting: int
    delayed: int
    dead: int
    oldest: float | None  # CLOCK_MONOTONIC at the enqueue of the oldest that waits; None = none waits
    ran: int  # attempts of this pool that had a verdict, since its start

    def line(self) -> str:
        oldest = "-" if self.oldest is None else f"{self.oldest:.1f}"
        return f"{self.queue} {self.waiting} {self.delayed} {self.dead} {oldest} {self.ran}\n"

    @classmethod
    def read(cls, text: str) -> Iterator[QueueDepth]:
        """Yield those of whole lines; a torn text may hold anything."""
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                queue, waiting, delayed, dead, oldest, ran = line.split(" ")
                since = None if oldest == "-" else float(oldest)
                yield cls(queue, int(waiting), int(delayed), int(dead), since, int(ran))


class ChildState(IntEnum):
    """The state that a child says it is in."""

    NONE = 0
    BOOTING = 1
    IDLE = 2
    BUSY = 3


# Times in views are CLOCK_MONOTONIC seconds; 0 = not yet. `torn`: a writer was stopped or killed in mid-write, and the
# fields may not belong together.


class ChildView(Struct, frozen=True):
    """The child's record."""

    pid: int  # the process that wrote this
    state: ChildState  # since `since`
    nonce: int  # the last attempt that it started; it stays after the end of the attempt
    attempt: int  # 1-based number of that attempt
    done: int  # attempts that succeeded in this slot, over all its children
    failed: int  # the same, of the others that ended with a verdict
    since: float
    started: float  # of that attempt
    deadline: float  # its hard timeout; 0 = unlimited
    ident: str  # the message's id, cut at 200 bytes; "" between the receipt of a frame and its decoding
    queue: str
    handler: str
    name: str  # the job's; "" = it has none
    progress: float  # 0 to 1, of this attempt
    progress_text: str
    torn: bool


class MasterView(Struct, frozen=True):
    """The master's record of a slot."""

    pid: int  # of the slot's process; 0 = none
    rss: int  # bytes resident
    restarts: int  # times that the slot was filled again
    cpu: float  # fraction of one core since the last sample; may exceed 1
    since: float  # when the slot came into `state`
    state: str  # the word of the slot's state; "" = never written
    last_death: str  # its cause
    torn: bool


class HeaderView(Counts, frozen=True, kw_only=True):
    """The master's record of the pool: its counts, and these."""

    pid: int
    workers: int  # children that are wanted
    ready: int  # children that are ready now
    boot_failures: int  # children in a row that could not boot
    draining: int  # 1 once it was told to stop; 2 while it is drained, and may be resumed
    reloading: int  # 1 while a reload is under way
    generation: int  # of the newest fork server
    waiting: int  # messages that wait in the pool's queues, as counted last
    started: float
    started_wall: float
    loop_at: float  # when the master's loop last turned
    broker_ok_at: float  # when the broker last answered, and no call was failing
    broker_interval: float  # seconds in which it is asked at least once
    reaped_at: float  # when the reaper last ran
    reap_interval: float  # seconds
    name: str
    version: str
    queues: str  # names, with a space between two
    backend: str  # its URL without secrets
    problem: str  # one sentence on why the pool is not well; "" = it is
    paused: str  # those of its queues that a person has paused, with a space between two
    depths: str  # of its queues, for those that fit: see `QueueDepth`
    torn: bool
