"""What the tests of the faces share: an environment without JOBPOOL_* variables, an empty directory, and a runner."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import Jobpool
from click.testing import CliRunner, Result
from support.logs import same_logs
from support.settings import without_settings

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.cli.main import cli


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of ours leaks in, and the search for a configuration starts in an empty directory."""
    without_settings(monkeypatch, tmp_path)
    monkeypatch.setenv("JOBPOOL_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """A command line called in this process sets up its log; the tests behind it must not have to know."""
    with same_logs():
        yield


@pytest.fixture(autouse=True)
def modules_as_before(tmp_path: Path) -> Iterator[None]:
    """An app that a test has imported into this process is forgotten, with its name: other tests have apps too."""
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def jobpool() -> Jobpool:
    """Call the command line in this process: `jobpool("stats", "--json")`. `code`: with which it must exit."""

    def call(*words: str, input: str | None = None, code: int | None = None) -> Result:
        result = CliRunner().invoke(cli, list(words), input=input)
        assert code in (None, result.exit_code), result.output
        return result

    return call


@pytest.fixture
def ask(jobpool: Jobpool, configuration: str, tmp_path: Path) -> Jobpool:
    """Call a verb in a directory with this configuration: it ends with `code`, and never with a traceback."""
    (tmp_path / "jobpool.toml").write_text(configuration)

    def call(*words: str, code: int = 0) -> Result:
        result = jobpool(*words, code=code)
        assert "Traceback" not in result.output
        assert "unexpected" not in result.stderr
        return result

    return call


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[QueueBackend]:
    """The broker that the command line finds without a setting."""
    backend = open_backend(f"sqlite:///{tmp_path}/jobpool.db")
    yield backend
    backend.close()
