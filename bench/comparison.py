"""The charts of docs/benchmarks.md: which recorded figures stand side by side, and why a peer may win."""

from __future__ import annotations

from dataclasses import dataclass

from bench.hanging_jobs import GIVE_UP


@dataclass(frozen=True, slots=True)
class Bar:
    """A contestant.

    Attributes:
        label: Its name beside the bar.
        figures: The rows of the table that it is made of; several are put end to end.
        why: The reason, in case that it beats jobpool.
    """

    label: str
    figures: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Contestants that were measured in one run.

    Attributes:
        section: Of bench/README.md.
        title: Above the bars.
        versions: Names of programs that took part, as they are recorded.
        bars: The first one is jobpool's.
    """

    section: str
    title: str
    versions: tuple[str, ...]
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture. A panel with a figure that was not recorded is left out of it.

    Attributes:
        name: Of its file.
        title: Above the picture, and its section's on the page.
        unit: Of all figures, as people say it.
        more_is_better: False = less is.
        what: The sentences of the page about what was measured.
        panels: One below the other.
    """

    name: str
    title: str
    unit: str
    more_is_better: bool
    what: str
    panels: tuple[Panel, ...]


_REDIS = ("jobpool", "redis", "celery", "dramatiq", "huey")
_ALL = (*_REDIS, "Pebble")
_POSTGRES = ("jobpool", "postgres", "procrastinate", "pgqueuer")

_BATCHES = (
    "It fetches a hundred jobs with one statement, and runs them as coroutines of the process that fetched them. So no "
    "job is handed to another process. The price: a job that hangs or crashes takes the others of its process along, "
    "and no timeout can end it. Nor does it fence: a worker that has lost a job can still end it."
)
_CHUNKS = (
    "A hundred calls go to a process as one message. They have one result and one error together, and no timeout or "
    "retry of their own. Nothing is stored."
)
_POPPED = (
    "Its workers take a task out before they run it: one command, with no lease and no signature. If the worker then "
    "dies, the task is lost. jobpool's master leases a signed job, and hands it to a child."
)
_NOTIFIED = (
    "Postgres notifies the process that runs the job. jobpool's master is notified too, but then leases the job and "
    "hands it to a child. The job pays for that step with its own process, which can be killed."
)
_AT_ONCE = (
    "It kills at once. jobpool raises an exception in the handler at 1 s, and leaves it a grace (`kill_grace`) of 1 "
    "s to clean up. Then it takes the stack, and kills."
)
_FORKED = (
    "Its workers are forked from the program that hands over the jobs. jobpool has a master beside them, of some 20 "
    "MB, and a process that forks."
)


def _redis(*parts: str) -> tuple[Bar, ...]:
    return (
        _bar("jobpool", "pool", parts),
        _bar("Pebble, no broker", "Pebble, no broker", parts[:1]),
        _bar("executor, no broker", "executor, no broker", parts[:1]),
        _bar("Huey", "Huey", parts),
        _bar("Dramatiq", "Dramatiq", parts),
        _bar("Celery, acks late", "Celery, acks late", parts),
        _bar("Celery", "Celery", parts),
    )


def _postgres(*parts: str) -> tuple[Bar, ...]:
    return (
        _bar("jobpool", "pool", parts),
        _bar("PgQueuer, batches of 100", "PgQueuer, batches of 100", parts, _BATCHES),
        _bar("PgQueuer", "PgQueuer", parts),
        _bar("Procrastinate", "Procrastinate", parts),
    )


def _bar(label: str, row: str, parts: tuple[str, ...], why: str = "") -> Bar:
    """Return a bar of one row, or of the rows that carry its name and these endings."""
    return Bar(label, tuple(f"{row}{part}" for part in parts) or (row,), why)


_CPU = (": CPU workers", ": CPU server")
_STARTS = ": enqueue → first line, p50"
_DEAD = "dead, p50"
_MEMORY = "everything, proportional set size, after 5000 jobs"

