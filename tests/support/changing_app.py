"""Copies of the tests' app that change while pools run, as a deployment changes them."""

from __future__ import annotations

from pathlib import Path

from support.poolrig import APP, Rig
from support.waiting import wait_until

BROKEN = "import jobpool\nraise RuntimeError('half a deploy')\n"


def an_app(rig: Rig, version: str = "old", extra: str = "", name: str = "the_app") -> Path:
    """The file, written anew."""
    path = rig.directory / f"{name}.py"
    path.write_text(APP.read_text() + f"\nVERSION = {version!r}\n{extra}\n")
    return path


def version_seen(rig: Rig) -> str:
    """What the code that runs a job now says of itself, whichever pool that is."""
    ident = rig.enqueue("tell_version")
    wait_until(lambda: rig.ends(ident))
    return rig.ends(ident)[0].tag
