"""The pages of the server: an answer, and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobpool.message.printable import one_line


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


def text_page(status: int, text: str) -> Page:
    """Return a page of plain text on one line, safe for a terminal, with an end of line."""
    return Page(status, f"{one_line(text)}\n".encode())


View = Callable[[str], Page]
"""Makes a page; its argument is the request's `Accept` header. May block for some seconds."""
