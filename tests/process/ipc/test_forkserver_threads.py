"""Native threads that an import leaves running, with the real OpenMP of GNU, which alone survives no fork."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from support.nurse import Nurse

from jobpool.ipc.frames import Loaded
from jobpool.ipc.native_threads import judge, libraries_in

LIBRARY = "libgomp.so.1"


def _as_before_gcc_9(directory: Path) -> str:
    """Return a copy of it that cannot be told to end its threads."""
    ctypes.CDLL(LIBRARY)
    path = next(Path(path) for path in libraries_in(Path("/proc/self/maps").read_text()) if LIBRARY in path)
    old = directory / "libgomp-old.so.1"
    old.write_bytes(path.read_bytes().replace(b"omp_pause_resource_all", b"omp_nobody_knows_of_it"))
    return str(old)


def test_openmp_that_was_used_at_the_import_works_in_children_that_share_the_app() -> None:
    with Nurse(app="computes_in_parallel", environ=os.environ | {"OPENMP": LIBRARY}) as nurse:
        loaded = nurse.hear(Loaded)
        assert (loaded.preloaded, loaded.threads, loaded.native) == (True, [], 0)
        child = nurse.bear()
        assert [child.ask("compute_in_parallel") for _ in range(2)] == [4, 4]
        assert nurse.bear(1).ask("compute_in_parallel") == 4


def test_an_openmp_that_cannot_end_its_threads_is_not_forked(tmp_path: Path) -> None:
    with Nurse(app="computes_in_parallel", environ=os.environ | {"OPENMP": _as_before_gcc_9(tmp_path)}) as nurse:
        loaded = nurse.hear(Loaded)
        assert (loaded.preloaded, loaded.threads) == (False, ["native threads of OpenMP (libgomp)"])
        assert nurse.bear().ask("compute_in_parallel") == 4


@pytest.mark.parametrize("preload", [True, False])
def test_threads_of_an_unknown_library_are_counted_unless_each_child_imports_the_app(preload: bool) -> None:
    with Nurse(app="starts_native_threads", preload=preload) as nurse:
        loaded = nurse.hear(Loaded)
        assert (loaded.preloaded, loaded.threads, loaded.native) == (preload, [], 2 * preload)
        assert nurse.bear().ask("report")["preload"] is preload


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("site-packages/grpc/_cython/cygrpc.cpython-311-x86_64-linux-gnu.so", "gRPC"),
        ("_polars_runtime.abi3.so", "Polars"),
    ],
)
def test_threads_of_a_library_that_breaks_in_a_fork_are_named(path: str, name: str) -> None:
    found = set(libraries_in(f"7f0-7f1 r-xp 0 fe:00 7 /lib/{path}\n").values())
    assert judge(6, found, paused=True) == (f"native threads of {name}", 0)
    assert judge(0, found, paused=True) == ("", 0), "it is imported, and not used yet"
