"""Leasing, in one script: the first messages in order get a holder and a deadline.

The holder is half of the owner token; the other half is the message's sequence. So one word a fetch is random, one
word a message is kept, and no two tokens are alike.
"""

from __future__ import annotations

import secrets
from itertools import repeat

from jobpool.broker.values import REMEMBER_CALLS
from jobpool.clock import Clock
from jobpool.message.lease import JobLease, make_lease
from jobpool_backends.redis.connections import Link
from jobpool_backends.redis.key_names import KeyNames
from jobpool_backends.redis.records import HOLDER_CHARS, TAG_BYTES
from jobpool_backends.redis.scripts import FETCH
from jobpool_backends.shared import MICRO, micros, stand_in

MAX_MESSAGES_PER_FETCH = 2000
"""Some 10 ms of the server's time, whatever was asked for."""

_CALL_TTL_US = micros(REMEMBER_CALLS)


class Fetcher:
    """The leaser of messages."""

    def __init__(self, link: Link, keys: KeyNames, clock: Clock, scheme: str) -> None:
        self._link = link
        self._keys = keys
        self._clock = clock
        self._scheme = scheme

    def fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        before = self._clock.boot()
        length = micros(ttl)
        words = (min(limit, MAX_MESSAGES_PER_FETCH), length, f"{secrets.token_hex(8)} {length:014d} ", _CALL_TTL_US)
        answer = FETCH.run(self._link, self._keys, [queue], words, self._keys.fetch_call(queue, fetch_id))
        if not answer:
            return []
        members, records, bodies, *left = answer
        ends = [before + micros_left / MICRO for micros_left in left[0]] if left else repeat(before + ttl)
        scheme = self._scheme
        leases = []
        for name, record, body, expires_at in zip(members, records, bodies, ends, strict=False):
            if record is None:  # a member without a message: changed by hand
                continue
            member, text = name.decode(), record.decode()
            deliveries, attempts, crashes, available, enqueued, ident, _ = text[TAG_BYTES:].split(" ", 6)
            leases.append(
                make_lease(
                    ident[1:],
                    queue,
                    body if type(body) is bytes else stand_in(body),
                    member if ident[0] == "m" else member + ident[0],
                    text[:HOLDER_CHARS] + member[3:],
                    expires_at,
                    scheme,
                    int(attempts),
                    int(crashes),
                    int(deliveries),
                    int(enqueued) / MICRO,
                    available[0] == "+",
                )
            )
        return leases
