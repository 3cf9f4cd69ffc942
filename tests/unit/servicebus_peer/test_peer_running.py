"""The ways to run the peer: a thread, a process, the command line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest
from servicebus_peer import PeerProcess, PeerThread, codes
from servicebus_peer.process import TESTS
from support.amqp_client import AmqpClient, Refused, message
from support.waiting import wait_until


def deliver(peer: PeerThread | PeerProcess, queue: str) -> None:
    with AmqpClient(peer.port) as client:
        assert client.sent(client.attach(queue, codes.SENDER), message()).descriptor == codes.ACCEPTED


def test_a_thread_starts_stops_and_starts_on_its_port() -> None:
    before = set(threading.enumerate())
    with PeerThread(auth=False, standing_clock=1e9) as peer:
        port = peer.port
        assert peer.url == f"sb://127.0.0.1:{port}"
        assert f"Endpoint=sb://127.0.0.1:{port};" in peer.connection_string
        assert peer.control.now() == 1e9
        peer.control.create_queue("jobs")
        deliver(peer, "jobs")
        assert peer.call(lambda broker: broker.namespace.store("jobs").count()["ready"]) == 1
        with AmqpClient(peer.port) as client:
            peer.stop()
            peer.stop()
            with pytest.raises((ConnectionError, EOFError)):
                client.next()
        with pytest.raises(ConnectionRefusedError):
            AmqpClient(port)
        peer.start()
        peer.start()
        assert (peer.port, peer.control.queues()) == (port, [])
    assert set(threading.enumerate()) <= before


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        PeerThread(port=taken.getsockname()[1]).start()


def test_queues_on_demand() -> None:
    with PeerThread(auth=False, auto_create=True) as peer:
        deliver(peer, "new")
        assert peer.control.queues() == ["new"]
    with PeerThread(auth=False) as peer, pytest.raises(Refused, match="not-found"):
        deliver(peer, "new")


def test_a_process_is_ordered_from_outside_restarted_frozen_and_killed(tmp_path: Path) -> None:
    with PeerProcess(tmp_path, auth=False) as peer:
        port = peer.port
        peer.control.create_queue("jobs", max_message_size=1024)
        deliver(peer, "jobs")
        assert peer.control.counts("jobs").ready == 1
        peer.control.restart()
        assert peer.control.counts("jobs").ready == 1
        with AmqpClient(port) as client:
            assert client.sent(client.attach("jobs", codes.SENDER), message(b"x" * 2000)).descriptor == codes.REJECTED
        peer.pause()
        with socket.create_connection(("127.0.0.1", port), 5) as frozen:
            frozen.settimeout(0.1)
            frozen.sendall(b"AMQP\x03\x01\x00\x00")
            with pytest.raises(TimeoutError):
                frozen.recv(8)
        peer.resume()
        peer.kill()
        peer.start()
        assert (peer.port, peer.control.queues()) == (port, [])


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    script = f"""
        import sys
        from pathlib import Path
        from servicebus_peer import PeerProcess
        peer = PeerProcess(Path({str(tmp_path)!r}))
        print(peer.pid, flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=TESTS,
        env={"PYTHONPATH": str(TESTS), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as starter:
        assert starter.stdout is not None
        peer = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
    wait_until(lambda: not peer.is_running() or peer.status() == psutil.STATUS_ZOMBIE)


def test_the_command_line_says_where_it_listens_and_ends_on_request() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "servicebus_peer", "--port", "0"],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        said = json.loads(program.stdout.readline())
        with socket.create_connection(("127.0.0.1", said["control_port"]), 5) as port, port.makefile("rw") as lines:
            answers = []
            for line in ('{"order": "queues"}', "nonsense", "[]"):
                lines.write(line + "\n")
                lines.flush()
                answers.append(json.loads(lines.readline()))
        program.terminate()
        assert program.wait(10) == 0
    assert f"sb://127.0.0.1:{said['port']}" in said["connection_string"]
    assert answers[0] == {"ok": []}
    assert [list(answer) for answer in answers[1:]] == [["error"], ["error"]]
