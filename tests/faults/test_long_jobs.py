"""Row 1: jobs that are longer than their leases, in Python and in C, while another pool waits for them to run out."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from support.faultmoves import Figure, start_pools, stop_all
from support.faultrig import fault_broker, fault_rig
from support.poolrig import Rig
from support.poolrig_brokers import SHORT_TTR
from support.stalls import Stalls

TTL = 1.0
LONG = 5.0
"""Seconds."""

ROUNDS = 6
"""At most: where the machine keeps a master waiting for longer than its leases last, they end, which is not a fault."""

BROKERS = {
    "sqlite": ("work", "hold_gil"),
    "redis": ("work",),
    "postgres": ("work",),
    "beanstalk": ("work",),
    "servicebus": ("work",),
}
"""One job sleeps; one holds the interpreter lock in a single call of C, on one broker: what renews is the pool's."""


@pytest.mark.row(1)
def test_jobs_that_are_longer_than_their_leases_run_once(tmp_path: Path, figure: Figure) -> None:
    """On all brokers side by side, because it takes its time: each of two pools could run all jobs of its broker."""
    with ExitStack() as stack:
        rigs: dict[str, tuple[Rig, float]] = {}
        for name in BROKERS:
            folder = tmp_path / name
            folder.mkdir()
            broker = stack.enter_context(fault_broker(name, folder, ttr=SHORT_TTR))
            rig = stack.enter_context(fault_rig(folder, broker))
            rigs[name] = rig, max(LONG, broker.lasts * 1.3 if broker else 0.0)
        for name, (rig, _) in rigs.items():
            start_pools(rig, 2, "--ttl", str(TTL), workers=len(BROKERS[name]))
        for _ in range(ROUNDS):
            with Stalls() as stalls:
                ids = {name: _run(rig, BROKERS[name], seconds) for name, (rig, seconds) in rigs.items()}
                for rig, _ in rigs.values():
                    rig.wait_drained()
            if stalls.longest < TTL / 3 or all(_ran_once(rigs[name][0], mine) for name, mine in ids.items()):
                break
        else:
            pytest.skip(f"the machine stood still for a third of a lease in each of {ROUNDS} rounds")
        for name, (rig, seconds) in rigs.items():
            _check_one_run_each(name, rig, dict(zip(ids[name], BROKERS[name], strict=True)), seconds, figure)


def _run(rig: Rig, handlers: tuple[str, ...], seconds: float) -> list[str]:
    return [rig.enqueue(handler, {"seconds": seconds}) for handler in handlers]


def _ran_once(rig: Rig, idents: list[str]) -> bool:
    """Whatever their fences are: beanstalkd counts a delivery to a pool that comes too late to fetch it."""
    return all([line.crashes for line in rig.starts(ident)] == [0] for ident in idents)


def _check_one_run_each(name: str, rig: Rig, handlers: dict[str, str], seconds: float, figure: Figure) -> None:
    """`handlers`: of the messages, by their ids."""
    idents = list(handlers)
    assert _ran_once(rig, idents), f"on {name}\n{rig.describe()}"
    for ident, handler in handlers.items():
        [start], [end] = rig.starts(ident), rig.ends(ident)
        assert end.at - start.at >= seconds, f"{handler} was longer than its lease"
        figure(f"the run, on {name}", end.at - start.at, "s")
    account = rig.account()
    account.assert_clean()
    assert not (account["DUP"] | account["OVERLAP"]) & set(idents)
    stop_all(rig, rig.pools)
