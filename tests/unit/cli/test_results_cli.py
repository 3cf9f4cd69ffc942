"""`jobpool status` and `jobpool result`: their answers and exit codes."""

from __future__ import annotations

import json
import threading

from calling import Jobpool
from support.jobs import a_job

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import NewBatch
from jobpool.message.results import capped, keep
from jobpool.message.settlement import Ack


def done(broker: QueueBackend, text: str = '{"pages": 7}') -> str:
    """The id of a job whose result is kept."""
    ident = broker.enqueue(a_job())
    [lease] = broker.fetch_many("reports", limit=1)
    assert broker.settle_many([(lease, Ack(result=keep(text, 60.0, lease, broker.clock.wall())))])[0]
    return ident


def test_status_tells_each_job_in_order(jobpool: Jobpool, broker: QueueBackend) -> None:
    ended = done(broker)
    dead = broker.enqueue(a_job())
    [lease] = broker.fetch_many("reports", limit=1)
    broker.abandon(lease, "failed", "Traceback …\nValueError: boom")
    waiting = broker.enqueue(a_job())
    result = jobpool("status", waiting, ended, dead, code=0)
    words = [line.split() for line in result.stdout.splitlines()]
    assert [row[:2] for row in words[1:]] == [[waiting, "waiting"], [ended, "done"], [dead, "dead"]]
    assert result.stdout.rstrip().endswith("ValueError: boom")
    told = json.loads(jobpool("status", ended, "--json").stdout)
    assert [(one["id"], one["state"], one["handler"]) for one in told] == [(ended, "done", "report")]


def test_an_unknown_id_is_an_exit_code(jobpool: Jobpool, broker: QueueBackend) -> None:
    result = jobpool("status", done(broker), "never", code=1)
    assert "unknown" in result.stdout
    assert "is done and kept no result" in result.stderr


def test_watch_ends_when_all_have(jobpool: Jobpool, broker: QueueBackend) -> None:
    ident = broker.enqueue(a_job())
    [lease] = broker.fetch_many("reports", limit=1)
    ack = Ack(result=keep("1", 60.0, lease, broker.clock.wall()))
    ending = threading.Timer(0.1, lambda: broker.settle_many([(lease, ack)]))
    ending.start()
    result = jobpool("status", ident, "--watch")
    ending.join()
    assert result.exit_code == 0
    assert "done" in result.stdout


def test_result_prints_json(jobpool: Jobpool, broker: QueueBackend) -> None:
    ident = done(broker)
    for written in (ident, f"id:{ident}"):
        result = jobpool("result", written)
        assert (result.exit_code, json.loads(result.stdout)) == (0, {"pages": 7})


def test_each_lack_of_a_result_has_its_exit_code(jobpool: Jobpool, broker: QueueBackend) -> None:
    large = done(broker, capped(b'"123456789"', 8))
    dead = broker.enqueue(a_job())
    [lease] = broker.fetch_many("reports", limit=1)
    broker.abandon(lease, "failed", "boom")
    waiting = broker.enqueue(a_job())
    for words, code, said in (
        ((dead,), 1, "failed for good"),
        (("never",), 3, "no job never is known"),
        (("",), 3, "no job '' is known"),
        ((large,), 3, "has 11 bytes"),
        ((waiting,), 4, "has not ended: it is waiting"),
        ((waiting, "--timeout", "0.1s"), 4, "has not ended"),
    ):
        result = jobpool("result", *words)
        assert (result.exit_code, result.stdout) == (code, ""), words
        assert said in result.stderr, words
    assert "soon" in jobpool("result", waiting, "--timeout", "soon", code=2).stderr


def test_the_id_of_a_batch_is_told_cancelled_and_has_no_result(jobpool: Jobpool, broker: QueueBackend) -> None:
    broker.batches.open(NewBatch("june"))
    broker.enqueue_many([a_job(batch="june"), a_job(batch="june")])
    broker.batches.close("june")
    assert jobpool("status", "june").stdout.splitlines()[1].split(maxsplit=2)[:2] == ["june", "running"]
    assert jobpool("status", "june").stdout.rstrip().endswith("0% 0 of 2 jobs have ended")
    assert jobpool("status", "id:june").stdout.splitlines()[1].split(maxsplit=2)[:2] == ["june", "running"]
    assert [jobpool("result", ident).exit_code for ident in ("june", "id:june")] == [3, 3]
    assert [jobpool("cancel", "id:june").exit_code for _ in range(2)] == [0, 0]
    assert jobpool("status", "june").stdout.rstrip().endswith("100% 2 of 2 jobs have ended, 2 cancelled")
    [told] = json.loads(jobpool("status", "june", "--json").stdout)
    assert [told[name] for name in ("total", "succeeded", "failed", "cancelled")] == [2, 0, 0, 2]
