"""The pool's next steps: decisions, no I/O. `plan` looks at the state and returns actions for the loop to perform.

Order matters: outcomes first (they free slots), then the stop, or the hand-out of what is ready. The clock's work
comes once all that is performed (`upkeep`), so that no job waits for it. Marking a slot busy, or a child killed,
happens when the action is performed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from msgspec.structs import replace

from jobpool.errors import ConfigurationError, JobpoolError, MalformedEnvelope
from jobpool.ipc.frames import Reply, to_raw
from jobpool.master import actions as act
from jobpool.master.deadlines import FROZEN_S, allow_for_pause, check_deadlines, kill_child, lose_expired
from jobpool.master.dispatch import dispatch
from jobpool.master.scheduler import end_scheduler, keep_scheduler
from jobpool.master.slots import Delivery, SlotState
from jobpool.master.spawning import answer_requests, keep_children, keep_servers, watch_servers
from jobpool.master.state import Pool, Stopping, not_run
from jobpool.message.dead_letters import ON_DEATH, copy_of_abandoned, hook_job_of_abandoned
from jobpool.message.definition import JobDefinition, SentJobs
from jobpool.message.lease import JobLease
from jobpool.message.outcome import AlreadyDone, EndReason, NotRun, Rejected
from jobpool.message.settlement import Abandon, Leave, Settlement
from jobpool.policy.classify import cancelled, counters_of
from jobpool.policy.decide import Rules, decide
from jobpool.policy.retry import RetryPolicy, parse_backoff

CHECK_EVERY_S = 0.01  # seconds between two looks at everything that is due by the clock, while the loop is busy


@dataclass(slots=True)
class Planner:
    """The pool's policies, `plan` and `upkeep`. Keeps nothing that `Pool` should know."""

    retry: RetryPolicy
    check: Callable[[JobDefinition], object]
    """Raises a `JobpoolError` for a job that the backend would refuse (`QueueBackend.pack`)."""
    _rules: dict[str, Rules] = field(default_factory=dict)
    _generation: int = 0

    def plan(self, pool: Pool, now: float, now_boot: float) -> list[act.Action]:
        """Return what is to be done first, in order. Times: CLOCK_MONOTONIC and CLOCK_BOOTTIME seconds."""
        pool.now, pool.boot_ahead = now, now_boot - now
        actions: list[act.Action] = []
        self._decide(pool, now_boot, actions)
        _talk(pool, actions)
        if pool.requests:
            answer_requests(pool, now, actions)
        if now - pool.checked_at >= CHECK_EVERY_S:
            if 0 < pool.checked_at < now - FROZEN_S:
                pool.note("warning", "the master stood still", seconds=round(now - pool.checked_at, 1))
                allow_for_pause(pool, now)
            lose_expired(pool, now_boot)  # before the hand-out: the loop may have slept past the end of what is ready
        if pool.is_stopping:
            _stop(pool, now, actions)
        else:
            if pool.changed:
                _keep(pool, now, actions)  # before the hand-out: a child that is told to leave gets nothing
            dispatch(pool, now, actions)
        self._decide(pool, now_boot, actions)
        return actions

    def upkeep(self, pool: Pool, now: float, now_boot: float) -> list[act.Action]:
        """Return what the clock asks for after that, in the same turn; nothing in most turns of a busy loop."""
        actions: list[act.Action] = []
        if now - pool.checked_at >= CHECK_EVERY_S:
            if not pool.is_stopping:
                _keep(pool, now, actions)
            watch_servers(pool, now, actions)
            check_deadlines(pool, now, actions)
            pool.checked_at = now
            self._decide(pool, now_boot, actions)
        return actions

    def _decide(self, pool: Pool, now_boot: float, actions: list[act.Action]) -> None:
        """Decide what each outcome means. Forget a message that may not be settled: its lease runs out."""
        if pool.generation != self._generation:  # with other handlers
            self._generation = pool.generation
            self._rules.clear()
        if not pool.outcomes:
            return
        outcomes, pool.outcomes = pool.outcomes, []
        work: list[tuple[Delivery, Settlement]] = []
        for delivery, outcome in outcomes:
            if delivery.lost or delivery.settling:
                continue
            if delivery.cancelled:
                outcome = cancelled(outcome)
            if type(outcome) is AlreadyDone and outcome.follow_ups:  # checked as those of an attempt are
                outcome = AlreadyDone(SentJobs(to_raw(outcome.follow_ups), pool.settings.enqueue_to))
            rules = self._rules.get(delivery.handler) or self._rules_for(pool, delivery.handler)
            settlement = decide(outcome, delivery.lease, rules, self.retry, now_boot)
            if isinstance(settlement, Leave):
                pool.lose(delivery, counters_of(settlement, outcome), quietly=True)
                fields = {"id": delivery.lease.id, "why": settlement.why, "after": type(outcome).__name__}
                pool.note("warning", "a message is left to its lease", **fields)
            else:
                if type(settlement) is Abandon:
                    settlement = self._with_jobs(pool, delivery.lease, settlement)
                    if not (type(outcome) is Rejected and outcome.signature):  # else anybody has written it
                        _tell_of_chain(pool, delivery.lease)
                delivery.settling, delivery.outcome = True, outcome
                work.append((delivery, settlement))
        if work:
            actions.append(act.Settle(work))

    def _rules_for(self, pool: Pool, handler: str) -> Rules:
        info, settings = pool.handlers.get(handler), pool.settings
        rules = Rules(
            info.max_retries if info else None,
            settings.unknown_handler_grace,
            settings.on_crash.how,
            settings.on_crash.queue,
            settings.memory_limit.queue,
            parse_backoff(info.backoff) if info and info.backoff else None,
            settings.max_crashes,
        )
        if info:
            self._rules[handler] = rules
        return rules

    def _with_jobs(self, pool: Pool, lease: JobLease, settlement: Abandon) -> Abandon:
        """Add the copy for the queue of failed payloads, and the job for `on_death` hooks.

        One that is refused never holds up a death.
        """
        makers: dict[str, Callable[[], JobDefinition | None]] = {}
        if queue := pool.settings.dead_letter_queue:
            makers[queue] = partial(copy_of_abandoned, lease, settlement, queue, datetime.now(UTC))
        if (closed := pool.closed_to_hooks) is not None and lease.queue not in closed:
            makers[ON_DEATH] = partial(hook_job_of_abandoned, lease, settlement, self.check)
        jobs: list[JobDefinition] = []
        for to, make in makers.items():
            try:
                if (job := make()) is not None:
                    self.check(job)
                    jobs.append(job)
            except JobpoolError as error:
                pool.note("warning", "a dead letter is not forwarded", id=lease.id, to=to, error=str(error))
        return replace(settlement, follow_ups=tuple(jobs)) if jobs else settlement


