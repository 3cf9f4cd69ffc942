"""One connection to beanstalkd: its protocol, many commands in one write, the leases that it owns, and its errors.

beanstalkd handles the commands of a connection in order, and answers in that order. It stops reading while an answer
does not fit into the socket. So a burst is cut into pieces, or both sides would wait for each other forever. greenstalk
waits for each answer, so it lends its errors and its jobs only.

In beanstalkd the connection owns the jobs that it reserved: only it can settle and renew them, and all are lost with
it. So a connection knows its leases, and settlements go to it.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - else the first look for a host imports it, which a fork may cut short
import errno
import re
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import BufferedReader
from itertools import count
from typing import cast

import greenstalk
from msgspec import Struct

from jobpool.broker.packing import in_batches
from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob, JobpoolError
from jobpool.message.lease import JobLease
from jobpool_backends.beanstalk.address import Address
from jobpool_backends.beanstalk.records import Record
from jobpool_backends.errors import HUNG_UP, Meaning, unreached, write_refusal
from jobpool_backends.polling import is_readable

COMMANDS_PER_WRITE = 500
BYTES_PER_WRITE = 2**20  # A write has to be over in the time of an answer; a single command may have more
Answer = greenstalk.Job[bytes] | bytes | tuple[bytes, ...] | greenstalk.Error
"""Of `reserve…` and `peek…` a job, of `stats…` and `list…` the YAML text, of others the words; or greenstalk's error.

`BURIED` is a word where it was asked for (`bury`), and elsewhere an error: here it is always words."""

Stats = dict[str, int | str]

# After any of these a connection is of no more use.
TROUBLE = (OSError, AssertionError, greenstalk.UnknownResponseError, ValueError, LookupError)
_MEANINGS = {
    greenstalk.DrainingError: write_refusal(
        "is in drain mode, and takes no jobs until it is restarted: somebody sent it SIGUSR1. Restart it, or name"
        " another server"
    ),
    greenstalk.OutOfMemoryError: write_refusal("is out of memory or disk: give it more, or let the queues drain"),
    greenstalk.BuriedError: write_refusal(
        "is out of memory, and buried a job that it could not place in its queue: give it more, then kick it"
    ),
    greenstalk.InternalError: write_refusal(
        "reports an internal error, as a rule a full disk of its binlog: make room, then restart it, for until then it"
        " hides the job that it failed at"
    ),
    greenstalk.JobTooBigError: Meaning(
        InvalidJob,
        "does not take a job as big as this: make its payload smaller, or start the server with a larger -z",
    ),
    greenstalk.BadFormatError: Meaning(
        ConfigurationError,
        "does not take a command as jobpool writes it: check the option tube_prefix, and that it is beanstalkd 1.12"
        " or later",
    ),
    greenstalk.UnknownCommandError: Meaning(
        ConfigurationError,
        "does not know a command that jobpool needs (reserve-job): upgrade it to beanstalkd 1.12 or later",
    ),
}

_ERRORS = {word: kind for word, kind in greenstalk.ERROR_RESPONSES.items() if word != b"BURIED"}
_REPLIES = frozenset((b"INSERTED", b"DELETED", b"TOUCHED", b"RELEASED", b"BURIED", b"USING", b"WATCHING", b"KICKED"))

# A machine that is gone without a word is noticed after some 10 seconds, well before a lease of 30 has ended.
# Each system has its own choice of these.
_TCP = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000, "TCP_NODELAY": 1}
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _TCP.items() if hasattr(socket, name)),
)
_COUNTERS = re.compile(
    rb'tube: "?([^"\n]+)"?\nstate: (\w+)\npri: (\d+)\nage: (-?\d+)\ndelay: \d+\nttr: (\d+)\ntime-left: -?\d+\n'
    rb"(?:file: \d+\n)?reserves: (\d+)\ntimeouts: \d+\nreleases: (\d+)\nburies: (\d+)"
)
_serials = count()


class Counters(Struct, frozen=True):
    """Counts of one job. `age` and `ttr` are whole seconds, rounded down; `state` is the server's word."""

    tube: str
    state: str
    priority: int
    age: int
    ttr: int
    reserves: int
    releases: int
    buries: int

    @property
    def crashes(self) -> int:
        """Leases that ended without a verdict: they ran out, or their connection broke. It is reserved just now.

        Each reserve ends in a release, a bury or a delete, or in this. A kick undoes a bury, and reserves nothing.
        """
        return max(0, self.reserves - self.releases - self.buries - 1)


