"""The kernel's count of out-of-memory kills: where it is, and which death is put down to a rise of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpool.ipc.linux import BELIEVED_S, OomKills, find_oom_kills, oom_kills_in

V2 = "low 0\nhigh 3\nmax 9\noom 2\noom_kill {}\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


@pytest.fixture
def events(tmp_path: Path) -> Path:
    file = tmp_path / "memory.events"
    file.write_text(V2.format(4))
    return file


def test_a_kill_after_a_rise_is_the_kernels_once_for_each(events: Path) -> None:
    kills = OomKills(events)
    assert kills.killed_one(1.0) is False
    events.write_text(V2.format(6))
    assert [kills.killed_one(2.0) for _ in range(3)] == [True, True, False]


def test_an_old_rise_is_not_put_down_to_a_later_death(events: Path) -> None:
    kills = OomKills(events)
    events.write_text(V2.format(5))
    kills.look(1.0)
    assert kills.killed_one(1.0 + BELIEVED_S + 0.1) is False


@pytest.mark.parametrize("text", ["", "oom_kill_disable 0\n", "oom_kill many\n"])
def test_without_a_count_nothing_is_known(events: Path, text: str) -> None:
    events.write_text(text)
    assert OomKills(events).killed_one(0.0) is None
    assert OomKills(None).killed_one(0.0) is None
    events.unlink()
    assert OomKills(events).killed_one(0.0) is None


def test_the_count_of_either_version(events: Path) -> None:
    counts = []
    for text in V2.format(17), V1.format(3):
        events.write_text(text)
        counts.append(oom_kills_in(events))
    assert counts == [17, 3]


@pytest.mark.parametrize(
    ("membership", "file", "text"),
    [
        pytest.param("0::/system.slice/jobpool.service\n", "system.slice/jobpool.service/memory.events", V2, id="v2"),
        pytest.param("0::/\n", "memory.events", V2, id="v2 in a container"),
        pytest.param("0::/../host/path\n", "memory.events", V2, id="v2, the host's path in a container"),
        pytest.param(
            "4:memory:/docker/01\n3:cpu,cpuacct:/\n0::/\n", "memory/docker/01/memory.oom_control", V1, id="v1"
        ),
        pytest.param(
            "4:cpu,memory:/docker/01\n", "memory/memory.oom_control", V1, id="v1, the host's path in a container"
        ),
    ],
)
def test_the_file_of_the_own_group_is_found(tmp_path: Path, membership: str, file: str, text: str) -> None:
    mount = tmp_path / "sys/fs/cgroup"
    (mount / file).parent.mkdir(parents=True)
    (mount / file).write_text(text.format(0))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(membership)
    assert find_oom_kills(tmp_path) == mount / file


@pytest.mark.parametrize("membership", ["0::/\n", "4:pids:/\n", "", "rubbish\n"])
def test_where_there_is_none_there_is_none(tmp_path: Path, membership: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(membership)
    assert find_oom_kills(tmp_path) is None
    assert find_oom_kills(tmp_path / "gone") is None
