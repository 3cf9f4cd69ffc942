"""The verbs on a real beanstalkd: each tells what that broker can tell, and the rest in a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from calling import Jobpool
from support.jobs import a_job, numbered
from support.servers import fresh_name, shared_beanstalk
from support.servers.ports import free_port
from support.waiting import wait_until

from jobpool.broker import control
from jobpool.broker.backend import QueueBackend
from jobpool.broker.control import Cancel
from jobpool.broker.opening import open_backend
from jobpool.broker.values import MessageFilter, Verb
from jobpool.errors import BackendUnavailable


@pytest.fixture
def url() -> str:
    return f"{shared_beanstalk().url}?tube_prefix={fresh_name('cli')}."


@pytest.fixture
def broker(url: str) -> Iterator[QueueBackend]:
    backend = open_backend(url)
    yield backend
    backend.close()


@pytest.fixture
def configuration(url: str) -> str:
    return f'backend = "{url}"\n'


def bury(broker: QueueBackend, queue: str) -> str:
    [lease] = broker.fetch_many(queue, limit=1)
    assert broker.abandon(lease, "timeout", "too slow")
    return lease.id


def test_a_word_that_is_the_id_of_a_dead_letter_means_that_one_alone(
    ask: Jobpool, broker: QueueBackend, url: str
) -> None:
    broker.enqueue_many([a_job(identifier=ident, payload={"about": "order-7"}) for ident in ("order-7", "order-8")])
    for lease in broker.fetch_many("reports", limit=2):
        assert broker.abandon(lease, "failed")
    with shared_beanstalk().client(f"{url.partition('=')[2]}reports") as raw:
        number = raw.put(b"order-7 of another program")
        raw.bury(raw.reserve_job(number))
        wait_until(lambda: raw.stats_job(number)["age"] >= 1, what="an age, which is in whole seconds")
    foreign = f"beanstalkd-{number}"
    for word in ("order-7", foreign):
        assert [row["id"] for row in json.loads(ask("dead", "list", word, "--json").stdout)] == [word]
        assert ask("dead", "purge", word, "--dry-run").stdout.startswith("would purge 1 message:")
    wrong = ask("dead", "purge", "order-7", "order-9", foreign, "--yes", code=1).stderr
    assert "nothing was changed: order-9: there is no such message" in wrong
    assert ask("dead", "purge", "order-7", foreign, "--yes").stdout == "2 messages purged\n"
    assert [message.id for message in broker.list_messages()] == ["order-8"]
    assert "text:order-7 means all with this text" in ask("dead", "retry", "order-7", "--yes", code=1).stderr
    assert "1 message retried" in ask("dead", "retry", "text:order-7", "--yes").stdout
    assert "put a text of several in quotes" in ask("dead", "list", "disk", "full").stderr


def test_nothing_is_changed_in_a_tube_of_another_program_without_its_name(
    ask: Jobpool, broker: QueueBackend, url: str
) -> None:
    broker.enqueue_many([a_job(1), a_job(2), a_job(3, queue="held")])
    assert broker.fetch("held")
    dead = bury(broker, "reports")
    with shared_beanstalk().client(f"{url.partition('=')[2]}thumbnails") as raw:
        numbers = [raw.put(b"\xff\xd8", delay=delay) for delay in (0, 0, 60)]
        raw.bury(raw.reserve_job(numbers[0]))
    for words in (["purge", "--all"], ["dead", "purge", "--older-than", "0s"], ["dead", "retry", "reason:buried"]):
        assert "jobs in thumbnails are other programs' by their look" in ask(*words, "--yes", code=1).stderr
    assert len(ask("dead", "list").stdout.splitlines()) == 3
    assert broker.stats("reports").dead == broker.stats("reports").waiting == 1
    findings = json.loads(ask("doctor", "--json", code=1).stdout)["findings"]
    assert [row["found"].endswith("thumbnails") for row in findings if row["check"] == "beanstalk.tubes"] == [True]
    assert ask("dead", "retry", dead, "--yes").stdout == "1 message retried\n"
    assert ask("purge", "-Q", "thumbnails", "--yes").stdout == "3 messages purged\n"
    told = "would purge 2 messages:\n  reports: 2 waiting, 0 delayed, 0 dead\n"
    assert ask("purge", "--all", "--dry-run").stdout == told


def test_what_became_of_a_job_is_told_of_dead_letters_and_else_nobody_can(ask: Jobpool, broker: QueueBackend) -> None:
    dead, waiting = broker.enqueue_many(numbered(2))
    assert bury(broker, "reports") == dead
    told = ask("status", waiting, dead, code=1)
    assert "unknown" in told.stdout
    assert "beanstalk:// shows dead letters alone" in told.stderr
    said = ask("result", waiting, "--timeout", "5s", code=3).stderr
    assert "shows dead letters alone, so nobody can tell whether a job has ended" in said
    assert "(timeout): too slow" in ask("result", dead, code=1).stderr


def test_a_state_that_does_not_answer_yet_is_opened_once_it_is_asked(url: str, tmp_path: Path) -> None:
    with closing(open_backend(f"{url}&state=redis://127.0.0.1:{free_port()}")) as backend:
        backend.enqueue(a_job())
        assert backend.has_control
        with pytest.raises(BackendUnavailable, match="Redis"):
            control.pause(backend, "reports")
        backend.borrow = partial(open_backend, f"sqlite:///{tmp_path}/state.db")  # as if it had come up
        control.pause(backend, "reports")
        assert control.read(backend).paused.keys() == {"reports"}


def test_a_cancel_by_a_lent_store_is_for_jobs_enqueued_before_it_and_knows_dead_letters(
    url: str, tmp_path: Path
) -> None:
    with closing(open_backend(f"{url}&state=sqlite:///{tmp_path}/state.db")) as backend:

        def cancel() -> Cancel:
            return control.cancel(backend, ["order-7"], wait=0.0)["order-7"]

        backend.enqueue(a_job(identifier="order-7"))
        assert cancel() is Cancel.ASKED
        backend.enqueue(a_job(identifier="order-7"))
        before, later = backend.fetch("reports"), backend.fetch("reports")
        assert before is not None
        assert later is not None
        [mark] = control.read(backend).cancels.values()
        assert [mark.is_for(lease) for lease in (before, later)] == [True, False]
        assert backend.ack(later)
        control.unmark(backend, ["order-7"])
        assert backend.abandon(before, "cancelled")
        assert (cancel(), control.read(backend).cancels) == (Cancel.ALREADY, {})
        assert backend.bulk(MessageFilter(ids=("order-7",)), Verb.RETRY) == 1
        [again] = backend.fetch_many("reports", limit=1)
        assert backend.abandon(again, "failed")
        assert (cancel(), control.read(backend).cancels) == (Cancel.DEAD, {})