CHARTS = (
    Chart(
        name="throughput",
        title="Throughput",
        unit="jobs a second",
        more_is_better=True,
        what="Jobs that do nothing, enqueued before, run by 16 workers. The clock runs from the moment at which all "
        "workers are ready to the end of the last job. The messages of jobpool are signed, and no others.",
        panels=(
            Panel("redis", "over Redis, which keeps nothing on its disk", _ALL, _redis()),
            Panel("postgres", "over Postgres, where every commit is on the disk", _POSTGRES, _postgres()),
            Panel(
                "dispatch",
                "in memory, without a broker",
                ("jobpool",),
                (
                    Bar("jobpool, memory://", ("pool, memory://",)),
                    Bar("executor, map in chunks of 100", ("executor, map in chunks of 100",), _CHUNKS),
                    Bar("executor, submit", ("executor, submit",)),
                ),
            ),
        ),
    ),
    Chart(
        name="cpu",
        title="CPU a job",
        unit="ms",
        more_is_better=False,
        what="The CPU time of the same runs, divided by the jobs. The first part of a bar is that of all processes of "
        "the queue. The second, paler part is that of the broker's server.",
        panels=(
            Panel("redis", "over Redis, workers + server (paler)", _ALL, _redis(*_CPU)),
            Panel("postgres", "over Postgres, workers + server (paler)", _POSTGRES, _postgres(*_CPU)),
        ),
    ),
    Chart(
        name="latency",
        title="Idle → start",
        unit="ms, median",
        more_is_better=False,
        what="From just before the call that enqueues to the first line of the handler. One job at a time, at random "
        "distances, while 16 workers are idle and warm.",
        panels=(
            Panel(
                "latency",
                "over Redis",
                _REDIS,
                (
                    Bar("jobpool", (f"Redis{_STARTS}",)),
                    Bar("Huey", (f"Redis, Huey{_STARTS}",), _POPPED),
                    Bar("Celery", (f"Redis, Celery{_STARTS}",)),
                    Bar("Dramatiq", (f"Redis, Dramatiq{_STARTS}",)),
                ),
            ),
            Panel(
                "latency",
                "over Postgres",
                ("jobpool", "postgres", "pgqueuer"),
                (
                    Bar("jobpool", (f"Postgres{_STARTS}",)),
                    Bar("PgQueuer", (f"Postgres, PgQueuer{_STARTS}",), _NOTIFIED),
                ),
            ),
        ),
    ),
    Chart(
        name="kill",
        title="Time to kill a loop in C",
        unit="s, median",
        more_is_better=False,
        what="A handler calls `sum(range(10**13))`, with a timeout of 1 s. From its first line to the death of its "
        f"process. *Never*: it still ran when the benchmark gave up, {GIVE_UP:g} s after its first line.",
        panels=(
            Panel(
                "timeouts",
                "hang in C, timeout of 1 s, and jobpool's grace of 1 s",
                _ALL,
                (
                    Bar("jobpool", (_DEAD,)),
                    Bar("Celery, hard time limit", (f"Celery: {_DEAD}",), _AT_ONCE),
                    Bar("Pebble", (f"Pebble: {_DEAD}",)),
                    Bar("Dramatiq", (f"Dramatiq: {_DEAD}",)),
                    Bar("Huey", (f"Huey: {_DEAD}",)),
                ),
            ),
        ),
    ),
    Chart(
        name="memory",
        title="Memory",
        unit="MB",
        more_is_better=False,
        what="All processes of a queue with 16 idle workers that have run 5,000 jobs. The app makes 30 MB of objects "
        "when it is imported. A page that several processes share counts once (proportional set size). The broker's "
        "server is not in it. Procrastinate and PgQueuer are left out, as they do not run 16 processes.",
        panels=(
            Panel(
                "memory",
                "16 idle workers, app with 30 MB of data",
                _ALL,
                (
                    Bar("jobpool", (_MEMORY,)),
                    Bar("Celery", (f"Celery: {_MEMORY}",)),
                    Bar("Dramatiq", (f"Dramatiq: {_MEMORY}",)),
                    Bar("Huey", (f"Huey: {_MEMORY}",)),
                    Bar("Pebble, no broker", (f"Pebble: {_MEMORY}",), _FORKED),
                    Bar("executor, no broker", (f"executor: {_MEMORY}",), "Forked too."),
                ),
            ),
        ),
    ),
)
