"""The kernel's kills for want of memory, which it counts for each control group.

A process that dies of SIGKILL cannot say who sent it. The count of its group (cgroup v2: `memory.events`, v1:
`memory.oom_control`), read before and after, can. All that runs in the container or service shares a group. So a rise
is believed for a second only, and once for each kill that it counts.
"""

from __future__ import annotations

import re
from pathlib import Path

BELIEVED_S = 1.0  # seconds after a rise was seen for which a death by SIGKILL is put down to it


class OomKills:
    """The count of this process's own control group, in which its children are too. `file`: see `find`."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._last = count_in(file)
        self._spare = 0
        self._seen_at = 0.0

    def look(self, now: float) -> None:
        """Take in a rise. Called now and then, so that an old one is not put down to a later death."""
        last, self._last = self._last, count_in(self._file)
        if last is not None and self._last is not None and self._last > last:
            self._spare = self._last - last
            self._seen_at = now

    def killed_one(self, now: float) -> bool | None:
        """Return whether the SIGKILL of a death just collected was the kernel's; None = the count cannot be read."""
        self.look(now)
        if self._last is None:
            return None
        if self._spare <= 0 or now - self._seen_at > BELIEVED_S:
            return False
        self._spare -= 1
        return True


def count_in(file: Path | None) -> int | None:
    """Return the number after `oom_kill` in such a file; None if there is none (before Linux 4.13)."""
    try:
        found = re.search(r"^oom_kill +([0-9]+)$", file.read_text(), re.MULTILINE) if file else None
    except OSError:
        return None
    return int(found[1]) if found else None


def find(membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """Return the file with the count of this process's group; None if there is none, as in the root of all groups."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    return next((file for line in lines for file in _files_of(line, mount) if count_in(file) is not None), None)


def _files_of(line: str, mount: Path) -> list[Path]:
    """Parse `0::/system.slice/jobpool.service` or `9:memory:/docker/0123`: the group's own file, else the container's.

    Inside a container the path may be the host's, while its own group is what is mounted.
    """
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    below = path.lstrip("/")
    if number == "0" and not controllers:
        return [mount / below / "memory.events", mount / "memory.events"]
    if "memory" not in controllers.split(","):
        return []
    return [mount / "memory" / below / "memory.oom_control", mount / "memory" / "memory.oom_control"]
