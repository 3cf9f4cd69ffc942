"""How crashes are told from what beanstalkd counts: histories on a real one, and one that was restarted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from beanstalk_clients import Clients, a_job, one
from support.servers import BeanstalkServer
from support.waiting import wait_until

from jobpool_backends.beanstalk.connection import Counters, read_counters


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with Clients() as clients:
        yield clients


def lose(clients: Clients, number: int) -> None:
    """Reserve it on a connection that breaks."""
    with clients.server.client() as client:
        client.reserve_job(number)
    wait_until(lambda: clients.raw.stats_job(number)["state"] == "ready")


def do(clients: Clients, number: int, deed: str) -> None:
    """One deed of a history, on a job that is not reserved; it is not afterwards."""
    raw = clients.raw
    match deed:
        case "lose":
            lose(clients, number)
        case "release":
            raw.release(raw.reserve_job(number), priority=5)
        case "delay":
            raw.release(raw.reserve_job(number), priority=5, delay=1000)
        case "bury":
            raw.bury(raw.reserve_job(number), priority=5)
        case "kick":
            raw.kick_job(number)


@pytest.mark.parametrize(
    ("deeds", "crashes"),
    [
        ("", 0),
        ("lose", 1),
        ("lose lose lose", 3),
        ("release", 0),
        ("release lose release lose", 2),
        ("delay", 0),
        ("delay kick", 0),
        ("delay kick lose delay", 1),
        ("bury", 0),
        ("bury kick", 0),
        ("bury kick lose bury", 1),
    ],
)
def test_each_lease_that_ended_without_a_verdict_is_a_crash(clients: Clients, deeds: str, crashes: int) -> None:
    number = clients.raw.put(b"x", priority=5, ttr=1000)
    for deed in deeds.split():
        do(clients, number, deed)
    job = clients.raw.reserve_job(number)
    counters = asked(clients, number)
    clients.raw.delete(job)
    assert counters.crashes == crashes
    assert counters.reserves == 1 + len([deed for deed in deeds.split() if deed != "kick"])


def asked(clients: Clients, number: int) -> Counters:
    """As the backend asks."""
    backend = clients.open()
    with backend._connections.spare() as connection:
        [answer] = connection.burst([b"stats-job %d" % number])
    assert isinstance(answer, bytes)
    return read_counters(answer)


def test_every_field_is_read(clients: Clients) -> None:
    number = clients.raw.put(b"x", priority=7, delay=100, ttr=33)
    told = clients.raw.stats_job(number)
    counters = asked(clients, number)
    clients.raw.delete(number)
    assert counters.tube == told["tube"] == clients.prefix + "reports"
    assert (counters.state, counters.priority, counters.age, counters.ttr) == ("delayed", 7, 0, 33)
    assert (counters.reserves, counters.releases, counters.buries, counters.crashes) == (0, 0, 0, 0)


@pytest.mark.parametrize("text", [b"", b"---\nname: reports\n", b"---\npri: 5\nttr: x\n"])
def test_what_tells_nothing_of_a_job_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no statistics of a job"):
        read_counters(text)


def test_a_timeout_is_a_crash_too() -> None:
    with Clients(turned=True) as clients:
        backend, other = clients.open(ttr=2), clients.open()
        backend.enqueue(a_job())
        lease = one(backend)
        clients.advance(2.0)
        again = one(other)
        assert (again.crashes, again.deliveries) == (1, lease.deliveries + 1)


class Restarted:
    """Messages of several kinds, on a server with a binlog that was killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.server = BeanstalkServer(folder, binlog=True)
        self.clients = Clients(self.server)
        before = self.clients.open()
        before.enqueue_many([a_job(name) for name in ("reserved", "released", "failed", "dead", "waiting")])
        self.before = {lease.envelope.payload: lease for lease in before.fetch_many("reports", limit=4)}
        answers = (before.release(self.before["released"]), before.nack(self.before["failed"], error="boom"))
        assert all(answers)
        assert before.abandon(self.before["dead"], "failed")
        self.server.kill()
        self.server.start()


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarted]:
    restarted = Restarted(tmp_path_factory.mktemp("binlog"))
    with restarted.clients:
        yield restarted
    restarted.server.close()


def test_after_a_restart_nothing_is_lost_and_the_counters_of_copies_stand(restarted: Restarted) -> None:
    backend = restarted.clients.open()
    found = {lease.envelope.payload: lease for lease in backend.fetch_many("reports", limit=9)}
    assert sorted(found) == ["failed", "released", "reserved", "waiting"]
    assert (found["failed"].attempts, found["failed"].deliveries) == (1, 2)
    assert found["reserved"].crashes in (0, 1)  # what happened after a job was written last, the server has forgotten
    [dead] = backend.list_messages()
    assert (dead.reason, dead.id) == ("failed", restarted.before["dead"].id)
