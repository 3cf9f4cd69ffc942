"""Text kept within a bound of bytes, however much of it there is: its beginning and its end."""

from __future__ import annotations

DEFAULT_CAP = 64 * 1024


class HeadTail:
    """The beginning and the end of a stream of bytes; what lies between is only counted.

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
        head, tail = _to_character(head), _from_character(tail)
        dropped = self.total - len(head) - len(tail)
        return head.decode("utf-8", "replace") + _mark(dropped) + tail.decode("utf-8", "replace")

    def clear(self) -> None:
        self._head.clear()
        self._tail.clear()
        self.total = 0


def cap_text(text: str, cap: int) -> str:
    """Return `text`, or its head and tail around a mark, if it has more than `cap` bytes in UTF-8.

    The mark comes on top. Lone surrogates, which UTF-8 cannot carry, come out as `\\udc80`.
    """
    if len(text) * 4 <= cap and text.isascii():
        return text
    kept = HeadTail(cap)
    kept.write(text.encode("utf-8", "backslashreplace"))
    return kept.text()


def _mark(dropped: int) -> str:
    return f"\n[… {dropped} bytes dropped …]\n"


def _to_character(data: bytes) -> bytes:
    """Drop the beginning of a character that was cut off at the end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-back] if length > back else data
    return data


def _from_character(data: bytes) -> bytes:
    """Drop the rest of a character that was cut off at the beginning."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