def read_counters(text: bytes) -> Counters:
    """Parse the answer to `stats-job`. Raises ValueError for any other text."""
    match = _COUNTERS.search(text)
    if match is None:
        raise ValueError("no statistics of a job")
    tube, state, *numbers = match.groups()
    return Counters(tube.decode(), state.decode(), *map(int, numbers))


def number(stats: Stats, name: str) -> int:
    """Return a number that `stats…` told; 0 where it told none."""
    value = stats.get(name, 0)
    return value if isinstance(value, int) else 0


def explain(error: BaseException, address: Address) -> JobpoolError:
    """Explain a refusal, or a break of the connection."""
    if (refused := refusal(error, address)) is not None:
        return refused
    if isinstance(error, TimeoutError):
        why = (
            f"did not answer within {address.timeout:g} s: see whether it runs, is stopped or is behind a firewall, or"
            " raise the option timeout"
        )
    elif not isinstance(error, OSError):
        why = "does not speak beanstalkd's protocol: mend the host or the port"
    elif (error.errno or errno.ECONNRESET) in HUNG_UP:  # `read_answer` raises it without one
        why = "closed the connection: it was stopped or restarted, or has no file descriptor left (ulimit -n)"
    else:
        why = unreached(error, "beanstalkd") or f"cannot be reached: {error.strerror or error}"
    return BackendUnavailable(f"{address.title} {why}")


def refusal(error: BaseException, address: Address) -> JobpoolError | None:
    """Explain a refusal; None for an ordinary answer."""
    known = _MEANINGS.get(type(error))
    return known.as_error(address.title) if known else None


def number_of(answer: Answer) -> int | None:
    """Return the server's number of what was put; None when it was refused, or buried for want of memory."""
    return int(answer[1]) if isinstance(answer, tuple) and answer[0] == b"INSERTED" else None


def put_command(priority: int, delay: int, ttr: int, packed: bytes) -> bytes:
    """Return the command that puts a job; delay and ttr in whole seconds."""
    return b"put %d %d %d %d\r\n%b" % (priority, delay, ttr, len(packed), packed)


