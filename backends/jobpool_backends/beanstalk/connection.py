"""One connection to beanstalkd: its protocol, many commands in one write, and the leases that it owns.

beanstalkd handles the commands of a connection in order, and answers in that order. It stops reading while an answer
does not fit into the socket. So a burst is cut into pieces, or both sides would wait for each other forever. greenstalk
waits for each answer, so it lends its errors and its jobs only.

In beanstalkd the connection owns the jobs that it reserved: only it can settle and renew them, and all are lost with
it. So a connection knows its leases, and settlements go to it.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from itertools import count
from typing import cast

import greenstalk

from jobpool.message.lease import JobLease
from jobpool_backends.beanstalk.address import Address
from jobpool_backends.beanstalk.errors import refusal
from jobpool_backends.beanstalk.records import Record

COMMANDS_PER_WRITE = 500
BYTES_PER_WRITE = 2**20
"""A write has to be over in the time of an answer; a single command may have more."""

Answer = greenstalk.Job[bytes] | bytes | tuple[bytes, ...] | greenstalk.Error
"""Of `reserve…` and `peek…` a job, of `stats…` and `list…` the YAML text, of others the words; or greenstalk's error.

`BURIED` is a word where it was asked for (`bury`), and elsewhere an error: here it is always words."""

_ERRORS = {word: kind for word, kind in greenstalk.ERROR_RESPONSES.items() if word != b"BURIED"}
_BODIES = frozenset((b"RESERVED", b"FOUND"))
_WORDS = frozenset((b"INSERTED", b"DELETED", b"TOUCHED", b"RELEASED", b"BURIED", b"USING", b"WATCHING", b"KICKED"))

_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
"""A machine that is gone without a word is noticed after some 10 seconds, well before a lease of 30 has ended."""

_BUFFER_BYTES = 65536
_serials = count()


def put_command(priority: int, delay: int, ttr: int, packed: bytes) -> bytes:
    """Return the command that puts a job; delay and ttr in whole seconds."""
    return b"put %d %d %d %d\r\n%b" % (priority, delay, ttr, len(packed), packed)


def pieces(commands: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the commands, in their order, as they are written at once."""
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
        return greenstalk.Job(int(words[1]), _read_body(reader, int(words[2])))
    if word == b"OK":
        return _read_body(reader, int(words[1]))
    if word in _ERRORS:
        return cast(greenstalk.Error, _ERRORS[word]())
    if word not in _WORDS:
        raise greenstalk.UnknownResponseError(word, list(words[1:]))
    return words


def _read_body(reader: BufferedReader, size: int) -> bytes:
    data = reader.read(size + 2)
    if len(data) != size + 2:
        raise ConnectionResetError("the connection was closed")
    return data[:-2]


class Connection:
    """A connection, for one thread at a time, which holds its lock. Raises OSError and greenstalk's errors.

    Attributes:
        held: The leases that it owns, by the server's number of the job.
        ends_first: Boot-clock seconds before which none of its leases ends.
        broken: True if it is of no more use, and owns nothing.
        serial: Its place in the order in which locks are taken.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.serial = next(_serials)
        self.lock = threading.Lock()
        self.ends_first = 0.0
        self.held: dict[int, Held] = {}
        self.broken = False
        self._socket = _connect(address)
        self._reader = cast(BufferedReader, self._socket.makefile("rb", buffering=_BUFFER_BYTES))
        self._used = "default"
        self._watched = {"default"}

    def use(self, tube: str) -> None:
        """Let puts and peeks be of this tube. A round trip if it is another one than before."""
        if tube != self._used:
            self._tell([b"use %b" % tube.encode()])
            self._used = tube

    def watch(self, tubes: Iterable[str]) -> None:
        """Let reserves be of these tubes, one at least. A round trip if they are others than before."""
        wanted = set(tubes)
        if wanted != self._watched:
            commands = [b"watch %b" % tube.encode() for tube in sorted(wanted - self._watched)]
            self._tell(commands + [b"ignore %b" % tube.encode() for tube in sorted(self._watched - wanted)])
            self._watched = wanted

    def _tell(self, commands: Sequence[bytes]) -> None:
        for answer in self.burst(commands):
            if isinstance(answer, greenstalk.Error):
                raise answer

    def burst(self, commands: Sequence[bytes], answers: list[Answer] | None = None) -> list[Answer]:
        """Send all commands at once and return their answers, among which refusals are values, not raised.

        `answers` is a list that takes them one by one, so that those before a break are kept.
        """
        answers = [] if answers is None else answers
        reader = self._reader
        for piece in pieces(commands):
            self.write(piece)
            for _ in piece:
                answers.append(read_answer(reader))
        return answers

    def write(self, commands: Sequence[bytes]) -> None:
        """Send one piece; `read` the answers."""
        if commands:
            self._socket.sendall(b"\r\n".join(commands) + b"\r\n")

    def read(self, number: int, limit: float) -> list[Answer]:
        """Return the answers to what was written, each within `limit` seconds."""
        usual = self.address.timeout
        if limit != usual:
            self._socket.settimeout(limit)
        answers = [read_answer(self._reader) for _ in range(number)]
        if limit != usual:
            self._socket.settimeout(usual)
        return answers

    def check(self, answer: Answer) -> Answer:
        """Return this answer, or raise the error that it means."""
        if isinstance(answer, greenstalk.Error):
            meaning = refusal(answer, self.address)
            if meaning is not None:
                raise meaning from answer
        return answer

    def has_died(self) -> bool:
        """Return whether the other side has hung up: all that can be read while nothing is asked. Does not block."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def interrupt(self) -> None:
        """Wake the thread that waits on this connection, with the connection's end. For any thread."""
        with suppress(OSError):  # it has none any more
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        self.broken = True
        self._reader.close()
        self._socket.close()


@dataclass(slots=True, eq=False)
class Held:
    """A lease, with all that settling it needs.

    Attributes:
        job: The server's number.
        connection: The owner.
        lease: As it was handed out, or renewed last.
        priority: The server's.
        ttr: Whole seconds that it lasts after each renewal.
        prefetched: True if it was reserved by a waiter and not yet fetched.
    """

    job: int
    connection: Connection
    lease: JobLease
    record: Record
    priority: int
    ttr: int
    prefetched: bool = False

    @property
    def is_owned(self) -> bool:
        """True if its connection still has it; then nobody else can have settled it here."""
        return self.connection.held.get(self.job) is self


def _connect(address: Address) -> socket.socket:
    made = socket.create_connection((address.host, address.port), timeout=address.connect_timeout)
    try:
        for option in _SOCKET_OPTIONS:
            made.setsockopt(*option)
        made.settimeout(address.timeout)
    except BaseException:  # also an interrupt: nobody else could close it
        made.close()
        raise
    return made
