"""Samples of pools as text: the headline, the cells of a row, and the whole screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobpool.message.printable import one_line
from jobpool.message.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jobpool.ops.top import PoolSample, SlotRow

COLUMNS = (
    *(("SLOT", True), ("PID", True), ("STATE", False), ("HANDLER", False), ("JOB", False), ("QUEUE", False)),
    *(("TRY", True), ("AGE", True), ("LEFT", True), ("MEM", True), ("CPU%", True)),
    *(("DONE", True), ("FAILED", True), ("RESTARTS", True), ("PROGRESS", False)),
)
STYLES = {"busy": "green", "idle": "dim", "dying": "red", "starting": "yellow", "booting": "yellow", "empty": "red"}
ROOM = (4, 7, 8, 10, 16, 8, 3, 6, 6, 5, 4, 7, 6, 8, 12)
"""Characters that each column needs."""

FIRST_TO_GO = ("RESTARTS", "PROGRESS", "PID", "CPU%", "FAILED", "QUEUE", "TRY", "DONE", "MEM", "JOB", "LEFT")
SILENT = 3.0
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
    if sample.silent > SILENT:
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
        if sum(ROOM[index] + 1 for index in kept) <= width:
            break
        kept.remove(next(index for index in kept if COLUMNS[index][0] == title))
    return kept


def screen(samples: list[PoolSample], width: int, height: int, nobody: str) -> RenderableType:
    """Return everything that fits in the window; each pool gets its share of the lines."""
    from rich.console import Group
    from rich.text import Text

    if not samples:
        return Text(nobody, "yellow")
    share = height // len(samples)
    return Group(*(part for sample in samples for part in _pool(sample, width, share)))


def _pool(sample: PoolSample, width: int, lines: int) -> list[RenderableType]:
    """Return one pool in at most `lines` lines: headline, head of the table, rows, and how many rows are left out."""
    from rich.text import Text

    first, *rest = headline(sample).splitlines()
    room = max(1, lines - len(rest) - 2)
    share = room if len(sample.rows) <= room else max(1, room - 1)
    parts: list[RenderableType] = [Text(first, "bold", no_wrap=True, overflow="ellipsis")]
    for number, line in enumerate(rest):
        parts.append(Text(line, "yellow" if number else "", no_wrap=True, overflow="ellipsis"))
    if sample.rows:
        parts.append(_table(sample.rows[:share], fitting(width)))
    if len(sample.rows) > share:
        parts.append(Text(f"… {len(sample.rows) - share} more slots: make the window taller", "dim"))
    return parts


def _table(rows: tuple[SlotRow, ...], kept: list[int]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, expand=True, header_style="reverse")
    for title, right in (COLUMNS[index] for index in kept):
        flexible = title in ("HANDLER", "JOB", "PROGRESS")
        grid.add_column(title, justify="right" if right else "left", no_wrap=True, ratio=1 if flexible else None)
    for row in rows:
        shown = [Text(cell) for cell in cells(row)]
        shown[2].stylize(STYLES.get(row.state, ""))
        if row.left is not None and row.left < 0:
            shown[8].stylize("bold red")
        grid.add_row(*(shown[index] for index in kept))
    return grid


def _progress(row: SlotRow) -> str:
    """Return how far the job is; of a slot without one, how its last child died."""
    if not row.progress and not row.progress_text:
        return f"last death: {row.last_death}" if row.last_death and row.state != "busy" else ""
    return f"{row.progress:.0%} {row.progress_text}".rstrip()
