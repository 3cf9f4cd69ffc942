"""Jobs with structlog: every line that a handler logs says which job it belongs to.

jobpool --app logged.py --queue orders
"""

from __future__ import annotations

import structlog

import jobpool

structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.dict_tracebacks,
        structlog.processors.JSONRenderer(),
    ]
)
log = structlog.get_logger()


@jobpool.before_attempt
def begin(ctx: jobpool.JobContext) -> None:
    structlog.contextvars.clear_contextvars()  # nothing of the job before
    structlog.contextvars.bind_contextvars(job=ctx.id, handler=ctx.handler, attempt=ctx.attempt)


@jobpool.after_attempt
def end(_: jobpool.JobContext, result: jobpool.ExecutionResult) -> None:
    log.info("attempt ended", outcome=result.kind, seconds=round(result.duration_seconds(), 3))


@jobpool.handler("order.ship", queue="orders")
async def ship(_: jobpool.JobContext, order: int) -> None:
    log.info("shipping", order=order)
