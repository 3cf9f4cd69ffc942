"""What a pool must not run, and what it says where it cannot tell: handlers, keys (what is forged: tests/faults)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.poolrig import Rig

KEY = "secret-key"


def test_a_handler_that_its_queue_does_not_allow_is_not_run(rig: Rig) -> None:
    allowed, other = rig.enqueue("work"), rig.enqueue("fail")
    rig.run_pool("--until-empty", "--queue-handlers", "default=work,noop")
    assert rig.ends(allowed)
    assert rig.inspect(other).reason == "handler-not-allowed"
    assert len(rig.starts()) == 1


def test_without_keys_every_message_is_taken_signed_or_not(rig: Rig) -> None:
    rig.enqueue("work")
    rig.sign_with(KEY)
    rig.enqueue("work")
    assert rig.run_pool("--until-empty", "--fail-on-dead").wait() == 0
    assert len(rig.ends()) == 2


def test_an_empty_key_is_a_mistake_and_never_signing_off(rig: Rig) -> None:
    pool = rig.run_pool("--until-empty", JOBPOOL_SIGNING_KEY="")
    assert pool.wait() == 2
    assert "JOBPOOL_SIGNING_KEY" in pool.log_path.read_text()


@pytest.mark.brokers
def test_a_pool_without_a_key_says_so_once_where_others_reach_the_broker(rig: Rig) -> None:
    unsigned = rig.run_pool("--until-empty").log("messages are not signed")
    signed = rig.run_pool("--until-empty", JOBPOOL_SIGNING_KEY=KEY).log("messages are not signed")
    assert len(unsigned) == (0 if rig.url.startswith("sqlite") else 1)
    assert signed == []
    if unsigned:
        assert unsigned[0]["level"] == "warning"
        assert unsigned[0]["mend"] == "set signing_key: who reaches the broker can enqueue"


def test_a_pool_warns_of_a_file_of_keys_that_everybody_reads(rig: Rig, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    for mode, warnings in ((0o644, 1), (0o600, 0)):
        keys.chmod(mode)
        pool = rig.run_pool("--until-empty", JOBPOOL_SIGNING_KEY_FILE=str(keys))
        found = pool.log("others can use the signing keys")
        assert len(found) == warnings
        assert all(f"chmod 600 {keys}" in line["why"] for line in found)
