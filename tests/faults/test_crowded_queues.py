"""What two pools ask of their broker for a job does not grow with what lies dead and delayed beside it.

Call by call it is counted in `unit/backends/`: pages on Postgres beside a million messages (`test_postgres_plans.py`),
instructions of SQLite beside a hundred thousand, which no other process sees (`test_sqlite_plans.py`), commands on
Redis and beanstalkd among few and among many (`test_redis_cost.py`, `test_beanstalk_cost.py`). `python -m bench scale`
measures how long it takes beside a million.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.faultmoves import Figure, let_pass, start_pools, stop_all
from support.poolrig import LIMIT, Rig
from support.poolrig_brokers import Broker, PostgresBroker, RedisBroker
from support.waiting import wait_until

from jobpool.broker.values import NewMessage
from jobpool.message.definition import JobDefinition

JOBS = 500
DEAD, DELAYED = 1000, 1000

GROWN, MORE = 2.0, 20.0
"""A job may cost so many times as much, and so much more: batches are smaller where the machine is busy, and now and
then a pool counts what there is. If each fetch looked at all that is there, it were a hundred more and above."""

SETTLED, FLUSHED = 0.2, 1.5
"""Seconds until a server's own counters tell all, with both pools idle; the second on Postgres, which adds up late."""

Meter = Callable[[], float]


def meter(broker: Broker) -> tuple[Meter, str]:
    """What the broker has done so far, for anybody, and what that is counted in."""
    match broker:
        case RedisBroker():
            return lambda: commands_run(broker), "commands"
        case PostgresBroker():
            return lambda: rows_read(broker), "rows read"
        case _:
            return broker.commands, "commands"


def commands_run(broker: RedisBroker) -> float:
    """Those within scripts too."""
    with broker.client() as client:
        counted: Any = client.info("commandstats")
    return float(sum(one["calls"] for one in counted.values()))


def rows_read(broker: PostgresBroker) -> float:
    """By scans of tables and by indexes; what is dead, and not yet vacuumed away, does not count."""
    sql = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables WHERE schemaname = "
    [(rows,)] = broker.ask(f"{sql}'{broker.place}'")
    return float(rows)


def wait_worked_off(rig: Rig) -> None:
    """Nothing is waiting or leased; what is delayed stays."""

    def done() -> bool:
        stats = rig.stats()
        return stats.waiting == stats.leased == 0

    wait_until(done, LIMIT, "all is worked off")


def cost_of_a_job(rig: Rig, read: Meter, pause: float) -> float:
    """Seen by the ledger: to ask the broker, how far it is, would cost what is measured."""
    let_pass(pause)
    rig.stats("nothing")  # with it Postgres counts what was asked on this connection before, and not later
    before, done = read(), len(rig.ends())
    rig.enqueue_many("work", [{}] * JOBS)
    wait_until(lambda: len(rig.ends()) == done + JOBS, LIMIT, "all have run")
    let_pass(pause)
    return (read() - before) / JOBS


def fill(rig: Rig) -> None:
    """Bodies that the pools make dead letters of, and jobs that are due tomorrow."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for begin in range(0, DELAYED, 1000):
        jobs = [JobDefinition("work", {}, scheduled_at=tomorrow)] * 1000
        delayed = rig.backend.enqueue_many(jobs)
        if rig.backend.capabilities.lists_live:  # elsewhere the oracle could not see that they are still there
            rig.enqueued.update(delayed)
        messages = [NewMessage(f"bad-{n}", True, "default", "work", 5, None, b"{") for n in range(begin, begin + 1000)]
        rig.backend._enqueue(messages)
        rig.enqueued.update(message.id for message in messages)
    wait_worked_off(rig)
    stats = rig.stats()
    assert (stats.dead, stats.delayed) == (DEAD, DELAYED)


@pytest.mark.row(28)
@pytest.mark.on("redis", "postgres", "beanstalk")
def test_a_job_costs_the_same_beside_many_that_are_dead_and_delayed(rig: Rig, broker: Broker, figure: Figure) -> None:
    pools = start_pools(rig, 2, "--log-level", "error")
    read, unit = meter(broker)
    pause = FLUSHED if isinstance(broker, PostgresBroker) else SETTLED
    among_none = cost_of_a_job(rig, read, pause)
    fill(rig)
    among_many = cost_of_a_job(rig, read, pause)
    figure("a job, alone", among_none, unit)
    figure(f"a job, beside {DEAD:,} dead and {DELAYED:,} delayed", among_many, unit)
    assert among_many <= GROWN * among_none + MORE
    rig.account().assert_once_each()
    stop_all(rig, pools)
