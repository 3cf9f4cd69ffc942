"""`jobpool run-one`: one job in the foreground, for a debugger and for a first look."""

from __future__ import annotations

import faulthandler
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NoReturn

import click

from jobpool.cli.enqueue import read_payload
from jobpool.cli.options import Command, setting
from jobpool.cli.output import note
from jobpool.cli.session import Session
from jobpool.errors import NO_APP, ConfigurationError


@click.command("run-one", cls=Command, common=())
@click.argument("handler")
@click.argument("payload", nargs=-1)
@setting("apps", "Options")
def run_one(session: Session, handler: str, payload: tuple[str, ...], apps: tuple[str, ...]) -> int:
    """Run one job here and now, and print its result.

    It runs in this process, with your terminal and without a timeout, a queue or a pool, so that `breakpoint()` works.
    PAYLOAD is written as for `jobpool enqueue`:

    \b
      jobpool run-one report customer=7 month=2026-06

    Jobs that it enqueues by `ctx.enqueue` are shown, and not enqueued.
    """
    from jobpool.child.attempt import AttemptRunner, JobToRun, NoCapture, SoftAlarm
    from jobpool.handlers.ending import AT_A_BREAKPOINT
    from jobpool.handlers.registry import no_handler
    from jobpool.message.definition import DEFAULT_PRIORITY
    from jobpool.message.envelope import JobEnvelope
    from jobpool.message.names import DEFAULT_QUEUE
    from jobpool.message.outcome import ResultKind

    with suppress(OSError, ValueError, RuntimeError):  # a stderr without a descriptor
        faulthandler.enable()  # C code that crashes leaves its stack on the terminal
    click.get_current_context().call_on_close(partial(setattr, os, "_exit", os._exit))
    os._exit = partial(_told_exit, os._exit, os.getpid())
    registry = session.app(apps=apps)
    if registry is None:
        raise ConfigurationError(NO_APP)
    queues = {info.name: info.queues for info in registry.infos()}
    queue = queues.get(handler, [DEFAULT_QUEUE])[0]
    value = read_payload(payload, partial(registry.fits, handler))
    envelope = JobEnvelope(handler, value, queue, DEFAULT_PRIORITY, None, 0, None, secrets.token_hex(8))
    attempt = AttemptRunner(registry, SoftAlarm(), NoCapture()).run(
        JobToRun(envelope), progress=lambda fraction, text: note(f"{fraction:.0%} {text}")
    )
    for job in attempt.follow_ups:
        note(f"not enqueued: {job.handler} {job.payload}")
    if attempt.output:
        click.echo(attempt.output)
    if attempt.kind is ResultKind.UNKNOWN_HANDLER:
        raise ConfigurationError(no_handler(handler, queues))
    if attempt.kind is ResultKind.SUCCEEDED:
        note(f"succeeded in {attempt.duration:.3f} s")
        return 0
    left = "left by its debugger" if attempt.error == AT_A_BREAKPOINT else attempt.error
    again = f", to be run again after {attempt.after:g} s" if attempt.after else ""
    note(f"{left}\n{attempt.kind.name.lower().replace('_', ' ')} after {attempt.duration:.3f} s{again}")
    return 1


def _told_exit(leave: Callable[[int], NoReturn], own: int, status: int) -> NoReturn:
    """End the process as `os._exit` does. In this one, `own`, say so: it is a crash, whatever the status."""
    if os.getpid() == own:
        note(f"the job ended its process by os._exit({status}): in a pool that is a crash")
        status = status or 1
    leave(status)
