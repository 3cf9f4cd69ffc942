"""Scripts, commands, waiting and connections, on a real server."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from answering import answering
from redis.exceptions import ResponseError
from redis_rig import Start, linked
from support.descriptors import open_descriptors
from support.servers import RedisServer, fresh_name, shared_redis
from support.stalls import Stopwatch
from support.waiting import wait_until

from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.redis import RedisBackend
from jobpool_backends.redis.connection import WORDS_AT_ONCE
from jobpool_backends.redis.connections import Link, Script

ADD = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
Open = Callable[..., Link]


@pytest.fixture
def server() -> RedisServer:
    return shared_redis()


@pytest.fixture
def open_link(server: RedisServer, stack: ExitStack) -> Open:
    """Opens links to the server of this process, and closes them."""
    return lambda **fields: stack.enter_context(linked(server, **fields))


@pytest.fixture
def link(open_link: Open) -> Link:
    return open_link()


@pytest.fixture
def key() -> str:
    return fresh_name("key")


def connections(link: Link) -> int:
    """Of all clients of the server, that of this question included."""
    return int(link.call("CLIENT", "LIST").count(b"\n"))


def test_a_script_that_the_server_has_forgotten_is_sent_whole(link: Link, key: str) -> None:
    assert link.run(ADD, [key], [1]) == 1
    link.call("SCRIPT", "FLUSH")
    assert link.run(ADD, [key], [1]) == 2
    assert link.call("SCRIPT", "EXISTS", ADD.sha) == [1]


def test_a_script_s_own_error_goes_through_as_it_is_and_costs_no_connection(link: Link) -> None:
    before = connections(link)
    for source in ("error('what a pity')", "return redis.call('INCR')", "return redis.error_reply('MINE is this')"):
        with pytest.raises(ResponseError, match=r"what a pity|Wrong number of args|MINE is this"):
            link.run(Script(source), [], [])
    assert connections(link) == before


def test_several_commands_go_in_one_round_trip_and_their_first_error_is_raised_after_all(link: Link, key: str) -> None:
    assert link.call_many([("SET", key, 7), ("INCR", key), ("GET", key), ("GET", "nothing")]) == [b"OK", 8, b"8", None]
    assert link.call_many([]) == []
    with pytest.raises(BackendUnavailable, match="remove that key"):
        link.call_many([("SET", key, "x"), ("LPUSH", key, 1), ("INCR", key), ("APPEND", key, "y")])
    assert link.call("GET", key) == b"xy"


def test_a_word_of_a_kind_that_redis_does_not_take_is_a_fault_of_the_caller(link: Link) -> None:
    with pytest.raises(TypeError):
        link.call("SET", "key", None)  # type: ignore[arg-type]
    assert link.call("PING") == b"PONG"


def test_a_unix_socket(server: RedisServer) -> None:
    with linked(f"redis+unix://{server.socket_path}", db=1) as link:
        assert link.call("PING") == b"PONG"
        assert b" db=1 " in link.call("CLIENT", "INFO")


def test_a_bell_that_rang_before_is_heard_at_once_and_taken_and_then_none(link: Link, key: str) -> None:
    link.call("RPUSH", key, 1)
    assert link.wait_pop(["other", key], 30.0) == key
    assert link.call("EXISTS", key) == 0
    began = Stopwatch()
    assert link.wait_pop([key], 0.05) is None
    assert began.elapsed() > 0.04
    assert began.seconds() < 1.0
    assert link.wait_pop([key], 0.0) is None  # which Redis would take for "for ever"


def test_a_wait_may_last_longer_than_an_answer(open_link: Open, key: str) -> None:
    assert open_link(timeout=0.2).wait_pop([key], 0.4) is None


def test_calls_go_on_while_a_thread_waits(open_link: Open, key: str, threads: ThreadPoolExecutor) -> None:
    link = open_link()
    waiting = threads.submit(link.wait_pop, [key], 30.0)
    wait_until(lambda: b"cmd=blpop" in link.call("CLIENT", "LIST"), what="the waiter waits")
    for _ in range(10):
        assert link.call("PING") == b"PONG"
    assert not waiting.done()
    link.call("RPUSH", key, 1)


def test_closing_wakes_who_waits(open_link: Open, key: str, threads: ThreadPoolExecutor) -> None:
    link, other = open_link(), open_link()
    waits = [threads.submit(link.wait_pop, [key], 60.0) for _ in range(2)]
    wait_until(lambda: other.call("CLIENT", "LIST").count(b"cmd=blpop") == 2, what="two wait")
    link.close()
    for wait in waits:
        with pytest.raises(BackendUnavailable, match="was closed here: open the backend again"):
            wait.result(10.0)


def test_closing_leaves_no_connection_open(open_link: Open, key: str, threads: ThreadPoolExecutor) -> None:
    other = open_link()
    before = connections(other)
    link = open_link()
    list(threads.map(lambda _: link.wait_pop([key], 0.05), range(4)))
    list(threads.map(lambda _: link.call("PING"), range(20)))
    assert connections(other) > before
    link.close()
    wait_until(lambda: connections(other) == before, what="all are closed")


def test_eight_threads_share_a_link(open_link: Open, key: str, threads: ThreadPoolExecutor) -> None:
    link = open_link()
    before = connections(link)

    def work(number: int) -> list[int]:
        return [link.run(ADD, [f"{key}:{number}"], [number]) for _ in range(200)]

    results = list(threads.map(work, range(1, 9)))
    assert results == [[number * step for step in range(1, 201)] for number in range(1, 9)]
    assert connections(link) <= before + 7


def test_no_descriptor_is_leaked_by_two_hundred_reconnects(open_link: Open, key: str) -> None:
    link, other = open_link(), open_link()

    def use() -> None:
        other.call("RPUSH", key, 1)
        assert link.wait_pop([key], 30.0) == key
        assert link.call("PING") == b"PONG"

    use()
    before = open_descriptors()
    for _ in range(100):
        other.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        use()
    assert open_descriptors() <= before


@pytest.fixture
def own(start: Start) -> RedisServer:
    """A server that a test may stop, kill and freeze."""
    return start()


@pytest.fixture
def own_link(own: RedisServer, stack: ExitStack) -> Link:
    return stack.enter_context(linked(own, timeout=0.3, connect_timeout=0.3))


def test_work_goes_on_when_the_server_is_back(own: RedisServer, own_link: Link) -> None:
    own_link.run(ADD, ["key"], [1])
    own.kill()
    with pytest.raises(BackendUnavailable):
        own_link.run(ADD, ["key"], [1])
    own.start()
    assert own_link.run(ADD, ["key"], [1]) == 1
    own.restart()
    assert own_link.run(ADD, ["key"], [1]) == 1  # not one call failed: the kept connection was stale, and replaced
    assert own_link.wait_pop(["bell"], 0.01) is None


def test_a_server_that_is_killed_while_somebody_waits_is_noticed_at_once(own: RedisServer, own_link: Link) -> None:
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(own_link.wait_pop, ["bell"], 60.0)
        wait_until(lambda: b"cmd=blpop" in own_link.call("CLIENT", "LIST"), what="the waiter waits")
        own.kill()
        with pytest.raises(BackendUnavailable, match=r"closed the connection|refuses connections"):
            waiting.result(10.0)


@pytest.mark.xdist_group("timing")
def test_a_server_that_hangs_is_given_up_in_time_and_work_goes_on_when_it_moves_again(
    own: RedisServer, own_link: Link, threads: ThreadPoolExecutor
) -> None:
    list(threads.map(lambda _: own_link.call("PING"), range(40)))  # several kept connections
    own.pause()
    for call in (
        lambda: own_link.call("PING"),
        lambda: own_link.wait_pop(["bell"], 0.1),
        lambda: own_link.call("PING"),
    ):
        began = Stopwatch()
        with pytest.raises(BackendUnavailable, match=r"did not answer within 0.3 s: see whether it runs, is stopped"):
            call()
        assert began.seconds() < 0.3 + 0.1 + 0.2
    own.resume()
    began = Stopwatch()
    assert own_link.call("PING") == b"PONG"
    assert began.seconds() < 0.3


def test_many_threads_during_a_restart_get_an_answer_or_are_told(own: RedisServer, own_link: Link) -> None:
    halt = threading.Event()

    def work(_: int) -> tuple[int, int]:
        answered = refused = 0
        while not halt.is_set():
            try:
                own_link.run(ADD, ["key"], [1])
                answered += 1
            except BackendUnavailable:
                refused += 1
        return answered, refused

    with ThreadPoolExecutor(8) as executor:
        results = [executor.submit(work, number) for number in range(8)]
        try:
            for _ in range(3):
                own.kill()
                own.start()
            wait_until(lambda: int(own_link.call("GET", "key") or 0) > 100, what="work goes on")
        finally:
            halt.set()
    assert all(future.result()[0] for future in results)


def test_a_full_descriptor_table_is_named(own_link: Link, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 5, hard))
        with suppress(OSError):
            while True:
                held.append(open(tmp_path / "held", "w"))  # noqa: SIM115 - closed below
        with pytest.raises(BackendUnavailable, match="no file descriptor left: raise `ulimit -n`"):
            own_link.call("PING")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in held:
            file.close()
    assert own_link.call("PING") == b"PONG"


@pytest.mark.parametrize("prefix", ["", "a b", "{a}", "a*", "-a", "x" * 101, 7])
def test_an_odd_prefix_is_refused(server: RedisServer, prefix: object) -> None:
    with pytest.raises(ConfigurationError, match="option prefix"):
        RedisBackend.from_url(server.url, prefix=prefix)


def test_a_server_that_is_too_old_is_told_so_plainly() -> None:
    told = r"version 6\.0\.16, and jobpool needs Redis 6\.2 or later: upgrade"
    with (
        answering(b"$22\r\nredis_version:6.0.16\r\n\r\n") as (host, port),
        pytest.raises(ConfigurationError, match=told),
    ):
        RedisBackend.from_url(f"redis://{host}:{port}")


INTERRUPT = """
import random, signal, sys
from jobpool_backends.redis.connection import _pack

class Interrupt(BaseException): ...

def interrupt(*_):
    raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
words = ("EVALSHA", "a" * 40, *range(1000, 1400), *(n + 0.25 for n in range(300)))
for _ in range(500):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1e-4))
            while True:
                _pack(words)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        pass
"""


def test_an_interrupt_while_a_command_is_packed_does_not_crash_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", INTERRUPT], timeout=60, check=False).returncode == 0


def test_a_command_of_many_words_is_the_same_in_pieces(link: Link, key: str) -> None:
    words = [*range(WORDS_AT_ONCE), *(f"é{number}".encode() for number in range(WORDS_AT_ONCE)), ""]
    assert link.call("RPUSH", key, *words) == len(words)
    assert [int(word) for word in link.call("LRANGE", key, 0, WORDS_AT_ONCE - 1)] == words[:WORDS_AT_ONCE]
    assert link.call("LRANGE", key, WORDS_AT_ONCE, -1) == [*words[WORDS_AT_ONCE:-1], b""]
    link.call("DEL", key)
