"""A child's life: boot, then one attempt at a time, until the work ends or it is to be replaced.

It decides nothing about a message. It reads attempts from `work`, one when it is idle, and answers each with a
`Result` on `channel`. Its first act on a frame is to write the attempt's nonce to its page of the scoreboard. So the
master knows of every frame if it was looked at.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
from select import POLLIN, poll  # by name, as in fork_server.py
from time import monotonic

from setproctitle import setproctitle

from jobpool.child.attempt import AttemptRunner, JobToRun, OwnAck, own_ack
from jobpool.child.capture import Capture, OutputPipe
from jobpool.child.channel import ChannelProducer
from jobpool.child.lines import Lines, leave_unconfigured, log_unconfigured
from jobpool.child.recycle import DESCRIPTORS, RecyclePolicy, SocketsLost
from jobpool.child.restore import ProcessState
from jobpool.errors import ConfigurationError
from jobpool.handlers import app
from jobpool.handlers.ending import Attempt
from jobpool.handlers.registry import DEFAULT
from jobpool.ipc import frames, packets
from jobpool.ipc.alarm import Alarm
from jobpool.ipc.frames import RUN_HEAD, HandlerInfo, Result, plain_success, to_raw
from jobpool.ipc.inheritance import flush, writers
from jobpool.ipc.process_options import NO_LINES, ChildBoot, ChildOptions
from jobpool.message import producer
from jobpool.message.capped_text import DEFAULT_CAP, cap_text
from jobpool.message.death import BROKEN
from jobpool.message.envelope import decode_again
from jobpool.message.masking import Masker
from jobpool.message.outcome import ResultKind
from jobpool.message.results import capped

CANNOT_BOOT = 69
IDLE_AFTER_S = 0.1  # without a frame, then the process title says so: not after every job of a quick series
QUICK_S = 0.001  # below it an attempt is a quick one
_RUN = 1
_IDLE = " idle"  # no handler's name


_of_import: list[tuple[Capture, Masker]] = []
"""Made in the fork server, for the app's import and then for each child: log handlers made at import keep working."""


def load(options: ChildOptions) -> list[HandlerInfo]:
    """Import the app as `app.load` does, with the streams that its handlers will have."""
    _streams(options)
    return app.load(options)


def _streams(options: ChildOptions) -> tuple[Capture, Masker]:
    if not _of_import:
        _of_import.append((Capture(options.output_cap, pid=0), Masker(options.mask_keys)))
        _of_import[0][0].begin()
        if options.lines_level < NO_LINES:
            leave_unconfigured()
    return _of_import[0]


def run(boot: ChildBoot) -> int:
    """Run a child's life in this process, of which it uses all freely. Return its exit status when it leaves."""
    page, options = boot.page.child, boot.options
    page.booting(os.getpid(), monotonic())
    setproctitle(f"{options.title}: slot {boot.slot} booting")
    capture, masker = _streams(options)
    # Of an import in each child, the first one's lines are enough.
    quiet = not options.preload and boot.slot > 0
    lines = Lines(boot.channel, NO_LINES if quiet else options.lines_level, masker)
    printed = boot.page.printed.write

    def echo(data: bytes) -> None:
        printed(data)
        lines.write(data)

    capture.enter(echo)
    try:
        if not options.preload:
            app.load(options)
            boot.inheritance.streams = writers()
    except ConfigurationError as error:
        with contextlib.suppress(OSError):
            packets.send_announced(boot.channel, frames.BootFailed(str(error)).encode())
        return CANNOT_BOOT
    lines.level = options.lines_level
    if lines.level < NO_LINES:
        log_unconfigured(capture.keep, lines)
    try:
        return Child(boot, capture, lines, masker).serve()
    except (OSError, SocketsLost) as error:
        # Through the shared page: the descriptors may be somebody else's by now.
        boot.page.printed.write(f"\njobpool: this child cannot go on: {error!r}\n".encode())
        return BROKEN


