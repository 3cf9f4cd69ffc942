"""The states of messages, and moves between them, within a turn.

The jobs of a queue have a heap of sequence numbers for each priority, and a heap of delayed ones. Posted messages have
the same of their own. All heaps are cleaned lazily.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count, islice

from msgspec.structs import replace

from jobpool.broker.claim_store import POST_PRIORITY, NewPost
from jobpool.broker.values import ENQUEUE_MEMORY, UNHELD, Edit, Edited, MessageFilter, NewMessage, State
from jobpool.message.guards import IDEMPOTENCY_TTL, Guards
from jobpool.message.lease import JobLease
from jobpool.message.settlement import CANCELLED, Abandon, Ack, Forfeit, Move, Nack, Release, Settlement
from jobpool_backends.memory.batches import End, MemoryBatches
from jobpool_backends.memory.places import Places
from jobpool_backends.memory.values import Entry, Expiring, Line, Queue, Turn, is_meant
from jobpool_backends.shared import DeadCaps, delay_micros, micros


class Store:
    def __init__(self, turn: Turn, caps: DeadCaps) -> None:
        self._turn = turn
        self._caps = caps
        self._sequence = count(1)
        self.entries: dict[int, Entry] = {}
        self.by_id: dict[str, Entry] = {}
        self.queues: dict[str, Queue] = defaultdict(Queue)
        self.places = Places(turn)
        self.ended: Expiring[bool] = Expiring()
        self.unique: dict[tuple[str, str], Entry] = {}  # by queue and unique key: live and dead messages
        self.results: Expiring[bytes] = Expiring()  # by id
        self.acked: Expiring[str] = Expiring()  # the same: the id of the acked message
        self.batches = MemoryBatches(turn, self.entries, partial(self.add, brought=True))
        turn.at_end = self.batches.finish

    def entry(self, lease: JobLease) -> Entry | None:
        return self.entries.get(lease.token)  # type: ignore[call-overload, no-any-return]

    def add(self, messages: Sequence[NewMessage], brought: bool = False) -> dict[str, str]:
        """Add those that are not known; the id of each whose unique key is known → the id that has it.

        `brought`: by a settlement. Raises `InvalidJob`: the batch of one is not open.
        """
        existing: dict[str, str] = {}
        fresh: dict[str, NewMessage] = {}
        taken: dict[tuple[str, str], str] = {}  # the unique keys of these
        for new in messages:
            if new.id in fresh or new.id in existing or self._is_known(new):
                continue
            if new.unique_key is not None:
                key = new.queue, new.unique_key
                holder = taken.get(key) or self._holder(*key)
                if holder is not None:
                    existing[new.id] = holder
                    continue
                taken[key] = new.id
            fresh[new.id] = new
        for new in self.batches.joining(list(fresh.values()), brought):
            self.insert(new)
            self.results.pop(new.id, self._turn.now)  # of an earlier job with its id
            self.batches.joined(new)
        return existing

    def _holder(self, queue: str, key: str) -> str | None:
        live = self.unique.get((queue, key))
        return live.id if live else self.acked.get((queue, key), self._turn.now)

    def _is_known(self, new: NewMessage | NewPost) -> bool:
        known = self.by_id.get(new.id)
        if known is not None:
            self.sweep(self.queues[known.queue])
        return new.id in self.by_id or (new.given and self.ended.get(new.id, self._turn.now) is not None)

    def insert(self, new: NewMessage) -> None:
        """Add this one without a look at known ids."""
        now = self._turn.now
        available = max(now, micros(new.due)) if new.due is not None else now
        seq = next(self._sequence)
        entry = Entry(seq, new.id, new.given, new.queue, new.handler, new.priority, new.body, now, available)
        entry.attempts, entry.crashes, entry.deliveries = new.attempts, new.crashes, new.deliveries
        entry.last_error, entry.cause = new.last_error, new.cause
        entry.last_crash = now if new.crashes else None  # crashes that came with it count from here on
        entry.batch = new.batch
        if new.unique_key is not None:
            entry.unique_key = new.unique_key
            self.unique[new.queue, new.unique_key] = entry
        self._put_in(entry)

    def add_posts(self, queue: str, posts: Sequence[NewPost]) -> None:
        now = self._turn.now
        for new in posts:
            if not self._is_known(new):
                seq, free = next(self._sequence), now + delay_micros(new.delay)
                entry = Entry(seq, new.id, new.given, queue, "", POST_PRIORITY, new.body, now, free, posted=True)
                if new.life is not None:
                    self.live_until(entry, now + micros(new.life))
                self._put_in(entry)

    def _put_in(self, entry: Entry) -> None:
        self.entries[entry.seq] = self.by_id[entry.id] = entry
        self.queues[entry.queue].line(entry).counts[State.WAITING] += 1
        self.place(entry, entry.available_at)

    def remove(self, entry: Entry, at: int | None = None) -> None:
        """Remove a message, which ended `at` or now; an id that its producer gave stays known for a while."""
        if entry.batch is not None:
            self.batches.ended(entry, entry.batch, End.CANCELLED)
        self._take_out(entry)
        if entry.given:
            self.ended.put(entry.id, True, (self._turn.now if at is None else at) + micros(ENQUEUE_MEMORY))

    def _take_out(self, entry: Entry) -> None:
        self._leave(entry)
        queue = self.queues[entry.queue]
        queue.line(entry).counts[entry.state] -= 1
        queue.life_ends.forget(entry.seq)
        del self.entries[entry.seq], self.by_id[entry.id]
        if entry.unique_key is not None:
            del self.unique[entry.queue, entry.unique_key]

    def take(self, name: str, limit: int, length: int, call: str) -> list[Entry]:
        queue = self.queues[name]
        self.sweep(queue)
        taken = list(islice(self.ready(queue.jobs), limit))
        prefix = secrets.token_hex(8)
        for entry in taken:
            entry.state = State.LEASED
            entry.owner = f"{prefix}{entry.seq:016x}"
            entry.fetched_by = call
            entry.deliveries += 1
            queue.leased[entry.seq] = entry
            entry.hold(length, self._turn)
        queue.jobs.counts[State.WAITING] -= len(taken)
        queue.jobs.counts[State.LEASED] += len(taken)
        return taken

    def ready(self, *lines: Line) -> Iterator[Entry]:
        """Yield the waiting messages of these lines in order, each taken off its heap."""
        for priority in sorted({priority for line in lines for priority in line.ready}):
            heaps = [line.ready[priority] for line in lines if priority in line.ready]
            while heaps := [heap for heap in heaps if self._first(heap) is not None]:
                yield self.entries[heappop(min(heaps))]

    def sweep(self, queue: Queue) -> None:
        """Remove posted messages whose lives have ended, and let due ones wait."""
        for seq, end in queue.life_ends.due(self._turn.now):
            self.remove(self.entries[seq], end)
            queue.expired += 1
        for line in (queue.jobs, queue.posts):
            while line.delayed and line.delayed[0][0] <= self._turn.now:
                entry = self.entries.get(heappop(line.delayed)[1])
                if entry is not None:
                    self.move(entry, State.WAITING)
                    heappush(line.ready[entry.priority], entry.seq)

    def live_until(self, entry: Entry, end: int | None) -> None:
        """Let the life of a posted message end then; None = never."""
        entry.ends_at = end
        if end is None:
            self.queues[entry.queue].life_ends.forget(entry.seq)
        else:
            self.queues[entry.queue].life_ends.put(entry.seq, end)

    def place(self, entry: Entry, available_at: int) -> None:
        entry.available_at = available_at
        line = self.queues[entry.queue].line(entry)
        if available_at > self._turn.now:
            self.move(entry, State.DELAYED)
            heappush(line.delayed, (available_at, entry.seq))
        else:
            self.move(entry, State.WAITING)
            heappush(line.ready[entry.priority], entry.seq)

    def bury(self, entry: Entry, reason: str, error: str | None = None) -> None:
        """Move it to the dead letters, after those that died before."""
        self.move(entry, State.DEAD)
        self.live_until(entry, None)
        if entry.batch is not None:
            self.batches.ended(entry, entry.batch, End.CANCELLED if reason == CANCELLED else End.FAILED)
        entry.reason, entry.died_at = reason, self._turn.now
        entry.tell(error, None)
        queue = self.queues[entry.queue]
        queue.dead[entry.seq] = entry
        self.cap(queue)

    def cap(self, queue: Queue) -> None:
        """Remove the dead letters of a queue that are too many or too old: those that died first."""
        while self._caps and queue.dead:
            oldest = min(queue.dead.values(), key=lambda entry: (entry.died_at or 0, entry.seq))
            if not self._caps.are_over(len(queue.dead), self._turn.now - (oldest.died_at or 0)):
                return
            self.remove(oldest)
            queue.evicted += 1

    def retry(self, entry: Entry) -> None:
        """Let a dead letter wait again, as if it had never run."""
        entry.attempts = entry.crashes = entry.claims = 0
        entry.last_error = entry.cause = entry.last_crash = None
        self.resume(entry)

    def cancel(self, entry: Entry) -> None:
        """Make a dead letter of what waits or is delayed."""
        self._leave_heaps(entry)
        self.bury(entry, CANCELLED)

    def edit(self, edit: Edit) -> Edited:
        """Change a job that waits or is delayed, if it is as it was seen."""
        seen = edit.seen
        self.sweep(self.queues[seen.queue])
        entry = self.entries.get(int(seen.cursor))
        if (
            entry is None
            or (entry.id, entry.queue, entry.priority) != (seen.id, seen.queue, seen.priority)
            or entry.state not in UNHELD
        ):
            return Edited.CHANGED
        if edit.queue != entry.queue and entry.unique_key is not None:
            if self._holder(edit.queue, entry.unique_key) is not None:
                return Edited.DUPLICATE
            del self.unique[entry.queue, entry.unique_key]
            self.unique[edit.queue, entry.unique_key] = entry
        self._leave_heaps(entry)
        self.queues[entry.queue].line(entry).counts[entry.state] -= 1
        entry.queue, entry.priority, entry.body = edit.queue, edit.priority, edit.body or entry.body
        self.queues[entry.queue].line(entry).counts[entry.state] += 1
        self.place(entry, entry.available_at if edit.due is None else max(self._turn.now, micros(edit.due)))
        return Edited.EDITED

    def _leave_heaps(self, entry: Entry) -> None:
        line = self.queues[entry.queue].line(entry)
        line.ready[entry.priority] = [seq for seq in line.ready[entry.priority] if seq != entry.seq]
        line.delayed = [place for place in line.delayed if place[1] != entry.seq]
        heapify(line.ready[entry.priority])
        heapify(line.delayed)

    def resume(self, entry: Entry) -> None:
        entry.reason = entry.died_at = None
        entry.begun = True
        self.place(entry, self._turn.now)

    def move(self, entry: Entry, state: State) -> None:
        """Count it there, held by nobody."""
        self._leave(entry)
        counts = self.queues[entry.queue].line(entry).counts
        counts[entry.state] -= 1
        counts[state] += 1
        entry.state = state

    def _leave(self, entry: Entry) -> None:
        """Let it be neither leased nor dead."""
        queue = self.queues[entry.queue]
        queue.leased.pop(entry.seq, None)
        queue.dead.pop(entry.seq, None)
        if entry.places:
            self.places.release_places(entry)
        if entry.claim:
            del entry.claim.entries[entry.seq]
            entry.claim = None

    def has_ready(self, name: str) -> bool:
        if name not in self.queues:
            return False
        self.sweep(self.queues[name])
        return self.queues[name].jobs.counts[State.WAITING] > 0

    def next_due(self, names: Sequence[str]) -> int | None:
        """Return when the next delayed job of these queues falls due."""
        known = [self.queues[name].jobs.delayed for name in names if name in self.queues]
        return min((delayed[0][0] for delayed in known if delayed), default=None)

    def oldest(self, queue: Queue) -> Entry | None:
        firsts = [seq for heap in queue.jobs.ready.values() if (seq := self._first(heap)) is not None]
        return self.entries[min(firsts)] if firsts else None

    def _first(self, heap: list[int]) -> int | None:
        while heap and heap[0] not in self.entries:
            heappop(heap)
        return heap[0] if heap else None

    def matching(self, where: MessageFilter) -> Iterator[Entry]:
        for queue in self.queues.values():
            self.sweep(queue)
        named = sorted(self.by_id[ident].seq for ident in self.by_id.keys() & set(where.ids))
        some = map(self.entries.__getitem__, named) if where.ids else self.entries.values()
        return (entry for entry in some if is_meant(entry, where, self._turn.now))

    def settle(self, entry: Entry, lease: JobLease, settlement: Settlement, brought: Sequence[NewMessage]) -> None:
        """Carry out a settlement of a judged lease, and add the messages that it brings."""
        turn = self._turn
        match settlement:
            case Move():
                self._take_out(entry)
                entry.tell(settlement.error, settlement.cause)
                self.insert(replace(brought[0], last_error=entry.last_error, cause=entry.cause, batch=entry.batch))
                return
            case Ack(result=result):
                self._ack(entry, lease.guards)
                if result is not None:
                    self.results.put(entry.id, result.record, turn.now + micros(result.ttl))
            case Nack(delay=delay):
                entry.attempts += 1
                entry.tell(settlement.error, settlement.cause)
                self.place(entry, turn.now + delay_micros(delay))
            case Abandon():
                entry.attempts += settlement.attempts
                entry.tell(None, settlement.cause)
                self.bury(entry, settlement.reason, settlement.error)
            case Release(delay=delay):
                if lease.guards and not settlement.begun:
                    self.places.give_back(entry, lease.guards)
                entry.begun |= settlement.begun
                self.place(entry, turn.now + delay_micros(delay))
            case Forfeit(cause=cause):
                entry.deadline, entry.deadline_wall, entry.forfeited = turn.boot, turn.now, cause
        if brought:
            self.add(brought, brought=True)

    def _ack(self, entry: Entry, guards: Guards | None) -> None:
        until = self._turn.now + micros(guards.keep if guards else IDEMPOTENCY_TTL)
        if guards and guards.key is not None:
            self.places.done.put((entry.queue, guards.key), True, until)
        if entry.unique_key is not None:
            self.acked.put((entry.queue, entry.unique_key), entry.id, until)
        if entry.batch is not None:
            self.batches.ended(entry, entry.batch, End.SUCCEEDED)
        self.remove(entry)
