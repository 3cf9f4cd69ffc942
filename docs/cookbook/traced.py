"""Jobs with OpenTelemetry: one trace from the producer to the handler and its follow-ups, and two metrics.

    python traced.py 7                            # enqueues an order, within a span
    jobpool --app traced.py --queue orders

A producer puts its span into the job's meta as `traceparent`. `ctx.enqueue` passes it on by itself. Exporters have
threads, which no fork survives, so each child makes its own at its first job, and not at the import.
"""

from __future__ import annotations

import os
import sys
from functools import cache

from opentelemetry import context, propagate, trace
from opentelemetry.metrics import Counter, Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

import jobpool

FLUSH_MS = 2000


@cache
def providers() -> tuple[TracerProvider, MeterProvider]:
    """Make the providers, once in each process. In place of the console's exporters use those of your collector."""
    resource = Resource.create({"service.name": "shop", "service.instance.id": str(os.getpid())})
    out = open(os.environ.get("TELEMETRY", os.devnull), "a")  # noqa: SIM115 - open for as long as the process lives
    tracing = TracerProvider(resource=resource)
    tracing.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=out)))
    reader = PeriodicExportingMetricReader(ConsoleMetricExporter(out=out))
    return tracing, MeterProvider([reader], resource=resource)


@cache
def instruments() -> tuple[Counter, Histogram]:
    meter = providers()[1].get_meter("shop.jobs")
    return meter.create_counter("jobs.attempts"), meter.create_histogram("jobs.duration", "s")


def tracer() -> trace.Tracer:
    return providers()[0].get_tracer("shop.jobs")


running: dict[str, tuple[trace.Span, object]] = {}
"""The span of the attempt that runs, and the context before it, by the job's id."""


@jobpool.before_attempt
def begin(ctx: jobpool.JobContext) -> None:
    facts = {"job.id": ctx.id, "job.queue": ctx.queue, "job.attempt": ctx.attempt}
    parent = propagate.extract(ctx.meta)
    span = tracer().start_span(ctx.handler, parent, trace.SpanKind.CONSUMER, facts)
    running[ctx.id] = span, context.attach(trace.set_span_in_context(span))


@jobpool.after_attempt
def end(ctx: jobpool.JobContext, result: jobpool.ExecutionResult) -> None:
    span, before = running.pop(ctx.id)
    context.detach(before)
    if not result.success:
        span.set_status(trace.StatusCode.ERROR, result.kind)
    if result.exception is not None:
        span.record_exception(result.exception)
    span.end()
    attempts, duration = instruments()
    facts = {"handler": ctx.handler, "outcome": result.kind}
    attempts.add(1, facts)
    duration.record(result.duration_seconds(), facts)
    for provider in providers():
        provider.force_flush(FLUSH_MS)


@jobpool.handler("order.ship", queue="orders")
def ship(ctx: jobpool.JobContext, order: int) -> None:
    with tracer().start_as_current_span("pack"):
        ctx.enqueue(jobpool.JobDefinition("order.thank", {"order": order}, queue="orders"))


@jobpool.handler("order.thank", queue="orders")
def thank(ctx: jobpool.JobContext, order: int) -> None: ...


def main(order: int) -> None:
    with jobpool.Jobs() as jobs, tracer().start_as_current_span("checkout", kind=trace.SpanKind.PRODUCER):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        jobs.define("order.ship", {"order": order}).queue("orders").meta(carrier).dispatch()
    providers()[0].force_flush(FLUSH_MS)


if __name__ == "__main__":
    main(int(sys.argv[1]))
