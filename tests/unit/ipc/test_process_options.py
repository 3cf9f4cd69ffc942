from __future__ import annotations

import msgspec
import pytest

from jobpool.ipc.process_options import ChildOptions, ForkServerConfig, harmless, scrubbed
from jobpool_backends.servicebus.namespace import CREDENTIAL_VARIABLES

OPTIONS = ChildOptions(
    apps=["myapp.jobs"], kill_grace=0.5, max_jobs=100, queue_handlers={"reports": ["render"]}, sys_path=["/srv/ü"]
)


def test_a_config_comes_back_as_it_went() -> None:
    config = ForkServerConfig(OPTIONS, "jobpool.child.main:run", "jobpool.handlers.app:load", "reports")
    assert ForkServerConfig.from_json(config.to_json()) == config


def test_names_that_are_not_utf_8_come_back() -> None:
    options = ChildOptions(apps=["caf\udce9.py"], sys_path=["/srv/caf\udce9"])
    config = ForkServerConfig(options, "a:b", "c:d", environ={"SHOP_PASSWORD": "caf\udce9"})
    assert ForkServerConfig.from_json(config.to_json()) == config


def test_options_of_a_later_version_are_left_out_and_lacking_ones_refused() -> None:
    """A pool that is older than the installed code starts its fork servers from that, at a reload."""
    config = ForkServerConfig(OPTIONS, "a:b", "c:d")
    later = msgspec.json.decode(config.to_json())
    later["options"]["colour"] = later["colour"] = "red"
    assert ForkServerConfig.from_json(msgspec.json.encode(later)) == config
    with pytest.raises(msgspec.ValidationError, match="child_main"):
        ForkServerConfig.from_json(b'{"options": {}}')


def test_what_only_the_master_may_know_is_scrubbed() -> None:
    for name, value in [
        ("JOBPOOL_BACKEND", "sqlite"),
        ("JOBPOOL_URL", "redis://:secret@host"),
        ("JOBPOOL_SIGNING_KEYS", "k1"),
        ("jobpool_state", "redis://host"),
        ("JOBS_URL", "postgresql://host"),
        ("JOBS_ANYTHING", "Endpoint=sb://name/;SharedAccessKey=x"),
        ("JOBPOOL_API_TOKEN", "t"),
        ("JOBPOOL_DB_PASSWORD", "p"),
    ]:
        assert scrubbed({name: value, "PATH": "/bin"}) == {"PATH": "/bin"}, name


def test_what_is_the_apps_stays() -> None:
    for name, value in [
        ("DATABASE_URL", "postgresql://app"),
        ("SECRET_KEY", "the app's"),
        ("JOBPOOL_WORKERS", "16"),
        ("HOME", "/root"),
    ]:
        assert scrubbed({name: value}) == {name: value}, name


@pytest.mark.parametrize("name", [*CREDENTIAL_VARIABLES, "PGPASSWORD", "DATABASE_URL", "JOBPOOL_STATE"])
def test_what_may_be_a_credential_is_not_there_before_the_broker_is_known(name: str) -> None:
    kept = {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib", "OMP_NUM_THREADS": "1"}
    assert harmless({name: "x", **kept}) == kept
