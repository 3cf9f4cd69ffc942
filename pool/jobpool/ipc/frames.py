"""Frames that cross the sockets between master, fork server and children: one class a kind of message.

Bytes in, values out: no socket here. A packet holds one frame: a tag byte, then a packed head for the two hot frames
(`run_packet`, `Result`), then JSON. A packet that does not decode is `BadFrame`, and its sender is not to be trusted
any more. docs/architecture.md, "Channels", says which frame crosses which socket.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Self

import orjson
from msgspec import Meta, MsgspecError, Raw, Struct, field, json

from jobpool.message.batches import BatchCall, BatchStatus
from jobpool.message.death import Exit
from jobpool.message.definition import JobDefinition
from jobpool.message.outcome import ResultKind

if TYPE_CHECKING:
    from resource import struct_rusage  # there is none on Windows, where producers import this

RUN_HEAD = struct.Struct("<BQQIId")
RESULT_HEAD = struct.Struct("<BQBdd")
TICKET_HEAD = struct.Struct("<BI")
TICKETED = 3  # first byte of a run with a ticket before it
MAX_ENQUEUED_BYTES = 8 * 1024 * 1024
"""Bytes of jobs, as JSON, that one attempt may enqueue with its end, or ask for at once: the master holds all of it."""

NO_JOBS = Raw(b"[]")
MAX_SECONDS = 1e12  # no clock and no run time in a frame from a child reaches this
Count = Annotated[int, Meta(ge=0, le=2**53)]
MAX_SAID_BYTES = 2048  # bytes of a line for the log, about; a longer one keeps its head and tail


class BadFrame(ValueError):
    """A packet is not a frame of ours: rubbish, cut short, or of another version."""


def to_raw(jobs: Iterable[JobDefinition]) -> Raw:
    """Return jobs as they travel. Raises `TypeError`: JSON cannot carry one."""
    return Raw(orjson.dumps([job.to_dict() for job in jobs]))  # msgspec would send a key of another type as text


class JsonFrame(Struct, frozen=True):
    """A frame that is a tag and its fields as JSON. Fields of a later version are ignored: a reload may bring one."""

    def encode(self) -> bytes:
        return _TAGS[type(self)] + json.encode(self)


class Ready(JsonFrame, frozen=True):
    """The child has booted and will read attempts."""


class BootFailed(JsonFrame, frozen=True):
    """The child could not boot (it had to import the app itself, say) and exits."""

    error: str


class Result(Struct):
    """One attempt has ended."""

    nonce: int  # of the attempt that has ended
    kind: ResultKind
    started: float  # CLOCK_MONOTONIC seconds at which the handler began
    duration: float  # seconds
    output: str = ""  # captured text and return value, capped
    error: str = ""  # traceback or stack
    after: float = 0.0  # delay in seconds that `Retry` or `Snooze` asked for
    follow_ups: Raw = NO_JOBS  # from `ctx.enqueue`
    leaving: str = ""  # why the child exits after this frame; "" = it takes the next one
    kept: str = ""  # its value as the broker is to keep it (`results.capped`); "" = it is not to be kept

    def encode(self) -> bytes:
        head = RESULT_HEAD.pack(0x12, self.nonce, self.kind, self.started, self.duration)
        tail = self.output, self.error, self.after, self.follow_ups, self.leaving, self.kept
        return head if tail == _NO_TAIL else head + json.encode(tail)


def run_packet(nonce: int, fence: int, attempts: int, crashes: int, timeout: float, body: bytes) -> bytes:
    """Return the order to run one attempt, of which the child makes no frame: once a job.

    `nonce` names the attempt, `fence` is the message's deliveries, and `timeout` is in seconds; 0 = unlimited.
    """
    return RUN_HEAD.pack(1, nonce, fence, attempts, crashes, timeout) + body


def with_ticket(run: bytes, ticket: bytes) -> bytes:
    """Return the same with JSON for a handler that acks in its own transaction (`QueueBackend.ticket`)."""
    return TICKET_HEAD.pack(TICKETED, len(ticket)) + ticket + run


def split_ticket(packet: bytes) -> tuple[bytes, bytes]:
    """Return the ticket and the run's packet of `with_ticket`."""
    start = TICKET_HEAD.size + TICKET_HEAD.unpack_from(packet)[1]
    return packet[TICKET_HEAD.size : start], packet[start:]


def nonce_of(run: bytes) -> int:
    """Return the nonce of an attempt's packet. Raises `BadFrame`: it was cut short."""
    try:
        return int(RUN_HEAD.unpack_from(split_ticket(run)[1] if run[0] == TICKETED else run)[1])
    except (IndexError, struct.error) as error:
        raise BadFrame(f"a packet of {len(run)} bytes is not an attempt: {error}") from error


def plain_success(nonce: int, started: float, duration: float) -> bytes:
    """Return the encoded `Result` of a job that succeeded and said nothing, at a tenth of the cost: the usual end."""
    return RESULT_HEAD.pack(0x12, nonce, 0, started, duration)


class Ask(JsonFrame, frozen=True):
    """Code inside a child used `Jobs()`: enqueue these for it, and `Reply`."""

    definitions: Raw  # `to_raw`: many would take the loop seconds to read
    pack: bool = False  # only sign them, and answer with the messages: the handler enqueues them in its transaction
    batch: BatchCall | None = None  # carry this out; they are its callbacks


