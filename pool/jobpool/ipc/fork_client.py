"""The master's side of a fork server: start it, ask for children, hear what became of them. Nothing here waits."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from jobpool.ipc import linux, packets
from jobpool.ipc.frames import (
    MAX_SAID_BYTES,
    BadFrame,
    Exited,
    Frame,
    Loaded,
    LoadFailed,
    Spawn,
    Spawned,
    SpawnFailed,
    decode,
)
from jobpool.ipc.line_budget import LineBudget
from jobpool.ipc.packets import Outbox
from jobpool.ipc.process_options import ForkServerConfig, ProgramOptions, harmless, scrubbed

PROGRAM = "jobpool.ipc.fork_server_main"
TOLD = b"told"  # the packet beside which the descriptors of options and scoreboard come
CHILD = "jobpool.child.main"  # the module that a fork server imports before it is told anything
END_LIMIT_S = 10.0  # seconds in which a fork server ends after its master has hung up: it may have strays to sweep
UNDEAD_AFTER_S = 1.0  # seconds after SIGKILL at which its children that are dead are not left to it any more
_FRAMES_AT_ONCE = 256
_OUTPUT_AT_ONCE_BYTES = 64 * 1024
_UP = (Loaded, LoadFailed, Spawned, SpawnFailed, Exited)


class OutputLines:
    """The reading end of a pipe for the output of a program, and the lines that came through it, bounded.

    `room`: bytes of a line; the rest is cut off.
    """

    def __init__(self, room: int = MAX_SAID_BYTES) -> None:
        self._room = room
        self.fd, self.writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        self._kept = b""
        self.ended = False
        self._budget = LineBudget()

    def hand_over(self) -> None:
        """Close the writing end: the program has it."""
        packets.close_all([self.writing])

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
        packets.close_all([self.fd])
        self.fd = -1


class ForkServerClient:
    """One running fork server. Use it on one thread.

    Poll `fileno()` for reading and call `receive()`; when `closed` is true, unregister it, call `close()`, and call
    `poll()` until it gives a status. Its children die with it.
    """

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, environ: Mapping[str, str]) -> None:
        control.setblocking(False)
        self._environ = environ  # at its start
        self._process = process
        self._control = control
        self._outbox = Outbox(control)
        self._hung_up_at = math.inf
        self._killed_at = math.inf
        self.pid = process.pid  # it leads a session and a group of its own
        self.closed = False  # no frame will come any more: it has died, or it was closed
        self.broken = ""  # why it was killed by this class; "" = it was not
        self.has_loaded = False  # the app

    @classmethod
    def begin(cls, environ: Mapping[str, str], output: int | None = None) -> ForkServerClient:
        """Start one that imports its own modules, and waits for `tell`. No app runs before that.

        It has the variables of `environ` that are `harmless`. `output` (see `execute`) stays the caller's. Raises and
        blocks as `execute`.

        Call it on the main thread: the fork server dies with the calling thread until the app is imported.
        """
        environ = harmless(environ)
        here, there = packets.pair()
        try:
            return cls(execute(PROGRAM, (there.fileno(), CHILD), environ, output), here, environ)
        except BaseException:  # also an interrupt: without a client nobody else would close it
            here.close()
            raise
        finally:
            there.close()

    def tell(self, config: ForkServerConfig, board_fd: int, environ: Mapping[str, str]) -> None:
        """Have it import the app; its first frame is `Loaded` or `LoadFailed`.

        `board_fd`, of the scoreboard, stays the caller's. Of `environ`, after it is `scrubbed`, it gets the variables
        that it lacks. Raises `OSError` if no descriptor is to be had.
        """
        linux.share_open_files(self.pid)  # it may have begun before this process raised its own
        lacking = {name: value for name, value in scrubbed(environ).items() if name not in self._environ}
        with in_memory(replace(config, environ=lacking)) as config_fd, contextlib.suppress(ConnectionError):
            packets.send(self._control, TOLD, (config_fd, board_fd))

    def has_only(self, environ: Mapping[str, str]) -> bool:
        """Return whether `environ` has every variable that it was started with."""
        return self._environ.keys() <= environ.keys()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `receive` has something; -1 once `close` was called."""
        return self._control.fileno()

    def spawn(self, child: int, slot: int, fds: tuple[int, int, int, int]) -> None:
        """Ask for a child (`Spawn`); the answer is `Spawned` or `SpawnFailed`, or `closed`. `fds` stay the caller's.

        Raises `OSError` (EMFILE) if no descriptor is to be had for a request that has to wait.
        """
        if self.closed:
            return
        with contextlib.suppress(ConnectionError):  # `receive` hears of it, after what came before
            self._outbox.send(Spawn(child, slot).encode(), fds)

    def receive(self) -> list[tuple[Frame, list[int]]]:
        """Return the frames that have come, at most 256. With a `Spawned` comes the pidfd, the caller's to close."""
        frames: list[tuple[Frame, list[int]]] = []
        if not self.closed:
            with contextlib.suppress(ConnectionError):
                self._outbox.flush()
        while not self.closed and len(frames) < _FRAMES_AT_ONCE:
            try:
                got = packets.recv(self._control, fds_may_lack=True)
                if got is None:
                    self.closed = True
                else:
                    frames.append((self._frame(*got), got[1]))
            except BlockingIOError:
                break
            except (packets.PacketTooLarge, BadFrame) as error:
                # The app has got at its descriptors: its children cannot be looked after any more.
                self.broken = f"the fork server does not speak our language any more ({error}), and was killed"
                self.closed = True
                self.kill()
            except OSError:
                self.closed = True
        return frames

    def _frame(self, packet: bytes, fds: list[int]) -> Frame:
        try:
            frame = decode(packet)
            if not isinstance(frame, _UP):
                raise BadFrame(f"{type(frame).__name__} is not for the master")
        except BadFrame:
            packets.close_all(fds)
            raise
        self.has_loaded = self.has_loaded or isinstance(frame, Loaded)
        return frame

    def poll(self) -> int | None:
        """Collect it and return its exit status, negative = by that signal; None while it runs.

        Kills one that has not ended `END_LIMIT_S` seconds after `close`: it may be stopped, or hang in an app's hook.
        """
        status = self._process.poll()
        if status is None and time.monotonic() - self._hung_up_at > END_LIMIT_S:
            self._kill()
        return status

    @property
    def is_undead(self) -> bool:
        """Return whether it was killed so long ago that the kernel must be holding it (state D)."""
        return time.monotonic() - self._killed_at > UNDEAD_AFTER_S

    def wait(self, timeout: float) -> int:
        """Return its exit status, after at most `timeout` seconds. Raises `subprocess.TimeoutExpired`."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        """Kill it and its group; its children die with it. A dead one is fine."""
        if self._process.poll() is None:
            self._kill()

    def _kill(self) -> None:
        self._killed_at = min(self._killed_at, time.monotonic())
        os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Hang up: it kills its children, groups and strays, and exits; `poll()` tells when. Safe to call twice."""
        self.closed = True
        self._hung_up_at = min(self._hung_up_at, time.monotonic())
        self._outbox.close()
        self._control.close()


