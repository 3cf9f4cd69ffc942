"""Which queues a pool serves, by its settings and its app, and what it says of those that nothing serves."""

from __future__ import annotations

from typing import Any

from stage import Stage
from support.jobs import QUEUE, a_job
from support.waiting import wait_until

from jobpool.broker.values import Capabilities, QueueStats, ReapPolicy
from jobpool.ipc.frames import BootFailed, HandlerInfo, Spawned
from jobpool.master import events as ev
from jobpool.master.fetch_thread import FetchThread
from jobpool.master.inbox import Inbox
from jobpool.master.run import MachinePools, waiting_elsewhere
from jobpool.master.serving import OtherPools, Surveyed, named_queues
from jobpool.master.settle_thread import SettleThread
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import LeaseInspector
from jobpool.telemetry.metrics.catalogue import FETCHED
from jobpool_backends.memory import MemoryBackend

OTHER = "mails"
REPORT = HandlerInfo("report", queues=["reports"], schedules=["nightly"])
MAIL = HandlerInfo("mail", queues=["mails", "default"])
URL = HandlerInfo("url")
SHELL = HandlerInfo("shell", queues=["default"], built_in=True)  # allowed: in a queue that only its producers know


def of_app(can: Capabilities = Capabilities(), **settings: Any) -> Stage:  # noqa: B008 - a value
    """A pool without the setting, whose app is loaded."""
    stage = Stage(queues=(), **settings)
    assert stage.pool.queues == {}
    stage.pool.can = can
    stage.tell()
    stage.load(handlers=[REPORT])
    return stage


def test_handlers_name_the_queues() -> None:
    for handlers, queues in [
        ([REPORT], ("reports",)),
        ([MAIL, REPORT, URL], ("default", "mails", "reports")),
        ([URL], ("default",)),
        ([REPORT, SHELL], ("default", "reports")),
        ([], ("default",)),
    ]:
        assert named_queues(handlers) == queues, handlers


def test_without_the_setting_a_pool_serves_what_its_app_names_and_a_reload_adds_to_it() -> None:
    stage = of_app()
    assert stage.pool.queues == {"reports": 1.0}
    assert stage.pool.app_came
    stage.reload(handlers=[MAIL])
    assert list(stage.pool.queues) == ["reports", "default", "mails"], "jobs of the old code may wait in its queue"
    assert [note.fields["queues"] for note in stage.pool.notes if "more queues" in note.event] == [["default", "mails"]]


def test_each_queue_has_a_counter_of_what_was_fetched_before_anything_was() -> None:
    stage = Stage(queues=(("big", 3.0),)).boot()
    stage.pool.metrics.fetched("big", 2)
    stage.reload(handlers=[REPORT])
    for pool, values in ((stage.pool, {("big",): 2}), (of_app().pool, {("reports",): 0})):
        [fetched] = [one for one in pool.metrics.snapshot().samples if one.metric is FETCHED]
        assert fetched.values == values


def test_where_queues_must_exist_a_reload_adds_none() -> None:
    stage = of_app(Capabilities(makes_queues=False))
    stage.reload(handlers=[REPORT, MAIL])
    assert stage.pool.queues == {"reports": 1.0}
    [note] = [note for note in stage.pool.notes if note.event == "new queues of the app are not served yet"]
    assert note.fields["queues"] == ["default", "mails"]


def test_the_setting_wins() -> None:
    stage = Stage(queues=(("big", 3.0),)).boot()
    stage.load(handlers=[REPORT])
    assert stage.pool.queues == {"big": 3.0}


NOBODY = OtherPools()


def test_what_nothing_serves_is_said_once() -> None:
    for event, settings, said in [
        (Surveyed(NOBODY, {}), {"cron": True}, ["mails: mail; default: mail"]),
        (Surveyed(OtherPools(frozenset({"mails", "default"}), True), {}), {}, []),
        (Surveyed(OtherPools(frozenset({"mails", "default"})), {}), {}, [["nightly"]]),
        (Surveyed(NOBODY, {"typo": 1200}), {"cron": True}, ["mails: mail; default: mail", "typo (1,200)"]),
    ]:
        stage = Stage(**settings).boot()
        stage.load(handlers=[MAIL, REPORT, URL, SHELL])
        stage.tell(event, event)
        warnings = [note for note in stage.pool.notes if note.level == "warning"]
        fields = [note.fields for note in warnings]
        assert [one.get("handlers") or one.get("queues") or one.get("schedules") for one in fields] == said, event
        assert all(one["mend"] for one in fields), event


def test_queues_that_were_counted_before_the_app_came_are_not_the_pools() -> None:
    """Nor does a pool stop at counts that a child has yet to be ready for: its import may fail."""
    stage = of_app(until_empty=True)
    stage.tell(ev.Counted({"reports": QueueStats()}))
    assert not stage.pool.is_stopping, "no child is ready"
    stage.make_ready()
    stage.tell(ev.Counted({}))
    assert not stage.pool.is_stopping
    stage.tell(ev.Counted({"reports": QueueStats()}))
    assert stage.pool.is_stopping
    assert not stage.pool.fatal


def test_children_that_cannot_import_the_app_end_a_pool_that_stops_by_itself() -> None:
    stage = Stage(workers=1, until_empty=True).start()
    for _ in range(5):
        stage.after(60.0)
        [slot] = stage.pool.slots.live
        stage.tell(
            ev.FrameCame(1, Spawned(slot.child, 1000 + slot.child)),
            ev.FrameCame(slot.child, BootFailed("no module 'numpy'")),
        )
        stage.die(slot, number=None, code=69)
    stage.tell(ev.Counted({"reports": QueueStats()}))
    assert stage.pool.is_stopping
    assert "no module 'numpy'" in stage.pool.fatal


def test_threads_take_up_queues_while_they_run() -> None:
    backend, inbox = MemoryBackend(), Inbox()
    ident = backend.enqueue(a_job())
    backend.enqueue(a_job(queue="typo"))
    look = MachinePools(read=lambda: OtherPools(frozenset({OTHER}))).read

    def survey(served: Any) -> ev.Event:
        return Surveyed(look(), waiting_elsewhere(backend, {*served, OTHER}))

    fetch = FetchThread(backend, (), 30.0, LeaseInspector(EnvelopeSigner(), {}), inbox)
    settle = SettleThread(backend, (), 30.0, ReapPolicy(), inbox, 3600.0, survey=survey)
    seen: list[ev.Event] = []

    def wait_for(kind: type[ev.Event]) -> Any:
        wait_until(lambda: seen.extend(inbox.take()) or any(isinstance(event, kind) for event in seen))
        return next(event for event in seen if isinstance(event, kind))

    for thread in (fetch, settle):
        thread.start()
    try:
        fetch.want(1)
        assert wait_for(ev.Counted).stats == {}
        seen.clear()
        fetch.serve_queues({OTHER: 1.0, QUEUE: 2.0})
        settle.serve_queues({OTHER: 1.0, QUEUE: 2.0})
        assert wait_for(Surveyed) == Surveyed(OtherPools(frozenset({OTHER})), {"typo": 1})
        assert set(wait_for(ev.Counted).stats) == {OTHER, QUEUE}
        [inspected] = wait_for(ev.Leased).leases
        assert inspected.lease.id == ident
    finally:
        for thread in (fetch, settle):
            thread.stop()
            thread.join(10.0)
        inbox.close()
