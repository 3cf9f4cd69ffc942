"""docs/dead-letters.md: its table of reasons is the code's."""

from __future__ import annotations

import re
from pathlib import Path

from jobpool.message.dead_letters import NEVER_COPIED
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import encode
from jobpool.message.lease import JobLease
from jobpool.message.outcome import (
    Cancelled,
    Expired,
    Failed,
    HandlerNotAllowed,
    MemoryExceeded,
    Outcome,
    Rejected,
    RetryAsked,
    TimedOut,
    UnknownHandler,
)
from jobpool.message.settlement import Abandon
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy import decide as decisions
from jobpool.policy.decide import Rules, decide
from jobpool.policy.retry import RetryPolicy

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "dead-letters.md").read_text("utf-8")
APPENDIX = (ROOT / "tests" / "dead-letters.md").read_text("utf-8")
ROW = re.compile(r"^\| `([a-z-]+)` \| .+ \| (yes|never)", re.MULTILINE)

FATAL: list[Outcome] = [
    Failed("boom"),
    Failed("boom", permanent=True),
    RetryAsked(1.0, "later"),
    TimedOut("stack"),
    MemoryExceeded("2 GiB"),
    Expired(),
    UnknownHandler("gone", 700.0),
    HandlerNotAllowed("shell"),
    Rejected("no JSON"),
    Cancelled(),
]
"""All that can end a message for good: each with no budget left."""


def reasons_of_the_code() -> set[str]:
    body = encode(JobDefinition("report"), identifier="x", queue="q", signer=EnvelopeSigner(), now=0.0)
    lease = JobLease("x", "q", body, 1, "ab" * 16, 1030.0, "memory")
    settlements = [decide(outcome, lease, Rules(), RetryPolicy(), 1000.0) for outcome in FATAL]
    assert all(isinstance(settlement, Abandon) for settlement in settlements)
    return {settlement.reason for settlement in settlements if isinstance(settlement, Abandon)}


def test_the_table_has_every_reason_and_no_other() -> None:
    of_the_reaper = {"crash-limit"}
    assert {reason for reason, _ in ROW.findall(PAGE)} == reasons_of_the_code() | of_the_reaper


def test_every_reason_that_decide_can_give_is_among_those_of_this_test() -> None:
    """Its words stand in the source of the decision: a new one without an outcome above would be missed."""
    source = Path(decisions.__file__).read_text("utf-8")
    given = set(re.findall(r'(?:Abandon|_failed)\(\s*"([a-z-]+)"', source))
    assert given == reasons_of_the_code()


def test_it_says_which_are_never_forwarded() -> None:
    assert {reason for reason, copied in ROW.findall(PAGE) if copied == "never"} == NEVER_COPIED
