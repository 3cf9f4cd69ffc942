"""The master's end of one child: its sockets, its files and its pidfd. I/O, and nothing decided."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from dataclasses import dataclass

from jobpool.mechanism import packets
from jobpool.mechanism.frames import BadFrame, Frame, Reply, Run, decode

LARGEST_ANSWER = 8 * 1024 * 1024
"""Bytes of one frame from a child: outputs are capped far below, so more is no answer but an accident."""

TRACE_TAIL = 16 * 1024
OUTPUT_TAIL = 4 * 1024

OUTPUT_LIMIT = 4 * 1024 * 1024
"""Bytes of raw output of one attempt above which, at the next sample, only the first `OUTPUT_KEPT` stay."""

OUTPUT_KEPT = 1024 * 1024


class BrokenChannelError(Exception):
    """The child's channel has closed (`closed`), or carries rubbish."""

    def __init__(self, why: str, closed: bool = False) -> None:
        super().__init__(why)
        self.closed = closed


@dataclass(slots=True)
class Birth:
    """The child's ends, to be sent with `Spawn`: the reading end of work, its channel, its trace and output files."""

    work: socket.socket
    channel: socket.socket
    trace: int
    output: int

    @property
    def fds(self) -> tuple[int, int, int, int]:
        return self.work.fileno(), self.channel.fileno(), self.trace, self.output


class ChildLine:
    """What the master holds of a child. Every call returns at once.

    The master keeps the reading end of `work` as well: a frame that the child has not read yet can be taken back, and
    the kernel gives each packet to one reader only, so it is never both taken back and run.
    """

    def __init__(self, child: int) -> None:
        self.child = child
        self._work_in, self._work = packets.pair()
        self.channel, self._far = packets.pair()
        self._work.setblocking(False)
        self.channel.setblocking(False)
        self._reader = packets.Reader(self.channel, LARGEST_ANSWER)
        self._trace = os.memfd_create("jobpool-trace", os.MFD_CLOEXEC)
        self._output = os.memfd_create("jobpool-output", os.MFD_CLOEXEC)
        self._traced = 0
        self.pidfd = -1
        self.unanswered = 0
        """Attempts that were handed over and neither answered nor taken back."""

    def birth(self) -> Birth:
        return Birth(self._work_in, self._far, self._trace, self._output)

    def born(self) -> None:
        """The child's ends were sent: the far end of the channel is its alone from here, so that its close is seen."""
        self._far.close()

    def hand(self, run: bytes) -> bool:
        """Write an attempt (`frames.run_packet`) to the child; False: nothing was written, its socket is full."""
        written = self._write(run)
        self.unanswered += written
        return written

    def retire(self) -> None:
        """End the child's work: it leaves after what it has read. A frame that says so could be taken back."""
        self._work.shutdown(socket.SHUT_WR)

    def _write(self, packet: bytes) -> bool:
        try:
            packets.send(self._work, packet)
        except OSError:
            return False
        return True

    def reply(self, reply: Reply) -> None:
        """Answer an `Ask`. A child that has died meanwhile hears nothing."""
        with contextlib.suppress(OSError):
            packets.send(self.channel, reply.encode())

    def take_back(self) -> frozenset[int]:
        """The nonces of the frames that the child had not read; it never will."""
        nonces: set[int] = set()
        while True:
            try:
                received = packets.recv(self._work_in, flags=socket.MSG_DONTWAIT)
            except OSError:
                return frozenset(nonces)
            if received is None:
                return frozenset(nonces)
            frame = decode(received[0])
            if isinstance(frame, Run):
                nonces.add(frame.nonce)
                self.unanswered -= 1

    def receive(self) -> Frame | None:
        """The child's next frame; None: nothing now.

        Raises:
            BrokenChannelError: It has closed, or what came is no frame.
        """
        try:
            packet = self._reader.read()
        except BlockingIOError:
            return None
        except packets.PacketTooLarge as error:
            raise BrokenChannelError(str(error)) from error
        except OSError as error:
            raise BrokenChannelError(str(error), closed=True) from error
        if packet is None:
            raise BrokenChannelError("closed", closed=True)
        try:
            return decode(packet)
        except BadFrame as error:
            raise BrokenChannelError(str(error)) from error

    def signal(self, number: int) -> None:
        """Send a signal through the pidfd: never to a process that has taken over the pid."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def read_trace(self) -> str:
        """What the child's fault handler has written since the last call, its tail."""
        text, self._traced = _tail(self._trace, self._traced, TRACE_TAIL)
        return text

    def read_output(self) -> str:
        """The tail of what the child wrote to its descriptors 1 and 2."""
        return _tail(self._output, 0, OUTPUT_TAIL)[0]

    def bound_output(self) -> None:
        """Cut back what a running attempt has flooded its raw descriptors with: the child can only do it afterwards."""
        if os.fstat(self._output).st_size > OUTPUT_LIMIT:
            os.ftruncate(self._output, OUTPUT_KEPT)

    def close(self) -> None:
        """Let everything go. Safe to call twice."""
        for sock in (self._work_in, self._work, self.channel, self._far):
            sock.close()
        fds = [fd for fd in (self._trace, self._output, self.pidfd) if fd >= 0]
        packets.close_all(fds)
        self._trace = self._output = self.pidfd = -1


def _tail(fd: int, since: int, most: int) -> tuple[str, int]:
    """Text behind offset `since`, at most its last `most` bytes, and the offset reached."""
    size = os.fstat(fd).st_size
    start = max(since, size - most)
    return os.pread(fd, most, start).decode("utf-8", "replace"), size
