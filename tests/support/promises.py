"""The promises of the contract that a law needs, or needs to be missing: each follows from a broker's capabilities."""

from __future__ import annotations

from collections.abc import Callable

from jobpool.broker.values import Capabilities, Leases


def _keeps_records(can: Capabilities) -> bool:
    return can.keeps_records


def _remembers_leases(can: Capabilities) -> bool:
    return can.keeps_records and bool(can.leases)


def _leases(can: Capabilities) -> bool:
    return bool(can.leases)


def _is_native(can: Capabilities) -> bool:
    return can.leases in (Leases.BROKER, Leases.CONNECTION)


def _is_ours(can: Capabilities) -> bool:
    return not _is_native(can)


PROMISES: dict[str, Callable[[Capabilities], bool]] = {
    "leases": _leases,
    "native_reap": _is_native,
    "chosen_ttl": _is_ours,
    "settle_anywhere": _is_ours,
    "lasting_leases": lambda can: can.leases is not Leases.CONNECTION,
    "idempotent_settle": _remembers_leases,
    "idempotent_fetch": _remembers_leases,
    "known_ids": _keeps_records,
    "exact_refusals": _keeps_records,
    "keeps_place": _keeps_records,
    "deletes_live": _keeps_records,
    "dead_caps": _keeps_records,
    "edits": _remembers_leases,
    "moving_edits": lambda can: _remembers_leases(can) and can.atomic_across_queues,
    "key_store": lambda can: can.key_store,
    "claims": lambda can: can.key_store,
    "enqueue_in_transaction": lambda can: can.transactions,
    "ack_in_transaction": lambda can: can.transactions,
    "atomic_across_queues": lambda can: can.atomic_across_queues,
    "exact_crashes": lambda can: can.exact_counts and bool(can.leases),
    "exact_stats": lambda can: can.exact_counts,
    "priorities": lambda can: can.priorities,
    "lists_queues": lambda can: can.makes_queues,
    "makes_queues": lambda can: can.makes_queues,
    "lists_live": lambda can: can.lists_live,
    "finds_all": lambda can: can.finds_all,
}
"""`sync://`, which leases nothing, promises nothing of what becomes of leases."""
