"""What native threads that outlive a fork's preparations mean, by the libraries in memory."""

from __future__ import annotations

import pytest

from jobpool.ipc import native_threads
from jobpool.ipc.native_threads import judge, libraries_in

OPENMP, POLARS = "native threads of OpenMP (libgomp)", "native threads of Polars"


def test_threads_are_judged_by_the_libraries_that_may_own_them() -> None:
    rows: list[tuple[int, set[str], bool, tuple[str, int]]] = [
        (0, set(), True, ("", 0)),
        (0, {"gomp", "polars"}, False, ("", 0)),
        (3, set(), True, ("", 3)),
        (3, {"gomp"}, True, ("", 3)),  # its threads have ended: these are others
        (3, {"gomp"}, False, (OPENMP, 0)),
        (3, {"polars"}, True, (POLARS, 0)),
        (0, {"gomp", "omppool"}, True, ("native threads of Numba (OpenMP)", 0)),
        (3, {"polars", "arrow"}, True, (POLARS, 0)),
        (3, {"polars", "gomp"}, False, ("native threads of OpenMP (libgomp) and Polars", 0)),
        (3, {"arrow"}, True, ("", 0)),
        (3, {"iomp5", "gomp"}, True, ("", 0)),
        (3, {"omp"}, True, ("", 0)),
    ]
    for left, libraries, paused, expected in rows:
        assert judge(left, libraries, paused) == expected, (left, libraries, paused)


def test_libraries_are_known_by_the_names_of_their_files() -> None:
    rows = {
        "/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0": "gomp",
        "/venv of mine/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0": "gomp",
        "/venv/_polars_runtime_32/_polars_runtime.abi3.so": "polars",
        "/venv/lib/libiomp5.so": "iomp5",
        "/venv/torch/lib/libomp-54bd.so": "omp",
        "/venv/numba/np/ufunc/omppool.cpython-311-x86_64-linux-gnu.so": "omppool",
        "/venv/pyarrow/libarrow.so.2100": "arrow",
        "/venv/numpy.libs/libscipy_openblas64_-32a4b2a6.so": "",
        "/venv/computing.so": "",
    }
    for path, expected in rows.items():
        line = f"7f00-7f01 r-xp 00000000 fe:00 1234    {path}\n"
        assert libraries_in(line + line) == ({path: expected} if expected else {}), path


def test_numba_is_found_where_one_processor_left_its_openmp_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_threads, "_count", lambda: 0)
    assert native_threads.settle() == ("", 0)
    monkeypatch.setattr(native_threads, "libraries_in", lambda _: {"/a/omppool.so": "omppool", "/a/libgomp.so": "gomp"})
    assert native_threads.settle() == ("native threads of Numba (OpenMP)", 0)
