"""Every fault of networks is struck at two pools on Redis, each behind its own proxy; it happens, and is undone."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.fleetrig import LIMIT, FleetRig, fleet_rig
from support.servers import fresh_name, shared_redis
from support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("bad-weather")  # two pools for all of them

SOON = 0.3
"""Seconds in which nothing must come."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetRig]:
    server = shared_redis()
    url = f"redis://{server.host}:{server.port}/0?prefix={fresh_name('fleet')}"
    with fleet_rig(tmp_path_factory.mktemp("fleet"), url) as rig:
        yield rig
        assert rig.fleet.stop_all(LIMIT) == {"pool1": 0, "pool2": 0}
        wait_until(lambda: not rig.fleet.processes(), what="no process is left")


@pytest.fixture
def rig(shared: FleetRig) -> Iterator[FleetRig]:
    yield shared
    shared.assert_healed()
    assert all(pings(shared, number) == b"+PONG\r\n" for number in range(2))
    assert shared.fleet.unexpected == []


def dial(rig: FleetRig, number: int = 0) -> socket.socket:
    """A connection of the test's own, through a pool's network."""
    return socket.create_connection((rig.networks[number].host, rig.networks[number].port), LIMIT)


def pings(rig: FleetRig, number: int = 0, limit: float = LIMIT) -> bytes:
    """What comes back on a new connection within `limit` seconds; "" = nothing."""
    with suppress(TimeoutError), dial(rig, number) as connection:
        return ask(connection, limit)
    return b""


def ask(connection: socket.socket, limit: float = LIMIT) -> bytes:
    connection.settimeout(limit)
    connection.sendall(b"PING\r\n")
    with suppress(TimeoutError):
        return connection.recv(100)
    return b""


def test_it_can_strike_networks_here_and_no_clocks(rig: FleetRig) -> None:
    assert rig.nemesis.cannot() == {
        "access.deny": "they have no user of their own",
        "broker.restart": "it needs a command that restarts the broker",
        "clock.jump": "these pools have none",
    }


def test_all_connections_of_a_pool_are_reset(rig: FleetRig) -> None:
    before = rig.networks[0].counts()
    with dial(rig) as connection, dial(rig, 1) as other:
        assert ask(connection) == ask(other) == b"+PONG\r\n"
        rig.until(lambda: rig.networks[0].counts().open >= 2, "the pool is connected, as is the test")
        told = re.search(r"(\d+) connections reset", rig.strike("net.cut"))
        assert told
        assert int(told[1]) >= 2, "ours, and those of the pool, which opens and closes some as it needs them"
        with pytest.raises(ConnectionResetError):
            ask(connection)
        assert ask(other) == b"+PONG\r\n"
    rig.until(lambda: rig.networks[0].counts().connections > before.connections + 1, "the pool has come back")


@pytest.mark.parametrize(
    ("pick", "said"),
    [
        (0, "nothing gets through, and is held back"),
        (1, "nothing reaches the broker, and is held back"),
        (2, "nothing comes back, and is held back"),
        (3, "nothing gets through, and is lost"),
        (5, "nothing comes back, and is lost"),
    ],
)
def test_nothing_gets_through_a_hole(rig: FleetRig, pick: int, said: str) -> None:
    with dial(rig) as connection:
        assert ask(connection) == b"+PONG\r\n"
        assert said in rig.strike("net.hole", pick=pick, seconds=0.8)
        assert ask(connection, SOON) == b""
        assert pings(rig, 1) == b"+PONG\r\n"
        rig.until(lambda: rig.all_is_over(), "the hole is gone")
        connection.settimeout(SOON if "lost" in said else LIMIT)
        if "lost" in said:
            with pytest.raises(TimeoutError):
                connection.recv(100)
        else:
            assert connection.recv(100) == b"+PONG\r\n"


def test_new_connections_are_refused(rig: FleetRig) -> None:
    with dial(rig) as connection:
        rig.strike("net.refuse", seconds=0.5)
        with pytest.raises(ConnectionRefusedError):
            dial(rig)
        assert ask(connection) == b"+PONG\r\n"
        rig.until(lambda: rig.all_is_over(), "it is over")
    assert pings(rig) == b"+PONG\r\n"


def test_bad_weather_of_no_length_is_over_at_the_next_look(rig: FleetRig) -> None:
    rig.strike("net.refuse")
    rig.nemesis.due()
    assert pings(rig) == b"+PONG\r\n"


def test_everything_comes_later(rig: FleetRig) -> None:
    rig.strike("net.delay", 1, seconds=60.0, amount=0.2)
    begun = time.monotonic()
    assert pings(rig, 1) == b"+PONG\r\n"
    assert time.monotonic() - begun >= 0.4


def test_replies_are_lost(rig: FleetRig) -> None:
    rig.strike("net.drop", seconds=60.0, amount=1.0, pick=2)
    with dial(rig) as connection, pytest.raises(ConnectionResetError):
        ask(connection)
    assert rig.networks[0].counts().dropped


def test_replies_are_lost_in_silence(rig: FleetRig) -> None:
    rig.strike("net.drop", seconds=60.0, amount=1.0, pick=1)
    assert pings(rig, limit=SOON) == b""


def test_of_faults_that_overlap_each_ends_alone(rig: FleetRig) -> None:
    rig.strike("net.delay", seconds=60.0, amount=0.2)
    rig.strike("net.refuse", seconds=0.2)
    before = len(rig.record("over"))
    rig.until(lambda: len(rig.record("over")) > before, "the second is over")
    assert [entry["kind"] for entry in rig.record("over")[before:]] == ["net.refuse"]
    begun = time.monotonic()
    assert pings(rig) == b"+PONG\r\n"
    assert time.monotonic() - begun >= 0.4


def test_a_pool_that_cannot_come_up_in_bad_weather_is_excused_and_comes_up_later(rig: FleetRig) -> None:
    rig.strike("net.refuse", seconds=600.0)
    rig.strike("master.kill", seconds=0.0)
    pool, runs = rig.pool(), rig.pool().runs
    told = rig.until(lambda: pool.runs > runs and (pool.runs > runs + 1 or pool.is_ready()), "it ended again, or is up")
    assert "pool1 has not come up: its network was bad" in told
