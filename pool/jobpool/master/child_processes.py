"""The I/O of all fork servers and children: carries out what the plan asks, and turns what comes back into events."""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from jobpool.ipc import frames, linux, packets
from jobpool.ipc.child_channel import MAX_FRAMES_AHEAD, BrokenChannelError, ChildChannel
from jobpool.ipc.fork_client import ForkServerClient
from jobpool.ipc.frames import Ask, Exited, Frame, Reply, Result
from jobpool.ipc.process_options import ForkServerConfig
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master import events as ev
from jobpool.master.slots import Slot
from jobpool.message.masking import Masker

LONG_RUN_S = 0.0002  # of an attempt; right after a longer one the next answer is not there yet
FRAMES_AT_ONCE = 128  # frames read from one child before the others get their turn
FRAMES_OF_THE_DEAD = 2048  # more than a dead child's channel holds, so that a result is found after any flood

DRAIN_EVERY_S = 0.05
"""Seconds between two looks for full output pipes while user code runs: for how long a writer may have to wait."""
DRAIN_EARLY_S = 0.02  # so much earlier they are looked for in a turn that comes anyway, which saves a turn of its own
DRAIN_FLOOD_EVERY_S = 0.001  # the same while one is full: some hundred MiB a second, in little of the master's time
COLLECT_EVERY_S = 0.02  # seconds between two looks for the dead of a fork server that has died
FORK_SERVER_STOP_S = 1.0  # that a fork server gets to end by itself when the pool does
SWEEP_LIMIT_S = 0.5  # seconds for killing what a dead fork server's children left behind

ORPHANED = "the pool: its fork server has died"
_KILLERS = {True: "the kernel: out of memory", False: "outside, or its own code", None: "outside, or the kernel"}


