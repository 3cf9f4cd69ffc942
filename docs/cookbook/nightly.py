"""Sums up each day's sales in the night after it, and throws old sums away.

    jobpool cron next --app nightly.py --limit 3
    jobpool --app nightly.py --cron

Run as many of these pools as you like: each night there is one report. `sales.csv` has a line a sale: day, amount.
"""

from __future__ import annotations

import csv
from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import jobpool

SHOP = "Europe/Zurich"
REPORTS = Path("reports")

scheduler = jobpool.Scheduler()
scheduler.define("sum-up").queue("reports").daily_at("02:30").zone(SHOP).max_retries(3)
scheduler.define("tidy", {"days": 90}).hourly()


@jobpool.handler("sum-up")
def sum_up(ctx: jobpool.JobContext) -> str:
    """The day is that before the night which this job was scheduled for, however late it runs."""
    night = datetime.fromisoformat(ctx.meta["scheduled_for"]).astimezone(ZoneInfo(SHOP))
    day = night.date() - timedelta(days=1)
    with Path("sales.csv").open(newline="") as rows:
        cents = sum(round(float(row["amount"]) * 100) for row in csv.DictReader(rows) if row["day"] == str(day))
    REPORTS.mkdir(exist_ok=True)
    (REPORTS / f"{day}.txt").write_text(f"{cents / 100:.2f}\n")
    return f"{day}: {cents / 100:.2f}"


@jobpool.handler("tidy")
def tidy(_ctx: jobpool.JobContext, days: int) -> None:
    """It has no queue, so it runs in the scheduler itself: for what takes a moment."""
    oldest = date.today() - timedelta(days=days)
    for file in REPORTS.glob("*.txt"):
        if file.stem < str(oldest):
            file.unlink()
