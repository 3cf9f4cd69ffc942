"""Files of this process's control groups, which hold the limits of its container or service."""

from __future__ import annotations

from pathlib import Path


def group_files(controller: str, v2: str, v1: str = "", root: Path = Path("/")) -> list[Path]:
    """Return where the file `controller.v2` may be: in this process's own group first, then in those above it.

    Inside a container the path may be the host's, while its own group is what is mounted: the last one.

    Args:
        controller: Such as `memory`.
        v2: The rest of the file's name in version 2.
        v1: The same in version 1; "" = there is none.
        root: Of the system's files.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files: list[Path] = []
    for line in lines:  # `0::/system.slice/jobpool.service` or `9:cpu,memory:/docker/0123`
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mount, name = root / "sys/fs/cgroup", v2
        if controller in controllers.split(","):
            mount, name = mount / controller, v1
        elif controllers or number != "0":
            continue
        own = mount / path.lstrip("/")
        files += [
            place / f"{controller}.{name}" for place in (own, *own.parents) if name and place.is_relative_to(mount)
        ]
    return files
