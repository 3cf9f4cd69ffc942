"""The scheduler that runs beside a pool: its options, and the master's side of its process. Nothing here waits.

It has a connection of its own to the broker, imports the app, and may run its code, which the master never does. It
ends with the master: PDEATHSIG, followed by a look at the parent. Start it on a thread that lives as long as the pool.

It is told its options, and variables that may be credentials, only after it has hidden its memory. Jobs are of the same
user: they could kill it, and read from `/proc` what the next one is started with.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

from msgspec import field
from msgspec.structs import replace

from jobpool.ipc.fork_client import TOLD, OutputLines, execute, in_memory
from jobpool.ipc.process_options import ChildOptions, ProgramOptions, harmless, scrubbed
from jobpool.message.printable import hides

PROGRAM = "jobpool.cli.pool_scheduler"
"""Called with the descriptor of a socket, for all that it says and is told, and the master's pid."""

HIDDEN = b"\3"  # its memory is hidden: it waits for the descriptor of a `CronStart` as JSON
READY = b"\0"  # the app is imported, its schedules are good and the broker has answered; all else is an error's text
REFUSED = 2  # the exit status when the app or a setting cannot work, and another try cannot either
FIRED = b"\1"  # before the lateness of each firing of a turn: seconds with a space between them, up to a line break
TURNS = b"\2"  # it turns; before the schedule whose job it begins to run in its own process, if any, up to a line break
TURNS_EVERY_S = 10.0  # seconds between two of these in a sleep; while it works they are at least a second apart
FIRED_AT_ONCE = 300  # firings told in one write, which a pipe takes whole or not at all
MAX_RECORD_BYTES = 16 * 1024  # bytes of a line of its log
MAX_NAME = 200  # characters of a schedule that are told
READS_AT_ONCE = 64  # more than a pipe holds; a job in the scheduler's process can write without an end
MAX_WORDS_BYTES = 4096  # bytes of last words that are kept; a pipe takes no more at once


class MasterPipe:
    """The scheduler's end of the line to its master. It never waits: what finds no room is not told."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._next_turn = 0.0

    def say(self, words: bytes) -> None:
        """Write to the master, if there is one still."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, words[:MAX_WORDS_BYTES])

    def turn(self) -> None:
        """Tell that the scheduler does not hang."""
        now = time.monotonic()
        if now >= self._next_turn:
            self._next_turn = now + 1.0
            self.say(TURNS + b"\n")

    def begin(self, schedule: str) -> None:
        """Tell which job runs from now on until the next turn."""
        self._next_turn = 0.0
        self.say(TURNS + " ".join(schedule.split())[:MAX_NAME].encode(errors="replace") + b"\n")

    def fired(self, lateness: Sequence[float]) -> None:
        """Tell how many seconds late firings were."""
        for first in range(0, len(lateness), FIRED_AT_ONCE):
            told = " ".join(f"{seconds:.3f}" for seconds in lateness[first : first + FIRED_AT_ONCE])
            self.say(FIRED + told.encode() + b"\n")


@hides("backend", "signing_keys", "environ")
class CronStart(ProgramOptions, frozen=True):
    """The start options of a scheduler's process: plain values, already checked."""

    backend: str  # URL of the broker
    options: ChildOptions  # for the app's import, as a child of the pool gets them
    signing_keys: tuple[str, ...] = ()  # the first signs; empty = unsigned
    name: str = "jobpool"  # of the pool
    environment: str | None = None  # of the schedules that are served
    grace: float = 3600.0  # seconds within which what was missed is made up for
    only: bool = False  # there is no other scheduler
    may_be_empty: bool = False  # the app may declare no schedule: it did, and the last one was taken out
    default_timeout: float = 3600.0  # seconds for inline jobs that set none; 0 = unlimited
    log_level: str = "info"
    log_format: str = "text"
    environ: dict[str, str] = field(default_factory=dict)  # variables that it lacks: it was started without them


class SchedulerProcess:
    """One running scheduler. Use it on one thread."""

    def __init__(self, process: subprocess.Popen[bytes], pidfd: int, line: int, output: OutputLines) -> None:
        self._process = process
        self._pidfd = pidfd
        self._words = b""
        self.output = output  # its log, as JSON, and all else that it prints
        self.pid = process.pid  # it leads a session and a group of its own
        self.line = line  # readable when it has said something, and when it hung up; then `hear`
        self._untold: CronStart | None = None
        self.is_ready = False
        self.turned: str | None = None  # it turns; the schedule whose job it runs. The reader sets it to None
        self.fired: list[float] = []  # the lateness of firings that it has told of, in seconds; the reader empties it

    @classmethod
    def start(cls, start: CronStart, environ: Mapping[str, str]) -> SchedulerProcess:
        """Start one with these options. Raises and blocks as `execute`."""
        here, there = socket.socketpair()
        output = OutputLines(MAX_RECORD_BYTES)
        first = harmless(environ)
        lacking = {name: value for name, value in scrubbed(environ).items() if name not in first}
        try:
            here.setblocking(False)
            process = execute(PROGRAM, (there.fileno(),), first, output.writing)
            try:
                started = cls(process, os.pidfd_open(process.pid), here.detach(), output)
            except OSError:
                process.kill()
                process.wait()
                raise
            started._untold = replace(start, environ=lacking)
            return started
        except OSError:
            here.close()
            output.close()
            raise
        finally:
            there.close()
            output.hand_over()

    def fileno(self) -> int:
        """Return a descriptor that is readable when the process has ended."""
        return self._pidfd

    def hear(self) -> bool:
        """Take in what it has said; False when nothing more will come."""
        try:
            for _ in range(READS_AT_ONCE):
                words = os.read(self.line, MAX_WORDS_BYTES)
                if not words:
                    return False
                if self._untold is not None and words.startswith(HIDDEN):
                    with in_memory(self._untold) as config, socket.socket(fileno=os.dup(self.line)) as told:
                        socket.send_fds(told, [TOLD], [config])
                    self._untold, words = None, words[len(HIDDEN) :]
                self.is_ready = self.is_ready or READY in words
                *lines, last = (self._words + words.replace(READY, b"")).split(b"\n")
                kept = []
                for line in lines:
                    if line.startswith(FIRED):
                        self.fired += _numbers(line[len(FIRED) :])
                    elif line.startswith(TURNS):
                        self.turned = line[len(TURNS) :].decode(errors="replace")
                    else:
                        kept.append(line)
                kept.append(last)
                self._words = b"\n".join(kept)[:MAX_WORDS_BYTES]
        except BlockingIOError:
            pass
        except ConnectionError:  # it died before it had read what it was told
            return False
        except OSError as error:  # no descriptor is to be had for that: another one is started later
            self._words = str(error).encode()
            self.signal(signal.SIGKILL)
        return True

    @property
    def error(self) -> str:
        """The last words of one that could not go on; "" = there were none."""
        return self._words.decode(errors="replace").strip()

    def signal(self, number: int) -> None:
        """Send it a signal, never to a process that has taken over its pid. A dead one, or another user's, is fine."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self._pidfd, number)

    def poll(self) -> int | None:
        """Collect it and return its exit status, negative = by that signal; None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """Let go of the descriptors, once the process was collected."""
        os.close(self._pidfd)
        os.close(self.line)
        self.output.close()


def _numbers(words: bytes) -> list[float]:
    """Return the numbers; none if one is not finite or not a number: a job in the scheduler's process has its pipe."""
    with contextlib.suppress(ValueError):
        numbers = [float(word) for word in words.split()]
        if all(map(math.isfinite, numbers)):
            return numbers
    return []
