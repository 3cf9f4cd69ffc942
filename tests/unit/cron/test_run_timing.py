"""`CronTime`: the broker's clock counts where it has one, whatever somebody does to this machine's."""

from __future__ import annotations

from datetime import datetime

import pytest
from support.cronrig import START

from jobpool.broker.broker_time import ASK_EVERY
from jobpool.clock import ManualClock
from jobpool.cron.runner import CLOCK_LOOK_S, CronTime
from jobpool.errors import BackendUnavailable
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import decode
from jobpool_backends.memory import MemoryBackend


class Broker(MemoryBackend):
    """One whose clock goes as the machine's does, but from another beginning; `ahead` None = it has none."""

    ahead: float | None = 0.0
    asked = 0
    silent = False
    takes = 0.0

    def broker_time(self) -> float | None:
        self.asked += 1
        if self.silent:
            raise BackendUnavailable("nobody there")
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(self.takes / 2)
        told = None if self.ahead is None else START.timestamp() + self.clock.boot() - 1000.0 + self.ahead
        self.clock.advance(self.takes / 2)
        return told


@pytest.fixture
def broker() -> Broker:
    return Broker(clock=ManualClock(wall=START.timestamp()))


def turn(broker: Broker) -> ManualClock:
    assert isinstance(broker.clock, ManualClock)
    return broker.clock


def since_start(moment: datetime) -> float:
    return (moment - START).total_seconds()


def test_a_follow_up_that_expires_is_packed_without_a_word_to_the_broker(broker: Broker) -> None:
    def expires() -> float:
        expires = decode(broker.pack(JobDefinition("report", expires_in=60.0)).body, attempts=0).expires
        assert expires is not None
        return expires - START.timestamp()

    broker.ahead = 500.0
    assert (expires(), broker.asked) == (60.0, 0), "this machine's clock, for there is no answer yet"
    broker.time.now()
    turn(broker).advance(2 * ASK_EVERY)
    assert (expires(), broker.asked) == (500.0 + 2 * ASK_EVERY + 60.0, 1)


def test_the_brokers_clock_is_asked_once_a_while_and_counted_on(broker: Broker) -> None:
    broker.ahead = 500.0
    time = CronTime(broker)
    assert since_start(time.now()) == 500.0
    turn(broker).advance(ASK_EVERY - 1)
    assert since_start(time.now()) == 500.0 + ASK_EVERY - 1
    assert broker.asked == 1
    turn(broker).advance(1)
    time.now()
    assert (broker.asked, time.check_interval) == (2, ASK_EVERY)


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_this_machines_clock_changes_nothing_and_the_broker_is_asked_at_once(
    broker: Broker, step: float
) -> None:
    time = CronTime(broker)
    time.now()
    turn(broker).set_wall(step)
    turn(broker).advance(3.0)
    assert since_start(time.now()) == 3.0
    assert broker.asked == 2
    time.now()
    assert broker.asked == 2


def test_half_of_the_round_trip_is_taken_off(broker: Broker) -> None:
    broker.takes = 4.0
    time = CronTime(broker)
    assert since_start(time.now()) == 4.0


def test_silence_is_bridged_but_for_the_first_time(broker: Broker) -> None:
    broker.silent = True
    time = CronTime(broker)
    with pytest.raises(BackendUnavailable):
        time.now()
    broker.silent = False
    time.now()
    broker.silent = True
    turn(broker).advance(500.0)
    turn(broker).set_wall(3600.0)
    assert [since_start(time.now()) for _ in range(2)] == [500.0, 500.0]
    assert broker.asked == 3, "each call in vain takes as long as one may"


def test_without_a_broker_s_clock_this_machine_s_wall_clock_counts(broker: Broker) -> None:
    broker.ahead = None
    time = CronTime(broker)
    time.now()
    turn(broker).set_wall(3600.0)
    assert since_start(time.now()) == 3600.0
    assert (broker.asked, time.check_interval) == (1, CLOCK_LOOK_S)
