"""The verbs on a Service Bus namespace, which cannot list its queues, and makes none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from calling import Jobpool
from servicebus_peer import PeerProcess

from jobpool.broker import control
from jobpool.broker.control import Cancel
from jobpool.broker.opening import open_backend
from jobpool.errors import Unsupported
from jobpool.message.definition import JobDefinition


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    """With one queue, `reports`."""
    peer = PeerProcess(tmp_path_factory.mktemp("namespace"))
    peer.control.create_queue("reports", lock_duration=60.0, max_delivery_count=1000)
    yield peer
    peer.close()


@pytest.fixture
def configuration(namespace: PeerProcess) -> str:
    for queue in ("reports", "reports/$deadletterqueue"):
        namespace.control.purge(queue)  # of what other tests have left
    return f'backend = "{namespace.connection_string}"\nqueues = ["reports"]\n'


def test_a_word_that_is_the_id_of_a_dead_letter_means_that_one_alone(
    ask: Jobpool, namespace: PeerProcess, tmp_path: Path
) -> None:
    with closing(open_backend(namespace.connection_string)) as pool:
        about = {"about": "order-7"}
        for ident in ("order-7", "order-8"):
            pool.enqueue(JobDefinition("report", about, queue="reports", identifier=ident))
        for lease in pool.fetch_many("reports", limit=2):
            assert pool.abandon(lease, "failed")
    for case in ("the queue of the settings", "a named one"):
        dry = ask("dead", "purge", "order-7", *(["-Q", "reports"] if case == "a named one" else []), "--dry-run")
        assert dry.stdout.startswith("would purge 1 message:"), case
        text = (tmp_path / "jobpool.toml").read_text()
        (tmp_path / "jobpool.toml").write_text(text.replace('queues = ["reports"]', ""))
    assert ask("dead", "purge", "order-7", "order-8", "-Q", "reports", "--yes").stdout == "2 messages purged\n"


def test_a_job_that_another_client_holds_is_marked_for_its_pool(namespace: PeerProcess, tmp_path: Path) -> None:
    url = f"{namespace.connection_string}?state=sqlite:///{tmp_path}/state.db"
    with closing(open_backend(url)) as pool, closing(open_backend(url)) as other:
        ident = pool.enqueue(JobDefinition("report", {}, queue="reports"))
        lease = pool.fetch("reports")
        assert lease is not None
        for _ in range(2):  # the second time it has seen the message, which looks as if it waited
            assert control.cancel(other, [ident], wait=0.0) == {ident: Cancel.ASKED}
            assert control.read(pool).cancels[ident].is_for(lease)
            assert other.stats("reports").waiting == 1
        with pytest.raises(Unsupported, match=r"cancel by id, without --purge"):
            control.cancel(other, [ident], purge=True)
        assert pool.abandon(lease, "cancelled")
        assert control.cancel(other, [ident], wait=0.0) == {ident: Cancel.ALREADY}


def test_a_status_looks_in_the_queues_of_the_settings_and_says_where_it_looked(ask: Jobpool, tmp_path: Path) -> None:
    ident = ask("enqueue", "report", "-Q", "reports", "--delay", "1h").stdout.strip()
    assert "delayed" in ask("status", ident).stdout
    assert "or is in another queue" in ask("status", "0" * 16, code=1).stderr
    assert "(looked in: reports)" in ask("inspect", "0" * 16, code=1).stderr
    text = (tmp_path / "jobpool.toml").read_text()
    (tmp_path / "jobpool.toml").write_text(text.replace('queues = ["reports"]', ""))
    assert "or is in another queue" in ask("status", ident, code=1).stderr
    assert "the setting `queues` names none" in ask("stats", code=2).stderr
    assert "whether a job has ended" in ask("result", ident, code=3).stderr


def test_the_queue_of_the_connection_string_is_taken_where_no_setting_names_one(
    ask: Jobpool, namespace: PeerProcess, tmp_path: Path
) -> None:
    (tmp_path / "jobpool.toml").write_text(f'backend = "{namespace.connection_string};EntityPath=reports"\n')
    assert [row["queue"] for row in json.loads(ask("stats", "--json").stdout)] == ["reports"]
    ask("list")


def test_no_queue_is_asked_for_that_nobody_uses(ask: Jobpool, tmp_path: Path, namespace: PeerProcess) -> None:
    (tmp_path / "jobpool.toml").write_text(f'backend = "{namespace.connection_string}"\n')
    told = ask("doctor", code=1).output
    assert "no queue has been named yet" in told
    assert "'default'" not in told
    assert "UseDevelopmentEmulator=true; answers" in told
