"""From an address to an open link: to one server, to whichever is the master now, or to a cluster."""

from __future__ import annotations

from jobpool_backends.redis.address import Address, Kind
from jobpool_backends.redis.cluster_connections import ClusterLink
from jobpool_backends.redis.connections import Link, ServerLink
from jobpool_backends.redis.sentinel import SentinelConnector


def open_link(address: Address) -> Link:
    """Return a link to what the address names. Does not connect: the first call does."""
    match address.kind:
        case Kind.SENTINEL:
            return ServerLink(SentinelConnector(address))
        case Kind.CLUSTER:
            return ClusterLink(address)
        case Kind.SERVER:
            return ServerLink(address.seeds[0])
