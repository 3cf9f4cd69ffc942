"""What docs/limits.md shows can be run, and does what the page says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.pages import blocks, page

import jobpool
from jobpool.policy import breaker
from jobpool.settings import load

PAGE = page("limits")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the examples find: jobpool, and functions of the reader's own that note that they were called."""
    for name in [name for name in os.environ if name.startswith(("JOBPOOL_", "JOBS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    called: list[str] = []
    own = {name: lambda name=name: called.append(name) for name in ("handle_the_webhook", "send_the_mail")}
    return {"jobpool": jobpool, "called": called, **own}


def test_the_examples_do_what_the_page_says(names: dict[str, Any]) -> None:
    define, guard = blocks(PAGE)
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
    [text] = blocks(PAGE, "toml")
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