def _tell_of_chain(pool: Pool, lease: JobLease) -> None:
    """Say that a death ends a chain: the jobs after it do not run, unless a person raises the dead letter."""
    with suppress(MalformedEnvelope):
        if jobs := not_run(lease.envelope):
            pool.note("warning", "a chain ends with a dead letter", id=lease.id, not_run=jobs)


def _keep(pool: Pool, now: float, actions: list[act.Action]) -> None:
    """Keep fork servers, children and scheduler at their number."""
    pool.changed = False
    keep_servers(pool, now, actions)
    keep_children(pool, now, actions)
    if pool.settings.cron:
        keep_scheduler(pool, now, actions)


def _talk(pool: Pool, actions: list[act.Action]) -> None:
    """Carry what children ask, and the answers."""
    if not (pool.asks or pool.replies or pool.stacks_asked):
        return
    for child, ask in pool.asks:
        if ask.batch is not None and ask.batch.verb == "cancel" and pool.settings.enqueue_to:
            refusal = "handlers of a pool that sets enqueue_to may not cancel a batch"
            pool.replies.append((child, Reply([], ConfigurationError.__name__, refusal)))
        else:
            actions.append(act.Produce(child, ask, SentJobs(ask.definitions, pool.settings.enqueue_to)))
    for child, reply in pool.replies:
        actions.append(act.Answer(child, reply))
    pool.asks.clear()
    pool.replies.clear()
    if pool.stacks_asked:
        pool.stacks_asked = False
        actions += [act.AnswerStack(slot, None) for slot in pool.slots.live if slot.pid]


def _stop(pool: Pool, now: float, actions: list[act.Action]) -> None:
    """Give back the jobs that have not begun, let idle children go, and kill the rest when the grace is over."""
    while pool.ready:
        pool.outcomes.append((pool.ready.popleft(), NotRun()))
    over = pool.stopping is Stopping.KILL or now >= pool.stop_by
    for scheduler in pool.schedulers.running.values():
        end_scheduler(scheduler, now, over, actions)
    for slot in pool.slots.live:
        if over and not slot.killed_at:
            kill_child(slot, EndReason.STOP, "the pool stops", now, actions)
        elif slot.waiting and slot.state is not SlotState.DYING:
            actions.append(act.TakeBack(slot))
        elif slot.state in (SlotState.STARTING, SlotState.IDLE):
            slot.end(EndReason.RETIRE, now, "the pool stops", killed=False)
            actions.append(act.RetireChild(slot))
