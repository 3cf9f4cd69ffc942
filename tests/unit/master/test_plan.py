"""What the pool decides, told as short stories on a stage."""

from __future__ import annotations

import logging
import signal
from typing import Any

import orjson
import pytest
from msgspec import Raw
from stage import HANDLERS, Stage, of, step

from jobpool.broker.control import CancelMark, Pause, PoolRequests
from jobpool.broker.values import Capabilities, QueueStats
from jobpool.errors import ConfigurationError
from jobpool.ipc.frames import (
    NO_JOBS,
    Ask,
    HandlerInfo,
    Loaded,
    LoadFailed,
    Reply,
    Result,
    Spawned,
    SpawnFailed,
    to_raw,
)
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.deadlines import (
    DUMP_BEFORE_KILL_S,
    HEARTBEAT_S,
    MAX_DUMP_PAUSE_S,
    STALE_AFTER_S,
    UNDEAD_AFTER_S,
    next_due,
)
from jobpool.master.dispatch import room
from jobpool.master.settle_thread import produce
from jobpool.master.slots import SlotState
from jobpool.master.spawning import ANSWER_LIMIT_S, STOP_LIMIT_S, reload_under_way
from jobpool.master.state import GIVEN_BACK, Stopping
from jobpool.master.telemetry import Publisher
from jobpool.message.batches import BatchCall, BatchStatus
from jobpool.message.death import Death
from jobpool.message.definition import JobDefinition
from jobpool.message.lease import JobLease
from jobpool.message.masking import Masker
from jobpool.message.outcome import EndReason, LostLease, Rejected, ResultKind
from jobpool.message.results import Record
from jobpool.message.setting_types import MemoryLimit, OnCrash
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled
from jobpool.policy.inspection import Inspected
from jobpool.telemetry.metrics.pages import BOOT_LOOP
from jobpool_backends.memory import MemoryBackend


class TestBoot:
    def test_first_a_fork_server_then_its_children(self) -> None:
        stage = Stage(workers=3)
        assert len(of(stage.tell(), act.StartForkServer)) == 1
        assert not of(stage.tell(), act.StartForkServer)
        assert len(of(stage.load(), act.SpawnChild)) == 3

    def test_nothing_is_leased_without_a_ready_child(self) -> None:
        stage = Stage(workers=2).start()
        assert room(stage.pool, stage.now) == 0
        stage.make_ready()
        assert room(stage.pool, stage.now) == 2

    def test_an_app_that_does_not_load_at_the_start_is_fatal_and_said_so(self) -> None:
        stage = Stage()
        stage.tell()
        stage.tell(ev.FrameCame(1, LoadFailed("no module named 'nope'")))
        assert stage.pool.fatal == "no module named 'nope'"
        assert stage.pool.finished

    def test_an_app_that_the_backend_cannot_serve_is_fatal_and_says_which_handler_asks_for_too_much(self) -> None:
        for handler, asked in [
            (HandlerInfo("transfer", ack_in_transaction=True), "'transfer' is declared with ack_in_transaction"),
            (HandlerInfo("bill", result_ttl=60.0), "'bill' is declared with result_ttl"),
        ]:
            stage = Stage()
            stage.tell()
            stage.load(handlers=[HandlerInfo("plain"), handler])
            assert asked in stage.pool.fatal
            assert stage.pool.finished

    def test_an_app_is_served_where_the_backend_can_do_what_it_asks_for(self) -> None:
        stage = Stage()
        stage.pool.can = Capabilities(transactions=True, key_store=True)
        stage.tell()
        stage.load(handlers=[HandlerInfo("transfer", ack_in_transaction=True), HandlerInfo("report", result_ttl=60.0)])
        stage.make_ready()
        stage.lease("transfer", "report")
        heads = [slot.deliveries[0] for slot in stage.busy]
        assert {head.handler: head.acks_itself for head in heads} == {"transfer": True, "report": False}

    def test_new_code_that_acks_itself_may_do_so_for_what_was_fetched_for_the_old(self) -> None:
        stage = Stage(workers=1)
        stage.pool.can = Capabilities(transactions=True)
        stage.boot().lease("slow", "report")
        [waiting] = stage.pool.ready
        stage.reload(handlers=[HandlerInfo("report", ack_in_transaction=True), HandlerInfo("slow")])
        stage.make_ready()
        [head] = [slot.deliveries[0] for slot in stage.busy if slot.generation == 2]
        assert head is waiting
        assert head.acks_itself

    def test_children_that_do_not_boot_are_tried_again_after_a_back_off(self) -> None:
        stage = Stage(workers=1).start()
        [slot] = stage.pool.slots.live
        actions = stage.die(slot, number=None, code=1)
        assert not of(actions, act.SpawnChild)
        assert stage.pool.boot.failures == 1
        assert len(of(stage.after(0.11), act.SpawnChild)) == 1

    def test_children_that_import_the_app_start_as_many_at_a_time_as_there_are_cpus(self) -> None:
        stage = Stage(workers=16)
        stage.pool.cpus = 2
        stage.tell()
        assert len(of(stage.tell(ev.FrameCame(1, Loaded(HANDLERS, preloaded=False))), act.SpawnChild)) == 2
        assert not of(stage.after(1.0), act.SpawnChild)
        assert [len(of(stage.make_ready(), act.SpawnChild)) for _ in range(8)] == [2] * 7 + [0]
        assert len(stage.idle) == 16

    def test_an_app_that_alone_takes_more_memory_than_a_child_may_is_told(self) -> None:
        for memory, told in [(200 << 20, 1), (100 << 20, 0)]:
            stage = Stage(memory_limit=MemoryLimit(150 << 20))
            stage.tell()
            stage.tell(ev.FrameCame(1, Loaded(HANDLERS, memory=memory)))
            assert [note.event.startswith("the app alone") for note in stage.pool.notes].count(True) == told

    def test_a_child_that_hangs_at_birth_is_killed(self) -> None:
        stage = Stage(workers=1).start()
        assert not of(stage.after(3600.0), act.KillChild), "the master stood still, and perhaps the child too"
        stage.tell(*(ev.FrameCame(1, Spawned(slot.child, 1001)) for slot in stage.pool.slots.live))
        assert len(of(step(stage, 60.1), act.KillChild)) == 1

    def test_an_import_that_takes_long_is_told_once(self) -> None:
        def told(after: float) -> list[object]:
            step(stage, after)
            return [note.fields["seconds"] for note in stage.pool.notes if note.event == "loading the app"]

        stage = Stage()
        stage.tell()
        assert told(4.9) == []
        assert told(0.3) == told(20.0) == [5.2]

    def test_an_import_that_is_quick_is_not_told(self) -> None:
        stage = Stage().boot()
        stage.after(20.0)
        assert not [note for note in stage.pool.notes if note.event == "loading the app"]

    def test_a_dead_fork_server_is_replaced(self, stage: Stage) -> None:
        assert not of(stage.tell(ev.ForkServerGone(1)), act.StartForkServer)
        [started] = of(stage.after(0.11), act.StartForkServer)
        assert started.generation == 2

    def test_a_refused_fork_gives_its_slot_back(self) -> None:
        stage = Stage(workers=1).start()
        [slot] = stage.pool.slots.live
        stage.tell(ev.FrameCame(1, SpawnFailed(slot.child, "EAGAIN")))
        assert slot.state is SlotState.EMPTY
        assert len(of(stage.after(0.11), act.SpawnChild)) == 1


def server_kills(actions: list[act.Action]) -> list[act.EndForkServer]:
    return [action for action in of(actions, act.EndForkServer) if action.kill]


def test_a_kept_result_ends_by_the_brokers_clock() -> None:
    stage = Stage(workers=1)
    stage.pool.wall, stage.pool.can = lambda: 5e9, Capabilities(key_store=True)
    stage.tell()
    stage.load(handlers=[HandlerInfo("report", result_ttl=60.0)])
    stage.make_ready()
    stage.answer(stage.run(), kept="7")
    kept = stage.verdict(Ack).result
    assert kept is not None
    assert Record.read(kept.record).ended_at == 5e9


