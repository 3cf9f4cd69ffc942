"""The record of an attempt that did not end by itself: made by the master, kept as text with the message.

Brokers store and return the text (`Message.cause`) and do not read it. `Death.from_text` reads it back, and takes any
other text too: one of an older version, or a reaper's "lease expired".
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import orjson
from msgspec import Meta, MsgspecError, Struct, json
from msgspec.structs import asdict

from jobpool.message.capped_text import cap_text
from jobpool.message.printable import headline

MAX_RECORD_BYTES = 16 * 1024  # bytes of a record's text in UTF-8. Stack and output keep their heads and tails.

BROKEN = 70
"""Exit status of a child whose main function raised or returned no status, or whose socket to the master is broken."""


class Exit(Struct, frozen=True):
    """The end of a child's process."""

    child: int
    pid: int
    code: int | None  # exit status; None when a signal ended it
    signal: int | None  # None when it exited
    core: bool = False
    cpu_seconds: float = 0.0  # user and system time
    peak_rss: int = 0  # bytes, the highest resident size


class Death(Struct, frozen=True):
    """One abnormal end. "" and 0 stand for what is not known.

    Attributes:
        how: `killed by SIGSEGV`, `exited with status 3`, `timeout`, `memory limit`, `lease expired`; "" = it failed by
            itself, with an error that stands elsewhere.
        sent_by: The sender of the signal, or the cause: `the pool: timeout`, `itself`, `the kernel: out of memory`,
            `outside, or its own code`, ….
    """

    how: str
    sent_by: str = ""
    stack: str = ""  # the user's frames at the end, also of a handler that was in C code
    peak_memory: Annotated[int, Meta(ge=0, le=2**53)] = 0  # bytes, the highest resident size of its process
    cpu_seconds: float = 0.0  # user and system time of its process, over all its attempts
    output: str = ""  # the last of what it printed
    core: bool = False  # a core was dumped

    def to_text(self) -> str:
        """Return one JSON object, without the fields that say nothing; at most `MAX_RECORD_BYTES`. Never raises."""
        record = {"how": ""} | {key: value for key, value in asdict(self).items() if value}
        room = MAX_RECORD_BYTES
        while True:
            kept = {key: cap_text(value, room) if isinstance(value, str) else value for key, value in record.items()}
            if len(encoded := orjson.dumps(kept)) <= MAX_RECORD_BYTES:
                return encoded.decode()
            room //= 2

    @classmethod
    def from_text(cls, text: str) -> Death:
        """Return the record that `to_text` made, less fields of a newer version; any other text, whole, as `how`."""
        with suppress(MsgspecError, ValueError, RecursionError):
            return json.decode(text, type=cls)
        return cls(text)

    @property
    def headline(self) -> str:
        """One line for logs and tables: how it died, who ended it, its memory and CPU time."""
        how = f"{self.short}, core dumped" if self.core else self.short
        used = ", ".join(
            f"{what} {much}" for what, much in zip(("peak memory", "CPU"), self._used(), strict=True) if much
        )
        return f"{how}; {used}" if used else how

    @property
    def short(self) -> str:
        """The shortest that tells one kind from another: `killed by SIGKILL (the pool: timeout)`."""
        how = headline(self.how) or "no cause is known"
        is_said = not self.sent_by or self.sent_by == f"the pool: {how}"
        return how if is_said else f"{how} ({self.sent_by})"

    def details(self) -> str:
        """Return all of it, for people: several lines."""
        memory, cpu = self._used()
        core = "dumped" if self.core else ""
        facts = {"ended by": self.sent_by, "peak memory": memory, "CPU time": cpu, "core": core}
        lines = [*filter(None, [self.how.strip()]), *(f"{name:<14}{fact}" for name, fact in facts.items() if fact)]
        told = "\n".join(lines) + _section("stack", self.stack) + _section("last output", self.output)
        return told if lines else self.output

    def _used(self) -> tuple[str, str]:
        """Return memory and CPU time; "" for one that is not known."""
        memory = f"{self.peak_memory / 2**20:.0f} MiB" if self.peak_memory else ""
        return memory, f"{self.cpu_seconds:.2f} s" if self.cpu_seconds else ""


def innermost(stack: str) -> list[str]:
    """Return the three last calls of a fault handler's stack, the deepest first, one line each."""
    _, _, current = stack.rpartition("Current thread 0x")
    return [line.strip() for line in current.splitlines() if line.startswith("  File ")][:3]


def cause_values(cause: str | None) -> dict[str, Any] | None:
    """Return `Message.cause` as JSON values; None if there is none."""
    return asdict(Death.from_text(cause)) if cause else None


def cause_headline(cause: str | None) -> str | None:
    """Return `Message.cause` as one line of a log; None if there is none, or it only says what was printed."""
    death = Death.from_text(cause) if cause else None
    return death.headline if death is not None and death.how else None


def _section(title: str, text: str) -> str:
    lines = text.rstrip().splitlines()
    return f"\n{title}\n  " + "\n  ".join(lines) if lines else ""
