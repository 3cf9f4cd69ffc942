"""The master's loop: wait, apply, plan, perform. `apply` and `plan` are the program; this is a `poll` and a `match`."""

from __future__ import annotations

import signal
import time
from dataclasses import asdict

import orjson

from jobpool.broker.backend import QueueBackend
from jobpool.ipc.process_options import ASKS_STACK
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.attendant import Attendant
from jobpool.master.batch import Batch
from jobpool.master.circles import Circles
from jobpool.master.crew import Crew
from jobpool.master.delivery import Delivery
from jobpool.master.handout import worth_fetching
from jobpool.master.inbox import Inbox
from jobpool.master.lessor import Lessor
from jobpool.master.losses import Losses
from jobpool.master.plan import CHECK_EVERY, Planner
from jobpool.master.pool import Pool
from jobpool.master.produce import produce
from jobpool.master.publisher import EVERY, Publisher
from jobpool.master.renewer import Renewer
from jobpool.master.sampler import Sampler
from jobpool.master.settler import Settler
from jobpool.master.slots import Slot, SlotState
from jobpool.master.watch import next_due
from jobpool.master.watching import Watching

STACK_WAIT = 0.1
"""Seconds for the children's fault handlers to write, before their stacks are logged."""

SOON = 0.05
"""Seconds between two writes of the pool's state while children become ready: who has started a pool waits for that."""

LAST_LOOK = 0.02
"""Seconds between two looks whether the lease thread has ended, which it does without an event."""

JOIN_LIMIT = 2.0