class TestForkServersThatDoNotAnswer:
    def test_one_that_forks_no_child_is_killed_and_replaced(self) -> None:
        stage = Stage(workers=1).start()
        assert not server_kills(step(stage, ANSWER_LIMIT_S - 0.5))
        assert [action.generation for action in server_kills(step(stage, 1.0))] == [1]
        assert stage.pool.boot.failures == 1
        [slot] = stage.pool.slots.live
        stage.die(slot, number=signal.SIGKILL)
        assert [action.generation for action in of(step(stage, 1.0), act.StartForkServer)] == [2]

    def test_one_that_does_not_collect_a_dead_child_is_killed_and_what_that_was_is_known_then(self) -> None:
        stage = Stage(workers=2).boot()
        slot = stage.run()
        stage.tell(ev.ChildEnded(slot.child), ev.ChildBroken(slot.child, "closed", closed=True))
        actions = step(stage, ANSWER_LIMIT_S + 0.1)
        assert not of(actions, act.KillChild), "it is dead"
        assert len(server_kills(actions)) == 1
        stage.die(slot, number=signal.SIGSEGV)
        settlement = stage.verdict(Forfeit)
        assert Death.from_text(settlement.cause).how == "killed by SIGSEGV"

    def test_it_is_killed_as_soon_while_results_come_all_the_time(self) -> None:
        stage = Stage(workers=2).boot()
        dead, _ = stage.idle
        stage.tell(ev.ChildEnded(dead.child), ev.ChildBroken(dead.child, "closed", closed=True))
        since = stage.now
        while not server_kills(stage.lease("report") + stage.after(0.05)):
            stage.answer(stage.busy[0])
            assert stage.now < since + 2 * ANSWER_LIMIT_S
        assert ANSWER_LIMIT_S <= stage.now - since <= ANSWER_LIMIT_S + 0.1

    def test_a_timeout_whose_death_it_does_not_collect_is_a_timeout(self, stage: Stage) -> None:
        slot = stage.run("slow")
        actions = step(stage, 12.0)
        assert len(of(actions, act.KillChild)) == 1
        stage.tell(ev.ChildEnded(slot.child))
        actions = step(stage, ANSWER_LIMIT_S + 0.1)
        assert not of(actions, act.ForgetChild)
        assert len(server_kills(actions)) == 1
        stage.die(slot, number=signal.SIGKILL)
        settlement = stage.verdict(Abandon)
        assert settlement.reason == "timeout"

    def test_each_answer_gives_it_the_time_anew(self) -> None:
        stage = Stage(workers=3).start()
        first, *_ = stage.pool.slots.live
        step(stage, ANSWER_LIMIT_S - 1.0)
        stage.tell(ev.FrameCame(1, Spawned(first.child, 1001)))
        assert not server_kills(step(stage, ANSWER_LIMIT_S - 1.0))
        assert server_kills(step(stage, 1.1))

    def test_a_master_that_stood_still_itself_waits_anew(self) -> None:
        stage = Stage(workers=1).start()
        assert not server_kills(stage.after(3600.0))
        assert server_kills(step(stage, ANSWER_LIMIT_S + 0.1))

    def test_a_master_that_stood_still_says_so_before_what_it_lost(self, stage: Stage) -> None:
        stage.lease("report")
        stage.pool.notes.clear()
        stage.after(2.0)
        assert not stage.pool.notes
        stage.after(3600.0)
        assert stage.pool.notes[0] == ("warning", "the master stood still", {"seconds": 3600.0})
        assert len(stage.pool.notes) > 1, "then its lease is lost"

    def test_past_the_grace_of_a_stop_it_has_little_time(self) -> None:
        stage = Stage(workers=1, stop_grace=1.0).boot()
        [slot] = stage.idle
        stage.tell(ev.SignalCame(signal.SIGTERM), ev.ChildEnded(slot.child))
        assert not server_kills(stage.after(0.9))
        assert server_kills(stage.after(STOP_LIMIT_S + 0.2))
        stage.end(slot)
        assert stage.pool.finished
        assert stage.pool.boot.failures == 0


class TestKillsThatComeLate:
    @pytest.mark.parametrize("why", ["memory", "lost"])
    def test_the_job_behind_one_that_had_just_answered_is_not_charged_with_its_kill(self, why: str) -> None:
        stage = Stage(workers=1, memory_limit=MemoryLimit(2**20)).boot()
        slot = stage.run("report")
        stage.lease("report")
        behind = stage.pool.ready.popleft()
        slot.add_deliveries([behind], stage.now)
        if why == "memory":
            stage.tell(ev.Sampled([(slot.child, 2**30, 0.0, False)], stage.now))
        else:
            stage.pool.lose(slot.deliveries[0])
        assert of(stage.after(0.02), act.KillChild) or slot.killed_at
        stage.answer(slot)
        stage.settled.clear()
        stage.die(slot, number=signal.SIGKILL)
        assert stage.settled == [(behind.lease.id, Release())]
        assert GIVEN_BACK[EndReason.RETIRE] in [note.event for note in stage.pool.notes]


class TestDeathsOfTheForkServer:
    def test_attempts_that_die_with_it_are_released_and_not_begun_ones_do_not_count(self) -> None:
        stage = Stage(workers=2).boot()
        stage.lease("report", "report")
        slots = stage.busy
        stage.now += 1.5
        stage.tell(ev.ForkServerGone(1))
        stage.die(slots[0], number=signal.SIGKILL)
        stage.die(slots[1], number=signal.SIGKILL, begun=False)
        assert stage.verdicts() == [Release(), Release(begun=False)]
        assert [slot.last_death for slot in slots] == ["", ""]
        [told] = [note.fields for note in stage.pool.notes if note.event == GIVEN_BACK[EndReason.SERVER]]
        assert told == {"id": stage.settled[0][0], "handler": "report", "seconds": 1.5}

    def test_what_was_killed_or_crashed_before_is_that(self) -> None:
        stage = Stage(workers=2).boot()
        stage.lease("slow", "report")
        crashed, late = stage.busy
        step(stage, 12.0)
        assert late.ending is EndReason.TIMEOUT
        stage.tell(ev.ForkServerGone(1))
        stage.die(late, number=signal.SIGKILL)
        stage.die(crashed, number=signal.SIGABRT)
        timeout, crash = stage.verdicts()
        assert isinstance(timeout, Abandon)
        assert isinstance(crash, Forfeit)

    def test_of_several_the_youngest_waits_ever_longer_and_none_is_charged(self) -> None:
        stage = Stage(workers=2).boot()
        old, young = stage.a_lease("report", ttl=900.0), stage.a_lease("report", ttl=900.0)
        delays = [self.dies_beside(stage, old, young) for _ in range(5)]
        assert delays == [(0.0, 0.0), (0.0, 1.0), (0.0, 2.0), (0.0, 4.0), (0.0, 8.0)]

    def dies_beside(self, stage: Stage, *leases: JobLease) -> tuple[float, ...]:
        """How long each is released for, when they died with their fork server; the last began last."""
        for lease in leases:
            stage.take_in(lease)
            stage.after(0.1)
        stage.settled.clear()
        slots = stage.busy
        stage.tell(ev.ForkServerGone(stage.pool.generation))
        for slot in slots:
            stage.die(slot, number=signal.SIGKILL)
        delays = {ident: verdict.delay for ident, verdict in stage.settled if isinstance(verdict, Release)}
        step(stage, 31.0)
        stage.load(stage.pool.generation + 1)
        stage.make_ready()  # one, and after it the others
        stage.make_ready()
        return tuple(delays[lease.id] for lease in leases)

    def test_what_runs_alone_there_is_charged_from_the_third_time_in_a_row(self) -> None:
        stage = Stage(workers=2).boot()
        lease = stage.a_lease("report", ttl=900.0)
        assert [self.dies_beside(stage, lease) for _ in range(2)] == [(0.0,), (0.0,)]
        stage.take_in(lease)
        [slot] = stage.busy
        stage.tell(ev.ForkServerGone(stage.pool.generation))
        stage.die(slot, number=signal.SIGKILL)
        *_, settlement = stage.verdicts()
        assert isinstance(settlement, Forfeit)
        assert Death.from_text(settlement.cause) == Death("killed by SIGKILL", "the pool: its fork server has died")

    def test_a_result_ends_the_row(self) -> None:
        stage = Stage(workers=2).boot()
        lease = stage.a_lease("report", ttl=900.0)
        for _ in range(2):
            self.dies_beside(stage, lease)
        stage.take_in(lease)
        stage.answer(stage.busy[0])
        assert self.dies_beside(stage, lease) == (0.0,)


