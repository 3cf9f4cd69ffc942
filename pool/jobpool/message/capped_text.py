"""Text kept within a bound of bytes, however much of it there is: its beginning and its end."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder

DEFAULT_CAP = 64 * 1024


class HeadTail:
    """The beginning and the end of a stream of bytes; the bytes between are only counted.

    Takes no lock: the alarm may raise anywhere, and would leave it locked. Threads that write at the same time may lose
    a few bytes to each other.
    """

    __slots__ = ("_head", "_room", "_tail", "total")

    def __init__(self, cap: int) -> None:
        self._room = max(1, cap // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """Bytes written since `clear`."""

    def write(self, data: bytes) -> None:
        self.total += len(data)
        free = self._room - len(self._head)
        if free > 0:
            self._head += data[:free]
            data = data[free:]
        if data:
            self._tail += data[-self._room :]
            if len(self._tail) > 2 * self._room:
                del self._tail[: -self._room]

    def text(self) -> str:
        """Return all of it, or head, mark and tail. No character is cut in two; invalid UTF-8 becomes U+FFFD."""
        head, tail = bytes(self._head), bytes(self._tail[-self._room :])
        if len(head) + len(tail) >= self.total:
            return (head + tail).decode("utf-8", "replace")
        decoder = getincrementaldecoder("utf-8")("replace")
        begin = decoder.decode(head)  # keeps the beginning of a character that was cut off at the end to itself
        tail = re.sub(rb"\A[\x80-\xbf]{1,3}", b"", tail)  # the rest of one that was cut off at the beginning
        dropped = self.total - len(head) + len(decoder.getstate()[0]) - len(tail)
        return f"{begin}\n[… {dropped} bytes dropped …]\n{tail.decode('utf-8', 'replace')}"

    def clear(self) -> None:
        self._head.clear()
        self._tail.clear()
        self.total = 0


def cap_text(text: str, cap: int) -> str:
    """Return `text`, or its head and tail around a mark, if it has more than `cap` bytes in UTF-8.

    The mark comes on top. Lone surrogates, which UTF-8 cannot carry, come out as `\\udc80`.
    """
    text = str.__str__(text)  # plain, where a template engine has a class of its own: frames carry no other
    if len(text) * 4 <= cap and text.isascii():
        return text
    kept = HeadTail(cap)
    kept.write(text.encode("utf-8", "backslashreplace"))
    return kept.text()
