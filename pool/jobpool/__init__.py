"""jobpool: runs jobs from a queue in a pool of worker processes, with hard timeouts and fenced leases.

The public names are imported when they are first used, so that a child process holds only what its handlers need.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jobpool.message import producer

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend
    from jobpool.broker.opening import open_backend
    from jobpool.broker.values import Capabilities
    from jobpool.client.claims import Claim, ClaimMessage, Queue
    from jobpool.client.jobs import Jobs
    from jobpool.client.keys import IdempotencyGuard, RateLimiter
    from jobpool.client.worker import QueueWorker
    from jobpool.cron.runner import CronRunner
    from jobpool.cron.scheduler import Scheduler
    from jobpool.errors import (
        BackendUnavailable,
        ClaimNotFound,
        Forbidden,
        HardTimeout,
        LeaseLost,
        Retry,
        Snooze,
        Unrecoverable,
    )
    from jobpool.handlers.registry import HandlerRegistry, builtin, command, handler, listener
    from jobpool.message.allowances import Allowances
    from jobpool.message.builder import JobBuilder
    from jobpool.message.context import JobContext
    from jobpool.message.dead_letters import DeadLetterQueue
    from jobpool.message.definition import JobDefinition
    from jobpool.message.envelope import JobEnvelope
    from jobpool.message.lease import JobLease
    from jobpool.message.outcome import ExecutionResult, WorkerResult
    from jobpool.message.settlement import Settled
    from jobpool.message.signing import EnvelopeSigner
    from jobpool.policy.breaker import CircuitBreaker
    from jobpool.policy.limits import Limits
    from jobpool.policy.retry import RetryPolicy
    from jobpool.telemetry.metrics.collector import MetricsCollector

__version__ = "0.1.0"

__all__ = [
    "Allowances",
    "BackendUnavailable",
    "Capabilities",
    "CircuitBreaker",
    "Claim",
    "ClaimMessage",
    "ClaimNotFound",
    "CronRunner",
    "DeadLetterQueue",
    "EnvelopeSigner",
    "ExecutionResult",
    "Forbidden",
    "HandlerRegistry",
    "HardTimeout",
    "IdempotencyGuard",
    "JobBuilder",
    "JobContext",
    "JobDefinition",
    "JobEnvelope",
    "JobLease",
    "Jobs",
    "LeaseLost",
    "Limits",
    "MetricsCollector",
    "Queue",
    "QueueBackend",
    "QueueWorker",
    "RateLimiter",
    "Retry",
    "RetryPolicy",
    "Scheduler",
    "Settled",
    "Snooze",
    "Unrecoverable",
    "WorkerResult",
    "builtin",
    "command",
    "handler",
    "listener",
    "open_backend",
]

_HOME = {
    "Allowances": "jobpool.message.allowances",
    "BackendUnavailable": "jobpool.errors",
    "Capabilities": "jobpool.broker.values",
    "CircuitBreaker": "jobpool.policy.breaker",
    "CronRunner": "jobpool.cron.runner",
    "Claim": "jobpool.client.claims",
    "ClaimMessage": "jobpool.client.claims",
    "ClaimNotFound": "jobpool.errors",
    "DeadLetterQueue": "jobpool.message.dead_letters",
    "EnvelopeSigner": "jobpool.message.signing",
    "ExecutionResult": "jobpool.message.outcome",
    "Forbidden": "jobpool.errors",
    "HandlerRegistry": "jobpool.handlers.registry",
    "HardTimeout": "jobpool.errors",
    "IdempotencyGuard": "jobpool.client.keys",
    "JobBuilder": "jobpool.message.builder",
    "JobContext": "jobpool.message.context",
    "JobDefinition": "jobpool.message.definition",
    "JobEnvelope": "jobpool.message.envelope",
    "JobLease": "jobpool.message.lease",
    "Jobs": "jobpool.client.jobs",
    "LeaseLost": "jobpool.errors",
    "MetricsCollector": "jobpool.telemetry.metrics.collector",
    "Limits": "jobpool.policy.limits",
    "Queue": "jobpool.client.claims",
    "QueueBackend": "jobpool.broker.backend",
    "QueueWorker": "jobpool.client.worker",
    "RateLimiter": "jobpool.client.keys",
    "Retry": "jobpool.errors",
    "RetryPolicy": "jobpool.policy.retry",
    "Scheduler": "jobpool.cron.scheduler",
    "Settled": "jobpool.message.settlement",
    "Snooze": "jobpool.errors",
    "Unrecoverable": "jobpool.errors",
    "WorkerResult": "jobpool.message.outcome",
    "builtin": "jobpool.handlers.registry",
    "command": "jobpool.handlers.registry",
    "handler": "jobpool.handlers.registry",
    "listener": "jobpool.handlers.registry",
    "open_backend": "jobpool.broker.opening",
}


_MOVED = {
    "allowances": "message.allowances",
    "backend": "broker.backend",
    "builder": "message.builder",
    "claims": "client.claims",
    "claimstore": "broker.claim_store",
    "context": "message.context",
    "deadletters": "message.dead_letters",
    "definition": "message.definition",
    "envelope": "message.envelope",
    "filters": "broker.filters",
    "idempotency": "client.keys",
    "keystore": "broker.key_store",
    "lease": "message.lease",
    "limiter": "client.keys",
    "opening": "broker.opening",
    "outcome": "message.outcome",
    "producer": "message.producer",
    "result": "message.outcome",
    "settlement": "message.settlement",
    "signing": "message.signing",
    "worker": "client.worker",
}


class _MovedModules:
    """A finder of modules under the names that they had up to version 0.1."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        package, _, module = name.partition(".")
        return ModuleSpec(name, self) if package == "jobpool" and module in _MOVED else None  # type: ignore[arg-type]

    def create_module(self, _spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        home = import_module(f"jobpool.{_MOVED[module.__name__.partition('.')[2]]}")
        module.__dict__.update({name: value for name, value in vars(home).items() if not name.startswith("__")})


_finder: Any = _MovedModules()
sys.meta_path.append(_finder)


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module 'jobpool' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _open_default() -> producer.Producer:
    from jobpool.client.jobs import Jobs

    return Jobs()


# Here and not in client/jobs.py, so that `handler.enqueue()` finds it in a program that never names `Jobs`.
producer.set_factory(_open_default)
