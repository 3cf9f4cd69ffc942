"""Strikes the faults of a schedule at a fleet, undoes each when its time is over, and records what it really did.

A fault names no process: when it strikes, its `pick` chooses among those that are there. If there is none, the fault is
missed, without an error. A pool that a fault has ended is started again; so is a pool that ends by itself, which stays
in `fleet.unexpected`.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobpool_torture import ledger, processes, spoiling
from jobpool_torture.broker_faults import Access, AccessFailed, BrokerRestart
from jobpool_torture.clocks import PoolClock
from jobpool_torture.fleet import Fleet, Pool
from jobpool_torture.judge import Window
from jobpool_torture.network import NetworkFailed, Proxy, put_in_force
from jobpool_torture.processes import Stops
from jobpool_torture.schedule import KINDS, Fault
from jobpool_torture.stall_detector import FROZEN_LIMIT_S, PoolStalls

MAX_STOP_PASSES = 5  # looks at a pool that is to be stopped whole: each finds the processes forked since the one before
HEAL_PAUSE_S = 0.02
HEAL_LIMIT_S = FROZEN_LIMIT_S + 30.0  # a fork server that was stopped last is judged as all are


class Missed(Exception):
    """There is nothing that the fault could strike now."""


@dataclass(frozen=True, slots=True)
class Blow:
    """The deed of a fault: a sentence, the processes, and whether it found nothing to strike."""

    said: str
    pids: Sequence[int] = ()
    missed: bool = False


class Nemesis:
    """The striker of faults. For one thread; its sentences are for people, the record is for programs. To be closed."""

    def __init__(
        self,
        fleet: Fleet,
        networks: Sequence[Proxy] | str,
        clocks: Sequence[PoolClock] | str,
        access: Access | str,
        restart_broker: str,
        *,
        orders: Path,
        record: Path,
    ) -> None:
        """Strike nothing yet.

        Args:
            fleet: Its `excuse` is set here: a pool may fail to come up while its broker is out of reach.
            networks, clocks: By pool; or why they have none, as half a sentence.
            access: The user by whom the pools log in; or why there is none of their own, in the same way.
            orders: A folder that the pools' jobs look into, see `spoiling`.
            record: A file; one JSON line is appended for each thing that happens.
        """
        self._fleet = fleet
        self._networks = [] if isinstance(networks, str) else networks
        self._clocks = [] if isinstance(clocks, str) else clocks
        self._access = None if isinstance(access, str) else access
        means = {"net": networks, "clock": clocks, "access": access}
        self._reasons = {kind: why for kind, why in means.items() if isinstance(why, str)}
        if not restart_broker:
            self._reasons["broker"] = "it needs a command that restarts the broker"
        self._orders = orders
        self._record = record
        self._restart = BrokerRestart(restart_broker, record.with_suffix(".broker.log"))
        self._stops = Stops()
        self.windows: list[Window] = []  # when which pool was disturbed; a fault in force has no end yet
        self._stalls = PoolStalls(self._stops, self._holds_up, self.windows)
        self._pending: dict[int, tuple[float, Fault, Window]] = {}  # by number: when it is over
        self.problems: list[str] = []  # failures of the nemesis' own means: a command that failed, a proxy that died
        self.stalled: Sequence[str] = self._stalls.found
        """Pools held up by things that must not hold up a pool: a sentence for each time."""
        fleet.excuse = self._excuse

    def cannot(self) -> dict[str, str]:
        """Return the kinds of fault that it cannot strike here, and why not, as half a sentence."""
        reasons = {kind: self._reasons.get(kind.partition(".")[0]) for kind in KINDS}
        return {kind: why for kind, why in reasons.items() if why}

    def strike(self, fault: Fault) -> Blow:
        """Strike one fault of a kind that it can strike; `due` undoes it when it is over. Blocks for milliseconds.

        Raises OSError: no process can be started any more.
        """
        pool = self._fleet.pools[fault.pool]
        begun = time.monotonic()
        try:
            if not (pool.pid or fault.kind.startswith(_BESIDE_POOLS)):
                raise Missed(f"{pool.name} is not running")
            blow = MEANS[fault.kind](self, fault, pool)
        except (Missed, AccessFailed, NetworkFailed) as error:
            if isinstance(error, NetworkFailed):
                self.problems.append(f"{pool.name}: {error}")
            return Blow(self._note("missed", fault, f"missed: {error}"), missed=True)
        over = time.monotonic() + fault.seconds
        window = Window("" if fault.kind.startswith(_ON_THE_BROKER) else pool.name, fault.kind, begun, over)
        self.windows.append(window)
        if not fault.kind.endswith(_OVER_AT_ONCE):
            window.ended = math.inf
            self._pending[fault.number] = (over, fault, window)
        return Blow(self._note("struck", fault, blow.said, blow.pids), blow.pids)

    # children and fork servers

    def _strike_child(self, fault: Fault, pool: Pool) -> Blow:
        """Kill or stop a child; an odd pick wants one at work, if there is any."""
        busy = pool.busy() if fault.pick % 2 else []
        pid = _pick(busy or pool.children(), fault.pick // 2, "no child")
        return self._kill_or_stop(fault, "a busy child" if busy else "a child", pid, lambda pid: pid in pool.children())

    def _strike_fork_server(self, fault: Fault, pool: Pool) -> Blow:
        pid = _pick(pool.fork_servers(), fault.pick, "no fork server")
        return self._kill_or_stop(fault, "a fork server", pid, lambda pid: pid in pool.fork_servers())

    def _kill_or_stop(self, fault: Fault, what: str, pid: int, is_it: Callable[[int], bool]) -> Blow:
        if fault.kind.endswith(".stop"):
            return self._stop(fault, what, [pid], is_it)
        self._send(pid, signal.SIGKILL, is_it)
        return Blow(f"{what} killed, pid {pid}", (pid,))

    def _spoil_child(self, fault: Fault, pool: Pool) -> Blow:
        known = spoiling.ways()
        way = known[fault.pick % len(known)]
        spoiling.order(self._orders, pool.name, way)
        return Blow(f"the next plain job is to spoil its process: {way}")

    def _freeze_fork_server(self, fault: Fault, pool: Pool) -> Blow:
        """Stop it, and kill a child of its: its pool sees that the child is not collected."""
        servers = [pid for pid in pool.fork_servers() if processes.children_of(pid) and not self._stalls.has(pid)]
        pid = _pick(servers, fault.pick, "no fork server that has children and goes on")
        self._stop(fault, "a fork server", [pid], lambda pid: pid in pool.fork_servers())
        self._stalls.freeze(fault.number, pool, pid)
        children = processes.children_of(pid)[:1]
        for child in children:
            processes.send(child, signal.SIGKILL, lambda child: child in pool.children())
        return Blow(f"{len(children)} child killed, and its fork server stopped for good, pid {pid}", (pid, *children))

    # masters and pools

    def _kill_master(self, fault: Fault, pool: Pool) -> Blow:
        pid = self._order_end(pool, signal.SIGKILL, fault.seconds)
        return Blow(f"the master killed, pid {pid}; another after {fault.seconds:g} s", (pid,))

    def _stop_master(self, fault: Fault, pool: Pool) -> Blow:
        return self._stop(fault, "the master", [pool.pid], pool.is_master)

    def _stop_group(self, fault: Fault, pool: Pool) -> Blow:
        """Stop the master first, so that it forks nothing more; its fork servers may have, until they stand."""
        master = pool.pid
        stopped: list[int] = []
        for _ in range(MAX_STOP_PASSES):
            fresh = [pid for pid in processes.tree_of(master) if pid not in stopped]
            if not fresh:
                break
            stopped += self._stops.stop(fault.number, fresh, lambda pid: pid in processes.tree_of(master))
        if not stopped:
            raise Missed(f"{pool.name} has begun or ended just now")
        return Blow(f"all {len(stopped)} processes stopped for {fault.seconds:g} s", tuple(stopped))

    def _term(self, fault: Fault, pool: Pool) -> Blow:
        self._check_ready(pool)
        pid = self._order_end(pool, signal.SIGTERM, fault.seconds)
        return Blow(f"told to stop, pid {pid}; another {fault.seconds:g} s after its end", (pid,))

    def _hup(self, _: Fault, pool: Pool) -> Blow:
        self._check_ready(pool)
        self._send(pool.pid, signal.SIGHUP, pool.is_master)
        return Blow(f"told to load its app anew, pid {pool.pid}", (pool.pid,))

    def _check_ready(self, pool: Pool) -> None:
        """Miss the fault if the program has just been started: it would die of signals that it does not handle yet."""
        if not pool.is_ready():
            raise Missed(f"{pool.name} is not up yet")

    def _order_end(self, pool: Pool, how: signal.Signals, away: float) -> int:
        pid = pool.order_end(how, away)
        if not pid:
            raise Missed(f"{pool.name} has ended just now")
        return pid

    # logs, networks, clocks, the broker

    def _hold_log(self, fault: Fault, pool: Pool) -> Blow:
        if pool.log is None or self._in_force("log.block", fault.pool):
            raise Missed(f"nobody reads the log of {pool.name} as it is")
        pool.log.hold()
        return Blow(f"nobody reads its log for {fault.seconds:g} s")

    def _deny(self, fault: Fault, _: Pool) -> Blow:
        assert self._access is not None
        return Blow(f"{self._access.begin(fault)}, for {fault.seconds:g} s")

    def _trouble(self, fault: Fault, _: Pool) -> Blow:
        told = put_in_force(self._networks[fault.pool], fault)
        return Blow(f"{told}{f', for {fault.seconds:g} s' if fault.seconds else ''}")

    def _jump(self, fault: Fault, _: Pool) -> Blow:
        self._clocks[fault.pool].shift(fault.amount)
        return Blow(f"the wall clock {fault.amount:+g} s, for {fault.seconds:g} s")

    def _restart_broker(self, _fault: Fault, _pool: Pool) -> Blow:
        if self._restart.is_under_way:
            raise Missed("the broker is still being restarted")
        return Blow(f"the broker is being restarted by {self._restart.command!r}", (self._restart.begin(),))

    # how signals go out

    def _send(self, pid: int, number: signal.Signals, is_it: Callable[[int], bool]) -> None:
        if not processes.send(pid, number, is_it):
            raise Missed(f"process {pid} has ended just now")

    def _stop(self, fault: Fault, what: str, pids: Sequence[int], is_it: Callable[[int], bool]) -> Blow:
        stopped = self._stops.stop(fault.number, pids, is_it)
        if not stopped:
            raise Missed(f"process {pids[0]} has begun or ended just now")
        return Blow(f"{what} stopped for {fault.seconds:g} s, pid {stopped[0]}", tuple(stopped))

    def due(self, now: float | None = None) -> list[str]:
        """Undo expired faults, collect ended programs, start those due again; return a sentence for each.

        Call it every some 0.1 s. Blocks for milliseconds. Raises OSError: no process can be started any more.
        """
        moment = time.monotonic() if now is None else now
        over = [fault for due, fault, _ in self._pending.values() if due <= moment]
        told = [self._undo(fault) for fault in over]
        told += self._look_at_broker()
        told += [self._say("over", said) for said in self._stalls.look(self._fleet.pools)]
        told += [self._say("ended", end.why, end.pid, expected=end.expected) for end in self._fleet.collect()]
        return told + [self._say("started", said) for said in self._fleet.revive(moment)]

    def heal(self, limit: float = HEAL_LIMIT_S) -> list[str]:
        """Undo everything, and wait until all pools are up again. Safe at any time, and twice.

        `limit`: seconds to wait for pools, for what they must replace, and for the broker. Returns a sentence for each
        thing that was undone, and for each pool that is not up after the limit.
        """
        give_up = time.monotonic() + limit
        told = [self._undo(fault) for _, fault, _ in list(self._pending.values())]
        self._fleet.hurry()
        while self._is_ailing() and time.monotonic() < give_up:
            told += self.due()
            time.sleep(HEAL_PAUSE_S)
        told += [self._say("over", said) for said in self._stalls.look(self._fleet.pools, give_up=True)]
        self._stops.go_all()
        if self._restart.is_under_way:
            self.problems.append(f"{self._restart.command!r} has not ended after {limit:g} s")
        return told + [f"{name} is not up" for name in self._fleet.wait_ready(max(0.0, give_up - time.monotonic()))]

    def _is_ailing(self) -> bool:
        """Return whether a fault is still to be undone."""
        is_whole = self._access is None or self._access.is_whole
        some_down = any(pool.start_at is not None or (pool.pid and pool.awaited) for pool in self._fleet.pools)
        return self._restart.is_under_way or some_down or self._stalls.are_frozen or not is_whole

    def _in_force(self, kind: str, pool: int) -> list[Fault]:
        return [fault for _, fault, _ in self._pending.values() if fault.kind.startswith(kind) and fault.pool == pool]

    def _holds_up(self, pool: Pool) -> bool:
        """Return whether a pool cannot see to anything now, for faults that are in force."""
        held = self._in_force("master.stop", pool.number) or self._in_force("group.stop", pool.number)
        return bool(held) or not pool.pid or not pool.was_ready

    def _undo(self, fault: Fault) -> str:
        *_, window = self._pending.pop(fault.number)
        try:
            said = self._undone(fault)
        except NetworkFailed as error:
            self.problems.append(f"{self._fleet.pools[fault.pool].name}: {error}")
            said = str(error)
        window.ended = time.monotonic()
        return self._note("over", fault, f"over: {said}")

    def _undone(self, fault: Fault) -> str:
        if fault.kind.startswith("net."):
            self._networks[fault.pool].restore()
            for other in self._in_force("net.", fault.pool):
                put_in_force(self._networks[fault.pool], other)
            return "the network is as before"
        if fault.kind == "clock.jump":
            amount = next((other.amount for other in reversed(self._in_force("clock.jump", fault.pool))), 0.0)
            self._clocks[fault.pool].shift(amount)
            return f"the wall clock {amount:+g} s"
        if fault.kind == "log.block":
            pool = self._fleet.pools[fault.pool]
            self._stalls.judge_log(pool, fault.seconds)
            if pool.log:
                pool.log.go_on()
            return "the log is read"
        if fault.kind == "child.spoil":
            is_left = spoiling.take(self._orders, self._fleet.pools[fault.pool].name)
            return "no job has taken the order" if is_left else "a job has taken the order"
        if fault.kind == "access.deny" and self._access:
            return self._access.end(fault.number)
        gone_on = self._stops.go(fault.number)
        return f"{len(gone_on)} processes go on" if gone_on else "what was stopped is gone, or held by another fault"

    def _look_at_broker(self) -> Iterable[str]:
        if self._access:
            self._access.mend()
        status = self._restart.look()
        if status is None:
            return []
        restart = next(window for window in reversed(self.windows) if window.kind == "broker.restart")
        restart.ended = time.monotonic()
        if self._access:
            self._access.forget()
        if status:
            self.problems.append(f"{self._restart.command!r} has ended with status {status}")
        return [self._say("restarted", f"the broker was restarted, with status {status}")]

    def close(self) -> None:
        """Let everything go that is stopped, and wait for a command that restarts the broker; safe to call twice.

        Blocks for as long as that command runs, for `broker_faults.STOP_COMMAND_LIMIT_S` at most and a little more.
        """
        self._stops.go_all()
        self._restart.close()

    def _excuse(self, pool: Pool) -> str:
        """Return why a pool that has fetched nothing yet may have ended. A refusal ends one until its first answer."""
        # A broker that was started again refuses the run's own user until `Access.mend` has made it anew.
        kinds = [one.kind for one in self.windows if one.covers(pool.name, pool.begun, time.monotonic(), 0.0)]
        if (self._access or not pool.was_ready) and (self._restart.is_under_way or "broker.restart" in kinds):
            return "the broker was being restarted"
        if not pool.was_ready and self._networks and any(kind.startswith("net.") for kind in kinds):
            return "its network was bad"
        if self._access and self._access.was_denied_since(pool.begun):
            return "its user was locked out"
        return ""

    def _note(self, event: str, fault: Fault, said: str, pids: Sequence[int] = ()) -> str:
        self._say(event, said, *pids, number=fault.number, kind=fault.kind, pool=fault.pool)
        return f"{self._fleet.pools[fault.pool].name}: {fault.kind}: {said}"

    def _say(self, event: str, said: str, *pids: int, **about: str | int) -> str:
        """Write one line in one write, so that an interrupt leaves no half of it."""
        when = {"event": event, "at": time.monotonic(), "wall": time.time()}
        line = json.dumps({**when, "said": said, "pids": pids, **about}) + "\n"
        ledger.write(self._record, line.encode())
        return said


MEANS: dict[str, Callable[[Nemesis, Fault, Pool], Blow]] = {
    "child.kill": Nemesis._strike_child,
    "child.stop": Nemesis._strike_child,
    "child.spoil": Nemesis._spoil_child,
    "forkserver.kill": Nemesis._strike_fork_server,
    "forkserver.stop": Nemesis._strike_fork_server,
    "forkserver.freeze": Nemesis._freeze_fork_server,
    "master.kill": Nemesis._kill_master,
    "master.stop": Nemesis._stop_master,
    "group.stop": Nemesis._stop_group,
    "pool.term": Nemesis._term,
    "pool.hup": Nemesis._hup,
    "log.block": Nemesis._hold_log,
    "access.deny": Nemesis._deny,
    "broker.restart": Nemesis._restart_broker,
    "clock.jump": Nemesis._jump,
    **dict.fromkeys(("net.cut", "net.hole", "net.refuse", "net.delay", "net.drop"), Nemesis._trouble),
}
"""How each kind is struck."""

_BESIDE_POOLS = ("net.", "clock.", "broker.", "access.")  # kinds that strike even if the pool does not run
_ON_THE_BROKER = ("broker.", "access.")  # kinds that strike all pools
_OVER_AT_ONCE = (".kill", ".freeze", ".term", ".hup", ".cut", ".restart")
"""Kinds whose `seconds` are not theirs to undo: the pool, or the fleet, starts another."""


def _pick(found: Sequence[int], pick: int, nothing: str) -> int:
    if not found:
        raise Missed(f"there is {nothing}")
    return found[pick % len(found)]