class Said(JsonFrame, frozen=True):
    """A line that a handler printed or logged, for the pool's log; its secrets are masked. Nothing else is believed."""

    nonce: int  # of its attempt; 0 = it came with the import of the app
    level: int  # of `logging`
    text: str  # "" = this frame only tells how many lines were left out
    logger: str = ""  # "" = printed
    left_out: Count = 0  # lines that were not sent before this one


class Reply(JsonFrame, frozen=True):
    """The answer to `Ask`: the ids, or an error."""

    ids: list[str]
    kind: str = ""  # the name of a class in jobpool.errors
    error: str = ""
    packed: list[dict[str, Any]] = field(default_factory=list)  # for `pack`: `NewMessage.to_dict`
    batch: BatchStatus | None = None  # for a batch that was asked for


class HandlerInfo(Struct, frozen=True):
    """The master's knowledge of a handler. None = the job's or the pool's value applies."""

    name: str
    max_retries: int | None = None
    timeout: float | None = None
    ack_in_transaction: bool = False
    enabled: bool = True  # False: a built-in one that refuses every job, because nothing allows it any
    backoff: str | None = None  # of `policy.retry.parse_backoff`
    queues: list[str] = field(default_factory=list)  # to which its jobs go; [] = a built-in one that nothing enables
    result_ttl: float | None = None
    schedules: list[str] = field(default_factory=list)  # names of the app's schedules that run it
    built_in: bool = False  # its jobs go wherever producers send them, and to the default queue if they name none


class Loaded(JsonFrame, frozen=True):
    """The fork server has imported the app."""

    handlers: list[HandlerInfo]
    preloaded: bool = True  # False: every child imports the app itself
    threads: list[str] = field(default_factory=list)  # of the import, those that no fork survives
    seconds: float = 0.0  # of the import
    cut: list[str] = field(default_factory=list)  # open files and connections that the children do not have
    native: int = 0  # native threads that the children do not have, and that may be missed
    spoilt_logs: list[str] = field(default_factory=list)  # log files that each child would rotate or empty
    enqueues: bool = False  # the import does, through the default producer
    memory: int = 0  # bytes that each child has from the import on, as `memory_limit` counts them
    unfit: list[str] = field(default_factory=list)  # sentences about its schedules; `doctor` alone asks for them
    refused: str = ""  # why no scheduler starts with its schedules; the same


class LoadFailed(JsonFrame, frozen=True):
    """The app does not import. The fork server exits after this frame."""

    error: str  # one sentence
    trace: str = ""  # traceback


class Spawn(JsonFrame, frozen=True):
    """Fork a child. With it travel four descriptors: work (reading end), channel, trace file, output (writing end)."""

    child: int  # serial number, never reused in the life of a master
    slot: int  # the page it writes


class Spawned(JsonFrame, frozen=True):
    """The child exists; a pidfd travels with it."""

    child: int
    pid: int


class SpawnFailed(JsonFrame, frozen=True):
    """fork was refused (EAGAIN, ENOMEM): the slot may be tried again after a back-off."""

    child: int
    error: str


class Exited(Exit, JsonFrame, frozen=True):
    """The child was collected, its group killed and its strays swept, in this order."""

    @classmethod
    def from_exit(cls, child: int, pid: int, status: int, usage: struct_rusage) -> Self:
        """Return the end that `os.wait4` has told of."""
        code, number = (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), None)
        cpu_seconds, peak_rss = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        return cls(child, pid, code, number, os.WCOREDUMP(status), cpu_seconds, peak_rss)


Frame = Result | JsonFrame

_SUCCEEDED = ResultKind.SUCCEEDED  # found quicker than the member of an enum class

_JSON_FRAMES: dict[int, type[Any]] = {
    0x10: Ready,
    0x11: BootFailed,
    0x13: Ask,
    0x14: Reply,
    0x15: Said,
    0x20: Loaded,
    0x21: LoadFailed,
    0x22: Spawn,
    0x23: Spawned,
    0x24: SpawnFailed,
    0x25: Exited,
}
_TAGS = {kind: bytes([tag]) for tag, kind in _JSON_FRAMES.items()}
_NO_TAIL = "", "", 0.0, NO_JOBS, "", ""
_RESULT_TAIL = json.Decoder(tuple[str, str, float, Raw, str, str])


def decode(packet: bytes) -> Frame:
    """Return the frame in one packet. Raises `BadFrame` if it is none of ours."""
    try:
        tag = packet[0]
        if tag == 0x12:
            _, nonce, kind, started, duration = RESULT_HEAD.unpack_from(packet)
            if not (0.0 <= started < MAX_SECONDS and 0.0 <= duration < MAX_SECONDS):  # NaN is neither
                raise BadFrame("a Result with impossible times")
            if len(packet) == RESULT_HEAD.size:
                return Result(nonce, _SUCCEEDED if kind == 0 else ResultKind(kind), started, duration)
            # Types are checked, here and below, because user code shares the process that sends this.
            tail = _RESULT_TAIL.decode(memoryview(packet)[RESULT_HEAD.size :])
            if not tail[2] >= 0.0:
                raise BadFrame("a Result with an impossible delay")
            return Result(nonce, ResultKind(kind), started, duration, *tail)
        return json.decode(memoryview(packet)[1:], type=_JSON_FRAMES[tag])  # type: ignore[no-any-return]
    except (ValueError, TypeError, KeyError, IndexError, MsgspecError, RecursionError, struct.error) as error:
        raise BadFrame(f"a packet of {len(packet)} bytes is not a frame: {error}") from error
