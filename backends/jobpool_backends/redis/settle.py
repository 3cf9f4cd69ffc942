"""Ending leases, and holding them longer: a batch in one script, each message judged and changed in the same step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jobpool.broker.values import REMEMBER_CALLS
from jobpool.clock import Clock
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled, Settlement
from jobpool_backends.redis.batch import Batch, Brought, read_answers
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.connections import Link
from jobpool_backends.redis.guarding import token_of
from jobpool_backends.redis.key_names import KeyNames
from jobpool_backends.redis.records import HOLDER_CHARS, MEMBER_CHARS
from jobpool_backends.redis.scripts import RENEW, SETTLE
from jobpool_backends.shared import DeadCaps, micros

MAX_LEASES_PER_SCRIPT = 1000
"""Settlements or renewals a script, some 5 ms of the server's time; a larger batch is several."""

_CALL_TTL_US = micros(REMEMBER_CALLS)


class Settler:
    """The settler and renewer of leases."""

    def __init__(self, link: Link, keys: KeyNames, clock: Clock, caps: DeadCaps) -> None:
        self._link = link
        self._keys = keys
        self._clock = clock
        self._caps = caps

    def settle(
        self, settlements: Sequence[tuple[JobLease, Settlement]], brought: Brought, call_id: str
    ) -> list[Settled]:
        """Return the answers, in order. Each script remembers its own; those of a large batch append a number to the
        id.
        """
        answers = [Settled.NOT_IN_FLIGHT] * len(settlements)
        for number, places in self._parts(settlements):
            batch = Batch(settlements, places, brought)
            told = self._settle(batch, f"{call_id}+{number}" if number else call_id)
            for place, answer in zip(places, told, strict=False):  # an id that is used for another batch is a mistake
                answers[place] = answer
        return answers

    def _parts(self, settlements: Sequence[tuple[JobLease, Settlement]]) -> Iterator[tuple[int, list[int]]]:
        """Yield the places that one script settles, of one queue where keys are spread; and which part it is."""
        groups = [list(range(len(settlements)))]
        if self._keys.spread:
            groups = list(_by_queue([lease for lease, _ in settlements]).values())
        for places in groups:
            yield from enumerate(_pieces(places))

    def _settle(self, batch: Batch, call_id: str) -> list[Settled]:
        if not self._keys.spread:
            batch.reach_follow_ups()
        queues = batch.queues
        lead = (self._keys.settle_call(queues[0], call_id), self._keys.one(queues[0], "last"))
        words: list[Word] = [_CALL_TTL_US, self._caps.most, self._caps.age, *batch.words()]
        return read_answers(self._link.run(SETTLE.script, SETTLE.keys(self._keys, queues, *lead), words))

    def renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        """Return the leases with their new end, None for those that are lost; one script a queue."""
        before = self._clock.boot()
        renewed: list[JobLease | None] = [None] * len(leases)
        for queue, all_places in _by_queue(leases).items():
            for places in _pieces(all_places):
                answers = self._renew(queue, [leases[place] for place in places], ttl)
                for place, answer in zip(places, answers, strict=True):
                    if answer is Settled.OK:
                        renewed[place] = replace(leases[place], expires_at=before + ttl)
        return renewed

    def _renew(self, queue: str, leases: Sequence[JobLease], ttl: float) -> list[Settled]:
        length = micros(ttl)
        words: list[Word] = [length, f"{length:014d}", len(leases)]
        words += [token_of(lease)[:MEMBER_CHARS] for lease in leases]
        words += [lease.owner_token[:HOLDER_CHARS] for lease in leases]
        return read_answers(self._link.run(RENEW.script, RENEW.keys(self._keys, [queue]), words))


def _by_queue(leases: Sequence[JobLease]) -> dict[str, list[int]]:
    """Return the places of each queue's leases."""
    places: dict[str, list[int]] = {}
    for place, lease in enumerate(leases):
        places.setdefault(lease.queue, []).append(place)
    return places


def _pieces(places: list[int]) -> list[list[int]]:
    return [places[first : first + MAX_LEASES_PER_SCRIPT] for first in range(0, len(places), MAX_LEASES_PER_SCRIPT)]