class BegunForkServer:
    """A fork server that waits to be told, and its output."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Start it. Raises and blocks as `ForkServerClient.begin`."""
        self.output = OutputLines()
        try:
            self.server = ForkServerClient.begin(environ, self.output.writing)
        except OSError:
            self.output.close()
            raise
        finally:
            self.output.hand_over()

    def discard(self) -> None:
        """End it, if it has not ended. Blocks until it is dead, some milliseconds."""
        self.server.close()
        self.server.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it (state D)
            self.server.wait(END_LIMIT_S)
        self.output.close()


@contextlib.contextmanager
def in_memory(options: ProgramOptions) -> Iterator[int]:
    """Yield the descriptor of a nameless file with the options as JSON. Raises `OSError` if none is to be had."""
    config = os.memfd_create("jobpool-config", os.MFD_CLOEXEC)
    try:
        os.write(config, options.to_json())
        yield config
    finally:
        os.close(config)


def execute(
    program: str, words: Sequence[int | str], environ: Mapping[str, str], output: int | None
) -> subprocess.Popen[bytes]:
    """Start `python -P -m program WORD… MASTER_PID` in a session of its own, with `environ`.

    By `-P`, a file in the working directory that is named like a module of Python's own does not take its place here.

    Numbers among the `words` are descriptors, which it gets. `output`: the descriptor of its two streams; None = this
    process's own. Raises `OSError` if no process or descriptor is to be had. Blocks until the interpreter is executed,
    some milliseconds.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", program, *map(str, words), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[word for word in words if isinstance(word, int)],
        start_new_session=True,
        env=environ,
    )
