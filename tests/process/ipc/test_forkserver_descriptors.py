"""A master without a free descriptor, at the moment when a child's pidfd comes to it."""

from __future__ import annotations

import os
import select

from nurse import LIMIT, SUPPORT, wait_until
from support.descriptors import no_more_descriptors

from jobpool.ipc.process_options import ChildOptions, ForkServerConfig
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.master import events as ev
from jobpool.master.crew import Crew
from jobpool.master.slots import Slot


def heard(crew: Crew, kind: type[ev.Event]) -> list[ev.Event]:
    """What the crew hears, up to the first of this kind."""
    events: list[ev.Event] = []
    wait_until(lambda: events.extend(crew.poll(0.05)) or any(isinstance(event, kind) for event in events))
    return events


def test_the_child_is_refused_and_its_fork_server_goes_on() -> None:
    config = ForkServerConfig(ChildOptions(sys_path=[SUPPORT]), "childmains:obey", "childmains:plain", "test")
    with Scoreboard.create(None, 2) as board:
        crew = Crew(config, board, os.environ)
        try:
            crew.start_server(1)
            heard(crew, ev.AppLoaded)
            [server] = crew._servers.values()
            crew.spawn(Slot(0, child=1, generation=1))
            select.select([server.fileno()], [], [], LIMIT)
            with no_more_descriptors():
                events = crew.poll(0.0)
            assert ev.SpawnRefused in map(type, events)
            crew.spawn(Slot(0, child=2, generation=1))
            assert not [event for event in heard(crew, ev.ChildReady) if isinstance(event, ev.ForkServerGone)]
            assert (server.closed, server.broken) == (False, "")
        finally:
            crew.close()
