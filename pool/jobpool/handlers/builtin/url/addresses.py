"""From a host to the addresses that may be called: all that it has, or none.

The tables are those of IANA's registries of special-purpose addresses (iana-ipv4-special-registry and
iana-ipv6-special-registry). They are written out because `ipaddress.is_global` differs between Python's releases and
does not say why. Where a range is reachable in theory and names no web server in practice, it is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from time import monotonic

from jobpool.handlers.builtin import Failure
from jobpool.handlers.builtin.url.request import Address, Refused, Target

Network = IPv4Network | IPv6Network

Lookup = Callable[[str], Sequence[str]]
"""From a name to all its addresses, as text. Raises `OSError`: it has none, or nobody answered."""

V4 = {
    "0.0.0.0/8": "unspecified",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by a provider's customers (CGNAT)",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "the host of an Azure machine",
    "169.254.0.0/16": "link-local, where clouds serve metadata",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved for protocols",
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "a 6to4 relay",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "255.255.255.255/32": "broadcast",
    "240.0.0.0/4": "reserved",
}
V6 = {
    "::/128": "unspecified",
    "::1/128": "loopback",
    "64:ff9b:1::/48": "of a local translator (NAT64)",
    "100::/64": "a black hole",
    "2001::/32": "in a Teredo tunnel",
    "2001::/23": "reserved for protocols",
    "2001:db8::/32": "for documentation",
    "2002::/16": "in a 6to4 tunnel",
    "3fff::/20": "for documentation",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}
_NETWORKS = [(ip_network(network), what) for network, what in (V4 | V6).items()]
_GLOBAL_V6 = IPv6Network("2000::/3")
_TRANSLATED = IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""The upper half of the interface's part of an address, whatever its prefix: an IPv4 address is the lower half."""


def why_not_public(address: Address) -> str:
    """Return the kind of a non-public address; "" if it is public.

    An address that is mapped (`::ffff:a.b.c.d`) or translated on the way (NAT64, `64:ff9b::a.b.c.d`) is judged by the
    IPv4 address in it. Tunnels (6to4, Teredo, ISATAP) are refused whatever is in them.
    """
    if isinstance(address, IPv6Address):
        embedded = address.ipv4_mapped
        if address in _TRANSLATED:
            embedded = IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            return why_not_public(embedded)
        if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
            return "in an ISATAP tunnel"
    for network, what in _NETWORKS:
        if address in network:
            return what
    return "" if isinstance(address, IPv4Address) or address in _GLOBAL_V6 else "reserved"


class TooMuch(Exception):
    """The peer has sent more than it may."""


class Bounds:
    """The limits of one call: `seconds` from now, and bytes that may come in (head and framing too, after TLS)."""

    def __init__(self, seconds: float, room: int) -> None:
        self._end = monotonic() + seconds
        self._room = room

    def left(self) -> float:
        """Return the seconds that are left, > 0. Raises `TimeoutError`: there are none."""
        left = self._end - monotonic()
        if left <= 0:
            raise TimeoutError("the call's time is up")
        return left

    def took(self, count: int) -> int:
        """Return `count`, bytes that came in. Raises `TooMuch`."""
        self._room -= count
        if self._room < 0:
            raise TooMuch
        return count


def system_lookup(host: str) -> list[str]:
    """Return the addresses of the system's resolver, in its order. Blocks as long as that does."""
    import socket

    # As bytes: text would go through Python's codec for international names, which has ideas of its own.
    found = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def admit(target: Target, networks: Sequence[Network], lookup: Lookup, bounds: Bounds) -> list[Address]:
    """Return the addresses of the target, in order, each of them public or in `networks`.

    Asks `lookup` at most once, and not when the host is an address. Blocks until the deadline at most.

    Raises:
        Refused: One of them is not allowed.
        Failure: The name could not be looked up, now.
    """
    found = [target.address] if target.address is not None else _resolve(target.host, lookup, bounds)
    # A mapped address (`::ffff:a.b.c.d`) is connected to as the IPv4 address that it is.
    addresses = [getattr(address, "ipv4_mapped", None) or address for address in found]
    for address in addresses:
        why = why_not_public(address)
        if why and not any(address in network for network in networks):
            which = "is an address" if target.address is not None else f"has, among {len(addresses)}, an address"
            raise Refused("address", f"{target.host} {which} that is not public ({why}): see allowed_url_networks")
    return addresses


def _resolve(host: str, lookup: Lookup, bounds: Bounds) -> list[Address]:
    """Return what `lookup` knows.

    It runs in a thread: the system's resolver has no deadline and ignores signals. It waits for a dead name server for
    as long as its own configuration says. A thread that is left behind ends with it; the child then leaves
    (`RecyclePolicy`).
    """
    answers: list[Sequence[str] | OSError] = []

    def ask() -> None:
        try:
            answers.append(lookup(host))
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=ask, name="url-lookup", daemon=True)
    thread.start()
    thread.join(bounds.left())
    if not answers:
        raise Failure(f"{host} could not be resolved in time")
    answer = answers[0]
    if isinstance(answer, OSError):
        raise Failure(f"{host} could not be resolved: {answer.strerror or answer}") from answer
    if not answer:
        raise Failure(f"{host} could not be resolved: it has no address")
    return [ip_address(text) for text in answer]
