"""The verbs on a Service Bus namespace, which cannot list its queues, and makes none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from servicebus_peer import PeerProcess

Ask = Callable[..., Result]


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    """With one queue, `reports`."""
    peer = PeerProcess(tmp_path_factory.mktemp("namespace"))
    peer.control.create_queue("reports", lock_duration=60.0, max_delivery_count=1000)
    yield peer
    peer.close()


@pytest.fixture
def ask(jobpool: Ask, namespace: PeerProcess, tmp_path: Path) -> Ask:
    (tmp_path / "jobpool.toml").write_text(f'backend = "{namespace.connection_string}"\nqueues = ["reports"]\n')

    def call(*words: str, code: int = 0) -> Result:
        result = jobpool(*words)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        assert "SAS_KEY_VALUE" not in result.output
        return result

    return call


def test_messages_are_found_in_the_queues_of_the_settings(ask: Ask) -> None:
    ident = ask("enqueue", "report", "customer=7", "-Q", "reports").stdout.strip()
    counted = ask("stats", "--json")
    assert [(row["queue"], row["waiting"]) for row in json.loads(counted.stdout)] == [("reports", 1)]
    assert "servicebus:// cannot list its queues (Capabilities.makes_queues): this is about reports" in counted.stderr
    assert "counts what others have leased as waiting (Capabilities.exact_counts)" in counted.stderr
    assert [row["id"] for row in json.loads(ask("list", "--json").stdout)] == [ident]
    assert ask("purge", "-Q", "reports", "--yes").stdout == "1 message purged\n"


def test_a_queue_that_is_not_there_is_named_with_the_mend(ask: Ask) -> None:
    for words in (["enqueue", "report", "-Q", "gone"], ["stats", "gone"]):
        said = ask(*words, code=2).stderr
        assert "gone" in said
        assert "create" in said
