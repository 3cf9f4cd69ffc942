"""What a pool tells its fork server and the scheduler beside it, and on which broker it can have none."""

from __future__ import annotations

import socket

import pytest
from msgspec.structs import replace

from jobpool.errors import ConfigurationError, JobpoolError
from jobpool.ipc.linux import open_fds
from jobpool.ipc.scheduler_process import CronStart
from jobpool.master import run
from jobpool.master.run import cron_start, fork_server_config, run_pool
from jobpool.message.setting_types import Address, MemoryLimit, Recycle
from jobpool.settings import Settings
from jobpool_backends.memory import MemoryBackend

SETTINGS = Settings(
    queues=(("reports", 1.0),),
    backend="redis://:secret@localhost/0",
    apps=("shop.jobs",),
    name="shop",
    signing_key=("new", "old"),
    default_timeout=60.0,
    cron=True,
    cron_environment="production",
    cron_grace=600.0,
    log_level="debug",
    log_format="json",
    sys_path=("/srv/shop",),
    queue_handlers={"reports": ["report"]},
)


def test_the_settings_cross_as_json() -> None:
    start = cron_start(SETTINGS)
    assert CronStart.from_json(start.to_json()).to_json() == start.to_json()
    assert (start.backend, start.signing_keys) == (SETTINGS.backend, ("new", "old"))
    assert (start.environment, start.grace, start.default_timeout) == ("production", 600.0, 60.0)
    assert (start.name, start.log_level, start.log_format, start.only) == ("shop", "debug", "json", False)
    assert (start.options.apps, start.options.sys_path) == (["shop.jobs"], ["/srv/shop"])
    assert start.options.queue_handlers == {"reports": ["report"]}


@pytest.mark.parametrize(("cpus", "own", "threads"), [(8, None, "2"), (2, None, "1"), (8, "8", "8")])
def test_children_share_the_processors_unless_the_environment_says_how(
    monkeypatch: pytest.MonkeyPatch, cpus: int, own: str | None, threads: str
) -> None:
    monkeypatch.setattr(run, "usable_cpus", lambda: cpus)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if own:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    environ = run._environ_of_app(Settings(workers=4), MemoryBackend())
    assert environ["OMP_NUM_THREADS"] == threads


class NoKeys(MemoryBackend):
    capabilities = replace(MemoryBackend.capabilities, key_store=False)


def test_a_broker_without_keys_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="scheduler beside the pool needs a broker that keeps keys") as refusal:
        run_pool(SETTINGS, backend=NoKeys())
    assert "--only-scheduler" not in str(refusal.value), "a pool has no such flag"


def test_a_start_that_is_refused_leaves_no_descriptor_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(backend="memory://", metrics=Address("127.0.0.1", taken.getsockname()[1]))
        before = open_fds()
        with pytest.raises(JobpoolError, match="cannot be listened on"):
            run_pool(settings, backend=MemoryBackend())
        assert open_fds() == before


@pytest.mark.parametrize(
    ("limit", "recycle", "mark"),
    [(0, 0, 0), (0, 70, 70), (100, 0, 100), (100, 70, 70), (100, 300, 100)],
)
def test_a_child_above_either_memory_setting_is_replaced_after_its_attempt(limit: int, recycle: int, mark: int) -> None:
    settings = Settings(memory_limit=MemoryLimit(limit), recycle=Recycle(memory=recycle))
    assert fork_server_config(settings).options.max_rss == mark
