"""A pool on a stage: events in, actions out, on a clock that the test turns. No process, no socket."""

from __future__ import annotations

import secrets
import signal
from typing import Any, TypeVar

from jobpool.ipc.frames import Exited, HandlerInfo, Loaded, Ready, Result, Spawned
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.plan import Planner
from jobpool.master.slots import Slot, SlotState
from jobpool.master.state import Pool
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import encode
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Outcome, ResultKind
from jobpool.message.settlement import Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import Inspected
from jobpool.policy.lookahead import LookAhead
from jobpool.policy.retry import RetryPolicy
from jobpool.settings import Settings

A = TypeVar("A")
V = TypeVar("V", bound=Settlement)

CORES = 2

HANDLERS = [
    HandlerInfo("report"),
    HandlerInfo("slow", timeout=10.0),
    HandlerInfo("stubborn", max_retries=2),
    HandlerInfo("patient", max_retries=2, backoff="fixed base=1m"),
]


class Stage:
    """Plays the loop, the children and the broker."""

    def __init__(self, workers: int = 2, **settings: Any) -> None:
        self.now = 100.0
        defaults: dict[str, Any] = {"queues": (("reports", 1.0),), "backend": "memory://", "workers": workers}
        self.pool = Pool(Settings(**(defaults | settings)), now=self.now)
        self.pool.lookahead = LookAhead(self.now, cores=CORES)
        self.planner = Planner(RetryPolicy(), check=lambda definition: definition.require(False, "memory"))
        self.settled: list[tuple[str, Settlement]] = []
        self.log: list[act.Action] = []

    # --- the loop -----------------------------------------------------------------------------------

    def tell(self, *events: ev.Event) -> list[act.Action]:
        """Apply events, plan, perform what changes the state; the actions."""
        for event in events:
            apply(self.pool, event, self.now)
        done: list[act.Action] = []
        for step in (self.planner.plan, self.planner.upkeep):
            actions = step(self.pool, self.now, self.now)
            for action in actions:
                self._perform(action)
            done += actions
        self.log.extend(done)
        return done

    def after(self, seconds: float) -> list[act.Action]:
        self.now += seconds
        return self.tell()

    def _perform(self, action: act.Action) -> None:
        match action:
            case act.Dispatch(slot, deliveries):
                slot.add_deliveries(deliveries, self.now)
            case act.Settle(work):
                self.settled += [(delivery.lease.id, settlement) for delivery, settlement in work]
                apply(self.pool, ev.Answered([(*each, Settled.OK) for each in work]), self.now)
            case act.RetireChild(slot):
                slot.leave()
            case act.EndForkServer(generation):
                apply(self.pool, ev.ForkServerGone(generation), self.now)
            case _:
                pass

    # --- what happens -------------------------------------------------------------------------------

    def load(self, generation: int = 1, handlers: list[HandlerInfo] = HANDLERS) -> list[act.Action]:
        return self.tell(ev.FrameCame(generation, Loaded(handlers)))

    def reload(self, generation: int = 2, handlers: list[HandlerInfo] = HANDLERS) -> list[act.Action]:
        """HUP, and the app is imported anew."""
        self.tell(ev.SignalCame(signal.SIGHUP))
        return self.load(generation, handlers)

    def start(self) -> Stage:
        """Load the app, and have the children asked for; none has come up yet."""
        self.tell()
        self.load()
        return self

    def boot(self) -> Stage:
        """Bring up every child that was asked for."""
        self.start().make_ready()
        return self

    def make_ready(self) -> list[act.Action]:
        starting = [slot for slot in self.pool.slots.live if slot.state is SlotState.STARTING]
        for slot in starting:
            apply(self.pool, ev.FrameCame(1, Spawned(slot.child, 1000 + slot.child)), self.now)
        return self.tell(*(ev.FrameCame(slot.child, Ready()) for slot in starting))

    def lease(self, *handlers: str, outcome: Outcome | None = None, **options: Any) -> list[act.Action]:
        leases = [self.a_lease(handler, **options) for handler in handlers]
        return self.tell(ev.Leased([Inspected(lease, outcome) for lease in leases]))

    def take_in(self, *leases: JobLease) -> list[act.Action]:
        return self.tell(ev.Leased([Inspected(lease, None) for lease in leases]))

    def run(self, handler: str = "report", **options: Any) -> Slot:
        """Lease a job, which begins in the one slot that is busy then."""
        self.lease(handler, **options)
        [slot] = self.busy
        return slot

    def a_lease(self, handler: str, ttl: float = 30.0, attempts: int = 0, **options: Any) -> JobLease:
        definition = JobDefinition(handler=handler, payload={}, queue="reports", **options)
        ident = secrets.token_hex(8)
        body = encode(definition, identifier=ident, queue="reports", signer=EnvelopeSigner(), now=0.0)
        owner = secrets.token_hex(16)
        return JobLease(ident, "reports", body, 1, owner, self.now + ttl, "memory", attempts=attempts)

    def answer(
        self, slot: Slot, kind: ResultKind = ResultKind.SUCCEEDED, seconds: float = 0.01, **fields: Any
    ) -> list[act.Action]:
        nonce = slot.deliveries[0].nonce
        result = Result(nonce, kind, self.now, seconds, **fields)
        return self.tell(ev.ChildResults(slot.child, [result]))

    def end(self, *slots: Slot) -> list[act.Action]:
        """Their children end in good order."""
        return [action for slot in slots for action in self.die(slot, number=None, code=0)]

    def die(
        self,
        slot: Slot,
        number: int | None = signal.SIGSEGV,
        code: int | None = None,
        begun: bool = True,
        unread: int = 0,
        earlier: float = 0.0,
    ) -> list[act.Action]:
        """The slot's child dies: it had begun the head, or not even that; the last `unread` frames were not read.

        `earlier`: seconds by which it had begun before the loop heard of it.
        """
        nonces = [delivery.nonce for delivery in slot.deliveries]
        started = nonces[0] if nonces and begun else 0
        behind = frozenset(nonces[len(nonces) - unread :]) if unread else frozenset()
        exited = Exited(slot.child, slot.pid, code, number)
        deadline = (slot.deadline() or 0.0) - earlier
        return self.tell(ev.ChildDied(exited, started, behind, "", "", deadline=deadline))

    # --- looking ------------------------------------------------------------------------------------

    @property
    def busy(self) -> list[Slot]:
        return [slot for slot in self.pool.slots.live if slot.state is SlotState.BUSY]

    @property
    def idle(self) -> list[Slot]:
        return [slot for slot in self.pool.slots.live if slot.state is SlotState.IDLE]

    def verdicts(self) -> list[Settlement]:
        return [settlement for _, settlement in self.settled]

    def verdict(self, kind: type[V]) -> V:
        """The one verdict, which is of this kind."""
        [settlement] = self.verdicts()
        assert isinstance(settlement, kind)
        return settlement


def of(actions: list[act.Action], kind: type[A]) -> list[A]:
    """The actions of one kind."""
    return [action for action in actions if isinstance(action, kind)]


def step(stage: Stage, seconds: float) -> list[act.Action]:
    """Let time pass in turns of a second at most, as the loop does."""
    actions: list[act.Action] = []
    while seconds > 1e-9:
        actions += stage.after(min(1.0, seconds))
        seconds -= 1.0
    return actions