class TestHandingOut:
    def test_idle_children_get_one_each(self) -> None:
        stage = Stage(workers=3).boot()
        assert len(of(stage.lease("report", "report"), act.Dispatch)) == 2
        assert len(stage.busy) == 2

    def test_what_does_not_start_in_time_goes_back_unharmed(self, stage: Stage) -> None:
        stage.lease("report", "report")
        stage.after(STALE_AFTER_S + 0.01)
        assert stage.verdicts() == [Release(begun=False)]

    def test_short_jobs_stream_ahead_into_the_sockets(self) -> None:
        stage = Stage(workers=2).boot()
        for _ in range(60):
            stage.lease("report", "report")
            stage.now += 0.002
            for slot in stage.busy:
                while slot.deliveries:
                    stage.answer(slot)
        assert room(stage.pool, stage.now) > 4
        stage.lease(*["report"] * 8)
        assert all(len(slot.deliveries) > 1 for slot in stage.busy)

    def test_frames_behind_a_job_that_turns_out_long_are_taken_back(self, stage: Stage) -> None:
        [slot] = stage.idle
        stage.lease("report")
        stage.pool.ready.clear()
        extra = stage.a_lease("report")
        apply(stage.pool, ev.Leased([Inspected(extra, None)]), stage.now)
        slot.add_deliveries([stage.pool.ready.popleft()], stage.now)
        actions = stage.after(STALE_AFTER_S + 0.01)
        [taken] = of(actions, act.TakeBack)
        assert taken.slot is slot
        nonce = slot.deliveries[1].nonce
        stage.tell(ev.TookBack(slot.child, frozenset({nonce})))
        stage.after(0.02)
        assert stage.settled == [(extra.id, Release(begun=False))]

    def test_an_unknown_handler_waits_for_a_deploy(self) -> None:
        stage = Stage().boot()
        stage.pool.handlers |= {f"h{number}": stage.pool.handlers["report"] for number in range(20)}
        stage.lease("reprot")
        settlement = stage.verdict(Release)
        assert settlement.delay > 0
        [note] = [note for note in stage.pool.notes if note.event.startswith("no such handler here")]
        assert (note.fields["handler"], note.fields["nearest"], note.fields["waits"]) == ("reprot", "report", "10m")
        assert len(note.fields["known"]) < 100

    def test_one_that_died_of_that_and_is_retried_waits_once_more(self) -> None:
        stage = Stage().boot()
        lease = stage.a_lease("nobody", ttl=5000.0)
        for pause in (601.0, 1.0, 601.0, 1.0):
            stage.take_in(lease)
            stage.after(pause)
        assert [type(settlement) for settlement in stage.verdicts()] == [Release, Abandon, Release, Abandon]

    def test_one_whose_handler_came_by_a_reload_and_went_by_another_waits_once_more(self) -> None:
        stage = Stage().boot()
        lease = stage.a_lease("late", ttl=5000.0)
        for generation, handlers in enumerate(([*HANDLERS, HandlerInfo("late")], HANDLERS), 2):
            stage.tell(ev.Leased([Inspected(lease, None)]), ev.SignalCame(signal.SIGHUP))
            stage.load(generation, handlers)
            stage.after(601.0)
        stage.settled.clear()
        stage.take_in(lease)
        assert stage.verdict(Release).delay > 0

    def test_what_was_rejected_is_never_handed_over(self) -> None:
        stage = Stage().boot()
        assert not of(stage.lease("report", outcome=Rejected("forged")), act.Dispatch)
        assert stage.verdicts() == [Abandon("rejected", "forged")]


class TestResults:
    def test_success_is_acked(self, stage: Stage) -> None:
        stage.answer(stage.run())
        assert stage.verdicts() == [Ack()]
        assert stage.pool.counters.succeeded == 1

    @pytest.mark.parametrize(("handler", "least", "most"), [("stubborn", 0.85, 1.15), ("patient", 60.0, 60.0)])
    def test_the_handlers_own_retries_and_back_off_apply(
        self, stage: Stage, handler: str, least: float, most: float
    ) -> None:
        """Without one of its own, the pool's back-off: after 1 s."""
        stage.answer(stage.run(handler), ResultKind.FAILED, error="boom")
        nack = stage.verdict(Nack)
        assert nack.error == "boom"
        assert least <= nack.delay <= most

    def test_an_answer_of_a_former_attempt_is_ignored(self, stage: Stage) -> None:
        slot = stage.run()
        former = Result(slot.deliveries[0].nonce, ResultKind.SUCCEEDED, stage.now, 0.01)
        stage.answer(slot)
        running = list(stage.run().deliveries)
        stage.tell(ev.ChildResults(slot.child, [former]))
        assert list(slot.deliveries) == running
        assert stage.verdicts() == [Ack()], "of the first"

    def test_a_follow_up_that_the_broker_would_refuse_fails_the_attempt(self) -> None:
        for cancelled, reason in ((False, "unrecoverable"), (True, "cancelled")):
            stage = Stage(workers=1).boot()
            [delivery] = stage.run().deliveries
            stage.answer(stage.busy[0], follow_ups=to_raw([JobDefinition("report")]))
            assert stage.verdict(Ack).follow_ups
            stage.settled.clear()
            delivery.cancelled = cancelled  # meanwhile
            stage.tell(ev.FollowUpsRefused(delivery, "it is too large"))
            settlement = stage.verdict(Abandon)
            assert settlement.reason == reason
            assert "a follow-up job is refused: it is too large" in (settlement.error or "")

    def test_a_follow_up_to_a_queue_that_is_not_allowed_fails_the_attempt_whatever_the_child_let_pass(self) -> None:
        stage = Stage(workers=1, enqueue_to=("reports",)).boot()
        first = JobDefinition("report", queue="reports")
        other = first.with_queue("billing")
        for job in (first, other, first.with_then([first.with_then([other])])):
            stage.answer(stage.run(), follow_ups=to_raw([job]))
        allowed, *refused = stage.verdicts()
        assert isinstance(allowed, Ack)
        assert list(allowed.follow_ups) == [first]
        for verdict in refused:
            assert isinstance(verdict, Ack)
            with pytest.raises(ConfigurationError, match="may not enqueue to queue 'billing'"):
                list(verdict.follow_ups)

    @pytest.mark.parametrize("pack", [False, True], ids=["enqueue", "sign"])
    def test_a_child_is_refused_what_it_asks_to_enqueue_to_a_queue_that_is_not_allowed(self, pack: bool) -> None:
        stage = Stage(workers=1, enqueue_to=("reports",)).boot()
        [slot] = stage.idle
        jobs: list[dict[str, Any]] = [{"handler": "x", "queue": "reports"}, {"handler": "x"}]

        def refusal(asked: Any, batch: BatchCall | None = None) -> str:
            question = Ask(Raw(orjson.dumps(asked)), pack, batch)
            [action] = of(stage.tell(ev.FrameCame(slot.child, question)), act.Produce)
            return produce(MemoryBackend(), slot.child, action.ask, action.jobs).reply.kind

        assert not refusal(jobs[:1])
        assert refusal(jobs) == "ConfigurationError"
        assert refusal(jobs[1:], BatchCall("open", "b", callbacks=("on_done",))) == "ConfigurationError"
        for rubbish in (5, [None], [{**jobs[0], "then": 5}], [{**jobs[0], "then": [None]}]):
            assert refusal(rubbish) == "InvalidJob"
        for odd in (
            {"queue": ["reports"]},
            {**jobs[0], "then": jobs},
            {**jobs[0], "then": [{**jobs[0], "then": jobs}]},
        ):
            assert refusal([odd]) == "ConfigurationError"

    def test_a_child_may_not_cancel_a_batch_where_its_queues_are_bounded(self) -> None:
        cancel = Ask(NO_JOBS, batch=BatchCall("cancel", "another's"))
        for enqueue_to, answer in (((), act.Produce), (("reports",), act.Answer)):
            stage = Stage(workers=1, enqueue_to=enqueue_to).boot()
            [slot] = stage.idle
            assert of(stage.tell(ev.FrameCame(slot.child, cancel)), answer)

    def test_a_child_that_leaves_is_replaced_and_its_unread_frames_come_back(self, stage: Stage) -> None:
        slot = stage.run()
        stage.answer(slot, leaving="100 jobs done")
        assert slot.state is SlotState.DYING
        assert len(of(stage.end(slot), act.SpawnChild)) == 1
        assert stage.pool.counters.crashed == 0

    def test_what_a_handler_leaves_behind_is_told_with_its_mend_once_for_each_kind(self) -> None:
        stage = Stage(workers=1).boot()
        for why in ("threads: Thread-1", "threads: Thread-2", "processes", "jobs"):
            slot = stage.run()
            stage.answer(slot, leaving=why)
            stage.end(slot)
            stage.boot()
        told = [(note.level, note.fields["why"]) for note in stage.pool.notes if note.event == "a child is replaced"]
        again = ("debug", "threads: Thread-2")
        assert told == [("warning", "threads: Thread-1"), again, ("warning", "processes"), ("info", "jobs")]
        assert "allow_daemons=True" in next(n.fields["mend"] for n in stage.pool.notes if "mend" in n.fields)

    def test_jobs_enqueued_inside_a_child_go_through_the_settle_thread_and_back(self, stage: Stage) -> None:
        [slot] = stage.idle
        [produce] = of(stage.tell(ev.FrameCame(slot.child, Ask(to_raw([JobDefinition("x")])))), act.Produce)
        [answer] = of(stage.tell(ev.Produced(produce.child, Reply(["abc"]))), act.Answer)
        assert answer.reply.ids == ["abc"]
        counts = BatchStatus("b", True, 0, 0, 0, 0, (), 1.0)
        [answer] = of(stage.tell(ev.Produced(produce.child, Reply([], batch=counts))), act.Answer)
        assert answer.reply.batch == counts


