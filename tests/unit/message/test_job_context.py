"""What a handler sees, and what it can say."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any, SupportsFloat

import pytest

from jobpool.errors import InvalidJob
from jobpool.message.builder import JobBuilder
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.testing import context


def test_it_tells_the_handler_about_its_job() -> None:
    job: dict[str, Any] = {"handler": "report", "name": "daily", "queue": "reports", "identifier": "0123456789abcdef"}
    meta = {"tenant": 7, "_timeout": 60.0, "v": 1}
    ctx = context({"customer": 7}, **job, attempt=3, max_retries=3, meta=meta, fence=9, crashes=1, deadline=123.5)

    assert ctx.id == "0123456789abcdef"
    assert ctx.name == "daily"
    assert ctx.handler == "report"
    assert ctx.payload == {"customer": 7}
    assert ctx.queue == "reports"
    assert ctx.attempt == 3
    assert ctx.fence == 9
    assert ctx.crashes == 1
    assert ctx.max_retries == 3
    assert ctx.meta == {"tenant": 7}
    assert ctx.deadline == 123.5
    assert repr(ctx) == "<JobContext 0123456789abcdef 'report' attempt 3>"


def test_a_job_without_a_name_has_its_handlers() -> None:
    assert context(handler="report").name == "report"


class Counted:
    """A number of a library's own, as numpy's are."""

    def __float__(self) -> float:
        return 0.25


@pytest.mark.parametrize(
    ("fraction", "shown"),
    [
        *[(0, 0.0), (0.4, 0.4), (1, 1.0), (-3, 0.0), (1.5, 1.0), (float("inf"), 1.0)],
        *[(Fraction(1, 4), 0.25), (Decimal("0.25"), 0.25), (Counted(), 0.25)],
    ],
)
def test_progress_is_kept_between_0_and_1(fraction: SupportsFloat, shown: float) -> None:
    ctx = context()
    ctx.progress(fraction, "rendering")
    assert ctx.reports == [(shown, "rendering")]


@pytest.mark.parametrize("fraction", [float("nan"), "0.5", b"1", None, 1j, 10**400])
def test_progress_that_is_no_number_is_refused(fraction: Any) -> None:
    ctx = context()
    with pytest.raises(ValueError, match="progress is a number from 0 to 1"):
        ctx.progress(fraction)
    assert ctx.reports == []


class TestFollowUps:
    @pytest.mark.parametrize(
        ("job", "payload", "expected"),
        [
            pytest.param("mail", {"to": "a"}, JobDefinition("mail", {"to": "a"}), id="name and payload"),
            pytest.param("mail", None, JobDefinition("mail", {}), id="name"),
            pytest.param("mail", 0, JobDefinition("mail", 0), id="name and a payload that is false"),
            pytest.param(JobDefinition("mail", priority=1), None, JobDefinition("mail", priority=1), id="definition"),
            pytest.param(JobBuilder("mail").queue("out"), None, JobDefinition("mail", queue="out"), id="builder"),
        ],
    )
    def test_each_form(self, job: Any, payload: Any, expected: JobDefinition) -> None:
        ctx = context()
        ident = ctx.enqueue(job, payload)
        assert len(ident) == 16
        assert int(ident, 16) >= 0
        assert ctx.enqueued == [expected.with_identifier(ident)]

    def test_an_id_of_its_own_is_kept_and_each_other_gets_another(self) -> None:
        ctx = context()
        assert ctx.enqueue(JobDefinition("mail", identifier="mail-7")) == ctx.enqueued[0].identifier == "mail-7"
        assert len({ctx.enqueue("mail") for _ in range(10)}) == 10

    def test_the_trace_is_handed_on(self) -> None:
        ctx = context(meta={"traceparent": "00-a-b-01", "tenant": 7})
        ctx.enqueue("mail")
        ctx.enqueue(JobDefinition("mail", meta={"traceparent": "mine", "x": 1}))
        assert [job.meta for job in ctx.enqueued] == [{"traceparent": "00-a-b-01"}, {"traceparent": "mine", "x": 1}]

    @pytest.mark.parametrize(
        ("job", "payload", "text"),
        [
            pytest.param("", None, "handler name", id="no name"),
            pytest.param("mail", {"x": {1}}, r"payload\.x: JSON has no set", id="payload"),
            pytest.param("mail", "x" * MAX_BODY_BYTES, "the body of job 'mail' has", id="too large"),
            pytest.param(JobDefinition("mail"), {"x": 1}, "with a handler's name only", id="two payloads"),
        ],
    )
    def test_what_could_not_be_sent_later_is_refused_now(self, job: Any, payload: Any, text: str) -> None:
        ctx = context()
        with pytest.raises(InvalidJob, match=text):
            ctx.enqueue(job, payload)
        assert ctx.enqueued == []
