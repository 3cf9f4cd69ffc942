"""The lines in which `jobpool top` shows a pool: headline, queues, and a table of its slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from jobpool.cli.output import aligned, columns, cut
from jobpool.message.printable import one_line
from jobpool.message.units import format_duration, format_size

if TYPE_CHECKING:
    from jobpool.ops.top import PoolSample, QueueRow, SlotRow

SLOT_COLUMNS = columns(
    "SLOT>, PID>, STATE, HANDLER~, NAME~, ID, QUEUE~, TRY>, AGE>, LEFT>,"
    "MEM>, CPU%>, DONE>, FAILED>, RESTARTS>, PROGRESS~"
)
COLUMN_CHARS = (4, 7, 8, 10, 10, 2, 8, 3, 6, 6, 5, 4, 7, 6, 8, 14)  # characters that each column needs; an id, all

FIRST_TO_GO = ("RESTARTS", "PID", "CPU%", "FAILED", "QUEUE", "TRY", "DONE", "MEM", "LEFT", "ID", "PROGRESS", "NAME")
COLOURS = {"busy": "green", "dying": "red", "empty": "red", "starting": "yellow", "booting": "yellow"}
MAX_SILENCE_S = 3.0  # seconds without a turn of the master's loop after which the headline says so


def headline(sample: PoolSample) -> str:
    """Return one pool in one line or two: who, how long, how much, and what is wrong."""
    pool, header = sample.pool, sample.header
    who = one_line(f"{pool.name}  pid {pool.pid}  {', '.join(pool.queues)}  {pool.backend}")
    if header is None:
        return f"{who}\n{one_line(sample.problem)}"
    rate = "-" if sample.rate is None else f"{sample.rate:,.1f}"
    counts = f"{header.succeeded:,} acked  {header.failed:,} failed  {header.dead:,} dead"
    more = [f"{n:,} {what}" for n, what in ((header.timed_out, "timed out"), (header.crashed, "crashed")) if n]
    state = f"up {format_duration(sample.uptime)}  {sample.busy}/{header.workers} busy  {rate} jobs/s"
    worries = []
    if sample.silent > MAX_SILENCE_S:
        worries.append(f"the master has not turned its loop for {format_duration(sample.silent)}")
    if header.draining:
        worries.append("draining: it leases nothing new")
    if header.paused:
        worries.append(f"paused by a person: {', '.join(header.paused.split())}")
    if header.problem:
        worries.append(one_line(header.problem))
    return "\n".join([who, "  ".join((state, counts, *more)), *worries])


def cells(row: SlotRow) -> list[str]:
    """Return one slot as the cells of `SLOT_COLUMNS`, safe for a terminal."""
    shown = [
        *(str(row.slot), str(row.pid or "-"), row.state + ("?" if row.torn else "")),
        *(row.handler, row.name, row.job, row.queue),
        str(row.attempt) if row.attempt else "-",
        *(format_duration(row.age), "-" if row.left is None else format_duration(row.left)),
        *(format_size(row.rss) if row.rss else "-", f"{row.cpu * 100:.0f}"),
        *(f"{row.done:,}", f"{row.failed:,}", str(row.restarts), _progress(row)),
    ]
    return [one_line(cell) for cell in shown]


def _progress(row: SlotRow) -> str:
    """Return how far the job is; of a slot without one, how its last child died."""
    if not row.progress and not row.progress_text:
        return f"last death: {row.last_death}" if row.last_death and row.state != "busy" else ""
    return f"{row.progress:.0%} {row.progress_text}".rstrip()


def pool_lines(sample: PoolSample, width: int, height: int, chosen: int | None = None) -> list[str]:
    """Return at most `height` lines in colours, and three at least of a pool with slots; of less room, the first line.

    They are headline, queues, the table with the slot `chosen` in sight, and how many slots there was no room for.
    """
    first, *rest = (cut(line, width) for line in headline(sample).splitlines())
    lines = [click.style(first, bold=True), *rest[:1], *(click.style(line, fg="yellow") for line in rest[1:])]
    if sample.queues:
        lines.insert(2, cut(queues_line(sample.queues), width))
    if not sample.rows:
        return lines[:height]
    lines = lines[: max(1, height - 2)]
    room = max(1, height - len(lines) - 1)
    share = room if len(sample.rows) <= room else max(1, room - 1)
    at = next((at for at, row in enumerate(sample.rows) if row.slot == chosen), 0)
    start = max(0, min(at - share // 2, len(sample.rows) - share))
    lines += _table(sample.rows[start : start + share], width, chosen)
    if len(sample.rows) > share:
        more = f"… {len(sample.rows) - share} more slots: make the window taller"
        lines.append(click.style(cut(more, width), dim=True))
    return lines


def lines_wanted(sample: PoolSample) -> int:
    """Return the lines that `pool_lines` fills if it may."""
    return len(headline(sample).splitlines()) + bool(sample.queues) + (1 + len(sample.rows) if sample.rows else 0)


def queues_line(queues: Sequence[QueueRow]) -> str:
    """Return the depths and rates of a pool's queues, the deepest first."""
    return one_line("   ".join(map(_queue, queues)))


def _queue(row: QueueRow) -> str:
    parts = [f"{row.queue}: {row.waiting:,} waiting"]
    if row.oldest is not None:
        parts.append(f"oldest {format_duration(row.oldest)}")
    parts += [f"{count:,} {what}" for count, what in ((row.delayed, "delayed"), (row.dead, "dead")) if count]
    if row.rate:
        parts.append(f"{row.rate:,.1f}/s")
    return ", ".join(parts)


def _table(rows: tuple[SlotRow, ...], width: int, chosen: int | None) -> list[str]:
    filled = [cells(row) for row in rows]
    kept = fitting(width, filled)
    shown = [SLOT_COLUMNS[index] for index in kept]
    head, *lines = aligned(shown, [[row[index] for index in kept] for row in filled], width, gap=1)
    for row, line in zip(rows, lines, strict=True):
        if row.slot == chosen:
            line[0] = click.style(f">{line[0][1:]}", bold=True)
        for at, column in enumerate(shown):
            if column.title == "STATE":
                line[at] = click.style(line[at], fg=COLOURS.get(row.state), dim=True if row.state == "idle" else None)
            elif column.title == "LEFT" and row.left is not None and row.left < 0:
                line[at] = click.style(line[at], fg="red", bold=True)
    return [click.style(" ".join(head).ljust(width), reverse=True), *map(" ".join, lines)]


def fitting(width: int, rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns that fit into `width` characters; the least telling ones go first, and ids are never cut.

    The column NAME is left out where no job has a name of its own.
    """
    at = {column.title: index for index, column in enumerate(SLOT_COLUMNS)}
    need = list(COLUMN_CHARS)
    need[at["ID"]] = max((len(row[at["ID"]]) for row in rows), default=0)
    kept = [index for index in at.values() if index != at["NAME"] or any(row[index] for row in rows)]
    for first in (kept, [index for index in kept if index != at["ID"]]):  # without ids there may be room for others
        kept = list(first)
        for title in FIRST_TO_GO:
            if sum(need[index] + 1 for index in kept) - 1 <= width:
                break
            if at[title] in kept:
                kept.remove(at[title])
        if at["ID"] in kept:
            break
    return kept
