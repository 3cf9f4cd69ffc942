"""The handlers: one that works, and three that misbehave on purpose.

`report` is ordinary CPU-bound Python. The others are the reason to run handlers in processes of their own:

* `hang` loops in C, where no exception can reach it;
* `crash` takes its process down with a segmentation fault;
* `flaky` fails twice and then succeeds, as calls to other people's services do.
"""

from __future__ import annotations

import faulthandler
from pathlib import Path

import jobpool
from stdlib_reports import page
from stdlib_reports.measure import measure_source, total
from stdlib_reports.shelf import Shelf
from stdlib_reports.survey import files_of

QUEUE = "reports"
HANG_TIMEOUT = 2.0
"""Seconds that `hang` is given."""


@jobpool.handler("report", queue=QUEUE, timeout=60)
def report(ctx: jobpool.JobContext, subject: str, folder: str) -> str:
    """Measure one package of the standard library and write its page; the page's path."""
    shelf = _begin(ctx, folder)
    files = files_of(subject)
    measured = []
    for done, path in enumerate(files):
        ctx.progress(done / len(files), path.name)
        measured.append(measure_source(path.name, path.read_bytes()))
    totals = total(subject, measured)
    return str(shelf.put(totals, page.report(totals, measured)))


@jobpool.handler("hang", queue=QUEUE, timeout=HANG_TIMEOUT)
def hang(ctx: jobpool.JobContext, folder: str) -> int:
    """Add up for some twenty minutes, inside one call of C code."""
    _begin(ctx, folder)
    return sum(range(10**11))


@jobpool.handler("crash", queue=QUEUE, timeout=60)
def crash(ctx: jobpool.JobContext, folder: str) -> None:
    """Die of a segmentation fault, every time."""
    _begin(ctx, folder)
    faulthandler._sigsegv()  # type: ignore[attr-defined]


@jobpool.handler("flaky", queue=QUEUE, max_retries=3, timeout=60)
def flaky(ctx: jobpool.JobContext, folder: str) -> str:
    """Fail at the first and the second attempt."""
    _begin(ctx, folder)
    if ctx.attempt < 3:
        raise ConnectionError(f"attempt {ctx.attempt}: the printer does not answer")
    return f"printed at attempt {ctx.attempt}"


def _begin(ctx: jobpool.JobContext, folder: str) -> Shelf:
    shelf = Shelf(Path(folder))
    shelf.note(ctx.id, ctx.handler, ctx.attempt, ctx.fence)
    return shelf
