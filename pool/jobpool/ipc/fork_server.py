"""The fork server's loop: fork on request, collect the dead with all that they left behind, end with the master.

One poll over the control socket and one pidfd a child, and no pid that could be another's. The end of the control
socket is the master's end; then every child, its group and every stray is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Collection
from select import POLLIN, POLLOUT, poll  # by name: an app's `monkey_patch` takes it out of the module

from jobpool.ipc import linux, packets, postfork
from jobpool.ipc.frames import BadFrame, Exited, Spawn, Spawned, SpawnFailed, decode
from jobpool.ipc.inheritance import Inheritance
from jobpool.ipc.packets import Outbox
from jobpool.ipc.process_options import ASKS_STACK, ChildOptions
from jobpool.ipc.scoreboard import ChildPage, ChildPages

SWEEP_LIMIT_S = 1.0  # for which one sweep may hold the loop up; the rest is tried again every `RESWEEP_EVERY_S`
SHORT_SWEEP_S = 0.05  # while something is left from the sweep before, which may not die for long (state D)
RESWEEP_EVERY_S = 1.0
LAST_SWEEP_LIMIT_S = 5.0
DEBUGGER_S = 0.1  # that the debugger of a dead child gets to see the death first
FORK_LIMIT_S = 15.0  # of one fork, the app's own at-fork hooks included; the master is less patient, if it lives
_REQUESTS_AT_ONCE = 64


class ForkServer:
    """The children of one fork server."""

    def __init__(
        self,
        control: socket.socket,
        pages: ChildPages,
        options: ChildOptions,
        child_main: postfork.ChildMain,
        inheritance: Inheritance,
    ) -> None:
        control.setblocking(False)
        self._control = control
        self._outbox = Outbox(control)
        self._pages = pages
        self._options = options
        self._main = child_main
        self._inheritance = inheritance
        self._children: dict[int, Spawned] = {}  # by pidfd, those not collected yet
        self._left_alone = linux.direct_children()  # of the app's import; and the dead that a debugger holds
        self._trackers: dict[int, float] = {}  # resource trackers of the dead, and when they are strays like others
        self._strays_left = False
        self._master_gone = False
        self._pid, self._master = os.getpid(), os.getppid()
        self._poll = poll()
        self._poll.register(control, POLLIN)

    def run(self) -> None:
        """Serve until the master is gone; nothing of the pool is alive below this process afterwards."""
        try:
            with contextlib.suppress(ConnectionError):
                while not self._master_gone:
                    self._turn()
        finally:
            self._end()

    def end_with_master(self) -> None:
        """End at once if the master has; else do nothing. For a signal handler: the interrupted code may hang."""
        if os.getpid() == self._pid and os.getppid() != self._master:
            self._end()
            os._exit(0)

    def _turn(self) -> None:
        wait = RESWEEP_EVERY_S * 1000 if self._strays_left else None
        ready = dict(self._poll.poll(wait))
        control = ready.pop(self._control.fileno(), 0)
        if ready or self._strays_left:
            self._collect(ready)
        if control & POLLOUT:
            self._outbox.flush()
        if control & ~POLLOUT:
            self._read()
        waiting = POLLOUT if self._outbox else 0
        self._poll.modify(self._control, POLLIN | waiting)

    def _read(self) -> None:
        for _ in range(_REQUESTS_AT_ONCE):
            try:
                got = packets.recv(self._control)
            except BlockingIOError:
                return
            if got is None:
                self._master_gone = True
                return
            packet, fds = got
            try:
                frame = decode(packet)
                if not isinstance(frame, Spawn):
                    raise BadFrame(f"{type(frame).__name__} is not for a fork server")
                self._spawn(frame, fds)
            finally:
                packets.close_all(fds)

    def _spawn(self, frame: Spawn, fds: list[int]) -> None:
        if len(fds) != 4 or not 0 <= frame.slot < self._pages.slots:
            raise BadFrame(f"a Spawn for slot {frame.slot} with {len(fds)} descriptors")
        try:
            with self._pages.mapped(frame.slot) as page:
                pid, pidfd = self._fork(frame, fds, page)
        except OSError as error:  # EAGAIN (too many processes), ENOMEM, EMFILE (no pidfd)
            self._outbox.send(SpawnFailed(frame.child, f"the child could not be forked: {error}").encode())
            return
        spawned = self._children[pidfd] = Spawned(frame.child, pid)
        self._poll.register(pidfd, POLLIN)
        self._outbox.send(spawned.encode(), [pidfd])

    def _fork(self, spawn: Spawn, fds: list[int], page: ChildPage) -> tuple[int, int]:
        # Not the board's descriptor: a handler may write to every descriptor that it finds, and the child has its page.
        self._inheritance.keep = {0, 1, 2, *fds}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {ASKS_STACK})
        pid = -1
        signal.setitimer(signal.ITIMER_REAL, FORK_LIMIT_S)  # its signal ends this process, also where a hook is in C
        try:
            pid = os.fork()
        finally:
            self._inheritance.keep = None
            if pid:  # the child unblocks it itself, and has no timer
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if pid == 0:
            self._control.detach()  # closed already; its number may be another's by now
            boot = (spawn, fds, page, self._options, self._pid, self._inheritance)
            postfork.live(lambda: self._main(postfork.settle_in(*boot)))
        with contextlib.suppress(PermissionError, ProcessLookupError):  # the child was faster: executed, or dead
            os.setpgid(pid, pid)  # on both sides, so that it holds before either goes on
        try:
            return pid, os.pidfd_open(pid)
        except OSError:
            linux.kill(pid)
            os.waitpid(pid, 0)
            raise

    def _collect(self, dead: Collection[int]) -> None:
        """Kill the groups of the dead, sweep, and only then free their pids; so no pid or group can be another's."""
        self._left_alone = {pid for pid in self._left_alone if not linux.collect(pid)}
        ours = {child.pid for child in self._children.values()} | self._left_alone
        spared = self._spare_trackers(linux.direct_children() - ours)
        groups = set(map(os.getpgid, spared))  # the others in them are killed one by one
        for pidfd in dead:
            if self._children[pidfd].pid not in groups:
                linux.kill_group(self._children[pidfd].pid)
        limit = SHORT_SWEEP_S if self._strays_left else SWEEP_LIMIT_S
        begun = time.monotonic()
        linux.sweep_strays(ours, limit, self._spare_trackers)
        self._strays_left = bool(self._trackers) or time.monotonic() - begun >= limit
        for pidfd in dead:
            self._outbox.send(self._collected(pidfd).encode())

    def _spare_trackers(self, strays: set[int]) -> set[int]:
        """Return the resource trackers among `strays` whose time is not over: they are killed at the first sweep then.

        New ones come from a child that has died. Others were forked by what merely called itself a tracker.
        """
        now, trackers = time.monotonic(), linux.resource_trackers(strays)
        is_new = trackers and any(linux.is_dead(child.pid) for child in self._children.values())
        until = now + linux.TRACKER_S if is_new else now
        self._trackers = {pid: self._trackers.get(pid, until) for pid in trackers}
        return {pid for pid, end in self._trackers.items() if now < end}

    def _collected(self, pidfd: int) -> Exited:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        child = self._children.pop(pidfd)
        give_up = time.monotonic() + DEBUGGER_S
        while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
            if time.monotonic() >= give_up:  # its debugger stands at a prompt: until it goes on, nobody can collect it
                self._left_alone.add(child.pid)
                return Exited(child.child, child.pid, None, signal.SIGKILL)
            time.sleep(0.001)
        return Exited.from_exit(child.child, *ended)

    def _end(self) -> None:
        linux.close_all_but({0, 1, 2, self._control.fileno()})  # a pipe to the app's resource tracker among them
        for child in self._children.values():
            kill = linux.kill if _has_tracker(child.pid) else linux.kill_group  # as long as it is in its group
            kill(child.pid)
        linux.sweep_all(LAST_SWEEP_LIMIT_S)
        self._outbox.close()


def _has_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return bool(linux.resource_trackers(linux.direct_children(pid)))
    return False
