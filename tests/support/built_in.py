"""Attempts of built-in handlers, in the test's own process."""

from __future__ import annotations

from typing import Any, cast

from jobpool.child.attempt import JobToRun, run_attempt
from jobpool.handlers.conversion import converter, fill
from jobpool.handlers.ending import Attempt
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.allowances import Allowances
from jobpool.message.context import JobContext
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import JobEnvelope, decode, encode
from jobpool.message.outcome import ResultKind
from jobpool.message.signing import EnvelopeSigner


def enveloped(handler: str, payload: Any) -> JobEnvelope:
    body = encode(JobDefinition(handler, payload), identifier="a1", queue="default", signer=EnvelopeSigner(), now=0.0)
    return decode(body, attempts=0)


def read(annotation: Any, value: Any, name: str = "f") -> Any:
    """What a handler gets for a field of this annotation. Raises `Mismatch`."""
    return fill({name: value}, {name: converter(annotation)})[name]


def context(payload: Any) -> JobContext:
    """Of a job with this payload that reports to nobody; its id is `a1`."""
    return JobContext(enveloped("any", payload), cast(Any, None))


def attempt(
    handler: str, payload: Any, registry: HandlerRegistry | None = None, *, timeout: float = 0.0, **allowances: Any
) -> Attempt:
    """One attempt, under the handlers of `registry` and these allowances."""
    rules = Allowances(**allowances) if allowances else None
    handlers = (registry or HandlerRegistry()).with_rules(rules)
    return run_attempt(JobToRun(enveloped(handler, payload), timeout=timeout), handlers)


def output(handler: str, payload: Any, registry: HandlerRegistry | None = None, **options: Any) -> str:
    """Of an attempt that succeeds."""
    made = attempt(handler, payload, registry, **options)
    assert made.kind is ResultKind.SUCCEEDED, made.error
    return made.output


def refusal(handler: str, payload: Any, registry: HandlerRegistry | None = None, **options: Any) -> str:
    """The text of an attempt that is refused for good: one sentence, and no traceback."""
    made = attempt(handler, payload, registry, **options)
    assert made.kind is ResultKind.UNRECOVERABLE, (made.kind, made.error)
    assert "Traceback" not in made.error
    assert "\n" not in made.error
    return made.error


def failure(handler: str, payload: Any, registry: HandlerRegistry | None = None, **options: Any) -> str:
    """The text of an attempt that fails, and may be tried again."""
    made = attempt(handler, payload, registry, **options)
    assert made.kind is ResultKind.FAILED, (made.kind, made.error)
    return made.error
