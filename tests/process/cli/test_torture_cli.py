"""`jobpool torture` as a program: clean where nothing is wrong, and not where something is; and its pool alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_shell import Shell
from redis import Redis
from support.servers import fresh_name, shared_redis
from support.waiting import wait_until

from jobpool.broker.opening import open_backend
from jobpool.broker.values import QueueStats
from jobpool_torture.ledger import Ledger
from jobpool_torture.result import MEANINGS
from jobpool_torture.schedule import Fault, dump

LIMIT = 120.0
"""Seconds: a run drains before it counts."""

SHORT = {"seed": 5, "seconds": 4.0, "pools": 2, "workers": 2, "ttl": 1.0, "rate": 10.0}
LOCAL = [Fault(0, 0.5, "child.kill", 0, 1), Fault(1, 1.5, "master.kill", 1, 0, 0.2)]
REMOTE = [Fault(2, 0.8, "net.drop", 0, 0, 1.0, 0.5), Fault(3, 1.0, "net.hole", 1, 0, 1.0), Fault(4, 2.5, "net.cut", 0)]
HOLDS_UP = [Fault(5, 0.3, "log.block", 1, 0, 2.0), Fault(6, 0.2, "child.spoil", 0, 7, 2.0)]
DENIED = [Fault(7, 2.0, "access.deny", 0, 0, 0.5)]


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    """Of faults that strike within seconds."""
    path = tmp_path / "schedule.json"
    path.write_text(dump(sorted([*LOCAL, *REMOTE, *HOLDS_UP, *DENIED], key=lambda fault: fault.at), SHORT))
    return path


def tortured(shell: Shell, *words: str, **environment: str) -> tuple[dict[str, Any], int]:
    """The document, and the exit code."""
    shell.environment |= environment
    done = shell.run("torture", "--json", *words)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def assert_clean(document: dict[str, Any], code: int) -> None:
    assert document["violations"] == {}
    assert document["problems"] == []
    assert code == 0
    assert set(document["descriptors"]) == {"pool1", "pool2"}, "they were compared"
    assert document["counts"] == dict.fromkeys(MEANINGS, 0)
    assert document["jobs"]["done"] > 30


@pytest.mark.more
def test_a_run_on_redis_is_clean_and_leaves_nothing_behind(shell: Shell, schedule: Path) -> None:
    server = shared_redis()
    url = f"redis://{server.host}:{server.port}/0?prefix={fresh_name('torture')}&timeout=2"
    named = ("--queue", "mine")
    document, code = tortured(shell, "-b", url, "--replay", str(schedule), *named)

    assert_clean(document, code)
    assert document["queue"] == "mine"
    assert document["again"].endswith(" ".join(named))
    assert document["faults"]["struck"] >= 7
    assert document["left_out"] == {}
    assert document["folder"] is None
    with Redis(host=server.host, port=server.port) as client:
        assert len(client.acl_users()) == 1, "nor the user that was locked out"
    backend = open_backend(url)
    assert backend.queues() == []
    assert backend.stats(document["queue"]) == QueueStats()
    backend.close()


@pytest.mark.more
def test_an_interrupt_on_sqlite_after_the_same_schedule_as_far_as_it_can_be_struck(
    shell: Shell, schedule: Path
) -> None:
    told = json.loads(schedule.read_text())
    schedule.write_text(json.dumps(told | {"about": SHORT | {"seconds": 600.0}}))
    answer, log = shell.directory / "answer", shell.directory / "log"
    words = ["torture", "--json", "-b", "sqlite:///q.db", "--replay", str(schedule), "--directory", "run"]
    with answer.open("w") as stdout, log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "jobpool", *words],
            cwd=shell.directory,
            env=shell.environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    strikes = shell.directory / "run" / "strikes.jsonl"
    try:
        wait_until(lambda: strikes.exists() and "started again" in strikes.read_text(), LIMIT, "the faults have struck")
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    document = json.loads(answer.read_text())

    assert document["interrupted"]
    assert document["seconds"]["faults"] < 600
    assert document["violations"] == {}
    assert document["faults"]["by_kind"] == dict.fromkeys(("child.kill", "child.spoil", "log.block", "master.kill"), 1)
    left_out = dict.fromkeys(("net.cut", "net.drop", "net.hole"), "sqlite:// has no network")
    assert document["left_out"] == left_out | {"access.deny": "sqlite:// has no users that could be locked out"}
    assert document["schedule"] == told["faults"]
    assert json.loads((strikes.parent / "schedule.json").read_text()) == json.loads(schedule.read_text())
    assert document["again"].endswith(f"--replay {strikes.parent / 'schedule.json'}")


LIAR = '''
"""The broker of tortured pools says that it has taken some first acks, and has not."""
import sys

if "jobpool_torture.pool_process" in sys.orig_argv:
    import jobpool_torture.witness as witness
    from jobpool.message.settlement import Ack, Settled

    class Liar:
        def __init__(self, backend):
            self._backend = backend

        def __getattr__(self, name):
            return getattr(self._backend, name)

        def settle_many(self, settlements, call_id=None):
            lost = [type(what) is Ack and lease.id[-1] == "7" and lease.deliveries == 1 for lease, what in settlements]
            kept = [pair for pair, gone in zip(settlements, lost) if not gone]
            answers = iter(self._backend.settle_many(kept, call_id))
            return [Settled.OK if gone else next(answers) for gone in lost]

    honest = witness.watched
    witness.watched = lambda backend, environ: honest(Liar(backend), environ)
'''


def test_a_broker_that_forgets_acks_is_found_out(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "lies").mkdir()
    (tmp_path / "lies" / "sitecustomize.py").write_text(LIAR)
    path = tmp_path / "none.json"
    path.write_text(dump([], SHORT | {"seconds": 2.0}))
    document, code = tortured(shell, "-b", "sqlite:///q.db", "--replay", str(path), PYTHONPATH=str(tmp_path / "lies"))
    assert code == 1
    assert document["counts"]["RERUN"] > 0
    assert all(ident.split(":")[0].endswith("7") for ident in document["violations"]["RERUN"])
    folder = Path(document["folder"])
    assert (folder / "ledger.jsonl").exists()
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if not path.is_dir() else path.rmdir()
    folder.rmdir()


APP = """
import jobpool

@jobpool.handler
def work(ctx):
    pass
"""


POOL = (sys.executable, "-m", "jobpool_torture.pool_process")


@pytest.fixture
def witnessed(shell: Shell) -> Shell:
    (shell.directory / "app.py").write_text(APP)
    return shell


def test_a_pool_under_the_witness(witnessed: Shell) -> None:
    ident = witnessed.enqueue("work")
    witnessed.environment |= {"JOBPOOL_LEDGER": "ledger", "JOBPOOL_NAME": "mine"}
    witnessed.run("-A", "app", "--until-empty", program=POOL, code=0)

    lines = Ledger(witnessed.directory / "ledger").read()
    assert [(line.event, line.id, line.pool, line.answer) for line in lines] == [
        ("fetched", ident, "mine", ""),
        ("asked", ident, "mine", ""),
        ("settled", ident, "mine", "ok"),
    ]


def test_without_a_ledger_it_says_so_in_one_sentence(witnessed: Shell) -> None:
    done = witnessed.run("-A", "app", "--until-empty", program=POOL, code=2)
    assert "set JOBPOOL_LEDGER to the file that the witness writes" in done.stderr
    assert "Traceback" not in done.stderr
