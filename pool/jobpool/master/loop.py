"""The master's loop: wait, apply, plan, perform. `apply` and `plan` are the program; this is a `poll` and a `match`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import asdict

import orjson

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Leases
from jobpool.ipc.process_options import ASKS_STACK
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.child_processes import ChildProcesses
from jobpool.master.deadlines import next_due
from jobpool.master.dispatch import Batch, worth_fetching
from jobpool.master.fetch_thread import FetchThread
from jobpool.master.inbox import Inbox
from jobpool.master.plan import CHECK_EVERY_S, Planner
from jobpool.master.scheduler import SchedulerStarter, SignalScheduler, StartScheduler
from jobpool.master.settle_thread import SettleThread, produce
from jobpool.master.slots import Delivery, Slot, SlotState
from jobpool.master.state import Pool
from jobpool.master.telemetry import PUBLISH_EVERY_S, Publisher, Telemetry
from jobpool.master.threads import LostLeaseThread, MasterThread, RenewThread, SampleThread

STACK_WAIT_S = 0.1
"""Seconds for the children's fault handlers to write, before their stacks are logged."""

READY_PUBLISH_EVERY_S = 0.05
"""Seconds between two writes of the pool's state while children become ready: who has started a pool waits for that."""

HOUSEKEEPING_EVERY_S = 1.0
"""Between two looks for what costs memory unseen: output that nobody reads, garbage that refers to itself."""

LAST_LOOK_S = 0.02
"""Seconds between two looks whether the fetch thread has ended, which it does without an event."""

JOIN_LIMIT_S = 2.0


