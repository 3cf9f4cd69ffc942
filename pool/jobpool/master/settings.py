"""What a pool is started with: plain values, already checked by the face that read them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Times in seconds, sizes in bytes. 0 means "no limit" where the comment says so.

    Attributes:
        name: Shown in titles, `top` and the pool file.
        workers: Children, >= 1.
        queues: (name, weight) pairs; a queue gets starts in proportion to its weight while all have work.
        apps: Modules, or paths of Python files, that register the handlers.
        backend: URL of the broker.
        signing_keys: The first signs, all verify; empty = unsigned.
        ttl: How long a lease holds; renewed every third of it.
        default_timeout: For jobs and handlers that name none; 0 = unlimited.
        kill_grace: Between the alarm and the kill.
        stop_grace: How long a stop lets running attempts go on.
        boot_timeout: How long an import of the app, or the boot of a child, may take.
        max_crashes: Crashes within `crash_window` beyond which a message is dead; 0 = no limit.
        retry: Strategy (`none`, `fixed`, `exponential`) with the `retry_*` fields of `RetryPolicy`.
        memory_limit: A child whose resident size is above this is killed, as a failed attempt; 0 = no limit.
        recycle_memory: A child above this after an attempt is replaced; 0 = never.
        max_jobs: A child is replaced after this many attempts (± `max_jobs_jitter`); 0 = never.
        queue_handlers: Queue → the only handlers that may run there; absent = all.
        max_total: Stop after this many messages were settled; 0 = no limit.
        until_empty: Stop when nothing is waiting, delayed or leased any more.
        fail_on_dead: Exit with 1 if a message became a dead letter.
        on_lease_lost: `kill` the child, or let it `finish` with its result dropped.
        broker_timeout: How long a call may take before the broker counts as silent; None = the backend's own limit.
        board_path: Where the scoreboard lives; None = in memory only, invisible from outside.
    """

    queues: tuple[tuple[str, float], ...]
    backend: str
    apps: tuple[str, ...] = ()
    name: str = "jobpool"
    workers: int = 2
    signing_keys: tuple[str, ...] = ()
    ttl: float = 30.0
    default_timeout: float = 3600.0
    kill_grace: float = 1.0
    stop_grace: float = 25.0
    boot_timeout: float = 60.0
    max_crashes: int = 5
    crash_window: float = 72 * 3600.0
    retry: str = "none"
    retry_base: float = 5.0
    retry_multiplier: float = 2.0
    retry_max_delay: float = 300.0
    retry_jitter: float = 0.15
    retry_max_attempts: int = 0
    unknown_handler_grace: float = 600.0
    output_cap: int = 65536
    max_jobs: int = 0
    max_jobs_jitter: float = 0.1
    memory_limit: int = 0
    recycle_memory: int = 0
    queue_handlers: dict[str, list[str]] = field(default_factory=dict)
    max_total: int = 0
    until_empty: bool = False
    fail_on_dead: bool = False
    on_lease_lost: str = "kill"
    broker_timeout: float | None = None
    board_path: str | None = None
    sys_path: tuple[str, ...] = ()

    @property
    def queue_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.queues)