class Master:
    """Owns the pool's state. Only `run`, on one thread, touches it; the other threads leave events in the inbox."""

    def __init__(
        self,
        pool: Pool,
        planner: Planner,
        backend: QueueBackend,
        crew: Crew,
        inbox: Inbox,
        lessor: Lessor,
        settler: Settler,
        publisher: Publisher,
        watching: Watching | None = None,
        attendant: Attendant | None = None,
    ) -> None:
        self._pool = pool
        self._planner = planner
        self._backend = backend
        self._clock = backend.clock
        self._crew = crew
        self._inbox = inbox
        self._lessor = lessor
        self._settler = settler
        self._publisher = publisher
        self._renewer = Renewer(backend, pool.settings.ttl, lambda: list(pool.held.values()), inbox)
        self._losses = None if backend.capabilities.lasting_leases else Losses(backend, inbox)
        self._sampler = Sampler(self._living, inbox)
        self._watching = watching
        self._attendant = attendant
        self._batch = Batch()
        self._circles = Circles(time.monotonic())
        self._stacks_due = 0.0
        self._unpublished = True
        crew.watch(inbox.fd, inbox.take)

    def run(self) -> int:
        """Serve until told to stop; return the exit status. Blocks."""
        pool = self._pool
        observer = self._watching.observer if self._watching else None
        self._start_threads()
        leasing = True
        while leasing or not pool.finished:
            leasing = self._lessor.is_leasing()  # asked before the wait: its last leases are among this turn's events
            for event in self._wait():
                if observer is not None:
                    observer.note(pool, event)
                apply(pool, event, time.monotonic())
                self._note(event)
            for action in self._planner.plan(pool, time.monotonic(), self._clock.boot()):
                self._perform(action)
            self._after(time.monotonic())
        self._end()
        died = pool.counters.dead + pool.counters.rejected
        return int(bool(pool.fatal) or (pool.settings.fail_on_dead and died > 0))

    # --- wait ---------------------------------------------------------------------------------------

    def _wait(self) -> list[ev.Event]:
        """What has happened; sleeps only when nothing has, and only then asks until when."""
        events = self._crew.poll(0.0)
        if not events:
            events = self._crew.poll(self._due() - time.monotonic())
        self._unpublished = self._unpublished or bool(events)
        return events

    def _due(self) -> float:
        """When to look round though nothing happens."""
        now = time.monotonic()
        due = max(next_due(self._pool, now), self._pool.checked_at + CHECK_EVERY)
        if self._unpublished:
            due = min(due, self._publish_at)
        if self._stacks_due:
            due = min(due, self._stacks_due)
        if self._pool.is_stopping:
            due = min(due, now + (LAST_LOOK if self._lessor.is_leasing() else EVERY))
        return min(due, self._batch.due)

    def _note(self, event: ev.Event) -> None:
        """What an event means for the loop's own helpers."""
        match event:
            case ev.Leased(lasts=lasts):
                self._lessor.seen()
                if lasts:
                    self._renewer.expect(lasts)
            case ev.Answered(answers) if self._pool.open_breakers:
                self._lessor.answered({delivery.lease.queue for delivery, _, _ in answers})
            case ev.Renewed(renewals) if self._pool.open_breakers:
                self._lessor.answered({delivery.lease.queue for delivery, _ in renewals})
            case ev.Counted(stats) if self._pool.open_breakers:
                self._lessor.answered(stats)
            case ev.AppLoaded():
                self._planner.forget_rules()
            case ev.Sampled(samples):
                for child, _, share in samples:
                    self._publisher.note_cpu(child, share)
                self._crew.bound_outputs()
                self._circles.look(time.monotonic())
            case ev.ChildReady():
                self._publish_at = min(self._publish_at, self._published_at + SOON)

    # --- perform ------------------------------------------------------------------------------------

    def _perform(self, action: act.Action) -> None:
        match action:
            case act.Hand(slot, delivery):
                if self._crew.hand(slot, delivery, self._ticket(delivery) if delivery.acks_itself else b""):
                    slot.hand(delivery, time.monotonic())
                else:
                    slot.full = True
                    self._pool.put_back([delivery])
            case act.Settle(delivery, settlement):
                now = time.monotonic()
                self._batch.add(delivery, settlement, now, self._pool.lookahead.size(now))
            case act.TakeBack(slot):
                apply(self._pool, self._crew.take_back(slot), time.monotonic())
            case _:
                self._perform_rare(action)

    def _perform_rare(self, action: act.Action) -> None:
        match action:
            case act.SpawnChild(slot):
                self._spawn(slot)
            case act.RetireChild(slot):
                apply(self._pool, self._crew.take_back(slot), time.monotonic())
                self._crew.retire(slot)
            case act.KillChild(slot):
                self._crew.signal(slot, signal.SIGKILL)
            case act.DumpStack(slot):
                self._crew.signal(slot, ASKS_STACK)
                slot.awaits_stack = True
            case act.LookForStack(slot):
                slot.awaits_stack = not self._crew.has_stack(slot)
            case act.ForgetChild(_, child):
                self._crew.forget(child)
            case act.Produce(child, ask) if ask.pack:
                # Not on the settle thread: that may wait for a lock which the asking handler's transaction holds.
                apply(self._pool, produce(self._backend, child, ask), time.monotonic())
            case act.Produce(child, ask):
                self._settler.produce(child, ask)
            case act.Answer(child, reply):
                self._crew.reply(child, reply)
            case act.StartForkServer(generation):
                self._start_server(generation)
            case act.EndForkServer(generation):
                self._crew.end_server(generation)
                apply(self._pool, ev.ForkServerGone(generation), time.monotonic())
            case act.KillForkServer(generation):
                self._crew.kill_server(generation)
                apply(self._pool, ev.ForkServerGone(generation), time.monotonic())
            case act.WriteStacks():
                self._ask_stacks()
            case act.StartCompanion() if self._attendant is not None:
                apply(self._pool, self._attendant.start(), time.monotonic())
            case act.SignalCompanion(pid, number) if self._attendant is not None:
                self._attendant.signal(pid, number)

    def _ticket(self, delivery: Delivery) -> bytes:
        return orjson.dumps(self._backend.ticket(delivery.lease))

    def _spawn(self, slot: Slot) -> None:
        child = slot.child
        try:
            self._crew.spawn(slot)
        except OSError as error:
            apply(self._pool, ev.SpawnRefused(child, str(error)), time.monotonic())

    def _start_server(self, generation: int) -> None:
        try:
            self._crew.start_server(generation)
        except OSError as error:
            self._pool.note("error", "no fork server could be started", error=str(error))
            self._pool.boot.failed(str(error), time.monotonic())
            self._pool.servers.pop(generation, None)

    # --- after each turn ----------------------------------------------------------------------------

    def _after(self, now: float) -> None:
        pool = self._pool
        if now >= self._batch.due:
            self._settler.settle(self._batch.take())
        if pool.is_stopping:
            self._lessor.stop()
        else:
            if pool.limited:
                self._lessor.hold(pool.places(), pool.given_back)
                pool.given_back.clear()
            self._lessor.want(worth_fetching(pool, now))
        if self._stacks_due and now >= self._stacks_due:
            self._log_stacks()
        if now >= self._publish_at:
            self._publish(now)
        if pool.notes:
            self._publisher.log_notes(pool)

    _published_at = 0.0
    _publish_at = 0.0

    def _publish(self, now: float) -> None:
        self._published_at = now
        self._publish_at = now + EVERY
        self._unpublished = False
        answered = max(self._lessor.answered_at, self._settler.answered_at)
        self._publisher.publish(self._pool, now, answered, self._settler.reaped_at)

    def _ask_stacks(self) -> None:
        for slot in self._pool.slots.live:
            self._crew.signal(slot, ASKS_STACK)
        self._stacks_due = time.monotonic() + STACK_WAIT

    def _log_stacks(self) -> None:
        self._stacks_due = 0.0
        for slot in self._pool.slots.live:
            self._pool.note("warning", "stack of a child", slot=slot.index, pid=slot.pid, stack=self._crew.stack(slot))

    # --- threads ------------------------------------------------------------------------------------

    def _living(self) -> list[tuple[int, int, bool]]:
        return [(slot.child, slot.pid, slot.state is SlotState.BUSY) for slot in self._pool.slots.live]

    def _start_threads(self) -> None:
        for thread in (self._lessor, self._settler, self._renewer, self._sampler):
            thread.start()
        if self._losses is not None:
            self._losses.start()
        if self._watching is not None:
            self._watching.observer.attend(self._pool)
            self._watching.start()

    def _end(self) -> None:
        """Let the threads finish, take in the last answers, end the fork servers, publish once more."""
        self._settler.stop()
        self._renewer.stop()
        self._sampler.stop()
        if self._losses is not None:
            self._losses.stop()
        self._settler.join(JOIN_LIMIT)
        for event in self._inbox.take():
            if self._watching is not None:
                self._watching.observer.note(self._pool, event)
            apply(self._pool, event, time.monotonic())
        self._crew.close()
        if self._watching is not None:
            self._watching.end(self._pool)
        if self._pool.held:
            self._pool.note(
                "warning", "leases are left to expire: the broker did not answer", count=len(self._pool.held)
            )
        done = {name: count for name, count in asdict(self._pool.counters).items() if count}
        self._pool.note("info", "stopped", **done)
        self._publish(time.monotonic())
        self._publisher.log_notes(self._pool)
        self._renewer.join(JOIN_LIMIT)
        self._sampler.join(JOIN_LIMIT)
        if self._losses is not None:
            self._losses.join(JOIN_LIMIT)
