"""jobpool: runs jobs from a queue in a pool of worker processes, with hard timeouts and fenced leases.

The public names are imported when they are first used, so that a child process holds only what its handlers need.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend as QueueBackend
    from jobpool.broker.opening import open_backend as open_backend
    from jobpool.broker.values import Capabilities as Capabilities
    from jobpool.client.claims import Claim as Claim
    from jobpool.client.claims import ClaimMessage as ClaimMessage
    from jobpool.client.claims import Queue as Queue
    from jobpool.client.jobs import Jobs as Jobs
    from jobpool.client.keys import IdempotencyGuard as IdempotencyGuard
    from jobpool.client.keys import RateLimiter as RateLimiter
    from jobpool.client.worker import QueueWorker as QueueWorker
    from jobpool.cron.runner import CronRunner as CronRunner
    from jobpool.cron.scheduler import Scheduler as Scheduler
    from jobpool.errors import BackendUnavailable as BackendUnavailable
    from jobpool.errors import Cancelled as Cancelled
    from jobpool.errors import ClaimNotFound as ClaimNotFound
    from jobpool.errors import ConfigurationError as ConfigurationError
    from jobpool.errors import Forbidden as Forbidden
    from jobpool.errors import HardTimeout as HardTimeout
    from jobpool.errors import InvalidJob as InvalidJob
    from jobpool.errors import JobFailed as JobFailed
    from jobpool.errors import JobpoolError as JobpoolError
    from jobpool.errors import LeaseLost as LeaseLost
    from jobpool.errors import NoResult as NoResult
    from jobpool.errors import ResultNotKept as ResultNotKept
    from jobpool.errors import ResultPending as ResultPending
    from jobpool.errors import ResultTooLarge as ResultTooLarge
    from jobpool.errors import Retry as Retry
    from jobpool.errors import Snooze as Snooze
    from jobpool.errors import UnknownJob as UnknownJob
    from jobpool.errors import Unrecoverable as Unrecoverable
    from jobpool.errors import Unsupported as Unsupported
    from jobpool.errors import WriteRefused as WriteRefused
    from jobpool.handlers.registry import HandlerRegistry as HandlerRegistry
    from jobpool.handlers.registry import after_attempt as after_attempt
    from jobpool.handlers.registry import before_attempt as before_attempt
    from jobpool.handlers.registry import builtin as builtin
    from jobpool.handlers.registry import command as command
    from jobpool.handlers.registry import handler as handler
    from jobpool.handlers.registry import listener as listener
    from jobpool.handlers.registry import on_death as on_death
    from jobpool.message.allowances import Allowances as Allowances
    from jobpool.message.builder import JobBuilder as JobBuilder
    from jobpool.message.context import JobContext as JobContext
    from jobpool.message.dead_letters import DeadJob as DeadJob
    from jobpool.message.dead_letters import DeadLetterQueue as DeadLetterQueue
    from jobpool.message.definition import JobDefinition as JobDefinition
    from jobpool.message.envelope import JobEnvelope as JobEnvelope
    from jobpool.message.lease import JobLease as JobLease
    from jobpool.message.outcome import ExecutionResult as ExecutionResult
    from jobpool.message.outcome import WorkerResult as WorkerResult
    from jobpool.message.results import JobHandle as JobHandle
    from jobpool.message.results import JobState as JobState
    from jobpool.message.results import JobStatus as JobStatus
    from jobpool.message.settlement import Settled as Settled
    from jobpool.message.signing import EnvelopeSigner as EnvelopeSigner
    from jobpool.policy.breaker import CircuitBreaker as CircuitBreaker
    from jobpool.policy.limits import Limits as Limits
    from jobpool.policy.retry import RetryPolicy as RetryPolicy
    from jobpool.telemetry.metrics.catalogue import MetricsCollector as MetricsCollector

__version__ = "0.1.0"

_HOME = {
    name: f"jobpool.{module}"
    for module, names in {
        "broker.backend": "QueueBackend",
        "broker.opening": "open_backend",
        "broker.values": "Capabilities",
        "client.claims": "Claim ClaimMessage Queue",
        "client.jobs": "Jobs",
        "client.keys": "IdempotencyGuard RateLimiter",
        "client.worker": "QueueWorker",
        "cron.runner": "CronRunner",
        "cron.scheduler": "Scheduler",
        "errors": "BackendUnavailable Cancelled ClaimNotFound ConfigurationError Forbidden HardTimeout InvalidJob"
        " JobFailed JobpoolError LeaseLost NoResult ResultNotKept ResultPending ResultTooLarge Retry Snooze UnknownJob"
        " Unrecoverable Unsupported WriteRefused",
        "handlers.registry": "HandlerRegistry after_attempt before_attempt builtin command handler listener on_death",
        "message.allowances": "Allowances",
        "message.builder": "JobBuilder",
        "message.context": "JobContext",
        "message.dead_letters": "DeadJob DeadLetterQueue",
        "message.definition": "JobDefinition",
        "message.envelope": "JobEnvelope",
        "message.lease": "JobLease",
        "message.outcome": "ExecutionResult WorkerResult",
        "message.results": "JobHandle JobState JobStatus",
        "message.settlement": "Settled",
        "message.signing": "EnvelopeSigner",
        "policy.breaker": "CircuitBreaker",
        "policy.limits": "Limits",
        "policy.retry": "RetryPolicy",
        "telemetry.metrics.catalogue": "MetricsCollector",
    }.items()
    for name in names.split()
}
"""Public name → its module."""

__all__ = sorted(_HOME)

_MOVED = {
    module.replace("_", ""): f"{room}.{module}"
    for room, modules in {
        "broker": "backend claim_store filters key_store opening",
        "client": "claims worker",
        "message": "allowances builder context dead_letters definition envelope lease outcome producer"
        " settlement signing",
    }.items()
    for module in modules.split()
} | {"idempotency": "client.keys", "limiter": "client.keys", "result": "message.outcome"}


_MODULES = {"errors": "errors", "message": "message", "producer": "message.producer"}
"""Modules that are there without an import of their own, under the names that they had up to version 0.1 too."""


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


sys.meta_path.append(_MovedModules())


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(f"jobpool.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'jobpool' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
