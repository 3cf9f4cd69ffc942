"""A program that owns a fork server with children and grandchildren, prints their pids, and obeys one word on stdin.

`python owner.py COUNT`; words: "kill-server" (then it sweeps as a sub-reaper does, and prints how many it collected).
"""

from __future__ import annotations

import json
import sys

from nurse import LIMIT, Nurse

from jobpool.mechanism import linux


def main(count: int) -> None:
    linux.become_subreaper()
    with Nurse(slots=count) as nurse:
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
        if sys.stdin.readline().strip() == "kill-server":
            nurse.server.kill()
            nurse.server.wait(LIMIT)
            print(linux.sweep_strays((), LIMIT), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