def pieces(commands: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the commands, in their order, as they are written at once."""
    return in_batches(commands, COMMANDS_PER_WRITE, BYTES_PER_WRITE, len)


def read_answer(reader: BufferedReader) -> Answer:
    """Return the next answer. Raises OSError, or ValueError and its like when what comes is none."""
    line = reader.readline()
    if line[-2:] != b"\r\n":
        raise ConnectionResetError("the connection was closed")
    words = tuple(line.split())
    word = words[0] if words else b""
    if word in (b"RESERVED", b"FOUND", b"OK"):
        size = int(words[-1]) + 2
        data = reader.read(size)
        if len(data) != size:
            raise ConnectionResetError("the connection was closed")
        return data[:-2] if word == b"OK" else greenstalk.Job(int(words[1]), data[:-2])
    if word in _ERRORS:
        return cast(greenstalk.Error, _ERRORS[word]())
    if word not in _REPLIES:
        raise greenstalk.UnknownResponseError(word, list(words[1:]))
    return words


class Connection:
    """A connection, for one thread at a time, which holds its lock. Raises OSError and greenstalk's errors."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.serial = next(_serials)  # its place in the order in which locks are taken
        self.lock = threading.Lock()
        self.ends_first = 0.0  # boot-clock seconds before which none of its leases ends
        self.held: dict[int, Held] = {}  # the leases that it owns, by the server's number of the job
        self.broken = False  # True if it is of no more use, and owns nothing
        self._socket = socket.create_connection((address.host, address.port), timeout=address.connect_timeout)
        try:
            for option in _SOCKET_OPTIONS:
                self._socket.setsockopt(*option)
            self._socket.settimeout(address.timeout)
            self._reader = cast(BufferedReader, self._socket.makefile("rb", buffering=65536))
        except BaseException:  # also an interrupt: only this code can close it
            self._socket.close()
            raise
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
        """Send all commands at once; return the answers, refusals as values. `answers` keeps those before a break."""
        answers = [] if answers is None else answers
        for piece in pieces(commands):
            self.write(piece)
            for _ in piece:
                answers.append(read_answer(self._reader))
        return answers

    def write(self, commands: Sequence[bytes]) -> None:
        """Send one piece; `read` the answers."""
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

    # --- answers; a refusal is raised as the error that it means -----------------------------------------

    def check(self, answer: Answer) -> Answer:
        """Return this answer, or raise the error that it means."""
        if isinstance(answer, greenstalk.Error):
            meaning = refusal(answer, self.address)
            if meaning is not None:
                raise meaning from answer
        return answer

    def found(self, answer: Answer) -> Answer | None:
        """Return the answer; None for NOT_FOUND."""
        return None if isinstance(answer, greenstalk.NotFoundError) else self.check(answer)

    def job(self, answer: Answer) -> greenstalk.Job[bytes] | None:
        """Return the job that a `peek…` or `reserve…` command found; None when there is none."""
        job = self.found(answer)
        assert job is None or isinstance(job, greenstalk.Job)
        return job

    def counters(self, jobs: Sequence[int]) -> list[Counters | None]:
        """Return the counters of each job, None for those that are gone. One round trip."""
        answers = map(self.found, self.burst([b"stats-job %d" % job for job in jobs]))
        return [read_counters(answer) if isinstance(answer, bytes) else None for answer in answers]

    def stats(self, tubes: Iterable[str] | None = None) -> list[Stats]:
        """Return the answer to `stats`; or to `stats-tube`, empty ones for tubes that do not exist. One round trip."""
        commands = [b"stats"] if tubes is None else [b"stats-tube %b" % tube.encode() for tube in tubes]
        pairs = [[line.partition(": ") for line in self._lines(answer)] for answer in self.burst(commands)]
        return [{key: int(text) if text.isdigit() else text.strip('"') for key, _, text in each} for each in pairs]

    def tubes(self) -> list[str]:
        return [line[2:].strip('"') for line in self._lines(self.burst([b"list-tubes"])[0])]

    def _lines(self, answer: Answer) -> list[str]:
        text = self.found(answer)
        return text.decode().splitlines()[1:] if isinstance(text, bytes) else []

    def has_died(self) -> bool:
        """Return whether the other side has hung up: all that can be read while nothing is asked. Does not block."""
        return is_readable(self._socket.fileno())

    def interrupt(self) -> None:
        """Wake the thread that waits on this connection, with the connection's end. For any thread."""
        with suppress(OSError):  # it has none any more
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        self.broken = True
        self._reader.close()
        self._socket.close()


class Held(Struct, eq=False):
    """A lease, with all that settling it needs."""

    job: int  # the server's number
    connection: Connection  # the owner
    lease: JobLease  # as it was handed out, or renewed last
    record: Record
    priority: int  # the server's
    ttr: int  # whole seconds that it lasts after each renewal
    prefetched: bool = False  # True if it was reserved by a waiter and not yet fetched

    @property
    def is_owned(self) -> bool:
        """True if its connection still has it; then nobody else can have settled it here."""
        return self.connection.held.get(self.job) is self