class ChildProcesses:
    """The fork servers and children of a pool, and their channels. `poll` gathers their events; only it waits."""

    def __init__(
        self,
        config: ForkServerConfig,
        board: Scoreboard,
        environ: Mapping[str, str],
        begun: ForkServerClient | None = None,
    ) -> None:
        """Look at what this process has for children. `begun`: the first fork server; it stays the caller's."""
        self._config = config
        self._board = board
        self._environ = environ
        self._poll = select.epoll()
        self._readers: dict[int, Callable[[], list[ev.Event]]] = {}
        self._channels: dict[int, ChildChannel] = {}
        self._servers: dict[int, ForkServerClient] = {}
        self._ended: dict[int, ForkServerClient] = {}
        self._begun = begun if begun is not None and begun.has_only(environ) else None
        self._not_ours = linux.direct_children()
        self._dead: set[int] = set()  # strays, at the last look
        self._oom_kills = linux.OomKills(linux.find_oom_kills())
        self._drain_at = math.inf
        self._flooded: list[ChildChannel] = []  # whose output pipes were full at the last look

    def watch(self, fd: int, reader: Callable[[], list[ev.Event]]) -> None:
        """Call `reader` from `poll` whenever `fd` can be read."""
        self._poll.register(fd, select.EPOLLIN)  # first: `unwatch` takes out what is registered only
        self._readers[fd] = reader

    def unwatch(self, fd: int) -> None:
        if self._readers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def poll(self, timeout: float) -> list[ev.Event]:
        """Sleep until something comes, `timeout` seconds at most; return what came."""
        if self._ended:
            timeout = min(timeout, COLLECT_EVERY_S)
        if timeout > 0:
            timeout = min(timeout, self._drain_at - time.monotonic())
        events: list[ev.Event] = []
        # After a SIGSTOP longer than the wait, the wait returns nothing, whatever has come. Without a second look the
        # loop could kill a child whose result it has not read yet.
        ready = self._poll.poll(max(0.0, timeout))
        if timeout > 0 and not ready:
            ready = self._poll.poll(0.0)
        for fd, _ in ready:
            if reader := self._readers.get(fd):
                events.extend(reader())
        if self._ended:
            events.extend(self._collect())
        if time.monotonic() >= self._drain_at - (0.0 if self._flooded else DRAIN_EARLY_S):
            self._drain()
        return events

    def _drain(self, idle_too: bool = False) -> None:
        flooded, channels = self._flooded, self._channels.values()
        looked = [channel for channel in channels if channel.may_print or idle_too or channel in flooded]
        self._flooded = [channel for channel in looked if channel.drain_output()]
        runs = self._flooded or any(channel.may_print for channel in looked)
        pause = DRAIN_FLOOD_EVERY_S if self._flooded else DRAIN_EVERY_S
        self._drain_at = time.monotonic() + pause if runs else math.inf

    def _drain_soon(self) -> None:
        self._drain_at = min(self._drain_at, time.monotonic() + DRAIN_EVERY_S)

    def start_server(self, generation: int) -> None:
        server, self._begun = self._begun or ForkServerClient(self._environ), None
        try:
            server.tell(self._config, self._board.fd, self._environ)
        except OSError:
            server.discard()
            raise
        self._servers[generation] = server
        self.watch(server.fileno(), lambda: self._read_server(generation, server))
        self.watch(server.output.fd, lambda: self._read_output(server))

    def _read_output(self, server: ForkServerClient) -> list[ev.Event]:
        """Return what a fork server, or its app while it is imported, has printed."""
        said: list[ev.Event] = [ev.AppSaid(line) for line in server.output.read()]
        if server.output.ended:
            self.unwatch(server.output.fd)
        return said

    def end_server(self, generation: int, kill: bool = False) -> None:
        """Hang up, or kill it and its children; what is left of them is collected by `poll`."""
        for channel in self._of(generation) if kill else ():
            channel.signal(signal.SIGKILL)
        if server := self._servers.pop(generation, None):
            self.unwatch(server.fileno())
            server.close()
            self._ended[generation] = server
            if kill or not server.has_loaded:
                server.kill()  # before it has loaded, it may hang in the import, where it hears nothing

    def _read_server(self, generation: int, server: ForkServerClient) -> list[ev.Event]:
        said = server.receive()
        events = self._read_output(server)  # printed before it was said that the import failed
        events += [event for frame, fds in said for event in self._server_said(generation, frame, fds)]
        if server.closed:
            self.end_server(generation)
            server.kill()
            events.append(ev.ForkServerGone(generation))
        return events

    def _server_said(self, generation: int, frame: Frame, fds: list[int]) -> list[ev.Event]:
        match frame:
            case Exited():
                return self._died(frame)
            case frames.Spawned():
                return self._spawned(generation, frame, fds)
            case frames.SpawnFailed(child):
                self.forget(child)
        return [ev.FrameCame(generation, frame)]

    def _collect(self) -> list[ev.Event]:
        """Collect the children of fork servers that have died, which this process has adopted."""
        events: list[ev.Event] = []
        for generation, server in list(self._ended.items()):
            gone = server.poll() is not None
            if not gone and not server.is_undead:
                continue
            for channel in self._of(generation):
                died = self._collect_orphan(channel) if gone else []
                if not died and channel.pid and channel.has_ended():  # its fork server or a debugger holds it
                    died = self._died(Exited(channel.child, channel.pid, None, signal.SIGKILL), ORPHANED)
                events += died
            if gone and not self._of(generation):
                del self._ended[generation]
                events += self._read_output(server)
                self.unwatch(server.output.fd)
                server.output.close()
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
        return self._died(Exited.from_exit(child, pid, status, usage), ORPHANED)

    def _kept(self) -> set[int]:
        """Return the children of this process that are not strays."""
        servers = {server.pid for server in (*self._servers.values(), *self._ended.values())}
        return self._not_ours | servers | {channel.pid for channel in self._channels.values()}

    def _sweep(self) -> None:
        linux.sweep_strays(self._kept(), SWEEP_LIMIT_S)

    def _collect_adopted(self) -> None:
        """Collect what processes from elsewhere have left to process 1, as a probe does that is killed at its timeout.

        Libraries collect their own subprocesses at once. So only what was dead at the last look too is collected.
        """
        dead = set(filter(linux.is_dead, linux.direct_children() - self._kept()))
        for pid in dead & self._dead:
            linux.collect(pid)
        self._dead = dead

    def spare(self, pid: int) -> None:
        """Do not kill this subprocess when sweeping orphans."""
        self._not_ours.add(pid)

    def spare_no_more(self, pid: int) -> None:
        """Sweep for what this subprocess has left behind: it was collected."""
        self._not_ours.discard(pid)
        self._sweep()

    def spawn(self, slot: Slot) -> None:
        """Ask for the child of `slot`. Raises `OSError`: its fork server is gone, or no descriptor is to be had."""
        server = self._servers.get(slot.generation)
        if server is None:
            raise OSError("the fork server is gone")
        channel = ChildChannel(slot.child, self._config.options.output_cap, slot.index, slot.generation)
        self._channels[slot.child] = channel
        try:
            server.spawn(slot.child, slot.index, channel.fds)
            channel.born()
            self._listen(channel)
        except OSError:
            self.forget(slot.child)
            raise
        self._drain_soon()

    def _listen(self, channel: ChildChannel) -> None:
        self.watch(channel.fileno(), lambda: self._read_child(channel))

    def _spawned(self, generation: int, born: frames.Spawned, fds: list[int]) -> list[ev.Event]:
        channel = self._channels.get(born.child)
        if channel is None:
            packets.close_all(fds)
            return []
        if not fds:  # without a pidfd it could not be killed: it ends when its channel does
            self.forget(born.child)
            why = "there is no free file descriptor for it: raise `ulimit -n`"
            return [ev.FrameCame(generation, frames.SpawnFailed(born.child, why))]
        channel.bear(born.pid, fds[0])
        packets.close_all(fds[1:])
        self.watch(channel.pidfd, lambda: self._child_ended(channel))
        return [ev.FrameCame(generation, born)]

    def _child_ended(self, channel: ChildChannel) -> list[ev.Event]:
        if not channel.has_ended():  # what can be read was another's, whose number this descriptor has got since
            return []
        self.unwatch(channel.pidfd)
        return [ev.ChildEnded(channel.child)]

    def _read_child(self, channel: ChildChannel, to_the_end: bool = False) -> list[ev.Event]:
        """Return what the child has said. Stop after its last answer, or one of a long job: nothing follows at once.

        A child that has asked for something is read again only once it was answered. So it makes one call of the broker
        at a time, and settlements get their turn. Requests of a dead child are dropped.
        """
        events: list[ev.Event] = []
        results: list[Result] = []
        try:
            for _ in range(FRAMES_OF_THE_DEAD if to_the_end else FRAMES_AT_ONCE):
                frame = channel.receive()
                if type(frame) is Result:
                    if channel.dropped:
                        frame.output = channel.note_dropped(frame.output)
                    if not results:
                        events.append(ev.ChildResults(channel.child, results))
                    results.append(frame)
                    ended = frame.started + frame.duration
                    is_last = not channel.handed or (
                        frame.duration > LONG_RUN_S and time.monotonic() < ended + LONG_RUN_S
                    )
                    if is_last and not to_the_end:
                        break
                    continue
                if frame is None:
                    break
                if to_the_end and type(frame) is Ask:
                    continue
                events.append(ev.FrameCame(channel.child, frame))
                results = []  # what comes after this is told after it
                if channel.is_asking and not to_the_end:
                    self.unwatch(channel.fileno())
                    break
        except BrokenChannelError as error:
            self.unwatch(channel.fileno())
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
        # Text printed to its streams was sent line by line; text printed past them comes now.
        options = self._config.options
        if said[1] and options.lines_level <= logging.INFO:
            lines = Masker(options.mask_keys).text(said[1]).splitlines()
            events += [ev.FrameCame(child, frames.Said(started, logging.INFO, line)) for line in lines]
        if exited.signal == signal.SIGKILL and not killer:
            killer = _KILLERS[self._oom_kills.killed_one(time.monotonic())]
        rest, deadline = channel.take_rest(), page.child.read().deadline
        events.append(ev.ChildDied(exited, started, rest, stack, output, killer, deadline))
        self.forget(child)
        return events

    def forget(self, child: int) -> None:
        if channel := self._channels.pop(child, None):
            self.unwatch(channel.fileno())
            self.unwatch(channel.pidfd)
            channel.close()

    def write_runs(self, slot: Slot, runs: Iterable[tuple[int, bytes]]) -> int:
        """Write attempts, as `ChildChannel.hand` does; return how many were written."""
        channel = self._channels.get(slot.child)
        if channel is None:
            return 0
        if self._drain_at == math.inf:
            self._drain_soon()
        return channel.write_runs(runs)

    def take_back(self, slot: Slot, most: int = MAX_FRAMES_AHEAD) -> ev.TookBack:
        channel = self._channels.get(slot.child)
        nonces = channel.take_back(most) if channel else frozenset()
        return ev.TookBack(slot.child, nonces, emptied=len(nonces) < most)

    def steal(self, slot: Slot, most: int) -> ev.TookBack | ev.NotBegun:
        """Take back as `take_back` does, if the child has begun the head."""
        if slot.deliveries and self._board.slot(slot.index).child.nonce != slot.deliveries[0].nonce:
            return ev.NotBegun(slot.child)
        return self.take_back(slot, most)

    def retire(self, slot: Slot) -> None:
        if channel := self._channels.get(slot.child):
            channel.retire()

    def signal(self, slot: Slot, number: int) -> None:
        if channel := self._channels.get(slot.child):
            channel.signal(number)

    def cancel(self, slot: Slot) -> None:
        """Let the child's alarm raise `Cancelled`, if it has begun the head."""
        if slot.deliveries:  # not taken back since the loop decided it
            self._board.slot(slot.index).cancel(slot.deliveries[0].nonce)
            self.signal(slot, signal.SIGALRM)

    def reply(self, child: int, reply: Reply) -> None:
        if (channel := self._channels.get(child)) and channel.is_asking:
            channel.reply(reply)
            self._listen(channel)

    def has_stack(self, slot: Slot) -> bool:
        """Return whether the child's fault handler has written since the last `stack`; True if there is no child."""
        channel = self._channels.get(slot.child)
        return channel is None or channel.has_trace

    def stack(self, slot: Slot) -> str:
        channel = self._channels.get(slot.child)
        return channel.read_trace() if channel else ""

    def housekeep(self) -> None:
        """Empty idle children's output pipes, where a process left behind may print, and collect; once a second."""
        self._oom_kills.look(time.monotonic())
        self._drain(idle_too=True)
        if os.getpid() == 1:
            with suppress(OSError):  # no descriptor is to be had now
                self._collect_adopted()

    def close(self) -> None:
        """End every fork server and let go of everything. Blocks until they are dead, some milliseconds."""
        for generation in list(self._servers):
            self.end_server(generation)
        for server in self._ended.values():
            with suppress(subprocess.TimeoutExpired):
                server.wait(FORK_SERVER_STOP_S)
            server.discard()
        self._ended.clear()
        for child in list(self._channels):
            self.forget(child)
        self._sweep()
        self._poll.close()
