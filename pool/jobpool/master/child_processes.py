"""The I/O of all fork servers and children: carries out what the plan asks, and turns what comes back into events."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from jobpool.ipc import linux, packets
from jobpool.ipc.child_channel import BrokenChannelError, ChildChannel
from jobpool.ipc.fork_client import ForkServerClient
from jobpool.ipc.frames import (
    Ask,
    BootFailed,
    Exited,
    Frame,
    Loaded,
    LoadFailed,
    Ready,
    Reply,
    Result,
    Spawned,
    SpawnFailed,
    run_packet,
    with_ticket,
)
from jobpool.ipc.process_options import ForkServerConfig
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master import events as ev
from jobpool.master.slots import Delivery, Slot

FRAMES_AT_ONCE = 128
"""Frames read from one child before the others get their turn."""

FRAMES_OF_THE_DEAD = 2048
"""Frames read from a dead child's channel: more than it holds, so that a result is found after any flood."""

DRAIN_EVERY_S = 0.05
"""Seconds between two looks for full output pipes while user code runs: for how long a writer may have to wait."""

DRAIN_FLOOD_EVERY_S = 0.001
"""The same while one is full: some hundred MiB a second, of a small part of the master's time."""

COLLECT_EVERY_S = 0.02
"""Seconds between two looks for the dead of a fork server that has died."""

END_LIMIT_S = 1.0
"""Seconds that a fork server gets to end by itself when the pool does, and again when it was killed."""

SWEEP_LIMIT_S = 0.5
"""Seconds for killing what a dead fork server's children left behind."""


ORPHANED = "the pool: its fork server has died"
_KILLERS = {True: "the kernel: out of memory", False: "outside", None: "outside, or the kernel"}


