"""A terminal as far as `jobpool top` needs one: what is on its screen after what was written to it."""

from __future__ import annotations

import codecs
import re

_WRITTEN = re.compile("\x1b\\[(\\d+);(\\d+)H|\x1b\\[(K|2J)|\x1b\\[[?0-9;]*[A-Za-z]|([^\x1b])", re.DOTALL)


class Screen:
    def __init__(self, width: int, height: int) -> None:
        self._rows = [[" "] * width for _ in range(height)]
        self._at = (0, 0)
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def write(self, data: bytes) -> None:
        """Take in what was written, cut anywhere."""
        text = self._rest + self._decoder.decode(data)
        end = 0
        for found in _WRITTEN.finditer(text):
            end = found.end()
            row, column, clear, char = found.groups()
            line, place = self._at
            if row:
                self._at = (int(row) - 1, int(column) - 1)
            elif clear == "2J":
                self._rows = [[" "] * len(row) for row in self._rows]
            elif clear:
                self._rows[line][place:] = [" "] * (len(self._rows[line]) - place)
            elif char and place < len(self._rows[line]):
                self._rows[line][place] = char
                self._at = (line, place + 1)
        self._rest = text[end:]

    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._rows]
