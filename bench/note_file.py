"""Lines of text that handlers of any kind leave in a file. Imports nothing but the standard library."""

from __future__ import annotations

import os
from pathlib import Path


def note(path: str, *words: object) -> None:
    """Append a line in one write, so that lines of several processes do not mix."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(fd)


def read_notes(path: Path) -> list[list[str]]:
    """Return the words of each line; none while there is no file."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