class TestDeaths:
    def test_a_crash_while_running_forfeits(self, stage: Stage) -> None:
        actions = stage.die(stage.run())
        settlement = stage.verdict(Forfeit)
        assert Death.from_text(settlement.cause) == Death("killed by SIGSEGV", "itself")
        assert len(of(actions, act.SpawnChild)) == 1

    def test_dead_before_it_began_releases_and_forfeits_the_third_time(self, stage: Stage) -> None:
        lease = stage.a_lease("report")
        for _ in range(3):
            stage.take_in(lease)
            stage.die(stage.busy[0], begun=False)
            stage.make_ready()
        first, second, third = stage.verdicts()
        assert (first, second) == (Release(begun=False), Release(begun=False))
        assert isinstance(third, Forfeit)

    def test_unread_frames_of_the_dead_go_to_another_child_and_nothing_is_charged(self) -> None:
        stage = Stage(workers=2).boot()
        slot = stage.run("slow")
        second = stage.a_lease("report")
        apply(stage.pool, ev.Leased([Inspected(second, None)]), stage.now)
        slot.add_deliveries([stage.pool.ready.popleft()], stage.now)
        actions = stage.die(slot, unread=1)
        [hand] = of(actions, act.Dispatch)
        assert [d.lease for d in hand.deliveries] == [second]
        assert hand.slot is not slot
        assert len(stage.settled) == 1

    def test_an_answer_that_came_before_the_death_wins(self, stage: Stage) -> None:
        slot = stage.run()
        stage.answer(slot)
        stage.die(slot)
        assert stage.verdicts() == [Ack()]

    def test_a_killed_child_that_does_not_die_loses_its_message_and_its_slot(self, stage: Stage) -> None:
        slot = stage.run("slow")
        stage.after(11.0 + DUMP_BEFORE_KILL_S)
        stage.after(0.1)
        assert slot.state is SlotState.DYING
        stage.after(UNDEAD_AFTER_S / 2)
        actions = stage.after(UNDEAD_AFTER_S / 2 + 0.1)
        assert len(of(actions, act.ForgetChild)) == 1
        assert stage.settled == []
        assert not stage.pool.held
        assert len(of(stage.after(0.1), act.SpawnChild)) == 1

    @pytest.mark.parametrize("killed", [True, False])
    def test_a_pause_of_the_whole_container_is_no_time_in_which_a_child_could_have_died(self, killed: bool) -> None:
        stage = Stage(workers=1).boot()
        if killed:
            slot = stage.run("slow")
            stage.after(11.0 + DUMP_BEFORE_KILL_S)
            stage.after(0.1)
        else:
            [slot] = stage.idle
            slot.leave()
            stage.after(0.1)
        assert slot.state is SlotState.DYING
        assert not {act.KillChild, act.ForgetChild} & {*map(type, stage.after(UNDEAD_AFTER_S + 3.0))}
        assert not {act.KillChild, act.ForgetChild} & {*map(type, stage.after(0.1))}
        stage.die(slot, number=signal.SIGKILL)
        if killed:
            assert isinstance(stage.verdicts()[0], Abandon), "the verdict on its attempt is not lost"


