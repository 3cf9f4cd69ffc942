"""The master's side of a fork server: start it, ask for children, hear what became of them. Nothing here waits."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping

from jobpool.ipc import linux, packets
from jobpool.ipc.frames import BadFrame, Exited, Frame, Loaded, LoadFailed, Spawn, Spawned, SpawnFailed, decode
from jobpool.ipc.packets import Outbox
from jobpool.ipc.process_options import ForkServerConfig
from jobpool.ipc.program import Program

PROGRAM = "jobpool.ipc.fork_server_main"
CHILD = "jobpool.child.main"  # the module that a fork server imports before it is told anything
HANG_UP_LIMIT_S = 10.0  # seconds in which a fork server ends after its master has hung up: it may have strays to sweep
UNDEAD_AFTER_S = 1.0  # seconds after SIGKILL at which nobody waits for it any more, nor leaves its dead children to it
_FRAMES_AT_ONCE = 256
log = logging.getLogger("jobpool.pool")
_UP = (Loaded, LoadFailed, Spawned, SpawnFailed, Exited)


class ForkServerClient(Program):
    """One running fork server, which has imported its own modules and waits for `tell`. Use it on one thread.

    Poll `fileno()` for reading and call `receive()`; when `closed` is true, unregister it, call `close()`, and call
    `poll()` until it gives a status. Its children die with it. Close its `output` last.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Start it. No app runs before it is told. Raises and blocks as `Program`.

        Call it on the main thread: the fork server dies with the calling thread until the app is imported.
        """
        super().__init__(PROGRAM, CHILD, environ=environ)
        self._outbox = Outbox(self._control)
        self._hung_up_at = math.inf
        self._killed_at = math.inf
        self.closed = False  # no frame will come any more: it has died, or it was closed
        self.has_loaded = False  # the app

    def tell(self, config: ForkServerConfig, board_fd: int, environ: Mapping[str, str]) -> None:
        """Have it import the app; its first frame is `Loaded` or `LoadFailed`.

        `board_fd`, of the scoreboard, stays the caller's. Of `environ`, after it is `scrubbed`, it gets the variables
        that it lacks. Raises `OSError` if no descriptor is to be had.
        """
        linux.share_open_files(self.pid)  # it may have begun before this process raised its own
        with contextlib.suppress(ConnectionError):
            self._tell(config, environ, board_fd)

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
                log.error(
                    "a fork server is killed, for what it says is not understood", extra={"fields": {"why": str(error)}}
                )
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

        Kills one that has not ended `HANG_UP_LIMIT_S` seconds after `close`: it may be stopped, or hang in a hook.
        """
        status = self._process.poll()
        if status is None and time.monotonic() - self._hung_up_at > HANG_UP_LIMIT_S:
            self.kill()
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
            self._killed_at = min(self._killed_at, time.monotonic())
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Hang up: it kills its children, groups and strays, and exits; `poll()` tells when. Safe to call twice."""
        self.closed = True
        self._hung_up_at = min(self._hung_up_at, time.monotonic())
        self._outbox.close()
        self._control.close()

    def discard(self) -> None:
        """End it, if it has not ended. Blocks until it is dead, some milliseconds."""
        self.close()
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it (state D); then init collects it
            self.wait(UNDEAD_AFTER_S)
        self.output.close()
