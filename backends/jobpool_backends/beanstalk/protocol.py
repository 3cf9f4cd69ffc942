"""Many commands in one write: a round trip for a batch, not for a job.

A `Connection` writes commands; this module reads the answers. beanstalkd handles the commands of a connection in order, and
answers in that order. It stops reading while an answer does not fit into the socket. So a burst is cut into pieces, or
both sides would wait for each other forever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BufferedReader
from typing import cast

import greenstalk

COMMANDS_PER_WRITE = 500
"""Commands in one write."""

BYTES_PER_WRITE = 2**20
"""Bytes in one write, but for a single command that has more: a write has to be over in the time of an answer."""

Words = tuple[bytes, ...]

Answer = greenstalk.Job[bytes] | bytes | Words | greenstalk.Error
"""Of `reserve…` and `peek…` a job, of `stats…` and `list…` the YAML text, of others the words; or greenstalk's error.

`BURIED` is a word where it was asked for (`bury`), and elsewhere an error: here it is always words."""

_ERRORS = {word: kind for word, kind in greenstalk.ERROR_RESPONSES.items() if word != b"BURIED"}
_BODIES = frozenset((b"RESERVED", b"FOUND"))
_WORDS = frozenset((b"INSERTED", b"DELETED", b"TOUCHED", b"RELEASED", b"BURIED", b"USING", b"WATCHING", b"KICKED"))


def put_command(priority: int, delay: int, ttr: int, packed: bytes) -> bytes:
    """Return the command that puts a job; delay and ttr in whole seconds."""
    return b"put %d %d %d %d\r\n%b" % (priority, delay, ttr, len(packed), packed)


def pieces(commands: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the commands, in their order, as they are written at once."""
    if len(commands) <= COMMANDS_PER_WRITE and sum(map(len, commands)) <= BYTES_PER_WRITE:
        yield commands
        return
    start = size = 0
    for place, command in enumerate(commands):
        if place - start >= COMMANDS_PER_WRITE or (place > start and size + len(command) > BYTES_PER_WRITE):
            yield commands[start:place]
            start, size = place, 0
        size += len(command)
    yield commands[start:]


def read_answer(reader: BufferedReader) -> Answer:
    """Return the next answer. Raises OSError, or ValueError and its like when what comes is none."""
    line = reader.readline()
    if line[-2:] != b"\r\n":
        raise ConnectionResetError("the connection was closed")
    words = tuple(line.split())
    word = words[0] if words else b""
    if word in _BODIES:
        return greenstalk.Job(int(words[1]), _chunk(reader, int(words[2])))
    if word == b"OK":
        return _chunk(reader, int(words[1]))
    if word in _ERRORS:
        return cast(greenstalk.Error, _ERRORS[word]())
    if word not in _WORDS:
        raise greenstalk.UnknownResponseError(word, list(words[1:]))
    return words


def _chunk(reader: BufferedReader, size: int) -> bytes:
    data = reader.read(size + 2)
    if len(data) != size + 2:
        raise ConnectionResetError("the connection was closed")
    return data[:-2]
