"""The peers' own virtual environment, beside the one that runs this: `.venv-peers` for `.venv`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jobpool
from bench.programs import ROOT

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
VERSIONS = "Versions: "


def directory() -> Path:
    """Return where it is, or will be. Another Python gets another one."""
    suffix = Path(sys.prefix).name.removeprefix(".venv")
    return ROOT / f".venv-peers{suffix if Path(sys.prefix).parent == ROOT else ''}"


def exists() -> bool:
    """Return whether it is complete and current."""
    stamp = directory() / ".installed"
    return stamp.exists() and stamp.read_text() == _wanted()


def ensure() -> None:
    """Make it if need be: some 15 seconds, from PyPI. Raises `CalledProcessError` when pip fails."""
    if exists():
        return
    print(f"bench: installing the peers into {directory().name} …", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory())], check=True)
    pip = [program("python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
    (directory() / ".installed").write_text(_wanted())


def program(name: str) -> str:
    """Return the path of one of its programs."""
    return str(directory() / "bin" / name)


def versions(peers: Sequence[str] = ()) -> str:
    """Return the note about the versions of jobpool and of these peers, named as in `requirements.txt`."""
    pinned = dict(re.findall(r"^(\w+)\S*==(\S+)", REQUIREMENTS.read_text(), re.MULTILINE))
    return ", ".join([f"{VERSIONS}jobpool {jobpool.__version__}", *(f"{name} {pinned[name]}" for name in peers)])


def _wanted() -> str:
    return f"{sys.version}\n{REQUIREMENTS.read_text()}"
