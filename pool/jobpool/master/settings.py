"""What a pool is started with: plain values, already checked by the face that read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jobpool.message.guards import IDEMPOTENCY_TTL


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
        max_timeout: The most that a job or a handler gets, whatever it asks for; 0 = no limit.
        kill_grace: Between the alarm and the kill.
        stop_grace: How long a stop lets running attempts go on.
        boot_timeout: How long an import of the app, or the boot of a child, may take.
        max_crashes: Crashes within `crash_window` beyond which a message is dead; 0 = no limit.
        crash_back_off: Upper edge of the random delay after the second crash; doubles with each.
        crash_back_off_cap: Where the doubling ends.
        on_crash: `forfeit` the lease of a crashed message, so that it is recovered at once, or let it `expire`.
        on_crash_queue: Where a crashed message goes on; None = it stays in its queue.
        on_memory_limit_queue: The same after a kill for the memory limit.
        dead_letter_queue: Where copies of failed payloads go; None = nowhere.
        retry: Strategy (`none`, `fixed`, `exponential`) with the `retry_*` fields of `RetryPolicy`.
        memory_limit: A child whose resident size is above this is killed, as a failed attempt; 0 = no limit.
        recycle_memory: A child above this after an attempt is replaced; 0 = never.
        max_jobs: A child is replaced after this many attempts (± `max_jobs_jitter`); 0 = never.
        recycle_on_failure: A child is replaced after a failure that is `suspect`, `always`, or `never` for that.
        queue_handlers: Queue → the only handlers that may run there; absent = all.
        enqueue_to: The only queues that this pool's handlers may enqueue to; empty = any.
        allowed_callables: What the built-in handler `callable` may call, each `module:function`.
        allowed_shell_commands: What the built-in handler `shell` may start: names, or absolute paths.
        allow_all_shell_commands: It may start any program.
        allowed_events: Events that the built-in handler `event` may fire.
        allowed_url_networks: CIDR blocks that the built-in handler `url` may call beside public addresses.
        url_timeout: How long one of its calls may take in all.
        url_max_bytes: Of a body that it sends or takes.
        cron: A scheduler runs beside the pool, in a process of its own.
        cron_environment: Of the schedules that it serves; None = those that name none.
        cron_grace: For how long missed firings are made up for.
        idempotency_ttl: For how long a done idempotency key is remembered.
        concurrency_limits: Queue → so many of its jobs run at a time, in all pools; absent = no limit.
        concurrency_per_key: Queue → so many of those that share a concurrency key.
        rate_limits: Queue → so many of its jobs are started in a minute, in all pools.
        rate_per_key: Queue → so many of those that share a concurrency key.
        breaker_threshold: Failed fetches in a row that open a queue's circuit breaker; 0 = never.
        breaker_cooldown: How long it is open first, doubling up to `breaker_max_cooldown`.
        max_total: Stop after this many messages were settled, or lost by the child that had them; 0 = no limit.
        until_empty: Stop when nothing is waiting, delayed or leased any more.
        fail_on_dead: Exit with 1 if a message became a dead letter.
        on_lease_lost: `kill` the child, or let it `finish` with its result dropped.
        metrics_port: TCP port of `/metrics`, `/livez` and `/readyz`; 0 = any free one; None = not served.
        metrics_host: Address on which they are served.
        rollups: For how long each minute's sums are kept in the broker, where it keeps keys; 0 = there are none.
        history: Where attempts are recorded: `off`, `table` or `file:PATH`.
        history_keep: So many of each job's name, the newest.
        mask_keys: Keys whose values are masked in the history, besides those that always are.
        broker_timeout: How long a call may take before the broker counts as silent; None = the backend's own limit.
        broker_refusal_timeout: How long refusals of a broker that has let the pool in are retried; 0 = forever.
        log_level, log_format: Of the log, for processes that write one of their own.
        board_path: Where the scoreboard lives; None = in memory only, invisible from outside.
    """

    queues: tuple[tuple[str, float], ...]
    backend: str = field(repr=False)
    apps: tuple[str, ...] = ()
    name: str = "jobpool"
    workers: int = 2
    signing_keys: tuple[str, ...] = field(default=(), repr=False)
    ttl: float = 30.0
    default_timeout: float = 3600.0
    max_timeout: float = 0.0
    kill_grace: float = 1.0
    stop_grace: float = 25.0
    boot_timeout: float = 60.0
    max_crashes: int = 5
    crash_window: float = 72 * 3600.0
    crash_back_off: float = 1.0
    crash_back_off_cap: float = 60.0
    on_crash: Literal["forfeit", "expire"] = "forfeit"
    on_crash_queue: str | None = None
    on_memory_limit_queue: str | None = None
    dead_letter_queue: str | None = None
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
    recycle_on_failure: Literal["suspect", "always", "never"] = "suspect"
    queue_handlers: dict[str, list[str]] = field(default_factory=dict)
    enqueue_to: tuple[str, ...] = ()
    allowed_callables: tuple[str, ...] = ()
    allowed_shell_commands: tuple[str, ...] = ()
    allow_all_shell_commands: bool = False
    allowed_events: tuple[str, ...] = ()
    allowed_url_networks: tuple[str, ...] = ()
    url_timeout: float = 30.0
    url_max_bytes: int = 1 << 20
    cron: bool = False
    cron_environment: str | None = None
    cron_grace: float = 3600.0
    idempotency_ttl: float = IDEMPOTENCY_TTL
    concurrency_limits: dict[str, int] = field(default_factory=dict)
    concurrency_per_key: dict[str, int] = field(default_factory=dict)
    rate_limits: dict[str, int] = field(default_factory=dict)
    rate_per_key: dict[str, int] = field(default_factory=dict)
    breaker_threshold: int = 5
    breaker_cooldown: float = 2.0
    breaker_max_cooldown: float = 60.0
    max_total: int = 0
    until_empty: bool = False
    fail_on_dead: bool = False
    on_lease_lost: str = "kill"
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    rollups: float = 30 * 86400.0
    history: str = "off"
    history_keep: int = 100
    mask_keys: tuple[str, ...] = ()
    broker_timeout: float | None = None
    broker_refusal_timeout: float = 1800.0
    log_level: str = "info"
    log_format: str = "text"
    board_path: str | None = None
    sys_path: tuple[str, ...] = ()

    @property
    def queue_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.queues)
