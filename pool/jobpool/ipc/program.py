"""A program of the pool's beside the master: how it is started, told its options, and heard by what it prints.

It is started without a variable that might be a credential. It is told the rest over a socket, with its options in a
nameless file, so nobody reads them in `/proc`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping

from msgspec.structs import replace

from jobpool.ipc import packets
from jobpool.ipc.frames import MAX_SAID_BYTES
from jobpool.ipc.line_budget import LineBudget
from jobpool.ipc.process_options import ProgramOptions, harmless, scrubbed

TOLD = b"told"  # the packet beside which the descriptors come, that of the options first
_OUTPUT_AT_ONCE_BYTES = 64 * 1024


class OutputLines:
    """The reading end of a pipe for the output of a program, and the lines that came through it, bounded.

    `room`: bytes of a line; the rest is cut off.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self.fd, self.writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        self._kept = b""
        self.ended = False
        self._budget = LineBudget()

    def hand_over(self) -> None:
        """Close the writing end: the program has it."""
        packets.close_all([self.writing])
        self.writing = -1

    def read(self) -> list[str]:
        """Return the lines that have come, and how many were left out. Once it has `ended`, none come any more."""
        try:
            data = os.read(self.fd, _OUTPUT_AT_ONCE_BYTES)
        except OSError:  # nothing now, or it was closed
            return []
        *lines, rest = (self._kept + (data or b"\n")).split(b"\n")
        self._kept = rest[: self._room]
        self.ended = not data
        shown = lines[: int(self._budget.left())]
        self._budget.spend(len(shown))
        left_out = len(lines) - len(shown)
        found = [line[: self._room].decode("utf-8", "replace").rstrip() for line in shown]
        return [line for line in found if line] + ([f"[… {left_out} lines left out …]"] if left_out else [])

    def close(self) -> None:
        packets.close_all([self.fd, self.writing])
        self.fd = self.writing = -1


class Program:
    """A running program that waits to be told its options. It leads a session and a group of its own.

    Attributes:
        output: All that it prints.
    """

    def __init__(self, module: str, *words: str, environ: Mapping[str, str], room: int = MAX_SAID_BYTES) -> None:
        """Start `python -P -m module SOCKET_FD WORD… MASTER_PID` with the variables of `environ` that are `harmless`.

        By `-P`, a file in the working directory that is named like a module of Python's own does not take its place
        here. `room`: bytes of a line of its output. Raises `OSError` if no process or descriptor is to be had. Blocks
        until the interpreter is executed, some milliseconds.
        """
        self._environ = harmless(environ)
        with contextlib.ExitStack() as undo:  # also at an interrupt: nobody else would close them
            self.output = OutputLines(room)
            undo.callback(self.output.close)
            self._control, there = packets.pair()
            undo.callback(self._control.close)
            self._control.setblocking(False)
            with there:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(there.fileno()), *words, str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=self.output.writing,
                    stderr=self.output.writing,
                    pass_fds=[there.fileno()],
                    start_new_session=True,
                    env=self._environ,
                )
            self.output.hand_over()
            undo.pop_all()
        self.pid = self._process.pid

    def _tell(self, options: ProgramOptions, environ: Mapping[str, str], *fds: int) -> None:
        """Tell it its options, and the variables of `environ` that it lacks, after this is `scrubbed`.

        Raises `OSError` if no descriptor is to be had, or if it has died.
        """
        lacking = {name: value for name, value in scrubbed(environ).items() if name not in self._environ}
        config = os.memfd_create("jobpool-config", os.MFD_CLOEXEC)
        try:
            os.write(config, replace(options, environ=lacking).to_json())
            packets.send(self._control, TOLD, (config, *fds))
        finally:
            os.close(config)
