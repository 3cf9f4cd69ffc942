"""`jobpool top` and `jobpool health`: the pools of this machine, by their scoreboards; the broker is never asked."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec

from jobpool.cli.options import Command, as_json, option, time_option
from jobpool.cli.output import Column, answer_json, answered, asks_json, note, say, table
from jobpool.cli.session import Session
from jobpool.cli.top_lines import SLOT_COLUMNS, cells, headline, queues_line
from jobpool.message.printable import one_line

if TYPE_CHECKING:
    from jobpool.ops.health import Health
    from jobpool.ops.top import PoolSample

FAILED = DEGRADED = 1
NO_POOL = 3
MIN_INTERVAL_S = 0.1


@click.command("health", cls=Command, common=("name",))
@as_json
def health(session: Session) -> int:
    """Check the pools on this machine, or those called --name. Exits 0: healthy, 1: degraded, 3: no pool."""
    from jobpool.ops.health import look
    from jobpool.ops.runtime_dir import discover, runtime_dir

    directory = runtime_dir()
    found = [look(pool) for pool in discover(directory, session.flags["name"])]
    if not answered([_values(one) for one in found]):
        for one in found:
            tell(one)
    if not found:
        note(_no_pool(session.flags["name"], str(directory)))
        return NO_POOL
    return 0 if all(one.ok for one in found) else DEGRADED


def _no_pool(name: str | None, directory: str) -> str:
    called = f" called {name!r}" if name else ""
    return f"no pool{called} of this user runs on this machine (looked in {directory}); `jobpool run` starts one"


def tell(health: Health) -> None:
    """Print the answer for one pool."""
    say(one_line(f"{health.pool.name} (pid {health.pool.pid}): {'healthy' if health.ok else 'DEGRADED'}"))
    for check in health.checks:
        say(one_line(f"  {'ok  ' if check.ok else 'FAIL'}  {check.name:<10}  {check.text}"))


def _values(health: Health) -> dict[str, object]:
    checks = [asdict(check) for check in health.checks]
    return {"name": health.pool.name, "pid": health.pool.pid, "healthy": health.ok, "checks": checks}


@click.command("top", cls=Command, common=("name",))
@option("--once", is_flag=True, help="Print once and exit.  [default when stdout is not a terminal, or a dumb one]")
@time_option("-d", "--interval", default="0.5", show_default=True, help="Pause; rates of --once are over it.")
@as_json
def top(session: Session, once: bool, interval: float) -> int:
    """Watch every slot of the pools on this machine: what it runs, for how long, with how much memory.

    It reads shared memory only, so it answers while a pool or its broker hangs. The last line of the screen names the
    keys: sort, filter, choose a slot; see its child's stack, cancel its job, replace the child. q or Ctrl-C leaves.
    """
    if interval < MIN_INTERVAL_S:
        raise click.UsageError(f"--interval is {MIN_INTERVAL_S:g} seconds or more, not {interval:g}")
    from jobpool.ops.runtime_dir import discover, runtime_dir
    from jobpool.ops.top import Watcher, order

    directory = runtime_dir()
    nobody = _no_pool(session.flags["name"], str(directory))
    with Watcher(partial(discover, directory, session.flags["name"])) as watcher:
        if asks_json() or once or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            if watcher.sample():
                time.sleep(interval)
            samples = watcher.sample()
            if not asks_json():
                return _print(samples, nobody)
            found = msgspec.to_builtins(samples)
            for pool in found:
                (pool["header"] or {}).pop("depths", None)  # `queues` has them
            answer_json(found)
        else:
            from jobpool.cli.top_screen import View, show

            show(watcher, View(order, nobody), interval)
    return 0


def _print(samples: list[PoolSample], nobody: str) -> int:
    for number, sample in enumerate(samples):
        queues = f"\n{queues_line(sample.queues)}" if sample.queues else ""
        say(("\n" if number else "") + headline(sample) + queues)
        if sample.rows:
            table([Column(column.title, column.right) for column in SLOT_COLUMNS], [cells(row) for row in sample.rows])
    if not samples:
        note(nobody)
    return 0 if samples else FAILED
