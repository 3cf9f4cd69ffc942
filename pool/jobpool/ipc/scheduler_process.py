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
import time
from collections.abc import Mapping, Sequence

from jobpool.ipc.process_options import ChildOptions, ProgramOptions
from jobpool.ipc.program import Program
from jobpool.message.printable import hides

PROGRAM = "jobpool.cli.pool_scheduler"
"""Called with the descriptor of a socket, for all that it says and is told, and the master's pid."""

HIDDEN = b"\3"  # its memory is hidden: it waits for the descriptor of a `CronStart` as JSON
READY = b"\0"  # the app is imported, its schedules are good and the broker has answered; all else is an error's text
REFUSED = 2  # the exit status when the app or a setting cannot work, and another try cannot either
FIRED = b"\1"  # before the lateness of each firing of a turn: seconds with a space between them
TURNS = b"\2"  # it turns; before the schedule whose job it begins to run in its own process, if any
TURNS_EVERY_S = 10.0  # seconds between two of these in a sleep; while it works they are at least a second apart
FIRED_AT_ONCE = 300  # firings told in one packet
MAX_RECORD_BYTES = 16 * 1024  # bytes of a line of its log
MAX_NAME = 200  # characters of a schedule that are told
READS_AT_ONCE = 64  # a job in the scheduler's process can write without an end
MAX_WORDS_BYTES = 4096  # bytes of a packet, and of last words


class MasterPipe:
    """The scheduler's end of the line to its master. It never waits: what finds no room is not told."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._next_turn = 0.0

    def say(self, words: bytes) -> None:
        """Send a packet to the master, if there is one still. An older one, after a reload, goes by the line break."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, words[: MAX_WORDS_BYTES - 1] + b"\n")

    def turn(self) -> None:
        """Tell that the scheduler does not hang."""
        now = time.monotonic()
        if now >= self._next_turn:
            self._next_turn = now + 1.0
            self.say(TURNS)

    def begin(self, schedule: str) -> None:
        """Tell which job runs from now on until the next turn."""
        self._next_turn = 0.0
        self.say(TURNS + " ".join(schedule.split())[:MAX_NAME].encode(errors="replace"))

    def fired(self, lateness: Sequence[float]) -> None:
        """Tell how many seconds late firings were."""
        for first in range(0, len(lateness), FIRED_AT_ONCE):
            told = " ".join(f"{seconds:.3f}" for seconds in lateness[first : first + FIRED_AT_ONCE])
            self.say(FIRED + told.encode())


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


class SchedulerProcess(Program):
    """One running scheduler. Use it on one thread. Its `output` is its log, as JSON, and all else that it prints."""

    def __init__(self, start: CronStart, environ: Mapping[str, str]) -> None:
        """Start one with these options. Raises and blocks as `Program`."""
        super().__init__(PROGRAM, environ=environ, room=MAX_RECORD_BYTES)
        self.line = self._control.fileno()  # readable when it has said something, and when it hung up; then `hear`
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            self._control.close()
            self.output.close()
            raise
        self._untold: tuple[CronStart, Mapping[str, str]] | None = start, environ
        self._last_words = b""
        self.is_ready = False
        self.turned: str | None = None  # it turns; the schedule whose job it runs. The reader sets it to None
        self.fired: list[float] = []  # the lateness of firings that it has told of, in seconds; the reader empties it

    def fileno(self) -> int:
        """Return a descriptor that is readable when the process has ended."""
        return self._pidfd

    def hear(self) -> bool:
        """Take in what it has said; False when nothing more will come."""
        try:
            for _ in range(READS_AT_ONCE):
                packet = os.read(self.line, MAX_WORDS_BYTES)
                if not packet:
                    return False
                tag, words = packet[:1], packet[1:].removesuffix(b"\n")
                if tag == HIDDEN and self._untold is not None:
                    told, self._untold = self._untold, None
                    self._tell(*told)
                elif tag == READY:
                    self.is_ready = True
                elif tag == FIRED:
                    self.fired += _numbers(words)
                elif tag == TURNS:
                    self.turned = words.decode(errors="replace")
                else:
                    self._last_words = packet
        except BlockingIOError:
            pass
        except ConnectionError:  # it died before it had read what it was told
            return False
        except OSError as error:  # no descriptor is to be had for that: another one is started later
            self._last_words = str(error).encode()
            self.signal(signal.SIGKILL)
        return True

    @property
    def error(self) -> str:
        """The last words of one that could not go on; "" = there were none."""
        return self._last_words.decode(errors="replace").strip()

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
        self._control.close()
        self.output.close()


def _numbers(words: bytes) -> list[float]:
    """Return the numbers; none if one is not finite or not a number: a job in the scheduler's process has its pipe."""
    with contextlib.suppress(ValueError):
        numbers = [float(word) for word in words.split()]
        if all(map(math.isfinite, numbers)):
            return numbers
    return []
