"""Views for readers of the scoreboard: one frozen dataclass a part. Times: CLOCK_MONOTONIC seconds; 0 = not yet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from jobpool.message.outcome import Counts


class ChildState(IntEnum):
    """The state that a child says it is in."""

    NONE = 0
    BOOTING = 1
    IDLE = 2
    BUSY = 3


@dataclass(frozen=True, slots=True)
class ChildView:
    """The child's record.

    Attributes:
        pid: The process that wrote this.
        state: What it does since `since`.
        nonce: The last attempt that it started; it stays after the end of the attempt.
        attempt: 1-based number of that attempt.
        done: Attempts that succeeded in this slot, over all its children.
        failed: The same, of the others that ended with a verdict.
        started: When that attempt started.
        deadline: When its hard timeout is; 0 = unlimited.
        ident: The message's id, cut at 200 bytes; "" between the receipt of a frame and its decoding.
        progress: 0 to 1, of this attempt.
        torn: A writer was stopped or killed in mid-write: the fields may not belong together.
    """

    pid: int
    state: ChildState
    nonce: int
    attempt: int
    done: int
    failed: int
    since: float
    started: float
    deadline: float
    ident: str
    queue: str
    handler: str
    progress: float
    progress_text: str
    torn: bool


@dataclass(frozen=True, slots=True)
class MasterView:
    """The master's record of a slot.

    Attributes:
        pid: Of the slot's process; 0 = none.
        child: Its serial number.
        generation: Of its fork server.
        rss: Bytes resident; `peak_rss` the highest seen, over all children of the slot.
        restarts: How often the slot was filled again.
        crashes: Children of it that died without a verdict.
        timeouts: Children of it that were killed for time.
        cpu: Fraction of one core since the last sample; may exceed 1.
        since: When the slot came into `state`.
        state: The word of the slot's state; "" = never written.
        last_death: Cause of the last death.
    """

    pid: int
    child: int
    generation: int
    rss: int
    peak_rss: int
    restarts: int
    crashes: int
    timeouts: int
    cpu: float
    since: float
    state: str
    last_death: str
    torn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderView(Counts):
    """The master's record of the pool: its counts, and these.

    Attributes:
        workers: How many children are wanted.
        ready: How many are ready now.
        boot_failures: Children in a row that could not boot.
        draining: 1 once it was told to stop.
        generation: Of the newest fork server.
        loop_at: When the master's loop last turned.
        broker_ok_at: When the broker last answered; it is asked at least every `broker_interval` seconds.
        reaped_at: When the reaper last ran; it runs every `reap_interval` seconds.
        queues: Names, with a space between two.
        backend: Its URL without secrets.
        problem: One sentence on why the pool is not well; "" = it is.
    """

    pid: int
    workers: int
    ready: int
    boot_failures: int
    draining: int
    generation: int
    started: float
    started_wall: float
    loop_at: float
    broker_ok_at: float
    broker_interval: float
    reaped_at: float
    reap_interval: float
    name: str
    version: str
    queues: str
    backend: str
    problem: str
    torn: bool
