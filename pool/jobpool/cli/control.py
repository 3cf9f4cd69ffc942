"""`jobpool pause` and `resume`: requests of a person to all pools of a broker at once."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from jobpool.cli.messages import moment
from jobpool.cli.options import Command, as_json, option
from jobpool.cli.output import answer_json, note, say
from jobpool.cli.session import Session
from jobpool.message.printable import one_line
from jobpool.message.units import parse_duration


def _until(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | float | None:
    """Read a duration, or a time in RFC 3339."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            raise click.BadParameter(f"{text!r} is no time: write 2h, or 2026-07-01T08:00+02:00") from None


@click.command("pause", cls=Command, short_help="Pause queues for all pools.")
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@option("--reason", default="", metavar="TEXT", help="Reason, which `jobpool stats` shows.")
@option("--until", callback=_until, metavar="TIME", help="Resume by itself then: 2h, or 2026-07-01T08:00+02:00.")
@as_json
def pause(session: Session, queues: tuple[str, ...], reason: str, until: Any, json_: bool) -> None:
    """Keep all pools, on all hosts, from fetching from these queues. Running jobs go on; jobs are enqueued as before.

    It lasts until `jobpool resume`, also over restarts. A second pause replaces the first.
    """
    from dataclasses import asdict

    from jobpool.broker import control

    with session.broker() as backend:
        made = [control.pause(backend, queue, reason, until) for queue in queues]
    if json_:
        answer_json([asdict(one) for one in made])
        return
    for one in made:
        say(one_line(f"{one.queue} is paused" + (f" until {moment(one.until)}" if one.until else "")))


@click.command("resume", cls=Command, short_help="Resume paused queues.")
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
def resume(session: Session, queues: tuple[str, ...]) -> None:
    """Let pools fetch from these queues again."""
    from jobpool.broker import control

    with session.broker() as backend:
        for queue in queues:
            if control.resume(backend, queue):
                say(f"{queue} is resumed")
            else:
                note(f"{queue} was not paused")
