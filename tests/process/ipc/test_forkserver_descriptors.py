"""A master without a free descriptor, at the moment when a child's pidfd comes to it."""

from __future__ import annotations

import os
import select

from support.descriptors import no_more_descriptors
from support.nurse import LIMIT, SUPPORT
from support.waiting import wait_until

from jobpool.ipc.frames import Frame, Loaded, Ready, SpawnFailed
from jobpool.ipc.process_options import ChildOptions, ForkServerConfig
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master import events as ev
from jobpool.master.child_processes import ChildProcesses
from jobpool.master.slots import Slot


def frames_in(events: list[ev.Event]) -> list[type[Frame]]:
    return [type(event.frame) for event in events if isinstance(event, ev.FrameCame)]


def heard(children: ChildProcesses, kind: type[Frame]) -> list[ev.Event]:
    """What the children hears, up to the first frame of this kind."""
    events: list[ev.Event] = []
    wait_until(lambda: events.extend(children.poll(0.05)) or kind in frames_in(events))
    return events


def test_the_child_is_refused_and_its_fork_server_goes_on() -> None:
    config = ForkServerConfig(ChildOptions(sys_path=[SUPPORT]), "childmains:obey", "childmains:plain", "test")
    with Scoreboard.create(None, 2) as board:
        children = ChildProcesses(config, board, os.environ)
        try:
            children.start_server(1)
            heard(children, Loaded)
            [server] = children._servers.values()
            children.spawn(Slot(0, child=1, generation=1))
            select.select([server.fileno()], [], [], LIMIT)
            with no_more_descriptors():
                events = children.poll(0.0)
            assert SpawnFailed in frames_in(events)
            children.spawn(Slot(0, child=2, generation=1))
            assert not [event for event in heard(children, Ready) if isinstance(event, ev.ForkServerGone)]
            assert not server.closed
        finally:
            children.close()
