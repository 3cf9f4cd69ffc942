"""Samples of pools as text: the headline, the cells of a row, and the whole screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobpool.cli.output import aligned, columns
from jobpool.message.printable import one_line
from jobpool.message.units import format_duration, format_size

if TYPE_CHECKING:
    from jobpool.ops.top import PoolSample, SlotRow

COLUMNS = columns(
    "SLOT>, PID>, STATE, HANDLER~, JOB~, QUEUE~, TRY>, AGE>, LEFT>, MEM>, CPU%>, DONE>, FAILED>, RESTARTS>, PROGRESS~"
)
STYLES: dict[str, dict[str, Any]] = {
    "busy": {"fg": "green"},
    "idle": {"dim": True},
    **{state: {"fg": "red"} for state in ("dying", "empty")},
    **{state: {"fg": "yellow"} for state in ("starting", "booting")},
}
COLUMN_CHARS = (4, 7, 8, 10, 16, 8, 3, 6, 6, 5, 4, 7, 6, 8, 12)
"""Characters that each column needs."""

FIRST_TO_GO = ("RESTARTS", "PROGRESS", "PID", "CPU%", "FAILED", "QUEUE", "TRY", "DONE", "MEM", "JOB", "LEFT")
MAX_SILENCE_S = 3.0
"""Seconds without a turn of the master's loop after which the headline says so."""


def headline(sample: PoolSample) -> str:
    """Return one pool in one line or two: who, how long, how much, and what is wrong."""
    pool, header = sample.pool, sample.header
    who = one_line(f"{pool.name}  pid {pool.pid}  {', '.join(pool.queues)}  {pool.backend}")
    if header is None:
        return f"{who}\n{one_line(sample.problem)}"
    rate = "-" if sample.rate is None else f"{sample.rate:,.1f}"
    counts = f"{header.succeeded:,} acked  {header.failed:,} failed  {header.dead:,} dead"
    more = f"{header.timed_out:,} timed out  {header.crashed:,} crashed"
    state = f"up {format_duration(sample.uptime)}  {sample.busy}/{header.workers} busy  {rate} jobs/s"
    return "\n".join([who, f"{state}  {counts}  {more}", *_worries(sample)])


def _worries(sample: PoolSample) -> list[str]:
    header = sample.header
    worries = []
    if sample.silent > MAX_SILENCE_S:
        worries.append(f"the master has not turned its loop for {format_duration(sample.silent)}")
    if header is not None and header.draining:
        worries.append("draining: it leases nothing new")
    if header is not None and header.problem:
        worries.append(one_line(header.problem))
    return worries


def cells(row: SlotRow) -> list[str]:
    """Return one slot as the cells of `COLUMNS`, safe for a terminal."""
    shown = [
        *(str(row.slot), str(row.pid or "-"), row.state + ("?" if row.torn else ""), row.handler, row.job, row.queue),
        str(row.attempt) if row.attempt else "-",
        *(format_duration(row.age), "-" if row.left is None else format_duration(row.left)),
        *(format_size(row.rss) if row.rss else "-", f"{row.cpu * 100:.0f}"),
        *(f"{row.done:,}", f"{row.failed:,}", str(row.restarts), _progress(row)),
    ]
    return [one_line(cell) for cell in shown]


def fitting(width: int) -> list[int]:
    """Return the columns that fit into `width` characters; the least telling ones go first."""
    kept = list(range(len(COLUMNS)))
    for title in FIRST_TO_GO:
        if sum(COLUMN_CHARS[index] + 1 for index in kept) <= width:
            break
        kept.remove(next(index for index in kept if COLUMNS[index].title == title))
    return kept


def screen(samples: list[PoolSample], width: int, height: int, nobody: str) -> list[str]:
    """Return the lines of everything that fits in the window, in colours; each pool gets its share of them."""
    if not samples:
        return [click.style(nobody, fg="yellow")]
    share = height // len(samples)
    return [line for sample in samples for line in _pool(sample, width, share)]


def _pool(sample: PoolSample, width: int, height: int) -> list[str]:
    """Return at most `height` lines: headline, head of the table, rows, and how many rows there was no room for."""
    first, *rest = (line if len(line) <= width else f"{line[: width - 1]}…" for line in headline(sample).splitlines())
    room = max(1, height - len(rest) - 2)
    share = room if len(sample.rows) <= room else max(1, room - 1)
    lines = [click.style(first, bold=True), *rest[:1], *(click.style(line, fg="yellow") for line in rest[1:])]
    if sample.rows:
        lines += _table(sample.rows[:share], width)
    if len(sample.rows) > share:
        lines.append(click.style(f"… {len(sample.rows) - share} more slots: make the window taller", dim=True))
    return lines


def _table(rows: tuple[SlotRow, ...], width: int) -> list[str]:
    kept = fitting(width)
    shown = [COLUMNS[index] for index in kept]
    head, *lines = aligned(shown, [[cells(row)[index] for index in kept] for row in rows], width, gap=1)
    for row, line in zip(rows, lines, strict=True):
        for at, column in enumerate(shown):
            if column.title == "STATE":
                line[at] = click.style(line[at], **STYLES.get(row.state, {}))
            elif column.title == "LEFT" and row.left is not None and row.left < 0:
                line[at] = click.style(line[at], fg="red", bold=True)
    return [click.style(" ".join(head).ljust(width), reverse=True), *map(" ".join, lines)]


def _progress(row: SlotRow) -> str:
    """Return how far the job is; of a slot without one, how its last child died."""
    if not row.progress and not row.progress_text:
        return f"last death: {row.last_death}" if row.last_death and row.state != "busy" else ""
    return f"{row.progress:.0%} {row.progress_text}".rstrip()