class TestTimeouts:
    def test_stack_first_then_the_kill_then_a_failed_attempt(self, stage: Stage) -> None:
        slot = stage.run("slow")
        assert not of(stage.after(10.5), act.KillChild)
        assert len(of(stage.after(0.51), act.DumpStack)) == 1
        assert not of(stage.after(0.03), act.KillChild)
        assert len(of(stage.after(0.03), act.KillChild)) == 1
        assert slot.ending is EndReason.TIMEOUT
        stage.die(slot, number=signal.SIGKILL)
        settlement = stage.verdict(Abandon)
        assert (settlement.reason, settlement.error) == (
            "timeout",
            "Job 'slow' exceeded maximum execution time of 10 seconds.",
        )
        assert settlement.cause == Death("timeout", "the pool: timeout").to_text()

    def test_one_that_waits_in_c_without_cpu_says_what_it_looks_like(self) -> None:
        for at, cpu, said in ((5.0, 0.0, True), (5.0, 0.9, False), (1.0, 0.0, False)):
            stage = Stage(workers=1).boot()
            slot = stage.run("slow")
            stage.after(at)
            stage.tell(ev.Sampled([(slot.child, 101, cpu, False)], stage.now))
            stage.after(11.0 - at)
            stage.after(DUMP_BEFORE_KILL_S + 0.001)
            assert ("preload = false" in slot.ending_text) is said, (at, cpu)

    def test_one_that_is_stopped_is_told_apart(self, stage: Stage) -> None:
        stage.lease("slow")
        [slot] = stage.busy
        stage.after(0.5)
        stage.tell(ev.Sampled([(slot.child, 101, 0.0, True)], stage.now))
        stage.after(10.5)
        stage.after(DUMP_BEFORE_KILL_S + 0.001)
        assert slot.ending_text.endswith("\nIts process was stopped, by SIGSTOP or a debugger, and ran nothing more.")

    def test_a_loop_that_comes_late_still_asks_for_the_stack_before_it_kills(self, stage: Stage) -> None:
        stage.lease("slow")
        late = stage.after(11.0 + 5 * DUMP_BEFORE_KILL_S)
        assert len(of(late, act.DumpStack)) == 1
        assert not of(late, act.KillChild)
        assert len(of(stage.after(DUMP_BEFORE_KILL_S + 0.001), act.KillChild)) == 1

    def test_the_kill_waits_a_little_for_a_stack_that_is_not_written_yet(self, stage: Stage) -> None:
        slot = stage.run("slow")
        stage.after(11.01)
        slot.awaits_stack = True
        looked = stage.after(DUMP_BEFORE_KILL_S + 0.001)
        assert len(of(looked, act.LookForStack)) == 1
        assert not of(looked, act.KillChild)
        for _ in range(2):
            assert not of(stage.after(MAX_DUMP_PAUSE_S - 0.01), act.KillChild)
        assert len(of(stage.after(MAX_DUMP_PAUSE_S), act.KillChild)) == 1

    def test_a_pause_of_the_machine_hardly_shortens_the_wait_for_a_stack(self, stage: Stage) -> None:
        slot = stage.run("slow")
        stage.after(11.01)
        slot.awaits_stack = True
        for _ in range(2):
            looked = stage.after(2.0)
            assert len(of(looked, act.LookForStack)) == 1
            assert not of(looked, act.KillChild)
        assert len(of(stage.after(2.0), act.KillChild)) == 1

    def test_the_jobs_own_timeout_wins_over_the_handlers_and_the_pools(self) -> None:
        for handler, asked, most, granted in [
            ("slow", 2.0, 0.0, 2.0),
            ("slow", None, 0.0, 10.0),
            ("report", None, 0.0, 99.0),
            ("report", 2.0, 30.0, 2.0),
            ("report", 60.0, 30.0, 30.0),
            ("report", 0.0, 30.0, 30.0),
            ("report", None, 30.0, 30.0),
        ]:
            stage = Stage(workers=1, default_timeout=99.0, max_timeout=most).boot()
            assert stage.run(handler, timeout=asked).deliveries[0].timeout == granted, (handler, asked, most)

    def test_memory_above_the_limit_is_a_failed_attempt(self) -> None:
        stage = Stage(workers=1, memory_limit=MemoryLimit(100)).boot()
        slot = stage.run()
        stage.now += 0.1
        assert len(of(stage.tell(ev.Sampled([(slot.child, 101, 0.5, False)], stage.now)), act.KillChild)) == 1
        stage.die(slot, number=signal.SIGKILL)
        settlement = stage.verdict(Abandon)
        assert settlement.reason == "memory-limit"

    def test_memory_that_the_job_before_used_is_not_charged_to_this_one(self) -> None:
        stage = Stage(workers=1, memory_limit=MemoryLimit(100)).boot()
        stage.lease("report", "report")
        [slot] = stage.busy
        looked_at = stage.now
        stage.now += 0.05
        stage.answer(slot)
        assert slot.deliveries
        stage.now += 0.05
        assert not of(stage.tell(ev.Sampled([(slot.child, 101, 0.5, False)], looked_at)), act.KillChild)
        stage.now += 0.05
        assert of(stage.tell(ev.Sampled([(slot.child, 102, 0.5, False)], stage.now)), act.KillChild)


class TestLeases:
    def test_a_lost_lease_kills_its_child_and_settles_nothing(self, stage: Stage) -> None:
        slot = stage.run()
        stage.tell(ev.Renewed([(slot.deliveries[0], None)]))
        assert len(of(stage.after(0.02), act.KillChild)) == 1
        stage.die(slot, number=signal.SIGKILL)
        assert stage.settled == []
        assert stage.pool.counters.lost == 1

    def test_a_lease_that_ran_out_is_lost_without_asking(self, stage: Stage) -> None:
        stage.take_in(stage.a_lease("report", ttl=5.0))
        assert len(of(stage.after(5.0), act.KillChild)) == 1

    def test_the_loop_wakes_when_the_lease_of_what_runs_ends(self, stage: Stage) -> None:
        """By another clock than the loop's."""
        stage.take_in(stage.a_lease("report", ttl=1000.4))
        stage.planner.plan(stage.pool, stage.now, stage.now + 1000.0)
        assert 0.399 < next_due(stage.pool, stage.now) - stage.now < 0.401
        stage.now += 0.4
        stage.planner.plan(stage.pool, stage.now, stage.now + 1000.001)
        assert of(stage.planner.upkeep(stage.pool, stage.now, stage.now + 1000.001), act.KillChild)

    def test_the_end_of_a_lease_that_is_lost_or_settled_wakes_nobody(self) -> None:
        stage = Stage(workers=1, on_lease_lost="finish").boot()
        stage.take_in(stage.a_lease("report", ttl=0.4))
        stage.busy[0].deliveries[0].settling = True
        assert next_due(stage.pool, stage.now) == stage.now + HEARTBEAT_S
        stage.busy[0].deliveries[0].settling = False
        stage.after(0.4)
        assert next_due(stage.pool, stage.now) == stage.now + HEARTBEAT_S

    @pytest.mark.parametrize("broke", [False, True], ids=["not renewed", "its connection broke"])
    def test_a_lost_lease_may_be_left_to_finish_with_its_result_dropped(self, broke: bool) -> None:
        stage = Stage(workers=1, on_lease_lost="finish").boot()
        slot = stage.run()
        [delivery] = slot.deliveries
        stage.tell(ev.LeasesBroke([delivery.lease]) if broke else ev.Renewed([(delivery, None)]))
        assert not of(stage.after(0.02), act.KillChild)
        assert next_due(stage.pool, stage.now) > stage.now, "no busy loop"
        stage.answer(slot)
        assert stage.settled == []
        assert slot.state is SlotState.IDLE

    def test_a_renewed_lease_replaces_the_old_one(self, stage: Stage) -> None:
        delivery = stage.run().deliveries[0]
        newer = stage.a_lease("report", ttl=60.0)
        stage.tell(ev.Renewed([(delivery, newer)]))
        assert delivery.lease is newer

    def test_a_lease_that_the_handlers_own_commit_may_have_ended_is_lost_at_its_end_only(self) -> None:
        stage = Stage(workers=1).boot()
        slot = stage.run()
        slot.deliveries[0].acks_itself = True
        stage.tell(ev.Renewed([(slot.deliveries[0], None)]))
        assert not of(stage.after(0.02), act.KillChild)
        assert len(of(stage.after(30.0), act.KillChild)) == 1, "it was really lost, or goes on for long"

        stage = Stage(workers=1).boot()
        slot = stage.run()
        slot.deliveries[0].acks_itself = True
        stage.tell(ev.Renewed([(slot.deliveries[0], None)]))
        stage.answer(slot)
        assert [type(settlement) for _, settlement in stage.settled] == [Ack], "the broker says which it was"

    def test_a_refused_settlement_is_counted_as_lost(self, stage: Stage) -> None:
        delivery = stage.run().deliveries[0]
        delivery.outcome = Rejected("x")
        stage.tell(ev.Answered([(delivery, Ack(), Settled.NOT_OWNER)]))
        assert stage.pool.counters.lost == 1
        assert not stage.pool.held


