"""A pool as the page on deployment has it: under systemd, as process 1 of a container, under a manifest's probes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.outages import complaints
from support.poolrig import LIMIT, Rig
from support.waiting import wait_until

from jobpool.broker import control

MANIFEST = Path(__file__).resolve().parents[2] / "docs" / "deploy" / "kubernetes" / "pool.yaml"
CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Its own processes and nobody else's, the first of which is the pool."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


@pytest.fixture(scope="session")
def _container() -> None:
    tried = subprocess.run([*CONTAINER, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"this machine allows no namespaces: {tried.stderr.decode().strip()}")


def test_systemd_hears_of_a_start_a_reload_and_a_stop(rig: Rig, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(LIMIT)

        def hear(line: str) -> list[str]:
            heard: list[str] = []
            while not any(line in one for one in heard):
                heard += systemd.recv(4096).decode().splitlines()
            return heard

        pool = rig.start_pool(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="80000")
        assert "WATCHDOG=1" in hear("READY=1")
        assert pool.ready() > 0
        hear("WATCHDOG=1")
        for pid in (*pool.fork_servers(), *pool.children()):
            assert "NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_text(), "it is the master's alone"

        pool.send(signal.SIGHUP)
        assert any(line.startswith("MONOTONIC_USEC=") for line in [*hear("RELOADING=1"), *hear("READY=1")])
        [record] = wait_until(lambda: control.pools(rig.backend))
        control.drain(rig.backend, record.id)
        assert "STOPPING=1" not in hear(", draining"), "systemd would kill the pool after TimeoutStopSec"
        assert pool.stop() == 0
        hear("STOPPING=1")


@pytest.mark.usefixtures("_container")
def test_process_1_of_a_container_does_all_that_a_pool_does(rig: Rig) -> None:
    rig.enqueue_many("work", [{"tag": str(number)} for number in range(20)])
    crashed = rig.enqueue("die", {"how": "SIGSEGV", "times": 1})
    hung = rig.enqueue("hang", {"how": "swallow_everything"}, timeout=0.5)
    left = rig.enqueue("leave_process", {"how": "double fork"})
    pool = rig.run_pool("--until-empty", through=CONTAINER)

    assert pool.process.returncode == 0, pool.log_path.read_text()
    assert rig.inspect(hung).reason == "timeout"
    assert {crashed, left} <= {line.id for line in rig.ends()}
    assert rig.stats().pending == 0


@pytest.mark.usefixtures("_container")
def test_process_1_of_a_container_releases_what_runs_when_it_is_told_to_stop(rig: Rig) -> None:
    ident = rig.enqueue("work", {"seconds": 600})
    pool = rig.start_pool("--stop-grace", "0.2", through=CONTAINER)
    rig.wait_started(ident)
    os.kill(process_1(pool.pid), signal.SIGTERM)

    assert pool.wait() == 0
    assert rig.inspect(ident).state.value == "waiting"
    assert rig.inspect(ident).crashes == 0
    rig.assert_no_processes_left()


@pytest.mark.usefixtures("_container")
def test_process_1_of_a_container_collects_what_a_probe_leaves_behind(rig: Rig) -> None:
    pool = rig.start_pool(through=CONTAINER)
    wait_until(lambda: pool.log("app loaded"))
    master = process_1(pool.pid)
    [server] = children(master)
    enter = ["nsenter", "--user", "--pid", "--mount", "--target", str(master)]
    subprocess.run([*enter, "sh", "-c", "sleep 600 & sleep 600 &"], check=True)
    one, other = {*children(master)} - {server}
    os.kill(one, signal.SIGKILL)
    os.kill(other, signal.SIGKILL)
    wait_until(lambda: children(master) == [server])


@pytest.mark.usefixtures("_container")
def test_process_1_of_a_container_can_be_stopped_before_it_has_begun(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0?timeout=60"
        pool = rig.start_pool(url=url, through=CONTAINER)
        wait_until(lambda: pool.log("pool starts"))
        os.kill(process_1(pool.pid), signal.SIGTERM)
        assert pool.wait(20.0) == 0, "the 60 s are not waited for"
        assert list(rig.runtime.glob("*.json")) == []


def children(pid: int) -> list[int]:
    return [int(one) for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]


def process_1(unshare: int) -> int:
    """The master, by the pid that it has out here."""
    [pid] = children(unshare)
    return pid


def test_the_probes_of_the_manifest_tell_a_hanging_master_from_a_healthy_one(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    assert probe(rig, "readinessProbe") == 0
    assert probe(rig, "livenessProbe") == 0

    pool.send(signal.SIGSTOP)
    wait_until(lambda: "loop" in complaints(pool), LIMIT)
    assert probe(rig, "livenessProbe") != 0
    pool.send(signal.SIGCONT)
    wait_until(lambda: "loop" not in complaints(pool), LIMIT)
    assert probe(rig, "livenessProbe") == 0


def probe(rig: Rig, name: str) -> int:
    """The exit status of what the manifest runs."""
    programs = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "JOBPOOL_RUNTIME_DIR": str(rig.runtime),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(command_of(name), env=environment, capture_output=True, timeout=LIMIT, check=False)
    return done.returncode


def command_of(probe: str) -> list[str]:
    """The words of a probe's command, from the manifest: a list of plain words and of texts in quotes."""
    text = MANIFEST.read_text("utf-8").partition(f"{probe}:")[2]
    found = re.search(r"command: \[((?:[^\]\"]|\"(?:[^\"\\]|\\.)*\")*)\]", text)
    assert found
    words = re.findall(r'"(?:[^"\\]|\\.)*"|[^\s,]+', found[1])
    return [json.loads(word) if word.startswith('"') else word for word in words]
