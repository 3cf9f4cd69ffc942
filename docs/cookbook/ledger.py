"""A program's sub-commands as jobs: what a person types, or cron used to start, is one line in a queue.

    python ledger.py ledger:import --month 6 payments.csv
    python ledger.py ledger:close 6
    jobpool --app ledger.py --queue ledger

The second one waits for the first: what is not there yet is asked for again a second later.
"""

from __future__ import annotations

import csv
import json
import shlex
import sys
from pathlib import Path

import jobpool

LEDGER = Path("ledger.json")


@jobpool.command("ledger:import")
def import_payments(ctx: jobpool.JobContext, file: Path, month: int, dry_run: bool = False) -> str:
    """`ledger:import FILE --month N [--dry-run]`"""
    with file.open(newline="") as rows:
        cents = sum(round(float(row["amount"]) * 100) for row in csv.DictReader(rows))
    ctx.progress(0.9, "read")
    if not dry_run:
        write(month, {"cents": cents, "closed": False})
    return f"{cents / 100:.2f} in month {month}"


@jobpool.command("ledger:close")
def close(ctx: jobpool.JobContext, month: int) -> str:
    """`ledger:close N`"""
    book = read().get(str(month))
    if book is None:
        raise jobpool.Retry(after=1, reason=f"nothing of month {month} is there at attempt {ctx.attempt}")
    write(month, {**book, "closed": True})
    return f"month {month} is closed"


def read() -> dict[str, dict[str, object]]:
    return json.loads(LEDGER.read_text()) if LEDGER.exists() else {}


def write(month: int, book: dict[str, object]) -> None:
    LEDGER.write_text(json.dumps({**read(), str(month): book}))


if __name__ == "__main__":
    with jobpool.Jobs() as jobs:
        jobs.define("command", shlex.join(sys.argv[1:])).queue("ledger").max_retries(5).dispatch()