class Child:
    """A booted child."""

    def __init__(self, boot: ChildBoot, capture: Capture, lines: Lines, masker: Masker) -> None:
        options = boot.options
        DEFAULT.restrict(options.queue_handlers)
        self._producer = ChannelProducer(boot.channel)
        producer.enter_child(self._producer)
        _write_lines_at_once()
        self._streams = boot.inheritance.streams
        self._work = boot.work
        self._channel = boot.channel
        self._page = boot.page.child
        self._title = _Title(f"{options.title}: slot {boot.slot}")
        self._take = OutputPipe(boot.output_fd, options.output_cap).take
        self._lines = lines
        self._alarm = Alarm(options.kill_grace)
        self._alarm.is_cancelled = boot.page.is_cancelled
        self._alarm.arm(0.0)  # one that is sent between two attempts, or before the first, changes nothing
        DEFAULT.hooks.mark = lambda place: boot.page.printed.write(f"jobpool: in the {place}\n".encode())
        self._runner = AttemptRunner(
            DEFAULT,
            self._alarm,
            capture,
            options.output_cap,
            self._take_raw,
            options.enqueue_to,
            boot.inheritance.cut,
            masker,
            options.result_ttl,
        )
        with contextlib.suppress(OSError):
            self._take()  # text printed before the first job belongs to none
        # Title and page are written only when the child has been idle for a moment, so the wait needs a limit.
        boot.work.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(IDLE_AFTER_S * 1e6)))
        self._more_work = poll()
        self._more_work.register(boot.work, POLLIN)
        self._state = ProcessState(boot.trace_fd)
        self._recycling = RecyclePolicy(boot)

    def serve(self) -> int:
        """Tell the master, then take frame after frame. Raises `OSError` or `SocketsLost` without the master."""
        self._page.idle(monotonic())
        self._title.idle()
        packets.send_announced(self._channel, frames.Ready().encode())
        while (packet := self._next()) is not None:
            if packet[0] == _RUN:
                leaving = self._attempt(packet)
            elif packet[0] == frames.TICKETED:
                ticket, run = frames.split_ticket(packet)
                leaving = self._attempt(run, own_ack(ticket, self._producer.pack))
            else:
                break
            if leaving:
                break
        self._lines.leave()
        return 0

    def _take_raw(self) -> str:
        """Return what was printed past the streams, and send its lines: they come at the end of the attempt only."""
        if text := self._take():
            self._lines.end_line()
            self._lines.write(f"{text}\n".encode("utf-8", "replace"))
        return text

    def _next(self) -> bytes | None:
        """Return the next frame; None at the end of the work. Blocks until there is one."""
        while True:
            try:
                received = packets.recv(self._work)
            except BlockingIOError:  # nothing for IDLE_AFTER_S, or the master was quicker and took it back
                self._alarm.disarm()  # not after each job of a quick series: until then it may come, and does nothing
                self._title.idle()
                self._more_work.poll()
                continue
            if received is None:
                return None
            packet, fds = received
            if fds:
                packets.close_all(fds)
            return packet

    def _attempt(self, packet: bytes, ack: OwnAck | None = None) -> str:
        """Run one attempt and answer it; return why the child leaves now, or ""."""
        _, nonce, fence, attempts, crashes, timeout = RUN_HEAD.unpack_from(packet)
        now = monotonic()
        self._page.took(nonce, now)
        self._lines.nonce = nonce
        try:
            envelope = decode_again(packet[RUN_HEAD.size :], attempts=attempts)
        except ValueError as error:
            return self._answer(nonce, Attempt(ResultKind.UNRECOVERABLE, error=str(error), started=now))
        deadline = now + timeout if timeout > 0 else 0.0
        about = envelope.identifier, envelope.queue, envelope.job, attempts + 1, envelope.name or ""
        self._page.started(deadline, *about)
        self._title.busy(envelope.job, envelope.identifier)
        job = JobToRun(envelope, fence, crashes, timeout, ack=ack)
        attempt = self._runner.run(job, self._page.progress)
        if self._streams and (failure := flush(self._streams)) is not None:
            attempt.suspect = True  # its process holds the rest, and is replaced
            if attempt.kind is ResultKind.SUCCEEDED:
                attempt.kind = ResultKind.FAILED
                attempt.error = f"a file that the app's import opened cannot be written: {failure}"
        self._lines.end()
        self._title.in_series = attempt.duration < QUICK_S
        return self._answer(nonce, attempt)

    def _answer(self, nonce: int, attempt: Attempt) -> str:
        try:
            failed = attempt.kind is not ResultKind.SUCCEEDED
            spoilt = self._state.restore(attempt.started + attempt.duration, failed)
            leaving = self._recycling.reason(attempt) or spoilt
        except SocketsLost:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the handler has broken: its attempt has ended before
            self._recycling.check_sockets()
            leaving = DESCRIPTORS if isinstance(error, OSError) else "its state cannot be put back"
        if leaving:
            self._state.let_go()
        self._send(nonce, attempt, leaving)
        self._page.finished(attempt.kind is ResultKind.SUCCEEDED, monotonic())
        return leaving

    def _send(self, nonce: int, attempt: Attempt, leaving: str) -> None:
        said = attempt.output or attempt.follow_ups or leaving or attempt.kept
        if attempt.kind is ResultKind.SUCCEEDED and not said:
            self._channel.send(plain_success(nonce, attempt.started, attempt.duration))  # the usual end
            return
        try:
            packets.send_announced(self._channel, _packet(nonce, attempt, leaving))
        except packets.PacketTooLarge:  # of an output cap as large as this: its follow-ups are bounded
            attempt.output = cap_text(attempt.output, DEFAULT_CAP)
            attempt.error = cap_text(attempt.error, DEFAULT_CAP)
            attempt.kept = attempt.kept and capped(attempt.kept.encode(), DEFAULT_CAP)
            packets.send_announced(self._channel, _packet(nonce, attempt, leaving))


class _Title:
    """The process title: slot, state, handler, and the job, except in a series of quick ones: it costs 2 µs."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._shown = ""
        self.in_series = False  # the job before was a quick one: the title of the next names its handler alone

    def busy(self, handler: str, identifier: str) -> None:
        shown = handler if self.in_series else f"{handler} {identifier}"
        if shown != self._shown:
            self._shown = shown
            setproctitle(f"{self._prefix} busy {shown}")

    def idle(self) -> None:
        self.in_series = False
        if self._shown != _IDLE:
            self._shown = _IDLE
            setproctitle(f"{self._prefix} idle")


def _packet(nonce: int, attempt: Attempt, leaving: str) -> bytes:
    ran = attempt.kind, attempt.started, attempt.duration, attempt.output, attempt.error, attempt.after
    return Result(nonce, *ran, to_raw(attempt.follow_ups), leaving, attempt.kept).encode()


def _write_lines_at_once() -> None:
    """Let what C code and old stream objects print reach the output pipe with its own attempt, not a later one."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    libc = ctypes.CDLL(None)
    with contextlib.suppress(ValueError, AttributeError):
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)  # 1: _IOLBF
