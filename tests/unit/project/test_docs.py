"""The docs: pictures, tables and examples say what the code says. Generated tables and names: scripts/check."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.pages import blocks, page
from support.settings import without_settings

import jobpool
import jobpool.broker.backend
from jobpool.broker.opening import GROUP
from jobpool.errors import ConfigurationError
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
from jobpool.policy import breaker
from jobpool.policy import decide as decisions
from jobpool.policy.decide import Rules, decide
from jobpool.policy.retry import RetryPolicy
from jobpool.settings import Settings, load
from jobpool_backends import PLACES
from jobpool_backends.redis import keyspace

ROOT = Path(__file__).resolve().parents[3]


def picture(text: str | None, first: str, last: str) -> str:
    """The lines of a drawing, from the one that holds `first` to the one that holds `last`."""
    lines = (text or "").splitlines()
    start = next(number for number, line in enumerate(lines) if first in line)
    end = next(number for number, line in enumerate(lines) if number > start and last in line)
    return textwrap.dedent("\n".join(lines[start : end + 1]))


def test_the_picture_of_a_messages_states_is_that_of_the_code() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    first, last = "enqueue ──► WAITING", "ack ──► gone"

    assert picture(page, first, last) == picture(jobpool.broker.backend.__doc__, first, last)


def test_the_table_of_our_own_backends_is_that_of_the_entry_points() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"][GROUP] == PLACES


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
    assert {reason for reason, _ in ROW.findall(page("dead-letters"))} == reasons_of_the_code() | of_the_reaper


def test_every_reason_that_decide_can_give_is_among_those_of_this_test() -> None:
    """Its words stand in the source of the decision: a new one without an outcome above would be missed."""
    source = Path(decisions.__file__).read_text("utf-8")
    given = set(re.findall(r'(?:Abandon|_failed)\(\s*"([a-z-]+)"', source))
    assert given == reasons_of_the_code()


def test_it_says_which_are_never_forwarded() -> None:
    assert {reason for reason, copied in ROW.findall(page("dead-letters")) if copied == "never"} == NEVER_COPIED


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the examples find: jobpool, and functions of the reader's own that note that they were called."""
    without_settings(monkeypatch, tmp_path)
    called: list[str] = []
    own = {name: lambda name=name: called.append(name) for name in ("handle_the_webhook", "send_the_mail")}
    return {"jobpool": jobpool, "called": called, **own}


def test_the_examples_do_what_the_page_says(names: dict[str, Any]) -> None:
    define, guard = blocks(page("limits"))
    exec(define, names)  # the page's own code
    names["jobs"].close()
    exec(define, names)
    with names["jobs"] as jobs:
        for _ in range(2):
            exec(guard, names)
        assert jobs.stats().waiting == 3, "one charge, for it is unique, and two imports"
        assert jobs.stats("reports").waiting == 2
    assert sorted(names["called"]) == ["handle_the_webhook", "send_the_mail", "send_the_mail"]


@pytest.mark.usefixtures("names")
def test_the_configuration_is_one(tmp_path: Path) -> None:
    [text] = blocks(page("limits"), "toml")
    (tmp_path / "jobpool.toml").write_text(text)
    from_file = load({"queues": ["reports", "mails"]})
    (tmp_path / "jobpool.toml").write_text("")
    flags = {"concurrency_limits": "reports=12", "concurrency_per_key": "reports=2", "rate_limits": "mails=300"}
    assert from_file.concurrency_limits == {"reports": 12}
    assert from_file == load({"queues": ["reports", "mails"], **flags})


def test_the_numbers_are_the_settings_own() -> None:
    found = load({})
    assert (breaker.FAILURES_TO_OPEN, breaker.FIRST_COOLDOWN_S, breaker.MAX_COOLDOWN_S) == (5, 2.0, 60.0)
    assert (found.idempotency_ttl, found.ttl) == (86400.0, 30.0)


DOCS = ROOT / "docs"
DEPLOY = DOCS / "deploy"
UNIT = DEPLOY / "jobpool@.service"
MANIFESTS = DEPLOY / "kubernetes"


def needed_to_stop() -> float:
    """Seconds, by the defaults, from a pool's TERM to the release of what it has killed."""
    return Settings().stop_grace + Settings().kill_grace


def test_whoever_stops_a_pool_waits_longer_than_it_needs() -> None:
    for case, file, pattern in [
        ("systemd", UNIT, r"^TimeoutStopSec=(\d+)$"),
        ("Kubernetes", MANIFESTS / "pool.yaml", r"terminationGracePeriodSeconds: (\d+)$"),
        ("container", DEPLOY / "Containerfile", r"--stop-timeout (\d+) "),
        ("container, on the page", DOCS / "deployment.md", r"--stop-timeout (\d+) "),
    ]:
        found = re.findall(pattern, file.read_text("utf-8"), re.MULTILINE)
        assert found, case
        assert all(int(seconds) >= needed_to_stop() + 10 for seconds in found), case


def test_the_environment_file_holds_settings_and_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path)
    for line in (DEPLOY / "reports.env").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            monkeypatch.setenv(*line.split("=", 1))
    with pytest.raises(ConfigurationError, match="a signing key must not be empty"):
        load({})
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY", "k" * 64)
    found = load({})
    assert found.workers == 16
    assert [name for name, _ in found.queues] == ["reports"]
    assert found.signing_keys() == ("k" * 64,)


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    command = tmp_path / "srv" / "reports" / ".venv" / "bin" / "jobpool"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    unit = tmp_path / "jobpool@reports.service"
    folder = str(tmp_path / "srv").replace(" ", r"\x20")
    unit.write_text(UNIT.read_text("utf-8").replace("ExecStart=/srv", f"ExecStart={folder}"))

    done = subprocess.run([program, "verify", unit], capture_output=True, text=True, check=False)

    ours = [line for line in done.stderr.splitlines() if "jobpool@" in line]  # not what other units lack
    assert not ours


def test_the_scaler_for_redis_names_keys_that_the_backend_uses() -> None:
    found = re.findall(r'listName: "(.*)"', (MANIFESTS / "scale-on-redis.yaml").read_text("utf-8"))
    ours = keyspace.KeyNames("jobpool")
    assert found == [ours.one("reports", "ready"), ours.one("reports", "leased")]


def test_what_the_container_copies_is_there() -> None:
    lines = re.findall(r"^COPY (?!--)(.+) \S+$", (DEPLOY / "Containerfile").read_text("utf-8"), re.MULTILINE)
    assert lines
    for source in " ".join(lines).split():
        assert (ROOT / source).exists(), source
