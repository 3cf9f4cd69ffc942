"""What a pool must not run, and what it says where it cannot tell: handlers, keys (what is forged: tests/faults)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.poolrig import Rig

KEY = "secret-key"


def test_a_handler_that_its_queue_does_not_allow_is_not_run(rig: Rig, tmp_path: Path) -> None:
    rig.sign_with(KEY)
    allowed, other = rig.enqueue("work"), rig.enqueue("fail")
    pool = rig.run_pool(
        "--until-empty", "--queue-handlers", "default=work,noop", JOBPOOL_SIGNING_KEY_FILE=key_file(tmp_path, 0o600)
    )
    assert rig.ends(allowed)
    assert rig.inspect(other).reason == "handler-not-allowed"
    assert len(rig.starts()) == 1
    assert pool.log("others can use the signing keys") == []


@pytest.mark.brokers
def test_without_keys_every_message_is_taken_and_a_warning_is_said_once_where_others_reach_the_broker(rig: Rig) -> None:
    """Pools that have a key say nothing (test_control.py)."""
    rig.enqueue("work")
    rig.sign_with(KEY)
    rig.enqueue("work")
    pool = rig.run_pool("--until-empty", "--fail-on-dead")
    assert pool.wait() == 0
    assert len(rig.ends()) == 2
    said = pool.log("messages are not signed")
    assert len(said) == (0 if rig.url.startswith("sqlite") else 1)
    assert [entry["level"] for entry in said] == ["warning"] * len(said)
    assert {entry["mend"] for entry in said} <= {"set signing_key: anyone at the broker can enqueue"}


def test_a_pool_warns_of_a_file_of_keys_that_everybody_reads(rig: Rig, tmp_path: Path) -> None:
    pool = rig.run_pool("--until-empty", JOBPOOL_SIGNING_KEY_FILE=key_file(tmp_path, 0o644))
    [warning] = pool.log("others can use the signing keys")
    assert f"chmod 600 {tmp_path}/keys" in warning["why"]


def test_a_pool_warns_of_a_configuration_file_with_a_secret_that_everybody_reads(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "secrets.toml"
    file.write_text(f'signing_key = "{KEY}"')
    for mode, warned in ((0o600, False), (0o644, True)):
        file.chmod(mode)
        warnings = rig.run_pool("--until-empty", "-C", str(file)).log("others can read the configuration file")
        assert bool(warnings) is warned
    assert "everybody on this machine can read signing_key; chmod 600" in warnings[0]["why"]
    assert KEY not in str(warnings)


def test_a_pool_warns_of_a_signing_key_that_can_be_guessed(rig: Rig) -> None:
    [warning] = rig.run_pool("--until-empty", JOBPOOL_SIGNING_KEY="x").log("a signing key is weak")
    assert "a signing key has 1 byte, fewer than 16" in warning["why"]
    assert rig.run_pool("--until-empty", JOBPOOL_SIGNING_KEY="x" * 16).log("a signing key is weak") == []


def key_file(folder: Path, mode: int) -> str:
    """The path of a file of keys with these rights."""
    keys = folder / "keys"
    keys.write_text(KEY)
    keys.chmod(mode)
    return str(keys)
