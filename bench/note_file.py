"""Lines of text that handlers of any kind leave in a file. Imports nothing but the standard library."""

from __future__ import annotations

import os


def note(path: str, *words: object) -> None:
    """Append a line in one write, so that lines of several processes do not mix."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(fd)
