"""What the URLs and options of backends may say; most of it of the embedded ones."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.jobs import QUEUE, a_job, numbered
from support.servers import shared_redis
from support.tables import row

from jobpool.broker.config_file import sqlite_url
from jobpool.broker.opening import open_backend
from jobpool.errors import ConfigurationError
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sync import SyncBackend


def test_a_relative_path_counts_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SqliteBackend.from_url("sqlite:///jobs.db").close()
    assert (tmp_path / "jobs.db").exists()


def test_four_slashes_make_an_absolute_path_and_an_option_may_stand_in_the_url_or_beside_it(path: Path) -> None:
    SqliteBackend.from_url(f"sqlite:///{path}?timeout=0.5").close()
    assert path.exists()
    SqliteBackend.from_url(f"sqlite:///{path}", timeout="0.5").close()


def test_any_path_can_be_written_as_a_url(tmp_path: Path) -> None:
    odd = tmp_path / "100% odd?name#1 ü.db"
    backend = open_backend(sqlite_url(odd))
    assert isinstance(backend, SqliteBackend)
    backend.close()
    assert odd.exists()


def test_a_url_that_names_no_file_is_refused() -> None:
    for url in ("sqlite://", "sqlite:///", "sqlite:jobs.db", "sqlite:///:memory:", "sqlite://host/x"):
        with row(url), pytest.raises(ConfigurationError, match="names no file"):
            SqliteBackend.from_url(url)


def test_a_timeout_out_of_range_is_refused(path: Path) -> None:
    for timeout in ("0", "-1", "soon", "", "nan", "1e9"):
        with row(timeout), pytest.raises(ConfigurationError, match="timeout"):
            SqliteBackend.from_url(f"sqlite:///{path}", timeout=timeout)
    assert not path.exists()


@pytest.mark.parametrize("url", ["sqlite:///{path}", "memory://", "sync://", "redis://127.0.0.1"])
def test_an_unknown_option_is_named(url: str, path: Path) -> None:
    scheme = url.partition(":")[0]
    with pytest.raises(ConfigurationError, match=f"{scheme}:// has no option flavour"):
        open_backend(url.format(path=path), flavour="plain")


@pytest.mark.parametrize("backend", [MemoryBackend, SyncBackend])
def test_what_has_no_name_takes_none(backend: type[MemoryBackend]) -> None:
    with pytest.raises(ConfigurationError, match="nothing behind it"):
        backend.from_url(f"{backend.scheme}://somewhere")
    backend.from_url(f"{backend.scheme}://").close()


def test_sync_without_a_runner_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="runner="):
        SyncBackend.from_url("sync://").enqueue(a_job())


def test_what_a_job_raises_in_sync_its_enqueue_raises() -> None:
    def runner(_: object) -> None:
        raise LookupError("no such customer")

    with pytest.raises(LookupError, match="no such customer"):
        SyncBackend.from_url("sync://", runner=runner).enqueue(a_job())


def test_a_missing_directory_is_named_and_a_directory_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"directory .*nowhere of database .* does not exist: create it"):
        SqliteBackend(str(tmp_path / "nowhere" / "jobs.db"))
    with pytest.raises(ConfigurationError, match="is a directory: name a file in it"):
        SqliteBackend(str(tmp_path))


def test_a_change_of_the_working_directory_does_not_change_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = SqliteBackend.from_url("sqlite:///jobs.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with backend._database.session():  # so that the next one needs a connection of its own
        backend.enqueue(a_job())
    assert backend.stats("reports").waiting == 1
    backend.close()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_library_that_is_too_old_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 34, 1))
    with pytest.raises(ConfigurationError, match=r"needs 3\.35\.0 or later: use a newer Python"):
        SqliteBackend(str(path))


@pytest.fixture(params=["memory://", "sqlite:///{path}", "redis", "postgresql://here/jobs"])
def any_url(request: pytest.FixtureRequest, path: Path) -> str:
    return shared_redis().url if request.param == "redis" else str(request.param).format(path=path)


@pytest.mark.parametrize("name", ["dead_max", "dead_max_age"])
@pytest.mark.parametrize("value", ["-1", "many", "nan", "inf", "", "1e13"])
def test_a_cap_out_of_range_is_refused(any_url: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"option {name}"):
        open_backend(any_url, **{name: value})


def test_a_count_is_whole_and_an_age_need_not_be(any_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"option dead_max .*whole number.*'2\.5'"):
        open_backend(f"{any_url}?dead_max=2.5")
    open_backend(f"{any_url}?dead_max_age=2.5").close()


def test_a_file_keeps_its_count_of_the_evicted(path: Path) -> None:
    for expected in (2, 5):
        with closing(SqliteBackend.from_url(f"sqlite:///{path}?dead_max=1")) as backend:
            backend.enqueue_many(numbered(3))
            for lease in backend.fetch_many(QUEUE, limit=3):
                backend.abandon(lease, "hopeless")
            assert backend.evicted(QUEUE) == expected
