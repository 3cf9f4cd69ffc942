"""The master's end of one child: its sockets, its files and its pidfd. I/O, and nothing decided."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Iterable

from jobpool.ipc import frames, packets
from jobpool.ipc.frames import BadFrame, Frame, Reply, Result, decode, nonce_of
from jobpool.ipc.line_budget import SAID_AT_ONCE, SAID_PER_S

MAX_FRAMES_AHEAD = 128  # frames in one child's socket at most: the kernel's buffer holds some 250 small ones
ESCAPED_FACTOR = 16  # times the output cap, for output and error as JSON: six bytes for one, and both are capped
MARKS_CHARS = 64 * 1024  # above the output cap, in each text of a result: a child caps them, and adds marks and hints
TRACE_BYTES = 256 * 1024  # some dumps of many threads; writes beyond fail, which a fault handler does not mind
TRACE_TAIL_BYTES = 16 * 1024
OUTPUT_TAIL_BYTES = 4 * 1024
OUTPUT_PIPE_BYTES = 256 * 1024  # if the user may still have that much in pipes; else what the kernel gives
DRAINS_AT_ONCE = 16  # halves of a full pipe that one look throws away, if the writer fills it meanwhile: some 2 MiB

log = logging.getLogger("jobpool.pool")


class BrokenChannelError(Exception):
    """The child's channel has closed (`closed`), or carries rubbish."""

    def __init__(self, why: str, closed: bool = False) -> None:
        super().__init__(why)
        self.closed = closed


