"""When settlements go to their thread: a table."""

from __future__ import annotations

import math

import pytest

from jobpool.master.dispatch import LOOKAHEAD_SHARE, MAX_ENOUGH, Batch
from jobpool.master.slots import Delivery
from jobpool.message.definition import JobDefinition
from jobpool.message.guards import Guards, Hold
from jobpool.message.lease import JobLease
from jobpool.message.results import Kept
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settlement

NOW = 100.0
LINGER_S = 0.02


def a_delivery() -> Delivery:
    return Delivery(JobLease("id", "q", b"{}", 1, "o", 100.0, "memory"), 1, 0.0, "report", 0.0)


def filled(count: int, ahead: int, settlement: Settlement | None = None) -> Batch:
    batch = Batch()
    for _ in range(count):
        batch.add([(a_delivery(), settlement or Ack())], NOW, ahead, LINGER_S)
    return batch


def test_when_acks_are_due() -> None:
    for case, count, ahead, due in [
        ("nothing", 0, 0, math.inf),
        ("no stream: at once", 1, 0, NOW),
        ("a slow stream: waits for a second one", 1, 2, NOW + LINGER_S),
        ("two are company", 2, 2, NOW),
        ("two of five are not half of them", 2, 5, NOW + LINGER_S),
        ("three are", 3, 5, NOW),
        ("a quick stream waits for more", 10, 800, NOW + LINGER_S),
        ("half of the look-ahead is enough", 400 // LOOKAHEAD_SHARE, 400, NOW),
        ("a very quick stream waits for more", MAX_ENOUGH - 1, 1024, NOW + LINGER_S),
        ("though not for half of a large look-ahead", MAX_ENOUGH, 1024, NOW),
    ]:
        assert filled(count, ahead).due == due, case


@pytest.mark.parametrize(
    "settlement",
    [Nack(), Abandon(), Release(), Forfeit(), Ack(follow_ups=(JobDefinition("next"),))],
    ids=lambda s: type(s).__name__,
)
def test_what_is_no_ack_or_brings_jobs_never_waits(settlement: Settlement) -> None:
    assert filled(1, 800, settlement).due == NOW


@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_that_is_no_ack_takes_its_company_along(at: int) -> None:
    batch, work = Batch(), [(a_delivery(), settlement) for settlement in (Ack(), Ack())]
    batch.add([*work[:at], (a_delivery(), Nack()), *work[at:]], NOW, 800, LINGER_S)
    assert batch.due == NOW


def test_an_ack_that_gives_a_place_back_never_waits() -> None:
    delivery, batch = a_delivery(), filled(1, 800)
    delivery.lease = delivery.lease.guarded(Guards(holds=(Hold("report", 1),)))
    batch.add([(delivery, Ack())], NOW, 800, LINGER_S)
    assert batch.due == NOW


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize(("others", "due"), [(0, NOW), (1, NOW + LINGER_S)], ids=["alone", "another runs"])
def test_a_result_waits_only_where_others_may_join_it(others: int, due: float, together: int) -> None:
    batch = Batch()
    work = [(a_delivery(), Ack(result=Kept(b"record", 60.0))) for _ in range(together)]
    batch.add([*work], NOW, 800, LINGER_S, together + others)
    assert batch.due == due


def test_a_result_waits_no_longer_once_no_other_job_is_held() -> None:
    batch = Batch()
    batch.add([(a_delivery(), Ack(result=Kept(b"record", 60.0)))], NOW, 800, LINGER_S, 2)
    batch.add([(a_delivery(), Ack())], NOW + 0.001, 800, LINGER_S, 2)
    assert batch.due == NOW + 0.001


def test_later_ones_do_not_put_off_the_first() -> None:
    batch = filled(1, 800)
    batch.add([(a_delivery(), Ack())], NOW + 0.009, 800, LINGER_S)
    assert batch.due == NOW + LINGER_S


def test_taking_empties_it_and_keeps_the_order() -> None:
    batch = Batch()
    first, second = a_delivery(), a_delivery()
    batch.add([(first, Ack()), (second, Nack())], NOW, 0, LINGER_S)
    assert [delivery for delivery, _ in batch.take()] == [first, second]
    assert batch.take() == []
    assert batch.due == math.inf