class ChildProcesses:
    """See the module. `events()` are gathered by `poll`; nothing here waits but `poll`."""

    def __init__(self, config: ForkServerConfig, board: Scoreboard, environ: Mapping[str, str]) -> None:
        self._config = config
        self._board = board
        self._environ = environ
        self._poll = select.epoll()
        self._readers: dict[int, Callable[[], list[ev.Event]]] = {}
        self._channels: dict[int, ChildChannel] = {}
        self._servers: dict[int, ForkServerClient] = {}
        self._ended: dict[int, ForkServerClient] = {}
        self._not_ours = linux.direct_children()
        self._oom_kills = linux.OomKills(linux.find_oom_kills())
        self._drain_at = math.inf

    # --- waiting ------------------------------------------------------------------------------------

    def watch(self, fd: int, reader: Callable[[], list[ev.Event]]) -> None:
        """Call `reader` from `poll` whenever `fd` can be read."""
        self._readers[fd] = reader
        self._poll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """The reverse of `watch`, before `fd` is closed."""
        if self._readers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def poll(self, timeout: float) -> list[ev.Event]:
        """Sleep until something comes, `timeout` seconds at most; what came."""
        if self._ended:
            timeout = min(timeout, COLLECT_EVERY_S)
        if timeout > 0:
            timeout = min(timeout, self._drain_at - time.monotonic())
        events: list[ev.Event] = []
        # Who was stopped (SIGSTOP) for longer than its wait comes back from it with nothing, whatever has come in the
        # meantime, and would kill a child for a result that it has not read: it looks again.
        for fd, _ in self._poll.poll(max(0.0, timeout)) or self._poll.poll(0.0):
            reader = self._readers.get(fd)
            if reader is not None:
                events.extend(reader())
        if self._ended:
            events.extend(self._collect())
        if time.monotonic() >= self._drain_at:
            self._drain()
        return events

    def _drain(self) -> None:
        """Empty the full output pipes; look again while user code runs anywhere."""
        flooded = [channel for channel in self._channels.values() if channel.drain_output()]
        runs = flooded or any(channel.may_print for channel in self._channels.values())
        pause = DRAIN_FLOOD_EVERY_S if flooded else DRAIN_EVERY_S
        self._drain_at = time.monotonic() + pause if runs else math.inf

    def _drain_soon(self) -> None:
        if self._drain_at == math.inf:
            self._drain_at = time.monotonic() + DRAIN_EVERY_S

    # --- fork servers -------------------------------------------------------------------------------

    def start_server(self, generation: int) -> None:
        server = ForkServerClient.start(self._config, self._board.fd, self._environ)
        self._servers[generation] = server
        self.watch(server.fileno(), lambda: self._read_server(generation, server))

    def end_server(self, generation: int) -> None:
        """Hang up; what is left of it and its children is collected by `poll`."""
        server = self._servers.pop(generation, None)
        if server is not None:
            self.unwatch(server.fileno())
            server.close()
            self._ended[generation] = server
            if not server.has_loaded:
                server.kill()  # it may hang in the import, where it hears nothing

    def kill_server(self, generation: int) -> None:
        """Kill it and its children; they are collected by `poll`."""
        server = self._servers.get(generation)
        self.end_server(generation)
        for channel in self._of(generation):
            channel.signal(signal.SIGKILL)
        if server is not None:
            server.kill()

    def _read_server(self, generation: int, server: ForkServerClient) -> list[ev.Event]:
        events: list[ev.Event] = []
        for frame, fds in server.receive():
            events.extend(self._server_said(generation, frame, fds))
        if server.closed:
            self.end_server(generation)
            server.kill()
            events.append(ev.ForkServerGone(generation))
        return events

    def _server_said(self, generation: int, frame: Frame, fds: list[int]) -> list[ev.Event]:
        match frame:
            case Spawned(child, pid):
                return self._spawned(child, pid, fds)
            case Exited():
                return self._died(frame)
            case SpawnFailed(child, error):
                self.forget(child)
                return [ev.SpawnRefused(child, error)]
            case Loaded(handlers, preloaded, threads, seconds):
                return [ev.AppLoaded(generation, handlers, preloaded, threads, seconds)]
            case LoadFailed(error, trace):
                return [ev.AppFailed(generation, error, trace)]
            case _:
                return []

    def _collect(self) -> list[ev.Event]:
        """The children of fork servers that have died: this process adopts and collects them."""
        events: list[ev.Event] = []
        for generation, server in list(self._ended.items()):
            gone = server.poll() is not None
            if not gone and not server.is_undead:
                continue
            for channel in self._of(generation):
                events.extend(self._collect_orphan(channel) if gone else self._bury(channel))
            if gone and not self._of(generation):
                del self._ended[generation]
                self._sweep()
        return events

    def _of(self, generation: int) -> list[ChildChannel]:
        return [channel for channel in self._channels.values() if channel.generation == generation]

    def _collect_orphan(self, channel: ChildChannel) -> list[ev.Event]:
        child, pid = channel.child, channel.pid
        if not (pid and linux.is_child(pid)):  # the fork server had collected it: the pid may be another's by now
            return self._died(Exited(child, pid, None, signal.SIGKILL), ORPHANED)
        linux.kill_group(pid)
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if not done:
            return []
        exited = _exited(child, pid, status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
        return self._died(exited, ORPHANED)

    def _bury(self, channel: ChildChannel) -> list[ev.Event]:
        """Take the end of a process for its death: its fork server can neither collect it nor leave it to us."""
        if not channel.pid or not channel.has_ended():
            return []
        return self._died(Exited(channel.child, channel.pid, None, signal.SIGKILL), ORPHANED)

    def _sweep(self) -> None:
        servers = {server.pid for server in (*self._servers.values(), *self._ended.values())}
        ours = servers | {channel.pid for channel in self._channels.values()}
        linux.sweep_strays(self._not_ours | ours, SWEEP_LIMIT_S)

    def spare(self, pid: int) -> None:
        """Do not kill this subprocess when sweeping orphans."""
        self._not_ours.add(pid)

    def spare_no_more(self, pid: int) -> None:
        """Sweep for what this subprocess has left behind: it was collected."""
        self._not_ours.discard(pid)
        self._sweep()

    # --- children -----------------------------------------------------------------------------------

    def spawn(self, slot: Slot) -> None:
        """Ask for the child that `slot` was marked with.

        Raises:
            OSError: Its fork server is gone, or no descriptor is to be had.
        """
        server = self._servers.get(slot.generation)
        if server is None:
            raise OSError("the fork server is gone")
        child = slot.child
        channel = ChildChannel(child, self._config.options.output_cap, slot.index, slot.generation)
        self._channels[child] = channel
        server.spawn(child, slot.index, channel.fds)
        channel.born()
        self._listen(channel)
        self._drain_soon()

    def _listen(self, channel: ChildChannel) -> None:
        self.watch(channel.channel.fileno(), lambda: self._read_child(channel))

    def _spawned(self, child: int, pid: int, fds: list[int]) -> list[ev.Event]:
        channel = self._channels.get(child)
        if channel is None:
            packets.close_all(fds)
            return []
        if not fds:  # without a pidfd it could not be killed: it ends when its channel does
            self.forget(child)
            return [ev.SpawnRefused(child, "there is no free file descriptor for it: raise `ulimit -n`")]
        channel.bear(pid, fds[0])
        packets.close_all(fds[1:])
        self.watch(channel.pidfd, lambda: self._child_ended(channel))
        return [ev.ChildSpawned(child, pid)]

    def _child_ended(self, channel: ChildChannel) -> list[ev.Event]:
        if not channel.has_ended():  # what can be read was another's, whose number this descriptor has got since
            return []
        self.unwatch(channel.pidfd)
        return [ev.ChildEnded(channel.child)]

    def _read_child(self, channel: ChildChannel, to_the_end: bool = False) -> list[ev.Event]:
        """Return what the child has said; after its last answer nothing is expected, and a look in vain is saved.

        A child that has asked is not listened to until it was answered: however much it asks, the broker is asked once
        at a time for it, and settlements have their turn. Nobody waits for what the dead have asked.
        """
        events: list[ev.Event] = []
        try:
            for _ in range(FRAMES_OF_THE_DEAD if to_the_end else FRAMES_AT_ONCE):
                frame = channel.receive()
                if frame is None:
                    break
                if to_the_end and type(frame) is Ask:
                    continue
                if channel.dropped and type(frame) is Result:
                    frame.output = channel.tell_dropped(frame.output)
                events.append(_child_said(channel.child, frame))
                if channel.is_asking and not to_the_end:
                    self.unwatch(channel.channel.fileno())
                    break
                if type(frame) is Result and not (channel.is_busy or to_the_end):
                    break
        except BrokenChannelError as error:
            self.unwatch(channel.channel.fileno())
            events.append(ev.ChildBroken(channel.child, str(error), error.closed))
        return events

    def _died(self, exited: Exited, killer: str = "") -> list[ev.Event]:
        """Drain the channel of a collected child: a complete answer counts. Then let go of it."""
        child = exited.child
        channel = self._channels.get(child)
        if channel is None:
            return []
        events: list[ev.Event] = [e for e in self._read_child(channel, True) if not isinstance(e, ev.ChildBroken)]
        page = self._board.slot(channel.slot)
        started = page.child.nonce
        said = page.printed.read(started).rstrip("\n"), channel.read_output()
        stack, output = channel.read_trace(), "\n".join(filter(None, said))
        if exited.signal == signal.SIGKILL and not killer:
            killer = _KILLERS[self._oom_kills.killed_one(time.monotonic())]
        events.append(ev.ChildDied(child, exited, started, channel.take_back(), stack, output, killer))
        self.forget(child)
        return events

    def forget(self, child: int) -> None:
        """Close what is held of a child."""
        channel = self._channels.pop(child, None)
        if channel is not None:
            self.unwatch(channel.channel.fileno())
            self.unwatch(channel.pidfd)
            channel.close()

    def hand(self, slot: Slot, delivery: Delivery, ticket: bytes = b"") -> bool:
        """Write the attempt, with the ticket to ack it, if any; False: the socket is full, nothing was written."""
        channel = self._channels.get(slot.child)
        if channel is None:
            return False
        lease = delivery.lease
        run = run_packet(delivery.nonce, lease.deliveries, lease.attempts, lease.crashes, delivery.timeout, lease.body)
        self._drain_soon()
        return channel.hand(delivery.nonce, with_ticket(run, ticket) if ticket else run)

    def take_back(self, slot: Slot) -> ev.TookBack:
        channel = self._channels.get(slot.child)
        return ev.TookBack(slot.child, channel.take_back() if channel else frozenset())

    def retire(self, slot: Slot) -> None:
        channel = self._channels.get(slot.child)
        if channel is not None:
            channel.retire()

    def signal(self, slot: Slot, number: int) -> None:
        channel = self._channels.get(slot.child)
        if channel is not None:
            channel.signal(number)

    def reply(self, child: int, reply: Reply) -> None:
        channel = self._channels.get(child)
        if channel is not None and channel.is_asking:
            channel.reply(reply)
            self._listen(channel)

    def has_stack(self, slot: Slot) -> bool:
        """Return whether the child's fault handler has written since the last `stack`; True if there is no child."""
        channel = self._channels.get(slot.child)
        return channel is None or channel.has_trace

    def stack(self, slot: Slot) -> str:
        """Read what the child's fault handler has written since the last look."""
        channel = self._channels.get(slot.child)
        return channel.read_trace() if channel else ""

    def bound_outputs(self) -> None:
        """Empty the output pipes of idle children too, where a process left behind may print; about once a second."""
        self._oom_kills.look(time.monotonic())
        self._drain()

    def close(self) -> None:
        """End every fork server and let go of everything. Blocks until they are dead, some milliseconds."""
        for generation in list(self._servers):
            self.end_server(generation)
        for server in self._ended.values():
            _await_end(server)
        self._ended.clear()
        for child in list(self._channels):
            self.forget(child)
        self._sweep()
        self._poll.close()


def _await_end(server: ForkServerClient) -> None:
    try:
        server.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        with suppress(subprocess.TimeoutExpired):  # it dies as soon as the kernel lets go of it, and init collects it
            server.wait(END_LIMIT_S)


def _child_said(child: int, frame: Frame) -> ev.Event:
    match frame:
        case Result():
            return ev.ChildResult(child, frame)
        case Ready():
            return ev.ChildReady(child)
        case Ask():
            return ev.ChildAsked(child, frame)
        case BootFailed(error):
            return ev.ChildBootFailed(child, error)
        case _:
            raise BrokenChannelError(f"a child sent {type(frame).__name__}")


def _exited(child: int, pid: int, status: int, cpu: float, peak: int) -> Exited:
    signalled = os.WIFSIGNALED(status)
    return Exited(
        child,
        pid,
        code=None if signalled else os.WEXITSTATUS(status),
        signal=os.WTERMSIG(status) if signalled else None,
        core=os.WCOREDUMP(status),
        cpu_seconds=cpu,
        peak_rss=peak,
    )
