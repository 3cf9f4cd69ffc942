"""`select.poll`, and the same by `select.select` where there is no other: on Windows."""

from __future__ import annotations

import select

POLLIN, POLLOUT = 1, 4  # as on Linux and macOS


class _Select:
    """The part of `select.poll` that the backends use."""

    def __init__(self) -> None:
        self._registered: dict[int, int] = {}

    def register(self, number: int, events: int) -> None:
        self._registered[number] = events

    def unregister(self, number: int) -> None:
        del self._registered[number]

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        readers, writers = (
            [number for number, events in self._registered.items() if events & kind] for kind in (POLLIN, POLLOUT)
        )
        found = select.select(readers, writers, readers or writers, milliseconds / 1000.0)
        ready = dict.fromkeys(found[2], 0)
        for numbers, kind in zip(found, (POLLIN, POLLOUT), strict=False):
            ready |= {number: ready.get(number, 0) | kind for number in numbers}
        return list(ready.items())


poll = getattr(select, "poll", _Select)


def is_readable(number: int) -> bool:
    """Return whether this descriptor has data, or its end, to read. Does not block."""
    polled = poll()
    polled.register(number, POLLIN)
    return bool(polled.poll(0))
