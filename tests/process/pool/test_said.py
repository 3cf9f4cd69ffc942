"""What the log says: of messages that are dead, or from the future, and of a database whose files were taken away."""

from __future__ import annotations

import json

import pytest
from support.poolrig import LIMIT, Rig
from support.waiting import wait_until

from jobpool.broker.values import NewMessage
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import decode
from jobpool.message.signing import EnvelopeSigner

KEY = "a key that is long enough"


def test_a_message_of_a_newer_wire_is_given_back_with_a_delay_and_said_so(rig: Rig) -> None:
    signer = EnvelopeSigner(KEY)
    rig.sign_with(KEY)
    packed = rig.backend.pack(JobDefinition("work", {"tag": "future"}, identifier="from-the-future"))
    wire = json.loads(packed.body)
    future = wire | {"meta": {"v": 2, "_timeout": "as later versions write it"}}
    unsigned = json.dumps(future).encode()
    future["_sig"] = signer.sign(decode(unsigned, attempts=0))
    body = json.dumps(future).encode()
    rig.backend._enqueue([NewMessage("from-the-future", True, "default", "work", 5, None, body)])
    pool = rig.start_pool(JOBPOOL_SIGNING_KEY=KEY).wait_ready(2)
    wait_until(lambda: rig.stats().delayed == 1, limit=30.0, what="it is given back for later")
    assert pool.stop() == 0
    assert rig.starts() == []
    message = rig.inspect("from-the-future")
    assert (message.attempts, message.crashes) == (0, 0)
    [entry] = pool.log("a message is of a newer version")
    assert (entry["id"], entry["version"], entry["level"]) == ("from-the-future", 2, "warning")


@pytest.mark.parametrize("suffix", ["-wal", pytest.param("-shm", marks=pytest.mark.more)])
def test_a_pool_whose_log_beside_the_database_was_taken_away_says_so_and_is_not_healthy(rig: Rig, suffix: str) -> None:
    """It would hear of no job any more, and settle where nobody sees it."""
    pool = rig.start_pool("--stop-grace", "1").wait_ready(2)
    rig.enqueue("work")
    rig.wait_drained()
    (rig.directory / f"jobpool.db{suffix}").unlink()
    entry = wait_until(lambda: pool.log("the broker does not answer; trying again until it does"))[0]
    assert f"jobpool.db{suffix} was removed or replaced while it was in use" in entry["error"]
    assert "Stop all that use the database, then start them again" in entry["error"]
    wait_until(lambda: not pool.is_healthy(), LIMIT, "health tells")
    assert pool.stop() == 0