class Master:
    """Owns the pool's state. Only `run`, on one thread, touches it; the other threads leave events in the inbox."""

    def __init__(
        self,
        pool: Pool,
        planner: Planner,
        backend: QueueBackend,
        children: ChildProcesses,
        inbox: Inbox,
        fetch_thread: FetchThread,
        settle_thread: SettleThread,
        publisher: Publisher,
        telemetry: Telemetry | None = None,
        scheduler: SchedulerStarter | None = None,
        collect_garbage: Callable[[float], object] | None = None,
    ) -> None:
        self._pool = pool
        self._planner = planner
        self._backend = backend
        self._clock = backend.clock
        self._children = children
        self._inbox = inbox
        self._fetch_thread = fetch_thread
        self._settle_thread = settle_thread
        self._publisher = publisher
        self._renew_thread = RenewThread(backend, pool.settings.ttl, lambda: list(pool.held.values()), inbox)
        self._upkeep_threads: list[MasterThread] = [self._renew_thread, SampleThread(self._living, inbox)]
        if backend.capabilities.leases is Leases.CONNECTION:
            self._upkeep_threads.append(LostLeaseThread(backend, inbox))
        self._telemetry = telemetry
        self._scheduler = scheduler
        self._batch = Batch()
        self._collect_garbage = collect_garbage
        self._housekeeping_at = 0.0
        self._stacks_due = 0.0
        self._unpublished = True
        children.watch(inbox.fd, inbox.take)

    def run(self) -> int:
        """Serve until told to stop; return the exit status. Blocks."""
        pool = self._pool
        self._start_threads()
        leasing = True
        while leasing or not pool.finished:
            leasing = self._fetch_thread.is_leasing()  # before the wait: its last leases are events of this turn
            for event in self._wait():
                apply(pool, event, time.monotonic())
            for action in self._planner.plan(pool, time.monotonic(), self._clock.boot()):
                self._perform(action)
            self._after(time.monotonic())
        self._end()
        died = pool.counters.dead + pool.counters.rejected
        return int(bool(pool.fatal) or (pool.settings.fail_on_dead and died > 0))

    # --- wait ---------------------------------------------------------------------------------------

    def _wait(self) -> list[ev.Event]:
        """Return what has happened; sleep only if nothing has, and only then ask until when."""
        events = self._children.poll(0.0)
        if not events:
            events = self._children.poll(self._due() - time.monotonic())
        self._unpublished = self._unpublished or bool(events)
        return events

    def _due(self) -> float:
        """When to look round though nothing happens."""
        now = time.monotonic()
        due = max(next_due(self._pool, now), self._pool.checked_at + CHECK_EVERY_S)
        if self._unpublished:
            due = min(due, self._publish_at)
        if self._stacks_due:
            due = min(due, self._stacks_due)
        if self._pool.is_stopping:
            due = min(due, now + (LAST_LOOK_S if self._fetch_thread.is_leasing() else PUBLISH_EVERY_S))
        return min(due, self._batch.due)

    # --- perform ------------------------------------------------------------------------------------

    def _perform(self, action: act.Action) -> None:
        match action:
            case act.Hand(slot, delivery):
                if self._children.hand(slot, delivery, self._ticket(delivery) if delivery.acks_itself else b""):
                    slot.hand(delivery, time.monotonic())
                else:
                    slot.full = True
                    self._pool.put_back([delivery])
            case act.Settle(delivery, settlement):
                now = time.monotonic()
                self._batch.add(delivery, settlement, now, self._pool.lookahead.size(now))
            case act.TakeBack(slot):
                apply(self._pool, self._children.take_back(slot), time.monotonic())
            case _:
                self._perform_rare(action)

    def _perform_rare(self, action: act.Action) -> None:
        match action:
            case act.SpawnChild(slot):
                self._spawn(slot)
            case act.RetireChild(slot):
                apply(self._pool, self._children.take_back(slot), time.monotonic())
                self._children.retire(slot)
            case act.KillChild(slot):
                self._children.signal(slot, signal.SIGKILL)
            case act.DumpStack(slot):
                self._children.signal(slot, ASKS_STACK)
                slot.awaits_stack = True
            case act.LookForStack(slot):
                slot.awaits_stack = not self._children.has_stack(slot)
            case act.ForgetChild(_, child):
                self._children.forget(child)
            case act.Produce(child, ask) if ask.pack:
                # Not on the settle thread: that may wait for a lock which the asking handler's transaction holds.
                apply(self._pool, produce(self._backend, child, ask), time.monotonic())
            case act.Produce(child, ask):
                self._settle_thread.produce(child, ask)
            case act.Answer(child, reply):
                self._children.reply(child, reply)
            case act.StartForkServer(generation):
                self._start_server(generation)
            case act.EndForkServer(generation):
                self._children.end_server(generation)
                apply(self._pool, ev.ForkServerGone(generation), time.monotonic())
            case act.KillForkServer(generation):
                self._children.kill_server(generation)
                apply(self._pool, ev.ForkServerGone(generation), time.monotonic())
            case act.WriteStacks():
                self._ask_stacks()
            case StartScheduler() if self._scheduler is not None:
                apply(self._pool, self._scheduler.start(), time.monotonic())
            case SignalScheduler(pid, number) if self._scheduler is not None:
                self._scheduler.signal(pid, number)

    def _ticket(self, delivery: Delivery) -> bytes:
        return orjson.dumps(self._backend.ticket(delivery.lease))

    def _spawn(self, slot: Slot) -> None:
        child = slot.child
        try:
            self._children.spawn(slot)
        except OSError as error:
            apply(self._pool, ev.SpawnRefused(child, str(error)), time.monotonic())

    def _start_server(self, generation: int) -> None:
        try:
            self._children.start_server(generation)
        except OSError as error:
            self._pool.note("error", "no fork server could be started", error=str(error))
            self._pool.boot.failed(str(error), time.monotonic())
            self._pool.servers.pop(generation, None)

    # --- after each turn ----------------------------------------------------------------------------

    def _after(self, now: float) -> None:
        pool = self._pool
        if now >= self._batch.due:
            self._settle_thread.settle(self._batch.take())
        self._tell_threads(now)
        if now >= self._housekeeping_at:
            self._housekeeping_at = now + HOUSEKEEPING_EVERY_S
            self._children.bound_outputs()
            if self._collect_garbage is not None:
                self._collect_garbage(now)
        if self._stacks_due and now >= self._stacks_due:
            self._log_stacks()
        if pool.child_came:
            pool.child_came = False
            self._publish_soon()
        if now >= self._publish_at:
            self._publish(now)
        if pool.notes:
            self._publisher.log_notes(pool)

    def _tell_threads(self, now: float) -> None:
        """Tell the fetch and renew threads what this turn means for them."""
        pool, fetch_thread = self._pool, self._fetch_thread
        if pool.fetch_came:
            pool.fetch_came = False
            fetch_thread.seen()
            if pool.shortest_lease:
                self._renew_thread.expect(pool.shortest_lease)
                pool.shortest_lease = 0.0
        if pool.answered_queues:
            fetch_thread.answered(pool.answered_queues)
            pool.answered_queues = set()
        if pool.is_stopping:
            fetch_thread.stop()
            return
        if pool.limited:
            fetch_thread.hold(pool.places(), pool.given_back)
            pool.given_back.clear()
        fetch_thread.want(worth_fetching(pool, now))

    _published_at = 0.0
    _publish_at = 0.0

    def _publish_soon(self) -> None:
        self._publish_at = min(self._publish_at, self._published_at + READY_PUBLISH_EVERY_S)

    def _publish(self, now: float) -> None:
        self._published_at = now
        self._publish_at = now + PUBLISH_EVERY_S
        self._unpublished = False
        answered = max(self._fetch_thread.answered_at, self._settle_thread.answered_at)
        self._publisher.publish(self._pool, now, answered, self._settle_thread.reaped_at)

    def _ask_stacks(self) -> None:
        for slot in self._pool.slots.live:
            self._children.signal(slot, ASKS_STACK)
        self._stacks_due = time.monotonic() + STACK_WAIT_S

    def _log_stacks(self) -> None:
        self._stacks_due = 0.0
        for slot in self._pool.slots.live:
            stack = self._children.stack(slot)
            self._pool.note("warning", "stack of a child", slot=slot.index, pid=slot.pid, stack=stack)

    # --- threads ------------------------------------------------------------------------------------

    def _living(self) -> list[tuple[int, int, bool]]:
        return [(slot.child, slot.pid, slot.state is SlotState.BUSY) for slot in self._pool.slots.live]

    def _start_threads(self) -> None:
        for thread in (self._fetch_thread, self._settle_thread, *self._upkeep_threads):
            thread.start()
        if self._telemetry is not None:
            self._telemetry.observer.attend(self._pool)
            self._telemetry.start()

    def _end(self) -> None:
        """Let the threads finish, take in the last answers, end the fork servers, publish once more."""
        for thread in (self._settle_thread, *self._upkeep_threads):
            thread.stop()
        self._settle_thread.join(JOIN_LIMIT_S)
        for event in self._inbox.take():
            apply(self._pool, event, time.monotonic())
        self._children.close()
        if self._telemetry is not None:
            self._telemetry.end(self._pool)
        if left := len(self._pool.held):
            self._pool.note("warning", "leases are left to expire: the broker did not answer", count=left)
        done = {name: count for name, count in asdict(self._pool.counters).items() if count}
        self._pool.note("info", "stopped", **done)
        self._publish(time.monotonic())
        self._publisher.log_notes(self._pool)
        for thread in self._upkeep_threads:
            thread.join(JOIN_LIMIT_S)
