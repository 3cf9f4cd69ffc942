"""The demands of a pool's settings on its broker, compared with its capabilities before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from jobpool.broker.backend import QueueBackend
from jobpool.errors import ConfigurationError
from jobpool.master.acquire import check_key_store
from jobpool.policy.limits import Limits
from jobpool.settings import Settings

log = logging.getLogger("jobpool.pool")


def check_compatibility(settings: Settings, backend: QueueBackend) -> None:
    """Refuse what cannot work, and say what will not be there.

    Raises:
        ConfigurationError: A setting needs what the broker lacks, or a queue that must have been made was not.
        BackendUnavailable: The broker does not answer.

    Blocks for a round trip a queue where queues must have been made.
    """
    for sentence in unmet(settings, backend):
        raise ConfigurationError(sentence)
    if not backend.capabilities.makes_queues:
        for queue in queues_of(settings):
            backend.stats(queue)
    if settings.rollups and not backend.capabilities.key_store:
        log.info("no rollups are kept", extra={"fields": {"why": f"{backend.scheme}:// keeps no keys"}})


def unmet(settings: Settings, backend: QueueBackend) -> Iterator[str]:
    """A sentence with its mend for each setting that needs what the broker lacks. No I/O."""
    if not backend.capabilities.leases:
        yield f"a pool cannot serve {backend.scheme}://, which runs jobs as they are enqueued; use sqlite:///jobpool.db"
    if backend.capabilities.key_store:
        return
    try:
        check_key_store(limits_of(settings), backend)
    except ConfigurationError as error:
        yield str(error)
    if settings.cron:
        yield (
            f"a scheduler beside the pool needs a broker that keeps keys, and {backend.scheme}:// keeps none"
            " (Capabilities.key_store): leave --cron out, or choose another backend"
        )
    if settings.history.table:
        yield (
            f"history = 'table' needs a broker that keeps keys, and {backend.scheme}:// keeps none"
            " (Capabilities.key_store): use history = 'file:PATH', or another backend"
        )


def queues_of(settings: Settings) -> list[str]:
    """Every queue that the pool fetches from, or sends to by itself."""
    more = (settings.dead_letter_queue, settings.on_crash.queue, settings.on_memory_limit_queue)
    return list(dict.fromkeys([*settings.queue_names, *(queue for queue in more if queue is not None)]))


def limits_of(settings: Settings) -> Limits:
    """Return the limits that the settings name. Raises `ConfigurationError`."""
    return Limits(
        idempotency_ttl=settings.idempotency_ttl,
        concurrency=settings.concurrency_limits,
        concurrency_per_key=settings.concurrency_per_key,
        rates=settings.rate_limits,
        rates_per_key=settings.rate_per_key,
    )


def unserved_limits(settings: Settings) -> list[str]:
    """A sentence for each limit of a queue that the pool does not serve: meant for another pool, or mistyped."""
    tables = ("concurrency_limits", "concurrency_per_key", "rate_limits", "rate_per_key")
    named = [(table, queue) for table in tables for queue in getattr(settings, table)]
    served = ", ".join(map(repr, settings.queue_names))
    return [
        f"{table} limits queue {queue!r}, which this pool does not serve; it serves {served}"
        for table, queue in named
        if queue not in settings.queue_names
    ]
