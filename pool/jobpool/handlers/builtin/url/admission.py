"""From a host to the addresses that may be called: all that it has, or none. Looking a name up blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from ipaddress import ip_address

from jobpool.handlers.builtin.url.addresses import Address, Network, is_in, plain, why_not_public
from jobpool.handlers.builtin.url.deadline import Deadline
from jobpool.handlers.builtin.url.refusal import Refused
from jobpool.handlers.builtin.url.target import Target
from jobpool.handlers.sentences import Failure

Lookup = Callable[[str], Sequence[str]]
"""From a name to all its addresses, as text. Raises `OSError`: it has none, or nobody answered."""


def system_lookup(host: str) -> list[str]:
    """Return the addresses of the system's resolver, in its order. Blocks as long as that does."""
    import socket

    # As bytes: text would go through Python's codec for international names, which has ideas of its own.
    found = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def admit(target: Target, networks: Sequence[Network], lookup: Lookup, deadline: Deadline) -> list[Address]:
    """Return the addresses of the target, in order, each of them allowed. Asks `lookup` at most once.

    Args:
        target: Where a call goes.
        networks: Allowed beside the public addresses.
        lookup: Not asked when the host is an address.
        deadline: For the lookup.

    Raises:
        Refused: One of them is neither public nor in `networks`.
        Failure: The name could not be looked up, now.

    Blocks until the deadline at most.
    """
    found = [target.address] if target.address is not None else _resolve(target.host, lookup, deadline)
    addresses = [plain(address) for address in found]
    for address in addresses:
        why = why_not_public(address)
        if why and not is_in(address, networks):
            which = "is an address" if target.address is not None else f"has, among {len(addresses)}, an address"
            raise Refused("address", f"{target.host} {which} that is not public ({why}): see allowed_url_networks")
    return addresses


def _resolve(host: str, lookup: Lookup, deadline: Deadline) -> list[Address]:
    answer = _ask(host, lookup, deadline)
    if isinstance(answer, OSError):
        raise Failure(f"{host} could not be resolved: {answer.strerror or answer}") from answer
    if not answer:
        raise Failure(f"{host} could not be resolved: it has no address")
    return [ip_address(text) for text in answer]


def _ask(host: str, lookup: Lookup, deadline: Deadline) -> Sequence[str] | OSError:
    """Return the result of `lookup`, or its error.

    It runs in a thread: the system's resolver has no deadline and ignores signals. It waits for a dead name server for
    as long as its own configuration says. A thread that is left behind ends with it; the child then leaves (`Wear`).
    """
    answers: list[Sequence[str] | OSError] = []

    def ask() -> None:
        try:
            answers.append(lookup(host))
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=ask, name="url-lookup", daemon=True)
    thread.start()
    thread.join(deadline.left())
    if not answers:
        raise Failure(f"{host} could not be resolved in time")
    return answers[0]