class TestStopping:
    def test_a_stop_drains_and_lets_idle_children_go(self) -> None:
        stage = Stage(workers=2).boot()
        stage.lease("report")
        actions = stage.tell(ev.SignalCame(signal.SIGTERM))
        assert len(of(actions, act.RetireChild)) == 1
        assert room(stage.pool, stage.now) == 0
        stage.answer(stage.busy[0])
        stage.end(*stage.pool.slots.live)
        assert stage.verdicts() == [Ack()]
        assert stage.pool.finished

    def test_past_its_grace_the_rest_is_killed_and_released(self) -> None:
        stage = Stage(workers=1, stop_grace=5.0).boot()
        slot = stage.run()
        stage.tell(ev.SignalCame(signal.SIGTERM))
        assert not of(stage.after(4.9), act.KillChild)
        assert len(of(stage.after(0.2), act.KillChild)) == 1
        stage.die(slot, number=signal.SIGKILL)
        assert stage.verdicts() == [Release(0.0)]
        assert stage.pool.finished

    @pytest.mark.parametrize(
        ("second", "after", "kills"),
        [(signal.SIGINT, 0.25, 1), (signal.SIGINT, 0.24, 0), (signal.SIGTERM, 0.0, 1)],
        ids=["the same again", "the same, to the pool and to its group", "another"],
    )
    def test_a_second_signal_kills_at_once(self, stage: Stage, second: int, after: float, kills: int) -> None:
        stage.lease("report")
        stage.tell(ev.SignalCame(signal.SIGINT))
        stage.after(after)
        assert len(of(stage.tell(ev.SignalCame(second)), act.KillChild)) == kills
        assert stage.pool.stopping is (Stopping.KILL if kills else Stopping.DRAIN)

    @pytest.mark.parametrize(
        ("thread", "then"),
        [
            ("control", Stopping.DRAIN),
            ("fetch", Stopping.DRAIN),
            ("settle", Stopping.KILL),
            ("renew", Stopping.KILL),
        ],
    )
    def test_the_death_of_a_thread_that_is_not_needed_any_more_kills_no_job(self, thread: str, then: Stopping) -> None:
        stage = Stage().boot()
        stage.run("slow")
        stage.tell(ev.SignalCame(signal.SIGTERM))
        stage.tell(ev.ThreadDied(thread, "", "NOPERM"))
        assert stage.pool.stopping is then
        assert stage.pool.fatal == "NOPERM"

    def test_a_closed_terminal_begins_a_stop_and_never_kills(self, stage: Stage) -> None:
        stage.lease("report")
        for _ in range(2):
            actions = stage.tell(ev.SignalCame(signal.SIGHUP, terminal_closed=True))
            assert not of(actions, act.KillChild)
            assert stage.pool.stopping is Stopping.DRAIN
            stage.after(0.25)
        [told] = [note.fields["then"] for note in stage.pool.notes if "then" in note.fields]
        assert told == "kills them, as SIGTERM does now"

    @pytest.mark.parametrize("again", [False, True], ids=["past its grace", "a second signal"])
    def test_each_job_that_the_stop_kills_is_named(self, again: bool) -> None:
        stage = Stage(workers=2, stop_grace=5.0).boot()
        stage.lease("report", "slow")
        ids = {slot.deliveries[0].lease.id for slot in stage.busy}
        stage.tell(ev.SignalCame(signal.SIGTERM))
        stage.after(2.0 if again else 5.0)
        if again:
            stage.tell(ev.SignalCame(signal.SIGTERM))
        for slot in list(stage.pool.slots.live):
            stage.die(slot, number=signal.SIGKILL)
        told = [note.fields for note in stage.pool.notes if note.event == GIVEN_BACK[EndReason.STOP]]
        assert {fields["id"] for fields in told} == ids
        assert {fields["handler"] for fields in told} == {"report", "slow"}
        assert {fields["seconds"] for fields in told} == {2.0 if again else 5.0}

    def test_a_child_that_the_stop_kills_before_its_job_began_is_not_named(self) -> None:
        stage = Stage(workers=1, stop_grace=5.0).boot()
        stage.lease("report")
        stage.tell(ev.SignalCame(signal.SIGTERM))
        stage.after(5.0)
        stage.die(stage.pool.slots.live[0], number=signal.SIGKILL, begun=False)
        assert not [note for note in stage.pool.notes if note.event == GIVEN_BACK[EndReason.STOP]]

    def test_leases_that_come_in_after_the_stop_go_back(self, stage: Stage) -> None:
        stage.tell(ev.SignalCame(signal.SIGTERM))
        stage.lease("report")
        assert stage.verdicts() == [Release(begun=False)]

    def test_the_pool_stops_when_the_queues_are_empty_if_it_was_told_so(self) -> None:
        stage = Stage(workers=1, until_empty=True).boot()
        stage.tell(ev.Counted({"reports": QueueStats(delayed=1)}))
        assert not stage.pool.is_stopping
        stage.tell(ev.Counted({"reports": QueueStats(dead=3)}))
        assert stage.pool.is_stopping
        assert stage.pool.notes[-1].event == "the queues are empty"

    def test_a_pool_that_stops_beside_paused_queues_says_how_many_jobs_wait_there(self) -> None:
        stage = Stage(workers=1, until_empty=True).boot()
        stage.tell(ev.ControlRead(PoolRequests(paused={"reports": Pause("reports")})))
        stage.tell(ev.Counted({"reports": QueueStats(waiting=2, delayed=1)}))
        assert stage.pool.is_stopping
        note = stage.pool.notes[-1]
        assert (note.event, note.fields["left"]) == ("the jobs that are left wait in paused queues", 3)

    @pytest.mark.parametrize("settlement", [Nack(5.0), Release(5.0), Forfeit()])
    def test_a_mark_that_is_read_while_the_job_goes_back_cancels_its_next_delivery(
        self, settlement: Nack | Release | Forfeit
    ) -> None:
        stage = Stage(workers=1).boot()
        delivery = stage.run().deliveries[0]
        delivery.settling = True
        lease = delivery.lease
        stage.tell(ev.ControlRead(PoolRequests(cancels={lease.id: CancelMark()})))
        stage.tell(ev.Answered([(delivery, settlement, Settled.OK)]))
        assert stage.pool.cancels_over == [], "it was not cancelled yet"
        stage.take_in(lease)
        [(ident, abandon)] = stage.settled
        assert (ident, getattr(abandon, "reason", None)) == (lease.id, "cancelled")
        assert stage.pool.cancels_over == [lease.id]

    def test_a_job_that_is_cancelled_before_its_run_is_told_with_its_handler(self, stage: Stage) -> None:
        lease = stage.a_lease("report")
        stage.tell(ev.ControlRead(PoolRequests(cancels={lease.id: CancelMark()})))
        stage.take_in(lease)
        assert [type(verdict) for verdict in stage.verdicts()] == [Abandon]
        [note] = [note for note in stage.pool.notes if note.event == "a job is cancelled"]
        assert (note.fields["handler"], "name" in note.fields) == ("report", False)

    def test_an_empty_queue_does_not_end_a_pool_before_its_app_is_loaded(self) -> None:
        stage = Stage(workers=1, until_empty=True)
        stage.tell(ev.Counted({"reports": QueueStats()}))
        assert not stage.pool.is_stopping
        stage.tell(ev.FrameCame(1, LoadFailed("no module named 'myapp'")))
        assert (stage.pool.is_stopping, stage.pool.fatal) == (True, "no module named 'myapp'")

    def test_a_fork_server_that_never_loads_the_app_ends_a_pool_that_is_to_stop(self) -> None:
        stage = Stage(workers=1, until_empty=True)
        for _ in range(BOOT_LOOP):
            assert not stage.pool.is_stopping
            [start] = of(stage.after(60.0), act.StartForkServer)
            crash = ev.AppSaid("Fatal Python error: Aborted"), ev.AppSaid('  File "jobs.py", line 1 in <module>')
            stage.tell(*crash, ev.ForkServerGone(start.generation), ev.Counted({"reports": QueueStats()}))
        assert stage.pool.fatal == "the app does not load: the process died that was importing the app"
        assert {line.level for line in stage.pool.lines} == {logging.ERROR}, "also shown with -q"
        died = [note for note in stage.pool.notes if note.event.startswith("the process died")]
        assert "jobpool doctor" in died[0].fields["mend"]

    def test_a_stack_that_an_import_prints_is_shown_whole_with_q(self) -> None:
        stage = Stage(workers=1)
        stack = ["Traceback (most recent call last):", '  File "jobs.py", line 1, in <module>', "ValueError: no"]
        stage.tell(*map(ev.AppSaid, ["reading", '  File "notes.txt"', *stack, "going on"]))
        assert [line.text for line in stage.pool.lines if line.level == logging.ERROR] == stack

    def test_the_pool_stops_after_so_many_jobs_and_leases_no_more_than_that(self) -> None:
        stage = Stage(workers=4, max_total=2).boot()
        assert room(stage.pool, stage.now) == 2
        stage.lease("report", "report")
        assert room(stage.pool, stage.now) == 0
        for slot in stage.busy:
            stage.answer(slot)
        assert stage.pool.is_stopping

    def test_a_lease_that_a_child_has_lost_is_one_of_so_many_jobs(self) -> None:
        stage = Stage(workers=1, max_total=1).boot()
        stage.lease("report")
        stage.after(31.0)
        stage.tell(ev.BrokerAnswered())
        assert stage.pool.is_stopping, "else it would fetch nothing more, and never end"

    def test_a_lease_that_ends_before_a_child_has_it_makes_room_for_another(self) -> None:
        stage = Stage(workers=1, max_total=1).boot()
        stage.lease("report", outcome=LostLease())
        assert not stage.pool.is_stopping
        assert room(stage.pool, stage.now) == 1

    def test_a_crash_that_is_left_to_expire_is_counted_as_a_crash(self) -> None:
        stage = Stage(workers=1, on_crash=OnCrash("expire"), max_total=1).boot()
        stage.die(stage.run())
        stage.tell(ev.BrokerAnswered())
        assert (stage.pool.counters.crashed, stage.pool.counters.lost) == (1, 0)
        assert stage.pool.is_stopping

    def test_a_silent_broker_does_not_hold_up_the_stop_for_ever(self) -> None:
        stage = Stage(workers=1, stop_grace=1.0).boot()
        delivery = stage.run().deliveries[0]
        delivery.settling = True
        stage.tell(ev.SignalCame(signal.SIGTERM))
        stage.end(*stage.pool.slots.live)
        assert not stage.pool.finished
        stage.after(1.6)
        stage.tell(ev.BrokerSilent("still"))
        assert stage.pool.finished


