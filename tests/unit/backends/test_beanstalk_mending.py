"""What a fetch meets and does not hand out as it is: crashes, which are charged, and dead letters that were kicked."""

from __future__ import annotations

import random

import pytest
from beanstalk_clients import AT_ONCE, Clients
from support.jobs import QUEUE, a_job
from support.waiting import wait_until

from jobpool.broker.values import Reaped, ReapPolicy
from jobpool_backends.beanstalk.connection import Answer, Connection, Counters, read_counters
from jobpool_backends.beanstalk.records import (
    CountedCrash,
    Record,
    count_crashes,
)
from jobpool_backends.reaping import NativeReaping


def lose(clients: Clients) -> None:
    """Somebody reserves the next message, and his connection breaks."""
    waiting = clients.counts()[0]
    with clients.server.client(clients.prefix + QUEUE) as client:
        client.reserve(timeout=0)
    wait_until(lambda: clients.counts()[0] == waiting)


def test_a_charge_is_taken_back_when_the_lease_ends_before_the_original_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Clients(turned=True) as clients:
        backend = clients.open(ttr=10)
        backend.reap(QUEUE, AT_ONCE)
        backend.enqueue(a_job())
        lose(clients)
        fetcher = backend._fetcher
        put = fetcher._put

        def put_slowly(connection: Connection, charged: CountedCrash, body: bytes, counters: Counters) -> Answer:
            answer = put(connection, charged, body, counters)
            clients.advance(10.0)
            assert clients.raw.reserve(timeout=0).id < clients.raw.peek_ready().id, "somebody has the original"
            return answer

        monkeypatch.setattr(fetcher, "_put", put_slowly)
        assert backend.fetch_many(QUEUE, limit=1) == []
        assert clients.counts() == (0, 0, 1, 0)
        assert backend.reap(QUEUE) == []


def test_a_wait_charges_too_and_hints_at_nothing_that_is_not_there(clients: Clients) -> None:
    backend = clients.open()
    backend.reap(QUEUE, ReapPolicy(max_crashes=1))
    backend.enqueue(a_job())
    lose(clients)
    lose(clients)
    assert backend.wait_any([QUEUE], 0.3) is None
    assert clients.counts() == (0, 0, 0, 1)


NOW = 1000.0
POLICY = ReapPolicy(max_crashes=3, window=100.0, back_off=8.0, back_off_cap=20.0)


def test_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", max)
    for case, before, at, new, policy, crashes, delay, dead in [
        ("first: at once", 0, 0.0, 1, POLICY, 1, 0, False),
        ("second: after a back-off", 1, 950.0, 1, POLICY, 2, 8, False),
        ("third: twice that", 2, 950.0, 1, POLICY, 3, 16, False),
        ("past the limit", 3, 950.0, 1, POLICY, 4, 0, True),
        ("at the window's end", 3, 900.0, 1, POLICY, 4, 0, True),
        ("before the window: counted anew", 3, 899.9, 1, POLICY, 1, 0, False),
        ("two at once", 1, 950.0, 2, POLICY, 3, 16, False),
        ("four at once", 0, 0.0, 4, POLICY, 4, 0, True),
        ("none", 8, 999.0, 1, ReapPolicy(max_crashes=0, back_off=8.0, back_off_cap=20.0), 9, 20, False),
        ("rounded up to a second", 1, 999.0, 1, ReapPolicy(back_off=0.3), 2, 1, False),
        ("without a back-off", 1, 999.0, 1, ReapPolicy(back_off=0.0), 2, 0, False),
    ]:
        record = Record(
            "x", 1.0, attempts=2, crashes=before, deliveries=7, crashed_at=at, last_error="boom", cause="old"
        )
        charged = count_crashes(record, new, "SIGBUS", policy, NOW)
        died = ("crash-limit", NOW) if dead else (None, None)
        assert charged == CountedCrash(Record("x", 1.0, 2, crashes, 7, NOW, "boom", "SIGBUS", *died), delay), case


def test_the_ledger_tells_each_charge_once_and_keeps_the_policy_of_each_queue() -> None:
    ledger = NativeReaping()
    assert ledger.policy("mails") == ReapPolicy()
    for number in range(1200):
        ledger.add(CountedCrash(Record(str(number), 1.0, crashes=1, cause="SIGBUS"), 0).reaped("mails"))
    ledger.add(CountedCrash(Record("y", 1.0, crashes=6, cause="c", died_at=2.0), 0).reaped("others"))
    first = ledger.reap("mails", POLICY)
    assert (len(first), first[0]) == (1000, Reaped("0", "mails", 1, "SIGBUS", False))
    assert len(ledger.reap("mails", POLICY)) == 200
    assert ledger.reap("mails", POLICY) == []
    assert ledger.reap("others", ReapPolicy()) == [Reaped("y", "others", 6, "c", True)]
    assert (ledger.policy("mails"), ledger.policy("others")) == (POLICY, ReapPolicy())


def break_lease(clients: Clients, number: int) -> None:
    """Reserve it on a connection that breaks."""
    with clients.server.client() as client:
        client.reserve_job(number)
    wait_until(lambda: clients.raw.stats_job(number)["state"] == "ready")


def do(clients: Clients, number: int, deed: str) -> None:
    """One deed of a history, on a job that is not reserved; it is not afterwards."""
    raw = clients.raw
    match deed:
        case "lose":
            break_lease(clients, number)
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
