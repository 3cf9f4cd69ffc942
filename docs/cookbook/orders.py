"""Tells everybody who wants to know that an order is paid.

    python orders.py 17 49.90
    jobpool --app orders.py --queue events --allowed-events order.paid

Who fires the event need not know who listens, and may be another program in another language.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import jobpool


@dataclass
class Paid:
    order: int
    amount: float


@jobpool.listener("order.paid")
def thank(ctx: jobpool.JobContext, paid: Paid) -> None:
    put("mails", f"{ctx.id}-{paid.order}", f"Thank you for {paid.amount:.2f}")


@jobpool.listener("order.paid")
def ship(ctx: jobpool.JobContext, order: int, amount: float) -> None:
    put("parcels", f"{ctx.id}-{order}", f"Order {order}, worth {amount:.2f}")


def put(folder: str, name: str, text: str) -> None:
    """A retry runs all listeners again: under the job's id, the same file is written again, and not a second one."""
    Path(folder).mkdir(exist_ok=True)
    Path(folder, f"{name}.txt").write_text(text)


def paid(jobs: jobpool.Jobs, order: int, amount: float) -> str:
    """Fire the event; the id of the job."""
    event = {"name": "order.paid", "data": {"order": order, "amount": amount}}
    return jobs.define("event", event).queue("events").max_retries(3).idempotency_key(f"paid-{order}").dispatch()


if __name__ == "__main__":
    with jobpool.Jobs() as jobs:
        print(json.dumps({"job": paid(jobs, int(sys.argv[1]), float(sys.argv[2]))}))
