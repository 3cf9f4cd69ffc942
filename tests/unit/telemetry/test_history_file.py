"""History in a file: appended to by many, tidied by any, read by anybody."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from io import BytesIO
from pathlib import Path

import pytest
from support.descriptors import open_descriptors
from support.small_disk import small_disk

from jobpool.telemetry.history.places import HistoryFile, newest
from jobpool.telemetry.history.row import encode


def a_line(name: str, number: int, fill: int = 0) -> tuple[str, bytes]:
    return name, encode({"name": name, "id": str(number), "output": "x" * fill})


def ids(path: Path, name: str, limit: int = 1000) -> list[int]:
    return [int(row["id"]) for row in HistoryFile(path, keep=1).read(name, limit)]


def test_the_newest_come_first_and_no_more_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "h.ndjson"
    history = HistoryFile(path, keep=100)
    history.append([a_line("a", number) for number in range(5)])
    history.append([a_line("b", 9)])
    assert ids(path, "a", 3) == [4, 3, 2]
    assert ids(path, "nobody") == []
    assert history.names() == ["a", "b"]


def test_each_line_is_one_json_object_and_the_file_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "h.ndjson"
    HistoryFile(path, keep=100).append([a_line("a\nb\u2028", 1), a_line("a", 2)])
    lines = path.read_bytes().split(b"\n")
    assert [json.loads(line)["id"] for line in lines[:-1]] == ["1", "2"]
    assert lines[-1] == b""
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    HistoryFile(path, keep=100).tidy()
    assert path.stat().st_mode & 0o777 == 0o640, "who may read it is the user's choice"


def test_a_file_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "none", keep=1)
    assert history.read("a", 5) == []
    assert history.names() == []


def test_what_a_crash_has_cut_short_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "h.ndjson"
    history = HistoryFile(path, keep=100)
    history.append([a_line("a", 1)])
    with path.open("ab") as stream:
        stream.write(b'{"name": "a", "id": "2", "outp')
    history.append([a_line("a", 3)])
    assert ids(path, "a") == [3, 1]


def test_tidying_leaves_the_newest_of_each_name_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "h.ndjson"
    history = HistoryFile(path, keep=2)
    history.append([a_line(name, number) for number in range(6) for name in ("a", "b")])
    with path.open("ab") as stream:
        stream.write(b"rubbish\n")
    history.tidy()
    assert [(json.loads(line)["name"], json.loads(line)["id"]) for line in path.read_bytes().splitlines()] == [
        *(("a", "4"), ("b", "4"), ("a", "5"), ("b", "5")),
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_tidying_neither_follows_a_link_nor_stumbles_over_what_a_killed_process_left(tmp_path: Path) -> None:
    path, other = tmp_path / "h.ndjson", tmp_path / "other"
    other.write_text("mine")
    history = HistoryFile(path, keep=2)
    history.append([a_line("a", 1)])
    path.with_name(f"{path.name}.new").symlink_to(other)
    history.tidy()
    assert (other.read_text(), path.is_symlink(), ids(path, "a")) == ("mine", False, [1])


def test_what_a_process_leaves_that_is_killed_while_it_tidies_goes_with_the_next_tidying(tmp_path: Path) -> None:
    path = tmp_path / "h.ndjson"
    history = HistoryFile(path, keep=2)
    history.append([a_line("a", 1)])
    killed = "import os, signal\nos.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n" + WRITER
    subprocess.run([sys.executable, "-c", killed, "1", str(path), "2"], check=False, timeout=60)
    assert len(list(tmp_path.iterdir())) == 2
    history.tidy()
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_tidied_when_it_has_doubled(tmp_path: Path) -> None:
    path = tmp_path / "h.ndjson"
    history = HistoryFile(path, keep=10, tidy_from=10_000)
    sizes = []
    for number in range(400):
        history.append([a_line("a", number, fill=500)])
        sizes.append(path.stat().st_size)
    assert max(sizes) < 30_000
    assert ids(path, "a")[:10] == list(range(399, 389, -1))


def test_names_without_end_do_not_fill_the_disk() -> None:
    lines = [a_line(f"job-{number}", number, fill=100)[1] + b"\n" for number in range(100)]
    kept = list(newest(BytesIO(b"".join(lines)), keep=100, largest=1000))
    assert sum(map(len, kept)) <= 1000
    assert kept == lines[-len(kept) :]
    assert kept


def test_a_disk_that_takes_no_more_is_an_error() -> None:
    with pytest.raises(OSError, match="no space left at /dev/full: free some"):
        HistoryFile(Path("/dev/full"), keep=10).append([a_line("a", 1)])


def test_what_a_full_disk_refused_and_is_tried_again_is_there_once(tmp_path: Path) -> None:
    with contextlib.ExitStack() as mounted:
        try:
            disk = mounted.enter_context(small_disk(tmp_path / "disk", 1))
        except OSError as error:
            pytest.skip(f"no small disk can be mounted here: {error}")
        history = HistoryFile(disk.path / "h", keep=10_000)
        history.append([a_line("a", 0)])
        disk.fill()
        some = [a_line("a", number, fill=200) for number in range(1, 101)]
        for _ in range(3):
            with pytest.raises(OSError, match=f"no space left at {history.path}: free some"):
                history.append(some)
        assert history.path.read_bytes().splitlines() == [a_line("a", 0)[1]]
        disk.free()
        history.append(some)
        assert ids(history.path, "a") == list(range(100, -1, -1))


def test_a_tidy_that_fails_costs_no_row_and_is_tried_again_when_the_file_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    history = HistoryFile(tmp_path / "h", keep=1, tidy_from=1000)
    tried: list[object] = []

    def refuse(*paths: object) -> None:
        tried.append(paths)
        raise PermissionError("the directory takes no new file")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        for number in range(12):
            history.append([a_line("a", number, fill=200)])
    assert ids(history.path, "a") == list(range(11, -1, -1))
    assert 1 <= len(tried) <= 3, "it reads the whole file: not with each visit"
    assert "the directory takes no new file" in str(caplog.records[0].__dict__["error"])
    for number in range(12, 20):
        history.append([a_line("a", number, fill=200)])
    assert ids(history.path, "a")[0] == 19
    assert len(ids(history.path, "a")) < 8


def test_tidying_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "h"
    path.write_bytes(b"".join(a_line(f"n{number}", number, fill=20_000)[1] + b"\n" for number in range(1000)))
    tracemalloc.start()
    HistoryFile(path, keep=10).tidy()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 20_000_000
    assert peak < 2_000_000


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = open_descriptors()
    history = HistoryFile(tmp_path / "h", keep=1, tidy_from=1)
    for number in range(20):
        history.append([a_line("a", number)])
    assert open_descriptors() <= before


WRITER = """
import sys
from pathlib import Path
from jobpool.telemetry.history.places import HistoryFile
from jobpool.telemetry.history.row import encode
me, path = int(sys.argv[1]), Path(sys.argv[2])
history = HistoryFile(path, keep=int(sys.argv[3]), tidy_from=5_000)
for number in range(200):
    name = f"job-{me}"
    history.append([(name, encode({"name": name, "id": str(number), "output": "x" * 100}))])
"""


def test_processes_that_append_and_tidy_at_once_lose_and_mix_nothing(tmp_path: Path) -> None:
    path = tmp_path / "h.ndjson"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(me), str(path), "200"], stderr=subprocess.PIPE)
        for me in range(4)
    ]
    for writer in writers:
        _, error = writer.communicate(timeout=60)
        assert writer.returncode == 0, error.decode()
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert Counter(line["name"] for line in lines) == {f"job-{me}": 200 for me in range(4)}
    assert all(ids(path, f"job-{me}") == list(range(199, -1, -1)) for me in range(4))
