"""`jobpool health`: is a pool of this machine well? For probes: light to start, and it never asks the broker."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from jobpool.cli.options import Command, as_json
from jobpool.cli.output import answer_json, note, say
from jobpool.cli.session import Session
from jobpool.message.printable import one_line

if TYPE_CHECKING:
    from jobpool.ops.health import Health

DEGRADED = 1
NO_POOL = 3


@click.command("health", cls=Command, short_help="Check the pools of this machine.")
@as_json
@click.pass_context
def health(ctx: click.Context, session: Session, json_: bool) -> None:
    """Check the pools on this machine, or those called --name. Exits 0: healthy, 1: degraded, 3: no pool."""
    from jobpool.ops.health import look
    from jobpool.ops.runtime_dir import discover

    directory = session.runtime_dir()
    found = [look(pool) for pool in discover(directory, session.pool_name())]
    if json_:
        answer_json([_values(one) for one in found])
    for one in found if not json_ else ():
        _tell(one)
    if not found:
        note(no_pool(session.pool_name(), str(directory)))
        ctx.exit(NO_POOL)
    ctx.exit(0 if all(one.ok for one in found) else DEGRADED)


def no_pool(name: str | None, directory: str) -> str:
    """Return the sentence for a machine without pools."""
    called = f" called {name!r}" if name else ""
    return f"no pool{called} runs on this machine as far as {directory} tells; `jobpool run` starts one"


def _tell(health: Health) -> None:
    say(one_line(f"{health.pool.name} (pid {health.pool.pid}): {'healthy' if health.ok else 'DEGRADED'}"))
    for check in health.checks:
        say(one_line(f"  {'ok  ' if check.ok else 'FAIL'}  {check.name:<10}  {check.text}"))


def _values(health: Health) -> dict[str, object]:
    checks = [asdict(check) for check in health.checks]
    return {"name": health.pool.name, "pid": health.pool.pid, "healthy": health.ok, "checks": checks}
