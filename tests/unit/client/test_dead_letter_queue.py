"""`DeadLetterQueue`: what a stored copy looks like, when there is none, and what it never raises."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobpool import DeadLetterQueue, Jobs
from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.broker.values import Message, MessageFilter
from jobpool.errors import BackendUnavailable, InvalidJob
from jobpool.message.dead_letters import METADATA, copy_id, copy_of_abandoned
from jobpool.message.definition import JobDefinition
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon

NOW = datetime(2026, 7, 1, 12, 0, 0, 123456, UTC)


@pytest.fixture
def broker() -> QueueBackend:
    return open_backend("memory://")


def stored(broker: QueueBackend) -> list[Message]:
    return broker.list_messages(MessageFilter(queue="failures"))


def payload(message: Message) -> Any:
    return json.loads(message.body)["payload"]


def test_an_object_gets_the_metadata_as_a_key(broker: QueueBackend) -> None:
    mine = {"customer": 7}
    assert DeadLetterQueue(broker, "failures").store(mine, "report", "no paper", 3, original_queue="reports")
    [copy] = stored(broker)
    metadata = payload(copy).pop(METADATA)
    when = datetime.fromisoformat(metadata.pop("timestamp"))
    assert timedelta() <= datetime.now(UTC) - when < timedelta(minutes=1)
    assert metadata == {"reason": "no paper", "attempts": 3, "original_queue": "reports"}
    assert (payload(copy)["customer"], copy.handler) == (7, "report")
    assert mine == {"customer": 7}, "the caller's own is left as it is"


@pytest.mark.parametrize("value", [None, 7, "text", [1, 2], True])
def test_any_other_value_is_wrapped(broker: QueueBackend, value: Any) -> None:
    assert DeadLetterQueue(broker, "failures").store(value, "report", "failed", 0, original_queue="reports")
    [copy] = stored(broker)
    assert set(payload(copy)) == {"payload", METADATA}
    assert payload(copy)["payload"] == value


def test_the_same_id_stores_one_copy(broker: QueueBackend) -> None:
    letters = DeadLetterQueue(broker, "failures")
    for _ in range(2):
        assert letters.store({}, "report", "failed", 1, original_queue="reports", identifier="mine")
    assert [copy.id for copy in stored(broker)] == ["mine"]


def test_jobs_will_do_for_a_backend(broker: QueueBackend) -> None:
    assert DeadLetterQueue(Jobs(backend=broker), "failures").store({}, "report", "failed", 1, original_queue="reports")
    assert len(stored(broker)) == 1


class Silent:
    """A broker that does not answer."""

    def enqueue(self, definition: JobDefinition, /) -> str:
        raise BackendUnavailable(f"no answer about {definition.handler}")


def test_a_broker_that_does_not_answer_is_false_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert DeadLetterQueue(Silent(), "failures").store({}, "report", "failed", 1, original_queue="reports") is False
    assert "reports is not forwarded to failures: no answer about report" in caplog.text


def test_a_copy_that_is_too_large_is_false(broker: QueueBackend, caplog: pytest.LogCaptureFixture) -> None:
    large = {"text": "x" * (2**20 - 100)}
    assert DeadLetterQueue(broker, "failures").store(large, "report", "failed", 1, original_queue="reports") is False
    assert stored(broker) == []
    assert "at most 1048576" in caplog.text


def test_what_fails_in_the_queue_of_copies_is_not_copied_there(broker: QueueBackend) -> None:
    assert DeadLetterQueue(broker, "failures").store({}, "report", "failed", 1, original_queue="failures") is False
    assert stored(broker) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"attempts": -1}, "attempts must be a whole number, 0 or more, not -1"),
        ({"attempts": True}, "attempts must be a whole number"),
        ({"payload": {1, 2}}, "payload"),
        ({"handler": ""}, "handler"),
        ({"original_queue": "no queue"}, "queue name 'no queue' is refused"),
        ({"identifier": " "}, "identifier"),
    ],
)
def test_what_no_job_can_have_is_refused(broker: QueueBackend, change: dict[str, Any], sentence: str) -> None:
    values = {"payload": {}, "handler": "report", "reason": "failed", "attempts": 1, "original_queue": "reports"}
    with pytest.raises(InvalidJob, match=sentence):
        DeadLetterQueue(broker, "failures").store(**{**values, **change})
    assert stored(broker) == []


def test_a_queue_that_cannot_be_is_refused_when_it_is_named(broker: QueueBackend) -> None:
    with pytest.raises(InvalidJob, match="queue name 'no queue' is refused"):
        DeadLetterQueue(broker, "no queue")


def test_without_a_queue_it_comes_from_the_default_one(broker: QueueBackend) -> None:
    assert DeadLetterQueue(broker, "failures").store({"customer": 7}, "report", "no paper", 3)
    [message] = stored(broker)
    assert json.loads(message.body)["payload"][METADATA]["original_queue"] == "default"


# --- what a pool makes of an abandon ---------------------------------------------------------------------------------


def leased(broker: QueueBackend, queue: str = "reports") -> JobLease:
    broker.enqueue(JobDefinition("report", {"customer": 7}, queue=queue))
    [lease] = broker.fetch_many(queue, limit=1)
    return lease


def test_a_copy_goes_with_the_abandon(broker: QueueBackend) -> None:
    lease = leased(broker)
    copy = copy_of_abandoned(lease, Abandon("timeout", "stack"), "failures", NOW)
    assert copy is not None
    assert (copy.handler, copy.queue, copy.identifier) == (
        "report",
        "failures",
        copy_id("failures", lease.id, 1, lease.enqueued_at),
    )
    assert copy.payload == {
        "customer": 7,
        METADATA: {
            "reason": "timeout",
            "timestamp": "2026-07-01T12:00:00.123Z",
            "attempts": 1,
            "original_queue": "reports",
        },
    }
    broker.settle_many([(lease, Abandon("timeout", "stack", follow_ups=(copy,)))])
    assert [message.id for message in stored(broker)] == [copy.identifier]


def test_what_nobody_verified_goes_nowhere(broker: QueueBackend) -> None:
    assert copy_of_abandoned(leased(broker), Abandon("rejected"), "failures", NOW) is None


def test_nothing_goes_from_the_queue_of_copies_to_itself(broker: QueueBackend) -> None:
    assert copy_of_abandoned(leased(broker, "failures"), Abandon("failed"), "failures", NOW) is None


def test_the_id_is_one_death_of_one_message_for_one_queue() -> None:
    ids = {
        copy_id(*key)
        for key in (("a", "m", 1, 0.5), ("a", "m", 2, 0.5), ("a", "n", 1, 0.5), ("b", "m", 1, 0.5), ("a", "m", 1, 7.0))
    }
    assert len(ids) == 5
    assert copy_id("a", "m", 1, 0.5) in ids
