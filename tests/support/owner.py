"""A program that owns a fork server with children and grandchildren, prints their pids, and obeys one word on stdin.

`python -m support.owner COUNT [APP]`; words: "kill-server" (then it sweeps as a sub-reaper does, and prints how many it
collected), "one-more" (then it asks for another child, and prints what the app says).
"""

from __future__ import annotations

import json
import select
import sys

from jobpool.ipc import linux
from support.nurse import LIMIT, Nurse


def main(count: int, app: str = "plain") -> None:
    linux.become_subreaper()
    with Nurse(app, slots=count + 1) as nurse:
        children = [nurse.bear(slot) for slot in range(count)]
        grandchildren = [pid for child in children for pid in child.ask("leave_grandchildren")]
        print(
            json.dumps(
                {
                    "server": nurse.server.pid,
                    "children": [child.pid for child in children],
                    "grandchildren": grandchildren,
                }
            ),
            flush=True,
        )
        word = sys.stdin.readline().strip()
        if word == "one-more":
            nurse.spawn(count)
            while True:  # what the app prints in it
                select.select([nurse.server.output.fd], [], [])
                print(*nurse.server.output.read(), sep="\n", flush=True)
        if word == "kill-server":
            nurse.server.kill()
            nurse.server.wait(LIMIT)
            print(linux.sweep_strays((), LIMIT), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
