"""Messages of the pool to systemd, if that has started it: ready, reloading, stopping, a line of status, the watchdog.

The protocol is sd_notify(3): datagrams of `NAME=value` lines to the socket that `NOTIFY_SOCKET` names. The thread that
sends them reads the scoreboard as `top` does, so a master that hangs feeds no watchdog.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from jobpool.cli.progress import done, progress
from jobpool.ipc.board_layout import STOPS, HeaderView
from jobpool.message.printable import one_line
from jobpool.ops.runtime_dir import PoolFile
from jobpool.ops.top import PoolSample
from jobpool.telemetry.metrics.pages import live, ready

WATCHDOG_LOOK_S = 0.5  # seconds; at least four looks for each period of the watchdog
COUNTS_EVERY_S = 10.0  # seconds between two lines of status that differ by their counts alone
MICROSECONDS = 1_000_000


class Manager(Struct, frozen=True):
    """A service manager that waits for messages."""

    address: str  # of its datagram socket: a path, or a name after `@`
    watchdog: float = 0.0  # seconds without a message after which it takes the pool for dead; 0 = never

    def send(self, lines: list[str]) -> None:
        """Send one message; one that cannot be sent is left out. Never blocks."""
        name = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), name)


def take_manager(environment: MutableMapping[str, str]) -> Manager | None:
    """Take the manager's variables out of the environment: they are for this process alone. None = there are none."""
    taken = {name: environment.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")}
    if not taken["NOTIFY_SOCKET"].startswith(("/", "@")):
        return None
    is_ours = taken["WATCHDOG_PID"] in ("", str(os.getpid())) and taken["WATCHDOG_USEC"].isdecimal()
    return Manager(taken["NOTIFY_SOCKET"], int(taken["WATCHDOG_USEC"]) / MICROSECONDS if is_ours else 0.0)


@contextmanager
def notifying(note: PoolFile) -> Iterator[None]:
    """Tell the manager of this environment how the pool gets on while the block runs, and that it stops at the end."""
    manager = take_manager(os.environ)
    if manager is None:
        yield
        return
    report = Report()

    def tell(_: PoolSample, header: HeaderView) -> None:
        if lines := report.next(header, time.monotonic()):
            manager.send(lines)

    with progress(note, tell, min(WATCHDOG_LOOK_S, manager.watchdog / 4 or WATCHDOG_LOOK_S)):
        yield
    manager.send(["STOPPING=1"])


class Report:
    """The lines of the next message, by what was told before. Pure.

    The watchdog is fed while the pool works: its loop turns, a child is ready, the broker has answered lately. It is
    fed before the pool is ready and while it stops, if the loop turns: those times have limits of their own.
    """

    def __init__(self) -> None:
        self._ready = self._reloading = self._stopping = False  # as it was told
        self._said = ""
        self._counted_at = 0.0

    def next(self, header: HeaderView, now: float) -> list[str]:
        """Return the lines. `now`: CLOCK_MONOTONIC seconds."""
        probe = ready(header, now)
        lines = [*self._changes(header, now, probe.ok)]
        if probe.text != self._said or now >= self._counted_at + COUNTS_EVERY_S:
            self._said, self._counted_at = probe.text, now
            lines.append(f"STATUS={one_line(probe.text)}; {header.waiting:,} waiting, {done(header):,} ended")
        runs = ready(replace(header, boot_failures=0), now).ok  # some do, though others may not come up
        if runs or (live(header, now).ok and (self._stopping or not self._ready)):
            lines.append("WATCHDOG=1")
        return lines

    def _changes(self, header: HeaderView, now: float, is_ready: bool) -> Iterator[str]:
        if self._stopping:
            return
        if header.draining == STOPS:  # the manager kills it some time after that
            self._stopping = True
            yield "STOPPING=1"
        elif not self._ready and is_ready:
            self._ready = True
            yield "READY=1"
        elif self._ready and self._reloading != bool(header.reloading):
            self._reloading = not self._reloading
            yield from ("RELOADING=1", f"MONOTONIC_USEC={int(now * MICROSECONDS)}") if self._reloading else ("READY=1",)