class TestReload:
    def test_new_children_first_then_the_old_go_one_by_one(self) -> None:
        stage = Stage(workers=2).boot()
        old = set(stage.pool.slots.live)
        [started] = of(stage.tell(ev.SignalCame(signal.SIGHUP)), act.StartForkServer)
        assert started.generation == 2
        actions = stage.load(generation=2)
        assert len(of(actions, act.SpawnChild)) == 1
        assert not of(actions, act.RetireChild)
        [retired] = of(stage.make_ready(), act.RetireChild)
        assert retired.slot in old
        stage.end(retired.slot)
        stage.make_ready()
        stage.end(*(slot for slot in stage.pool.slots.live if slot.retiring))
        assert {slot.generation for slot in stage.pool.slots.live} == {2}
        assert any(action.generation == 1 for action in of(stage.log, act.EndForkServer))

    def test_a_second_reload_kills_the_spare_child_of_the_first_which_may_hang_at_its_start(self) -> None:
        stage = Stage(workers=2).boot()
        [hanging] = [action.slot for action in of(stage.reload(), act.SpawnChild)]
        assert [action.slot for action in of(stage.reload(3), act.KillChild)] == [hanging]
        [spare] = [action.slot for action in of(stage.die(hanging, number=signal.SIGKILL), act.SpawnChild)]
        assert spare.generation == 3
        assert stage.pool.boot.failures == 0
        for _ in range(6):
            stage.make_ready()
            stage.end(*(slot for slot in stage.pool.slots.live if slot.retiring))
        assert [slot.generation for slot in stage.pool.slots.live] == [3, 3]
        assert {action.generation for action in of(stage.log, act.EndForkServer)} == {1, 2}

    def test_of_two_reloads_the_later_one_counts_whichever_is_loaded_first(self, stage: Stage) -> None:
        stage.tell(ev.SignalCame(signal.SIGHUP))
        stage.tell(ev.SignalCame(signal.SIGHUP))
        stage.tell(*(ev.FrameCame(generation, Loaded(HANDLERS)) for generation in (3, 2)))
        assert stage.pool.generation == 3
        assert 2 in {action.generation for action in of(stage.log, act.EndForkServer)}

    def test_a_reload_ends_the_import_of_the_one_before_it(self, stage: Stage) -> None:
        stage.tell(ev.SignalCame(signal.SIGHUP))
        actions = stage.tell(ev.SignalCame(signal.SIGHUP))
        assert [action.generation for action in of(actions, act.EndForkServer)] == [2]
        assert [action.generation for action in of(actions, act.StartForkServer)] == [3]
        assert (list(stage.pool.servers), stage.pool.boot.failures, stage.pool.reload_error) == ([1, 3], 0, "")

    def test_a_reload_ends_no_import_without_which_nothing_runs_meanwhile(self, stage: Stage) -> None:
        stage.tell(ev.ForkServerGone(1))
        stage.after(0.11)
        for _ in range(2):
            stage.tell(ev.SignalCame(signal.SIGHUP))
        assert list(stage.pool.servers) == [2, 4]

    def test_a_generation_is_never_used_twice(self, stage: Stage) -> None:
        for _ in range(2):
            stage.tell(ev.SignalCame(signal.SIGHUP))
            [server] = [server for server in stage.pool.servers if server != 1]
            stage.tell(ev.FrameCame(server, LoadFailed("SyntaxError")), ev.ForkServerGone(server))
        assert [action.generation for action in of(stage.log, act.StartForkServer)] == [1, 2, 3]

    def test_a_reload_that_failed_is_no_boot_failure_and_lets_the_loop_sleep(self, stage: Stage) -> None:
        stage.tell(ev.SignalCame(signal.SIGHUP))
        stage.tell(ev.FrameCame(2, LoadFailed("SyntaxError")), ev.ForkServerGone(2))
        assert stage.pool.boot.failures == 0
        stage.pool.boot.failed("a child could not boot", stage.now)
        stage.now += 5.0
        assert next_due(stage.pool, stage.now) >= stage.now + 0.5

    def test_children_of_new_code_do_not_wait_for_the_back_off_of_the_old(self, stage: Stage) -> None:
        stage.reload()
        [newborn] = [slot for slot in stage.pool.slots.live if slot.generation == 2]
        stage.end(newborn)
        assert stage.pool.boot.failures == 1
        assert len(of(stage.reload(3), act.SpawnChild)) == 1
        assert stage.pool.boot.failures == 0

    def test_a_busy_child_that_left_as_it_was_told_did_not_crash(self, stage: Stage) -> None:
        slot = stage.run()
        stage.reload()
        stage.make_ready()
        assert slot.retiring
        stage.answer(slot)
        stage.pool.notes.clear()
        stage.end(slot)
        assert slot.last_death == ""
        assert not [note for note in stage.pool.notes if note.event == "a child died"]

    def test_code_that_does_not_load_leaves_the_old_children_alone(self) -> None:
        stage = Stage(workers=2).boot()
        stage.tell(ev.SignalCame(signal.SIGHUP))
        stage.tell(ev.FrameCame(2, LoadFailed("SyntaxError")))
        stage.tell(ev.ForkServerGone(2))
        assert len(stage.idle) == 2
        assert not stage.pool.is_stopping
        assert not of(stage.after(1.0), act.StartForkServer)

    @pytest.mark.parametrize(("bad", "good"), [(1, 2), (2, 1)])
    def test_of_two_imports_at_the_start_one_may_fail(self, bad: int, good: int) -> None:
        stage = Stage(workers=1)
        stage.tell()
        stage.tell(ev.SignalCame(signal.SIGHUP))
        assert list(stage.pool.servers) == [1, 2]
        stage.tell(ev.FrameCame(bad, LoadFailed("SyntaxError")), ev.ForkServerGone(bad))
        assert not stage.pool.is_stopping
        stage.load(generation=good)
        stage.after(1.0)
        stage.make_ready()
        assert [slot.generation for slot in stage.idle] == [good]

    def test_why_a_reload_failed_is_kept_until_the_next_good_one(self) -> None:
        for how, error in [
            (ev.FrameCame(2, LoadFailed("SyntaxError")), "SyntaxError"),
            (ev.ForkServerGone(2), "the process died that was importing the app"),
            (None, "the app was not imported after"),
        ]:
            stage = Stage(workers=1).boot()
            stage.tell(ev.SignalCame(signal.SIGHUP))
            if how is None:
                assert not of(stage.after(3600.0), act.EndForkServer), "the master stood still, and perhaps it too"
                step(stage, stage.pool.settings.boot_timeout)
            else:
                stage.tell(how)
            assert (stage.pool.boot.failures, stage.pool.notes[-1].fields.get("again_in")) == (0, None), how
            stage.tell(ev.SignalCame(signal.SIGHUP))
            assert stage.pool.reload_error.startswith(error), how
            stage.load(generation=3)
            assert stage.pool.reload_error == "", how

    def test_a_reload_that_failed_is_told_though_the_one_before_it_is_not_through(self, stage: Stage) -> None:
        stage.run()
        stage.reload()
        stage.tell(ev.SignalCame(signal.SIGHUP), ev.FrameCame(3, LoadFailed("SyntaxError")))
        with Scoreboard.create(None, len(stage.pool.slots.all)) as board:
            Publisher(board).publish(stage.pool, stage.now, stage.now, stage.now)
            problem = board.header.read().problem
        assert problem == (
            "a reload is under way: 1 of the old code's children are not gone yet;"
            " the last reload failed, the old code goes on: SyntaxError"
        )

    def test_a_secret_in_the_error_of_an_import_is_neither_logged_nor_told_to_probes(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        error = "cannot connect to postgres://me:hunter2@db/shop"
        stage = Stage(workers=1).boot()
        stage.tell(ev.SignalCame(signal.SIGHUP), ev.FrameCame(2, LoadFailed(error, f"Traceback\n{error}")))
        with Scoreboard.create(None, len(stage.pool.slots.all)) as board:
            publisher = Publisher(board, Masker().text)
            publisher.publish(stage.pool, stage.now, stage.now, stage.now)
            publisher.write_log(stage.pool)
            problem = board.header.read().problem
        told = [str(value) for record in caplog.records for value in record.__dict__.get("fields", {}).values()]
        assert len([text for text in [problem, *told] if "postgres://me:***@db/shop" in text]) == 3
        assert not [text for text in [problem, *told] if "hunter2" in text]

    @pytest.mark.parametrize("event", [ev.FrameCame(2, Loaded(HANDLERS)), ev.FrameCame(2, LoadFailed("SyntaxError"))])
    def test_a_short_reload_is_shown_long_enough_for_who_tells_the_service_manager(self, event: ev.Event) -> None:
        stage = Stage(workers=1).boot()
        [old] = stage.idle
        stage.tell(ev.SignalCame(signal.SIGHUP))
        stage.tell(event)
        stage.make_ready()
        if old.retiring:
            stage.end(old)
        with Scoreboard.create(None, len(stage.pool.slots.all)) as board:
            shown = []
            for now in (stage.now, stage.now + 0.9, stage.now + 1.1):
                Publisher(board).publish(stage.pool, now, now, now)
                shown.append(board.header.read().reloading)
        assert (reload_under_way(stage.pool), shown) == ("", [1, 1, 0])

    def test_a_reload_that_a_later_one_has_overtaken_may_fail(self, stage: Stage) -> None:
        for _ in range(2):
            stage.reload(3)
        stage.tell(ev.FrameCame(2, LoadFailed("SyntaxError")))
        assert stage.pool.reload_error == ""

    def test_an_app_that_never_loaded_is_no_reload(self) -> None:
        stage = Stage(workers=1)
        stage.tell(ev.ForkServerGone(1))
        assert stage.pool.reload_error == ""

    def test_code_that_the_backend_cannot_serve_leaves_the_old_children_alone(self) -> None:
        stage = Stage(workers=2).boot()
        actions = stage.reload(handlers=[HandlerInfo("transfer", ack_in_transaction=True)])
        assert [action.generation for action in of(actions, act.EndForkServer)] == [2]
        assert len(stage.idle) == 2
        assert not stage.pool.is_stopping
        assert stage.pool.generation == 1

    def test_a_child_that_is_told_to_leave_is_handed_nothing_in_the_same_turn(self) -> None:
        stage = Stage(workers=2).boot()
        stage.tell(ev.SignalCame(signal.SIGTTOU), ev.Leased([Inspected(stage.a_lease("report"), None)] * 2))
        [told] = of(stage.log, act.RetireChild)
        assert [hand.slot for hand in of(stage.log, act.Dispatch) if hand.slot is told.slot] == []
        assert of(stage.log, act.Dispatch)

    def test_a_child_that_does_not_leave_when_it_was_told_is_killed_once_and_its_death_is_no_crash(self) -> None:
        stage = Stage(workers=1).boot()
        slot = stage.run()
        stage.reload()
        stage.make_ready()
        assert reload_under_way(stage.pool) == "a reload is under way: 1 of the old code's children are not gone yet"
        assert not of(stage.after(9.0), act.KillChild), "it is busy, and is left alone"
        stage.answer(slot)
        stage.after(0.1)
        assert not of(stage.after(UNDEAD_AFTER_S / 2), act.KillChild)
        assert not of(stage.after(UNDEAD_AFTER_S / 2 - 0.2), act.KillChild)
        assert of(stage.after(0.3), act.KillChild)
        assert not of(stage.after(0.1), act.KillChild)
        stage.die(slot, number=signal.SIGKILL)
        assert slot.last_death == ""
        assert reload_under_way(stage.pool) == ""
        assert "a child that was told to leave has not left; it is killed" in {n.event for n in stage.pool.notes}

    def test_an_import_that_goes_on_is_a_reload_under_way(self) -> None:
        stage = Stage(workers=1)
        stage.tell()
        assert reload_under_way(stage.pool) == "", "it is the first one"
        stage.boot()
        stage.tell(ev.SignalCame(signal.SIGHUP))
        assert reload_under_way(stage.pool) == "a reload is under way: the new code is being imported"

    def test_more_and_fewer_children(self, stage: Stage) -> None:
        assert len(of(stage.tell(ev.SignalCame(signal.SIGTTIN)), act.SpawnChild)) == 1
        stage.make_ready()
        assert len(of(stage.tell(ev.SignalCame(signal.SIGTTOU)), act.RetireChild)) == 1
        assert not of(stage.tell(ev.SignalCame(signal.SIGTTOU)), act.RetireChild)
        told = [note.fields for note in stage.pool.notes if note.event == "told how many workers to run"]
        assert told == [
            {"signal": "SIGTTIN", "workers": 2},
            {"signal": "SIGTTOU", "workers": 1},
            {"signal": "SIGTTOU", "workers": 1},
        ]

    def test_quit_asks_for_stacks(self, stage: Stage) -> None:
        assert of(stage.tell(ev.SignalCame(signal.SIGQUIT)), act.AnswerStack) == [act.AnswerStack(stage.idle[0], None)]


class TestBrokenChannels:
    def test_a_closed_channel_is_no_death_but_ends_in_a_kill(self, stage: Stage) -> None:
        slot = stage.run()
        stage.tell(ev.ChildBroken(slot.child, "closed", closed=True))
        assert not of(stage.after(0.1), act.KillChild)
        assert len(of(stage.after(0.5), act.KillChild)) == 1
        stage.die(slot, number=signal.SIGKILL)
        stage.verdict(Forfeit)

    def test_rubbish_is_killed_at_once(self, stage: Stage) -> None:
        stage.lease("report")
        stage.now += 0.02
        assert len(of(stage.tell(ev.ChildBroken(stage.busy[0].child, "rubbish", closed=False)), act.KillChild)) == 1
