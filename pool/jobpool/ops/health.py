"""Is this pool well? Judged from its scoreboard alone, so the answer comes while the broker or the master hangs.

`examine` is the judgement: a header in, one `Check` a line out, no I/O. `look` reads the header for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from jobpool.ipc.board_layout import HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.message.units import format_duration
from jobpool.ops.runtime_dir import PoolFile
from jobpool.telemetry.metrics import pages


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the answer: the name of the check, whether it passed, and a sentence for people."""

    name: str
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Health:
    """The answer for one pool."""

    pool: PoolFile
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


def examine(header: HeaderView, pool: PoolFile, now: float) -> list[Check]:
    """Return the checks of one pool. `now`: CLOCK_MONOTONIC seconds, as the times in the header."""
    silent, master = pages.seconds_since(header.loop_at, header, now), f"the master (pid {pool.pid})"
    told = f"turned its loop {format_duration(silent)} ago"
    if silent > pages.LOOP_LIMIT:
        told = f"has not turned its loop for {format_duration(silent)}"
    broker, reaper = (
        pages.seconds_since(header.broker_ok_at, header, now),
        pages.seconds_since(header.reaped_at, header, now),
    )
    failed = header.boot_failures
    booted = failed < pages.BOOT_LOOP
    why = f": {header.problem}" if header.problem else ""
    return [
        Check("loop", silent <= pages.LOOP_LIMIT, f"{master} {told}"),
        _children(header),
        _broker(header, broker),
        _regular("reaper", "the reaper", "ran", "due", reaper, header.reap_interval),
        Check("boot", booted, "children boot" if booted else f"{failed} children in a row could not boot{why}"),
    ]


def look(pool: PoolFile, now: float | None = None) -> Health:
    """Read the pool's scoreboard and examine it. Does not block."""
    try:
        with Scoreboard.open(pool.board) as board:
            header = board.header.read()
    except (OSError, ValueError) as error:
        told = f"cannot be read: {error}"
        if isinstance(error, FileNotFoundError):
            told = "is not there: the pool starts just now, or the file was removed"
        return Health(pool, (Check("scoreboard", False, f"the scoreboard {pool.board} {told}"),))
    return Health(pool, tuple(examine(header, pool, time.monotonic() if now is None else now)))


def _children(header: HeaderView) -> Check:
    ok = header.ready >= 1
    draining = ", draining" if ok and header.draining else ""
    told = header.problem not in ("", pages.BROKER_SILENT) and not pages.refuses(header)  # jobs may run with it
    worry = f"{'; ' if ok else ': '}{header.problem}" if told else ""
    return Check("children", ok, f"{pages.ready_children(header)}{draining}{worry}")


def _broker(header: HeaderView, silent: float) -> Check:
    if pages.refuses(header):
        return Check("broker", False, header.problem)
    check = _regular("broker", header.backend, "answered well", "asked", silent, header.broker_interval)
    now = "; it does not answer now" if header.problem == pages.BROKER_SILENT else ""
    return replace(check, text=check.text + now)


def _regular(name: str, who: str, did: str, due: str, silent: float, interval: float) -> Check:
    """Judge something that must happen each `interval` seconds, and last did `silent` seconds ago."""
    ago = format_duration(silent)
    if silent > pages.MISSED * interval:
        return Check(name, False, f"{who} last {did} {ago} ago; it is {due} every {format_duration(interval)}")
    return Check(name, True, f"{who} {did} {ago} ago")
