"""A program that enqueues to each queue in its arguments in each way that a producer has, and shows what is in them."""

from __future__ import annotations

import sys

import jobpool


@jobpool.handler("report", queue="reports", timeout=60)
def report(ctx: jobpool.JobContext, customer: int) -> None: ...


def main() -> None:
    for url in sys.argv[1:]:
        with jobpool.Jobs(url) as jobs:
            one = jobs.define("report", {"customer": 1}).queue("reports").priority(1)
            jobs.enqueue(one)
            jobs.enqueue_many(one.delay(3600) for _ in range(3))
            stats = jobs.stats("reports")
            print(stats.waiting, stats.delayed)


if __name__ == "__main__":
    main()
