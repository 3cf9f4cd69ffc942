"""Jobs whose errors go to Sentry: each failed attempt with its traceback, and each job that was killed for good.

    SENTRY_DSN=… jobpool --app tracked.py --queue orders

`init` starts no thread, so it may stand at the import. Each child starts Sentry's worker thread when a hook first sends
something, and keeps it.
"""

from __future__ import annotations

import os

import sentry_sdk
from sentry_sdk.integrations.logging import LoggingIntegration

import jobpool

FLUSH_S = 2.0
"""Seconds to wait for Sentry, after failures only: a child may be replaced, or killed in its next job."""

sentry_sdk.init(
    os.environ.get("SENTRY_DSN"),
    # A record of `logging.error` is a breadcrumb, and no event of its own: the exception below is that.
    integrations=[LoggingIntegration(event_level=None)],
)


@jobpool.before_attempt
def begin(ctx: jobpool.JobContext) -> None:
    scope = sentry_sdk.get_isolation_scope()
    scope.clear()  # nothing of the job before
    scope.set_tags({"handler": ctx.handler, "queue": ctx.queue, "attempt": ctx.attempt})
    scope.set_context("job", {"id": ctx.id, "payload": ctx.payload})


@jobpool.after_attempt
def report(_: jobpool.JobContext, result: jobpool.ExecutionResult) -> None:
    if result.exception is not None and result.kind not in ("retry", "snooze"):
        sentry_sdk.capture_exception(result.exception)
        sentry_sdk.flush(FLUSH_S)


@jobpool.on_death
def report_death(dead: jobpool.DeadJob) -> None:
    if dead.reason not in ("failed", "unrecoverable", "timeout"):  # `report` has told of those
        with sentry_sdk.new_scope() as scope:
            scope.fingerprint = [dead.handler, dead.reason]
            scope.set_tags({"handler": dead.handler, "queue": dead.queue, "reason": dead.reason})
            scope.set_context("job", {"id": dead.id, "payload": dead.payload})
            scope.set_extra("stack", dead.stack)
            scope.capture_message(f"{dead.name} is dead: {dead.cause or dead.error}", level="fatal")
        sentry_sdk.flush(FLUSH_S)


@jobpool.handler("order.ship", queue="orders", max_retries=0)
def ship(_: jobpool.JobContext, order: int) -> None:
    if order < 0:
        raise ValueError(f"no order has the number {order}")


@jobpool.handler("order.crash", queue="orders")
def crash(_: jobpool.JobContext) -> None:
    os.abort()
