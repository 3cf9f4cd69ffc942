"""The master's loop: wait, apply, plan, perform. `apply` and `plan` are the program; this is a `poll` and a `match`."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson
from msgspec.structs import asdict

from jobpool import __version__
from jobpool.broker.backend import QueueBackend
from jobpool.broker.control import PoolRecord
from jobpool.broker.values import Leases
from jobpool.ipc.frames import SpawnFailed, run_packet, with_ticket
from jobpool.ipc.process_options import ASKS_STACK
from jobpool.ipc.requests import reply
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.child_processes import ChildProcesses
from jobpool.master.deadlines import next_due
from jobpool.master.dispatch import Batch, rest, steal_due, worth_fetching
from jobpool.master.fetch_thread import FetchThread
from jobpool.master.inbox import Inbox
from jobpool.master.plan import CHECK_EVERY_S, Planner
from jobpool.master.scheduler import SchedulerStarter, SignalScheduler, StartScheduler
from jobpool.master.settle_thread import SettleThread, produce
from jobpool.master.slots import Delivery, Slot, SlotState
from jobpool.master.state import Pool
from jobpool.master.telemetry import PUBLISH_EVERY_S, STACK, Publisher, Telemetry
from jobpool.master.threads import ControlThread, LostLeaseThread, MasterThread, RenewThread, SampleThread
from jobpool.message.outcome import Counts
from jobpool.policy.classify import users_stack

STACK_WAIT_S = 0.1  # seconds for the children's fault handlers to write, before their stacks are logged
MAX_STACK_WAIT_S = 2.0  # seconds after which one who asked for a child's stack is told that there is none
NO_STACK = "no stack came: the child is stopped, or the kernel holds it"
READY_PUBLISH_EVERY_S = 0.05  # seconds between two writes while children become ready: people wait for that
HOUSEKEEPING_EVERY_S = 1.0  # seconds between two looks for output that nobody reads
FILES_EVERY_S = 60.0  # seconds between two looks whether the pool's files in the runtime directory are still there

GC_EVERY_S = 10.0
"""Seconds between two garbage collections, rare otherwise (run.py): nothing of a job is in a circle. But a broker's
connection that has broken is, with its read buffer of 64 KiB. Each collection takes about a millisecond."""

STREAM_WAIT_S = 0.001  # seconds: when a wait was shorter, the next turn finds something without a wait, most times

MAX_LOOKED_AT = 8
"""Slots of which the loop asks, before each sleep, what is due next. If more are engaged, and events stream, it sleeps
until the next look at all of them is due. Most often an event comes before that."""

LAST_LOOK_S = 0.02  # seconds between two looks whether the fetch thread has ended, which it does without an event
JOIN_LIMIT_S = 2.0


@dataclass(eq=False)
class Master:
    """Owns the pool's state. Only `run`, on one thread, touches it; the other threads leave events in the inbox."""

    pool: Pool
    planner: Planner
    backend: QueueBackend
    children: ChildProcesses
    inbox: Inbox
    fetch_thread: FetchThread
    settle_thread: SettleThread
    publisher: Publisher
    serves: Callable[[Sequence[str]], object] = lambda _: None
    """Called with the queues that the pool serves, whenever an app has loaded. Quick."""
    telemetry: Telemetry | None = None
    scheduler: SchedulerStarter | None = None

    _leases = True
    """The fetch thread may still bring something; False ends the loop, once nothing runs any more."""
    _again = False
    """Something was to be taken back, for another child to begin at once: the next turn does not sleep."""
    _streams = False
    """The last wait was short: to ask until when to sleep may cost more than the sleep."""
    _eventful = False
    """The last wait has brought something."""
    _housekeeping_at = 0.0
    _files_at = 0.0
    _stack_asks: dict[int, tuple[Slot, float, set[socket.socket | None]]] = field(default_factory=dict)
    """Child → its slot, when its stack was first asked for, and where that is told; None = in the log."""
    _control_thread: ControlThread | None = None
    _answered_at = 0.0
    """CLOCK_MONOTONIC seconds of the broker's last good answer outside an outage."""
    _unpublished = True
    _published_at = 0.0
    _publish_at = 0.0

    def __post_init__(self) -> None:
        self._batch = Batch()
        self._gc_at = time.monotonic() + GC_EVERY_S
        self._begun = self.backend.clock.boot()
        pool, backend, inbox = self.pool, self.backend, self.inbox
        self._renew_thread = RenewThread(backend, pool.settings.ttl, lambda: list(pool.held.values()), inbox)
        self._upkeep_threads: list[MasterThread] = [self._renew_thread, SampleThread(self._living, inbox)]
        if backend.has_control:
            self._control_thread = ControlThread(backend, self._describe, lambda: pool.target, inbox)
            self._upkeep_threads.append(self._control_thread)
            self.fetch_thread.pause(None)  # until it is known what is paused
        if backend.capabilities.leases is Leases.CONNECTION:
            self._upkeep_threads.append(LostLeaseThread(backend, inbox))
        self.children.watch(inbox.fd, inbox.take)

    def run(self) -> int:
        """Serve until told to stop; return the exit status. Blocks."""
        try:
            self._serve()
            counts = self._end()
        except BaseException:
            self._give_up()
            raise
        return int(bool(self.pool.fatal) or (self.pool.settings.fail_on_dead and counts.dead + counts.rejected > 0))

    def _serve(self) -> None:
        pool, clock = self.pool, self.backend.clock
        for thread in self._threads:
            thread.start()
        if self.telemetry is not None:
            self.telemetry.start(pool)
        while self._leases or not pool.finished:
            # Before the wait: its last leases are events of this turn.
            self._leases = not pool.is_stopping or self.fetch_thread.is_leasing()
            events, now, boot = self._wait(), time.monotonic(), clock.boot()
            for event in events:
                apply(pool, event, now)
            self._perform(self.planner.plan(pool, now, boot), now)
            self._perform(self.planner.upkeep(pool, now, boot), now)
            self._after(now)

    def _wait(self) -> list[ev.Event]:
        """Return what has happened; in a stream sleep only if nothing has, and only then ask until when.

        While jobs stream, children's answers may gather first.
        """
        again, self._again = self._again, False
        if not again and (seconds := rest(self.pool, time.monotonic())):
            self.inbox.wait(seconds)
        events = self.children.poll(0.0) if again or self._streams else []
        if not (events or again):
            begun = time.monotonic()
            events = self.children.poll(self._due() - begun)
            self._streams = time.monotonic() - begun < STREAM_WAIT_S
        self._eventful = bool(events)
        self._unpublished = self._unpublished or bool(events)
        return events

    def _due(self) -> float:
        now = time.monotonic()
        due = self.pool.checked_at + CHECK_EVERY_S
        if not self._eventful or len(self.pool.slots.engaged) <= MAX_LOOKED_AT:
            due = max(next_due(self.pool, now), due)
        due = min(due, steal_due(self.pool, now))
        if self._unpublished:
            due = min(due, self._publish_at)
        if self._stack_asks:
            due = min(due, now + STACK_WAIT_S)
        if self.pool.is_stopping:  # the fetch thread ends without an event
            due = min(due, now + (LAST_LOOK_S if self._leases else 0.0 if self.pool.finished else PUBLISH_EVERY_S))
        return min(due, self._batch.due)

    def _perform(self, actions: list[act.Action], now: float) -> None:
        for action in actions:
            if type(action) is act.Dispatch:
                self._dispatch(action.slot, action.deliveries, now)
            elif type(action) is act.Settle:
                ahead = self.pool.lookahead
                self._batch.add(action.work, now, ahead.size(now), ahead.linger, len(self.pool.held))
            else:
                self._perform_rare(action)

    def _dispatch(self, slot: Slot, deliveries: list[Delivery], now: float) -> None:
        runs: list[tuple[int, bytes]] = []
        for delivery in deliveries:
            nonce, lease = delivery.nonce, delivery.lease
            run = run_packet(nonce, lease.deliveries, lease.attempts, lease.crashes, delivery.timeout, lease.body)
            if delivery.acks_itself:
                run = with_ticket(run, orjson.dumps(self.backend.ticket(lease)))
            runs.append((nonce, run))
        count = self.children.write_runs(slot, runs)
        if count:
            # A head begins after it was written: were this process stopped in a turn, its time would be over too soon.
            slot.add_deliveries(deliveries[:count], now if slot.deliveries else time.monotonic())
        if count < len(deliveries):
            slot.full = True
            self.pool.put_back(deliveries[count:])

    def _perform_rare(self, action: act.Action) -> None:
        match action:
            case act.TakeBack(slot, most):
                steals = type(action) is act.Steal
                self._apply(self.children.steal(slot, most) if steals else self.children.take_back(slot, most))
                self._again = True
            case act.SpawnChild(slot):
                try:
                    self.children.spawn(slot)
                except OSError as error:
                    self._apply(ev.FrameCame(slot.generation, SpawnFailed(slot.child, str(error))))
            case act.RetireChild(slot):
                self._apply(self.children.take_back(slot))
                self.children.retire(slot)
            case act.KillChild(slot):
                self.children.signal(slot, signal.SIGKILL)
            case act.CancelAttempt(slot):
                self.children.cancel(slot)
            case act.DumpStack(slot):
                self.children.signal(slot, ASKS_STACK)
                slot.awaits_stack = True
            case act.LookForStack(slot):
                slot.awaits_stack = not self.children.has_stack(slot)
            case act.ForgetChild(child):
                self.children.forget(child)
            case act.Produce(child, ask, jobs) if ask.pack:
                # Not on the settle thread: that may wait for a lock which the asking handler's transaction holds.
                self._apply(produce(self.backend, child, ask, jobs))
            case act.Produce(child, ask, jobs):
                self.settle_thread.produce(child, ask, jobs)
            case act.Answer(child, reply):
                self.children.reply(child, reply)
            case _:
                self._perform_on_servers(action)

    def _perform_on_servers(self, action: act.Action) -> None:
        match action:
            case act.StartForkServer(generation):
                self._start_server(generation)
            case act.EndForkServer(generation, kill):
                self.children.end_server(generation, kill)
                self._apply(ev.ForkServerGone(generation))
            case act.AnswerStack(slot, answer):
                self.children.signal(slot, ASKS_STACK)
                self._stack_asks.setdefault(slot.child, (slot, time.monotonic(), set()))[2].add(answer)
            case act.AnswerUser(answer, text):
                reply(answer, text)
            case StartScheduler(may_be_empty) if self.scheduler is not None:
                self._apply(self.scheduler.start(may_be_empty))
            case SignalScheduler(pid, number) if self.scheduler is not None:
                self.scheduler.signal(pid, number)

    def _apply(self, event: ev.Event) -> None:
        apply(self.pool, event, time.monotonic())

    def _start_server(self, generation: int) -> None:
        try:
            self.children.start_server(generation)
        except OSError as error:
            again_in = self.pool.server_failed(generation, str(error), time.monotonic())
            self.pool.note("error", "no fork server could be started", error=str(error), again_in=again_in)
            self.pool.servers.pop(generation, None)

    def _after(self, now: float) -> None:
        pool = self.pool
        if now >= self._batch.due:
            self.settle_thread.settle(self._batch.take())
        self._tell_threads(now)
        if now >= self._housekeeping_at:
            self._housekeeping_at = now + HOUSEKEEPING_EVERY_S
            self.children.housekeep()
        if now >= self._files_at:
            self._files_at = now + FILES_EVERY_S
            self.publisher.look_for_files(pool)
        if now >= self._gc_at:
            self._gc_at = now + GC_EVERY_S
            gc.collect()
        if self._stack_asks:
            self._tell_stacks(now)
        if pool.child_came:
            pool.child_came = False
            self._publish_at = min(self._publish_at, self._published_at + READY_PUBLISH_EVERY_S)
        if now >= self._publish_at:
            self._publish(now)
        if pool.notes or pool.lines:
            self.publisher.write_log(pool)

    def _tell_stacks(self, now: float) -> None:
        for child, (slot, since, answers) in list(self._stack_asks.items()):
            gone, late = slot.child != child, now >= since + MAX_STACK_WAIT_S
            if not (gone or late or (now >= since + STACK_WAIT_S and self.children.has_stack(slot))):
                continue
            del self._stack_asks[child]
            stack = "" if gone else self.children.stack(slot)
            for answer in answers:
                if answer is not None:
                    shown = f"child {child} has ended" if gone else users_stack(stack) if slot.deliveries else stack
                    reply(answer, shown or NO_STACK)
                elif not gone:
                    self._log_stack(slot, stack)

    def _log_stack(self, slot: Slot, stack: str) -> None:
        head = slot.deliveries[0] if slot.deliveries else None
        job = {"id": head.lease.id, "handler": head.handler} if head else {}
        if slot.state is SlotState.IDLE and stack and "  File " not in users_stack(stack):
            stack = "idle"  # nothing but jobpool waiting for a job
        self.pool.note("warning", STACK, slot=slot.index, pid=slot.pid, **job, stack=stack or NO_STACK)

    def _tell_threads(self, now: float) -> None:
        pool, fetch_thread = self.pool, self.fetch_thread
        if pool.app_came:  # first: a look for deaths comes before the count that may end the pool
            pool.app_came = False
            self.settle_thread.notify_hooks(pool.closed_to_hooks)
            fetch_thread.serve_queues(pool.queues)
            self.settle_thread.serve_queues(pool.queues)
            self.serves(list(pool.queues))
        if pool.control_came:
            pool.control_came = False
            fetch_thread.pause(None if pool.drained else pool.paused)
        if pool.cancels_over and self._control_thread is not None:
            self._control_thread.cancelled(pool.cancels_over)
            pool.cancels_over = []
        if pool.fetch_came:
            fetch_thread.seen(pool.fetch_came)
            pool.fetch_came = 0
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
            fetch_thread.hold(pool.places(), pool.unused_starts)
            pool.unused_starts.clear()
        fetch_thread.want(worth_fetching(pool, now))

    def _publish(self, now: float) -> None:
        self._published_at, self._publish_at, self._unpublished = now, now + PUBLISH_EVERY_S, False
        if not self.pool.outages:  # else some calls fail, though others are answered
            self._answered_at = max(self.fetch_thread.answered_at, self.settle_thread.answered_at)
        self.publisher.publish(self.pool, now, self._answered_at, self.settle_thread.reaped_at)

    def _living(self) -> list[tuple[int, int, bool]]:
        return [(slot.child, slot.pid, slot.state is SlotState.BUSY) for slot in self.pool.slots.live]

    def _describe(self) -> PoolRecord:
        """Return the record of the pool. Called on the control thread."""
        pool, slots = self.pool, self.pool.slots
        now, ends = self.backend.clock.boot(), [delivery.lease.expires_at for delivery in list(pool.held.values())]
        return PoolRecord(
            id=pool.ident,
            name=pool.settings.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            state="stopping" if pool.is_stopping else "drained" if pool.drained else "running",
            queues=list(pool.queues),
            children=sum(slot.is_ready for slot in slots.all),
            busy=slots.count(SlotState.BUSY),
            lease_margin=round(min(ends) - now, 3) if ends else None,
            started=round(self.backend.control_time() - (self.backend.clock.boot() - self._begun), 3),
        )

    @property
    def _threads(self) -> list[MasterThread]:
        return [self.fetch_thread, self.settle_thread, *self._upkeep_threads]

    def _give_up(self) -> None:
        """End all threads and processes after an error, which another program may outlive; leases run out."""
        for thread in self._threads:
            thread.stop()
        if self.scheduler is not None:
            self.scheduler.kill()
        self.children.close()
        for thread in filter(MasterThread.is_alive, self._threads):
            thread.join(JOIN_LIMIT_S)

    def _end(self) -> Counts:
        """Let the threads finish, take in the last answers, end the fork servers, publish once more; the counts."""
        self.settle_thread.settle(self._batch.take())
        for thread in (self.settle_thread, *self._upkeep_threads):
            if thread is not self._control_thread:
                thread.stop()
        self.settle_thread.join(JOIN_LIMIT_S)
        for event in self.inbox.take():
            self._apply(event)
        if self._control_thread is not None:
            self._control_thread.cancelled(self.pool.cancels_over)
            self._control_thread.stop()
        self.children.close()
        if self.telemetry is not None:
            self.telemetry.end(self.pool)
        if left := len(self.pool.held):
            _, error = self.pool.outages.get(self.settle_thread.name, (None, None))
            what = "leases are left to expire: the broker did not take what became of them"
            self.pool.note("warning", what, count=left, error=error)
        counts = self.pool.counters
        said = {"lines_left_out": self.pool.lines_left_out or None}
        self.pool.note("info", "stopped", **{name: count for name, count in asdict(counts).items() if count}, **said)
        self._publish(time.monotonic())
        self.publisher.write_log(self.pool)
        for thread in self._upkeep_threads:
            thread.join(JOIN_LIMIT_S)
        return counts