class ChildChannel:
    """The master's hold on a child. Every call returns at once.

    The master keeps the reading end of `work` as well: a frame that the child has not read yet can be taken back. The
    kernel gives each packet to one reader only, so it is never both taken back and run.
    """

    def __init__(self, child: int, output_cap: int, slot: int = 0, generation: int = 0) -> None:
        self.child = child
        self.slot = slot
        self.generation = generation
        self.pid = 0  # it is not known to be born yet
        self._work_in, self._work = packets.pair()
        self._near, self._far = packets.pair()
        self._work.setblocking(False)
        self._near.setblocking(False)
        largest = frames.MAX_ENQUEUED_BYTES + ESCAPED_FACTOR * 2 * max(output_cap, packets.INLINE_BYTES)
        self._longest = output_cap + MARKS_CHARS
        self._reader = packets.Reader(self._near, min(largest, packets.MAX_PACKET_BYTES))
        self._output, self._output_in = _output_pipe()
        try:
            self._trace = _trace_file()
        except OSError:
            packets.close_all([self._output, self._output_in])
            raise
        self._output_room = fcntl.fcntl(self._output, fcntl.F_GETPIPE_SZ)
        self._has_room = select.poll()
        self._has_room.register(self._output, select.POLLOUT)
        self.dropped = 0  # bytes of the running attempt's raw output that were thrown away
        self.pidfd = -1
        self._doomed = False
        self.is_asking = False  # True: its question is open, and nothing more of it is read until `reply`
        self._booted = False
        self.handed: deque[int] = deque()  # attempts that are neither answered nor taken back
        self._said = 0
        self._made_at = time.monotonic()

    def fileno(self) -> int:
        """Return the descriptor that can be read when the child has said something, or is gone."""
        return self._near.fileno()

    @property
    def fds(self) -> tuple[int, int, int, int]:
        """The child's ends, for `Spawn`: reading end of work, channel, trace file, writing end of output."""
        return self._work_in.fileno(), self._far.fileno(), self._trace, self._output_in

    def born(self) -> None:
        """Close the child's ends, once they were sent: the far end is its alone from here, and its close is seen."""
        self._far.close()
        os.close(self._output_in)
        self._output_in = -1

    @property
    def may_print(self) -> bool:
        """Return whether user code runs in it: it boots, or is busy."""
        return bool(self.handed) or not self._booted

    def write_runs(self, runs: Iterable[tuple[int, bytes]]) -> int:
        """Write attempts to the child: the nonce and `frames.run_packet` of each, until its socket is full.

        Returns how many were written.
        """
        before = len(self.handed)
        with contextlib.suppress(OSError):
            for nonce, run in runs:
                packets.send(self._work, run)
                self.handed.append(nonce)
        return len(self.handed) - before

    def retire(self) -> None:
        """End the child's work: it leaves after what it has read. A frame that says so could be taken back."""
        self._work.shutdown(socket.SHUT_WR)

    def reply(self, reply: Reply) -> None:
        """Answer an `Ask`. A child that has died, or that asks on and reads no answer, hears nothing more."""
        self.is_asking = False
        try:
            try:
                packets.send(self._near, reply.encode())
            except packets.PacketTooLarge as error:
                why = f"the answer is too large, ask for fewer jobs at once: {error}"
                packets.send(self._near, Reply([], "InvalidJob", why).encode())
        except OSError:
            self._cut_off()  # or it would wait for this answer forever

    def _cut_off(self) -> None:
        """End the channel: what the child has sent is read still, and then it is killed as one that closed it."""
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)

    def take_back(self, most: int = MAX_FRAMES_AHEAD) -> frozenset[int]:
        """Return the nonces of the next frames that the child would read; it never will. Fewer than `most`: of all."""
        nonces: set[int] = set()
        while len(nonces) < most:
            try:
                packets.check_room(self._work_in)
                received = packets.recv(self._work_in, flags=socket.MSG_DONTWAIT)
            except (OSError, packets.PacketTooLarge):
                break
            if received is None:
                break
            try:
                nonce = nonce_of(received[0])
                self.handed.remove(nonce)
                nonces.add(nonce)
            except ValueError:  # user code has this socket too: it can cut packets short, and peek to answer for them
                self._cut_off()
        return frozenset(nonces)

    def take_rest(self) -> frozenset[int]:
        """Take back all that a dead child has not read. Its trace and output, read before, make room for large ones."""
        packets.close_all([self._trace, self._output])
        self._trace = self._output = -1
        return self.take_back()

    def receive(self) -> Frame | None:
        """Return the child's next frame; None: nothing now. Raises `BrokenChannelError`, also out of turn."""
        try:
            packet = self._reader.read()
            if packet is None:
                raise BrokenChannelError("closed", closed=True)
            frame = decode(packet)
        except BlockingIOError:
            return None
        except (packets.PacketTooLarge, BadFrame) as error:
            raise BrokenChannelError(str(error)) from error
        except OSError as error:
            raise BrokenChannelError(str(error), closed=True) from error
        if type(frame) is not Result:
            self._check(type(frame), len(packet))
        elif not self.handed or self.handed[0] != frame.nonce:
            raise BrokenChannelError("a child answered an attempt that it does not run")
        elif len(packet) > self._longest and any(
            len(text) > self._longest for text in (frame.output, frame.error, frame.leaving, frame.kept)
        ):
            raise BrokenChannelError("a child answered with a text far above its cap")
        else:
            self.handed.popleft()
        return frame

    def _check(self, kind: type[Frame], size: int) -> None:
        """Refuse a frame out of turn: user code has these descriptors too, and could keep the master busy."""
        if kind is frames.Ask:
            self.is_asking = True
        elif kind is frames.Ready or kind is frames.BootFailed:
            if self._booted:
                raise BrokenChannelError(f"a child sent {kind.__name__} once more")
            self._booted = True
        elif kind is frames.Said:
            self._said += 1
            # A child keeps to half of this by itself, and cuts its lines: what is above it is none of its own.
            most = (time.monotonic() - self._made_at) * SAID_PER_S * 2 + SAID_AT_ONCE
            if self._said > most or size > packets.INLINE_BYTES:
                raise BrokenChannelError("a child sent more for the log than it may")
        else:
            raise BrokenChannelError(f"a child sent {kind.__name__}")

    def signal(self, number: int) -> None:
        """Send a signal through the pidfd. Before the birth is known, SIGKILL waits for it, and no other does.

        A child that has become another user's gets none: the log says so of SIGKILL, and its slot is replaced.
        """
        if self.pidfd >= 0:
            try:
                signal.pidfd_send_signal(self.pidfd, number)
            except ProcessLookupError:
                pass
            except PermissionError:  # it has executed a program of another user's, such as sudo
                if number == signal.SIGKILL:
                    fields = {"slot": self.slot, "pid": self.pid, "mend": f"as root: kill -9 {self.pid}"}
                    log.error("a child cannot be killed: it runs as another user", extra={"fields": fields})
        elif number == signal.SIGKILL:
            self._doomed = True

    def bear(self, pid: int, pidfd: int) -> None:
        """Note that the child is born; `pidfd` is this object's to close from here."""
        self.pid = pid
        self.pidfd = pidfd
        if self._doomed:
            self.signal(signal.SIGKILL)

    def has_ended(self) -> bool:
        """Return whether the child's process has ended, collected or not. Only of one that was born."""
        look = select.poll()
        look.register(self.pidfd, select.POLLIN)
        return bool(look.poll(0))

    @property
    def has_trace(self) -> bool:
        """Return whether the child's fault handler has written since the last `read_trace`."""
        return os.lseek(self._trace, 0, os.SEEK_CUR) > 0

    def read_trace(self) -> str:
        """Read the tail of what the child's fault handler has written since the last call."""
        end = min(os.lseek(self._trace, 0, os.SEEK_CUR), TRACE_BYTES)  # the position is the child's too
        start = max(0, end - TRACE_TAIL_BYTES)
        os.lseek(self._trace, 0, os.SEEK_SET)
        return os.pread(self._trace, end - start, start).decode("utf-8", "replace").replace("\0", "")

    def read_output(self) -> str:
        """Read the tail of what the child wrote to its descriptors 1 and 2 and has not read itself: once it is dead."""
        data = self._read_output(self._output_room)[-OUTPUT_TAIL_BYTES:]
        return self.note_dropped(data.decode("utf-8", "replace"))

    def drain_output(self) -> bool:
        """Throw the older half of a full output pipe away; return whether it was full.

        A writer past Python's streams (C code, a subprocess) waits until the next look at most, never fails and never
        takes memory. The child reads the rest of the pipe when the attempt is over. Not a file that
        cannot grow: there a subprocess would fail in the middle, and with it the job. Not a thread of the child: C code
        that prints and holds the interpreter's lock would wait for it forever.
        """
        for drained in range(DRAINS_AT_ONCE):
            if self._has_room.poll(0):
                return drained > 0
            self.dropped += len(self._read_output(self._output_room // 2))
        return True

    def note_dropped(self, output: str) -> str:
        """Add to an attempt's output how much of it `drain_output` has thrown away."""
        if not self.dropped:
            return output
        dropped, self.dropped = self.dropped, 0
        mark = f"[… {dropped} bytes of raw output dropped, and the last of it kept …]"
        return f"{output}\n{mark}" if output else mark

    def _read_output(self, most: int) -> bytes:
        try:
            return os.read(self._output, most)
        except BlockingIOError:  # empty, or the child was quicker
            return b""

    def close(self) -> None:
        """Let everything go. Safe to call twice."""
        for sock in (self._work_in, self._work, self._near, self._far):
            sock.close()
        packets.close_all([self._trace, self._output, self._output_in, self.pidfd])
        self._trace = self._output = self._output_in = self.pidfd = -1


def _trace_file() -> int:
    """Make a file that cannot grow: a handler that writes to every descriptor it finds must not fill the memory."""
    fd = os.memfd_create("jobpool-trace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, TRACE_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


def _output_pipe() -> tuple[int, int]:
    """Open a pipe: the master's end, which reads, never waits and tells whether there is room; and the child's end."""
    reading, writing = os.pipe()
    try:
        with contextlib.suppress(OSError):  # the user has too much in pipes already
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, OUTPUT_PIPE_BYTES)
        own = os.open(f"/proc/self/fd/{reading}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return own, writing
