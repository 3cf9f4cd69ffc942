"""What there is to report on: the packages and top-level modules of this interpreter's standard library.

A subject is named as Python names it (`argparse`, `email.mime`). Test suites are left out, because some systems ship
them apart from the rest, and the demo should look the same everywhere.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})


def library() -> Path:
    """The folder that holds the standard library."""
    return Path(sysconfig.get_path("stdlib"))


def subjects(root: Path | None = None) -> list[str]:
    """Every package, at any depth, and every top-level module, sorted by name."""
    root = root or library()
    modules = (path.stem for path in root.glob("*.py"))
    return sorted({*modules, *_packages(root, "")})


def files_of(subject: str, root: Path | None = None) -> list[Path]:
    """The source files of one subject: the module itself, or what lies directly in the package.

    Raises:
        FileNotFoundError: There is no such module or package.
    """
    place = (root or library()).joinpath(*subject.split("."))
    if place.is_dir():
        return sorted(place.glob("*.py"))
    module = place.with_suffix(".py")
    if not module.is_file():
        raise FileNotFoundError(f"no module or package {subject!r} in {root or library()}")
    return [module]


def _packages(folder: Path, prefix: str) -> Iterator[str]:
    for inner in folder.iterdir():
        if inner.name not in LEFT_OUT and (inner / "__init__.py").is_file():
            yield prefix + inner.name
            yield from _packages(inner, f"{prefix}{inner.name}.")
