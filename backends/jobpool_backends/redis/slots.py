"""Which node of a cluster holds which slot: the answer to CLUSTER SLOTS, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from redis.crc import key_slot

SLOTS = 16384

Host = tuple[str, int]
"""Name or address, and port."""


def slot_of(key: str | bytes) -> int:
    """Return the slot of a key: of what stands in its braces, if any does."""
    slot: int = key_slot(key.encode() if isinstance(key, str) else key)
    return slot


def read_slots(answer: Sequence[Any], asked: str) -> list[Host | None]:
    """Return, by slot, the node that is its master; None for a slot that nobody holds.

    `asked` is the host that gave the answer: a node that does not know its own address names none.
    """
    owners: list[Host | None] = [None] * SLOTS
    for first, last, host in _ranges(answer, asked):
        owners[first : last + 1] = [host] * (last + 1 - first)
    return owners


def _ranges(answer: Sequence[Any], asked: str) -> Iterator[tuple[int, int, Host]]:
    for first, last, master, *_ in answer:
        name = (master[0] or b"").decode()
        yield first, last, (asked if name in ("", "?") else name, master[1])
