"""What goes wrong with a server, and what the caller is told: the cause, the mend, and never a password."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from answering import answering
from redis.exceptions import ResponseError
from redis_rig import Start, linked
from support.jobs import QUEUE, a_job, at
from support.servers import free_port, shared_redis
from support.stalls import Stopwatch
from support.tables import row
from support.waiting import wait_until

from jobpool import Jobs, open_backend
from jobpool.broker.backend import QueueBackend
from jobpool.broker.packing import pack_all
from jobpool.broker.values import MessageFilter, ReapPolicy, State, Verb
from jobpool.errors import BackendUnavailable, ConfigurationError, JobpoolError, WriteRefused
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settlement
from jobpool_backends.redis.address import Address, read_address
from jobpool_backends.redis.connection import Endpoint, explain
from jobpool_backends.redis.connections import Link, Script, ServerLink
from jobpool_backends.shared import DeadCaps
from jobpool_torture.network import Proxy

Limited = tuple[Link, QueueBackend]

PASSWORD = "hidden-from-all"
WRITE = Script("return redis.call('SET', KEYS[1], ARGV[1])")


def told(kind: type[JobpoolError], call: Callable[[], object]) -> str:
    """The text of the error that `call` raises; it must be of this kind, and hold no password."""
    with pytest.raises(kind) as caught:
        call()
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


def writes(link: Link) -> list[Callable[[], object]]:
    """A write, by a plain command and by a script."""
    return [lambda: link.call("SET", "key", "x"), lambda: link.run(WRITE, ["key"], ["x"])]


def test_a_wrong_or_missing_password(start: Start) -> None:
    server = start(requirepass=PASSWORD)
    for fields in ({"password": "wrong-" + PASSWORD}, {"username": "nobody", "password": PASSWORD}):
        with linked(server, **fields) as link:
            text = told(ConfigurationError, partial(link.call, "PING"))
            assert "refuses this password or user name: mend them" in text
    with linked(server) as link:
        for call in (
            lambda: link.call("PING"),
            lambda: link.run(WRITE, ["k"], ["x"]),
            lambda: link.wait_pop(["k"], 1),
            lambda: link.run(WRITE, ["k"], ["x"] * 20),  # many words, and below a long one: "Protocol error: …"
            lambda: link.run(WRITE, ["k"], ["x" * 20_000]),
        ):
            text = told(ConfigurationError, call)
            assert f"Redis at 127.0.0.1:{server.port} wants a password, and got none: write user" in text
    with linked(server, password=PASSWORD) as link:
        assert link.call("PING") == b"PONG"


def test_a_password_that_nobody_asked_for_and_a_database_that_there_is_not() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"password": PASSWORD}, "has no password set, yet one was given"),
        ({"db": 99}, "no database of this number: choose one below"),
    ]
    for fields, text in cases:
        with linked(shared_redis(), **fields) as link:
            assert text in told(ConfigurationError, partial(link.call, "PING"))


def test_a_user_who_may_not_do_what_is_needed(start: Start) -> None:
    server = start()
    with linked(server) as link:
        link.call("ACL", "SETUSER", "few", "on", f">{PASSWORD}", "~mine:*", "+evalsha", "+eval", "+get")
    peek = Script("return redis.call('TTL', KEYS[1])")
    stray = Script("return redis.call('GET', 'yours')")
    with linked(server, username="few", password=PASSWORD) as link:
        for call in (
            lambda: link.call("SET", "mine:1", "x"),
            lambda: link.call("GET", "yours"),
            lambda: link.run(WRITE, ["yours"], ["x"]),
            lambda: link.run(peek, ["mine:1"], []),
            lambda: link.run(stray, ["mine:1"], []),
        ):
            assert "does not allow this user what jobpool needs: grant" in told(ConfigurationError, call)
        assert "permissions to run the 'set' command" in told(ConfigurationError, lambda: link.call("SET", "mine:1", 1))


def test_a_server_that_is_too_old_lacks_commands() -> None:
    with linked(shared_redis()) as link:
        within = Script("return redis.call('ZNEW', KEYS[1])")
        for call in (lambda: link.call("ZNEW", "k"), lambda: link.run(within, ["k"], [])):
            assert "does not know a command that jobpool needs: it must be Redis 6.2" in told(ConfigurationError, call)
        assert "'secret'" not in told(ConfigurationError, lambda: link.call("ZNEW", "secret"))


def test_a_node_of_a_cluster_is_not_a_server_by_itself(start: Start) -> None:
    server = start(cluster_enabled="yes")
    with linked(server, db=1) as link:
        assert "is a node of a cluster: write redis+cluster://" in told(ConfigurationError, lambda: link.call("PING"))
    with linked(server) as link:
        assert "says that its cluster is down: bring" in told(BackendUnavailable, lambda: link.call("GET", "key"))
        link.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: b"cluster_state:ok" in link.call("CLUSTER", "INFO"), what="it serves all slots")
        for call in (lambda: link.call("EXISTS", "one", "two"), lambda: link.run(WRITE, ["one", "two"], ["x"])):
            assert "is a node of a cluster: write redis+cluster://" in told(ConfigurationError, call)


def test_a_slot_that_moves_is_told_as_each_server_says_it() -> None:
    for says in (
        "Script attempted to access a non local key in a cluster node script: on @user_script:287.",
        "Attempted to access a non local key in a cluster node script: on @user_script:287.",  # Valkey 9
    ):
        error = explain(ResponseError(says), Endpoint()).error
        assert isinstance(error, BackendUnavailable)
        assert "is moving these keys to another node" in str(error)


def test_nobody_is_there(tmp_path: Path) -> None:
    port, none = free_port(), tmp_path / "redis.sock"
    none.touch()
    for place, text in [
        (
            Endpoint("127.0.0.1", port),
            f"at 127.0.0.1:{port} refuses connections: nothing listens there. Start Redis, or",
        ),
        (Endpoint("no-such-host.invalid"), "no-such-host.invalid:6379 cannot be found: mend"),
        (Endpoint(path=str(tmp_path / "no.sock")), "no.sock is not there: start Redis"),
        (Endpoint(path=str(none)), "redis.sock refuses connections: nothing"),
    ]:
        assert text in told(BackendUnavailable, partial(ServerLink(place).call, "PING"))


def test_something_else_listens_at_this_port() -> None:
    for answer, text in [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "does not speak Redis's protocol; if the port wants TLS, write rediss://",
        ),
        (b"", "closed the connection: it was stopped or .* full .* if the port wants TLS, write rediss://"),
    ]:
        with row(answer), answering(answer) as (host, port), pytest.raises(BackendUnavailable, match=text):
            ServerLink(Endpoint(host, port)).call("PING")


def test_a_full_memory(start: Start) -> None:
    with linked(start()) as link:
        for write in writes(link):
            link.call("CONFIG", "SET", "maxmemory", 1)
            text = told(BackendUnavailable, write)
            assert "refuses to grow, for the server's memory is full (maxmemory is reached): raise maxmemory" in text
            link.call("CONFIG", "SET", "maxmemory", 0)
            assert write() == b"OK"


def test_a_full_memory_takes_no_job_of_any_kind(start: Start) -> None:
    """A script may add anything behind a command that removes, so its first write must be one that adds."""
    server = start()
    with linked(server) as link, closing(open_backend(server.url)) as backend:
        post = Jobs(backend=backend).queue(QUEUE).post
        link.call("CONFIG", "SET", "maxmemory", 1)
        for fields in ({}, {"identifier": "1"}, {"unique": True, "idempotency_key": "a"}, {"scheduled_at": at(2e9)}):
            for count in (1, 2):
                with row(fields, count):
                    told(WriteRefused, partial(backend.enqueue_many, [a_job(**fields)] * count))
        told(WriteRefused, lambda: post([{}]))
        link.call("CONFIG", "SET", "maxmemory", 0)
        assert backend.queues() == []


def test_a_replica_takes_no_writes_and_its_connections_are_thrown_away(start: Start) -> None:
    master, replica = start(), start()
    with linked(replica, timeout=5.0) as link, linked(replica) as other:
        for write in writes(link):
            assert write() == b"OK"
            before = link.call("CLIENT", "ID")
            other.call("REPLICAOF", master.host, master.port)
            text = told(BackendUnavailable, write)
            assert (
                "is a replica, which takes no writes: after a failover the next call looks for the new master" in text
            )
            other.call("REPLICAOF", "NO", "ONE")
            assert write() == b"OK"
            assert link.call("CLIENT", "ID") > before


def test_who_waits_is_told_when_the_server_becomes_a_replica(start: Start, threads: ThreadPoolExecutor) -> None:
    master, replica = start(), start()
    with linked(replica) as link, linked(replica) as other:
        halted = threads.submit(told, BackendUnavailable, lambda: link.wait_pop(["bell"], 60.0))
        wait_until(lambda: b"cmd=blpop" in other.call("CLIENT", "LIST"), what="the waiter waits")
        other.call("REPLICAOF", master.host, master.port)
        assert "became a replica while it was waited on" in halted.result(5.0)


def test_a_replica_without_its_master(start: Start) -> None:
    with linked(start(replica_serve_stale_data="no")) as link:
        link.call("REPLICAOF", "127.0.0.1", free_port())
        assert "is a replica that has lost its master" in told(BackendUnavailable, lambda: link.call("GET", "key"))


def test_too_few_replicas(start: Start) -> None:
    with linked(start(min_replicas_to_write="1")) as link:
        for write in writes(link):
            assert "refuses writes because too few of its replicas are connected" in told(BackendUnavailable, write)


def test_a_master_that_its_replicas_have_left_is_looked_for_anew(start: Start) -> None:
    ways = iter([start(min_replicas_to_write="1"), start()])
    link = ServerLink(Endpoint(), lambda: Endpoint(port=next(ways).port, host="127.0.0.1").open())
    write = writes(link)[1]
    told(WriteRefused, write)
    assert write() == b"OK"
    link.close()


def test_a_disk_that_cannot_be_written(start: Start) -> None:
    server = start(save="3600 1000000")
    with linked(server) as link:
        (server.folder / "dump.rdb").mkdir()  # in the way of what is saved
        link.call("SET", "key", "x")
        link.call("BGSAVE")
        wait_until(lambda: b"rdb_last_bgsave_status:err" in link.call("INFO", "persistence"), what="the save fails")
        for write in writes(link):
            assert "refuses writes because it cannot save to its disk: see its log" in told(BackendUnavailable, write)
        (server.folder / "dump.rdb").rmdir()


def trouble(link: Link) -> str:
    """What a call is told, if anything goes wrong."""
    try:
        link.call("GET", "key")
    except BackendUnavailable as error:
        return str(error)
    return ""


def test_a_script_that_does_not_end(start: Start, threads: ThreadPoolExecutor) -> None:
    with linked(start(lua_time_limit="50"), timeout=10.0) as link:
        endless = threads.submit(link.call, "EVAL", "while true do end", 0)
        text = wait_until(lambda: trouble(link), what="the script runs for too long")
        assert "is busy with a script that does not end: find its caller" in text
        link.call("SCRIPT", "KILL")
        assert "killed by user" in str(endless.exception(5.0)).lower()
        assert link.call("PING") == b"PONG"


def test_a_server_that_loads_its_data(start: Start, threads: ThreadPoolExecutor) -> None:
    server = start(enable_debug_command="yes", loading_process_events_interval_bytes="1024")
    with linked(server, timeout=30.0) as link:
        link.call("EVAL", "for i = 1, 2000 do redis.call('SET', i, string.rep('x', 100)) end", 0)
        link.call("CONFIG", "SET", "key-load-delay", 500)  # microseconds
        reload = threads.submit(link.call, "DEBUG", "RELOAD")
        text = wait_until(lambda: trouble(link), what="it loads")
        assert "is loading its data from disk: it answers when that is done" in text
        assert reload.result(30.0) == b"OK"
        assert link.call("GET", "7") == b"x" * 100


@pytest.mark.parametrize("cluster", ["no", "yes"])
def test_a_server_with_too_many_clients(start: Start, cluster: str) -> None:
    server = start(cluster_enabled=cluster)
    with linked(server) as link, linked(server) as other:
        link.call("CONFIG", "SET", "maxclients", 1)
        text = told(BackendUnavailable, lambda: other.call("PING"))
        assert "has no connection left (maxclients)" in text or "or it is full (see its log)" in text


@pytest.mark.xdist_group("timing")
@pytest.mark.parametrize("keep", [True, False], ids=["delayed", "half-open"])
def test_a_black_hole_is_given_up_in_time_and_work_goes_on_behind_it(keep: bool) -> None:
    server = shared_redis()
    with Proxy(server.host, server.port) as proxy, linked(proxy, timeout=0.3, connect_timeout=0.3) as link:
        link.call("PING")
        link.wait_pop(["bell"], 0.01)
        proxy.black_hole(keep=keep)
        for call in (lambda: link.call("PING"), lambda: link.wait_pop(["bell"], 0.1), lambda: link.call("PING")):
            began = Stopwatch()
            assert "127.0.0.1" in told(BackendUnavailable, call)
            assert began.seconds() < 1.0
        proxy.restore()
        began = Stopwatch()
        assert link.call("PING") == b"PONG"
        assert began.seconds() < 0.3


def test_what_breaks_on_a_new_connection_too_is_told() -> None:
    server = shared_redis()
    with Proxy(server.host, server.port) as proxy, linked(proxy) as link:
        link.call("PING")
        proxy.drop_replies(2)  # the first could be a stale connection's
        assert "closed the connection" in told(BackendUnavailable, lambda: link.call("PING"))
        assert link.call("PING") == b"PONG"


SECRET = "hidden"  # in every URL below that has a password: no error may repeat it


def read(url: str, **options: Any) -> Address:
    return read_address(url, options)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate and its key, and the key again with a pass phrase."""
    folder = tmp_path_factory.mktemp("tls")
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=localhost -days 2"
    for key in (["-nodes", "-keyout", "own.key"], ["-passout", f"pass:{SECRET}", "-keyout", "locked.key"]):
        certificate = key[-1].replace("key", "crt")
        subprocess.run([*words.split(), *key, "-out", certificate], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("url", "host", "port", "db", "username", "password"),
    [
        ("redis://localhost", "localhost", 6379, 0, None, None),
        ("redis://10.0.0.1:6380", "10.0.0.1", 6380, 0, None, None),
        ("redis://localhost:6380/3", "localhost", 6380, 3, None, None),
        ("redis://localhost/", "localhost", 6379, 0, None, None),
        ("redis://localhost?db=4", "localhost", 6379, 4, None, None),
        ("redis://:hidden@localhost", "localhost", 6379, 0, None, "hidden"),
        ("redis://me:hidden@localhost/1", "localhost", 6379, 1, "me", "hidden"),
        ("redis://me:a%2Fb%40c%3Ad@localhost", "localhost", 6379, 0, "me", "a/b@c:d"),
        ("redis://m%40e:hid:den@localhost", "localhost", 6379, 0, "m@e", "hid:den"),
        ("redis://[::1]:6380/2", "::1", 6380, 2, None, None),
        ("redis://[fe80::1%eth0]", "fe80::1%eth0", 6379, 0, None, None),
        ("REDIS://Cache.example.org.", "Cache.example.org.", 6379, 0, None, None),
    ],
)
def test_one_server(url: str, host: str, port: int, db: int, username: str | None, password: str | None) -> None:
    address = read(url)
    [server] = address.seeds
    assert (address.cluster, address.service) == (False, "")
    assert (server.host, server.port, server.db) == (host, port, db)
    assert (server.username, server.password) == (username, password)
    assert (server.timeout, server.connect_timeout, server.tls) == (2.0, 2.0, None)


def test_a_unix_socket() -> None:
    [server] = read("redis+unix:///run/redis/my%20own.sock?db=2&timeout=5", password="hidden").seeds
    assert (server.path, server.db, server.timeout, server.password) == ("/run/redis/my own.sock", 2, 5.0, "hidden")
    assert server.title == "Redis at /run/redis/my own.sock"


def test_sentinels() -> None:
    address = read("redis+sentinel://me:hidden@h1,h2:26380/reports/5", sentinel_password="other", timeout=1)
    assert not address.cluster
    assert address.service == "reports"
    assert [(seed.host, seed.port) for seed in address.seeds] == [("h1", 26379), ("h2", 26380)]
    assert {(seed.username, seed.password, seed.db) for seed in address.seeds} == {(None, "other", 0)}
    assert (address.node.username, address.node.password, address.node.db) == ("me", "hidden", 5)
    assert address.node.timeout == 1.0


def test_a_cluster() -> None:
    address = read("redis+cluster://:hidden@[::1]:7000,h2,h3:7002")
    assert address.cluster
    assert [(seed.host, seed.port) for seed in address.seeds] == [("::1", 7000), ("h2", 6379), ("h3", 7002)]
    assert {seed.password for seed in address.seeds} == {address.node.password} == {"hidden"}


def test_options_by_keyword_win_over_those_in_the_url() -> None:
    [server] = read(
        "redis://me:wrong@localhost/1?timeout=7&connect_timeout=8", timeout=3, db=2, password="hidden"
    ).seeds
    assert (server.timeout, server.connect_timeout, server.db, server.password) == (3.0, 8.0, 2, "hidden")


def test_the_prefix_and_the_caps_are_part_of_the_address() -> None:
    address = read("redis://localhost?prefix=mine&timeout=3", dead_max=7)
    assert (address.prefix, address.caps) == ("mine", DeadCaps(7))
    assert address.seeds[0].timeout == 3.0


def test_no_password_is_in_what_is_printed() -> None:
    assert SECRET not in repr(read("redis+sentinel://me:hidden@h/reports", sentinel_password="hidden"))


@pytest.mark.parametrize(
    "url", ["rediss://localhost", "rediss+sentinel://localhost/reports", "rediss+cluster://localhost"]
)
def test_tls_verifies_unless_told_otherwise(url: str) -> None:
    address = read(url)
    assert address.node.tls == address.seeds[0].tls == {"ssl_cert_reqs": "required", "ssl_check_hostname": True}


def test_tls_options(certificate: Path) -> None:
    own, key = str(certificate / "own.crt"), str(certificate / "own.key")
    given = {"ssl_ca_certs": own, "ssl_certfile": own, "ssl_keyfile": key, "ssl_cert_reqs": "none"}
    assert read("rediss://localhost?ssl_check_hostname=no", **given).node.tls == given | {"ssl_check_hostname": False}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ssl_ca_certs": "/nowhere.pem"}, "cannot use ssl_ca_certs /nowhere.pem: No such file"),
        ({"ssl_ca_certs": "own.key"}, "cannot use ssl_ca_certs .*own.key: it does not hold what it should"),
        ({"ssl_certfile": "own.crt"}, "cannot use ssl_certfile and ssl_keyfile: it does not hold"),
        ({"ssl_keyfile": "own.key"}, "ssl_keyfile without ssl_certfile: give both"),
        ({"ssl_certfile": "locked.crt", "ssl_keyfile": "locked.key"}, "an unencrypted key and its certificate"),
        ({"ssl_certfile": "own.crt", "ssl_keyfile": "locked.key"}, "an unencrypted key and its certificate"),
        ({"ssl_cert_reqs": "maybe"}, "ssl_cert_reqs as required, optional or none, not 'maybe'"),
        ({"ssl_check_hostname": "perhaps"}, "ssl_check_hostname as yes, no, true or false, not 'perhaps'"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_with_tls_options(certificate: Path, options: dict[str, str], text: str) -> None:
    given = {
        name: str(certificate / value) if "own." in value or "locked." in value else value
        for name, value in options.items()
    }
    with pytest.raises(ConfigurationError, match=text):
        read("rediss://localhost", **given)


def test_tls_options_without_tls_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"redis://.* speaks no TLS: write rediss://, or leave ssl_ca_certs out"
    ):
        read("redis://localhost?ssl_ca_certs=ca.pem")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://", "redis:// has no valid host: write host, host:6379"),
        ("redis://:hidden@", "has no valid host"),
        ("redis://localhost:0", "has no valid host"),
        ("redis://localhost:70000", "has no valid host"),
        ("redis://localhost:six", "has no valid host"),
        ("redis://local host", "has no valid host"),
        ("redis://::1", "has no valid host"),
        ("redis://" + "a" * 64, "has no valid host"),
        ("redis://a..b", "has no valid host"),
        ("redis://h1,h2", r"takes one host: write redis\+sentinel:// or redis\+cluster://"),
        ("redis://localhost/one", "has no valid database: its number is 0, 1, 2"),
        ("redis://localhost/-1", "has no valid database"),
        ("redis://localhost/1/2", "has no valid database"),
        ("redis://me:hid/den@localhost", "cannot be read: write '/', .* in a password as %2F"),
        ("redis://me:hid?den@localhost", "in a password as %2F"),
        ("redis://me:1?hidden@localhost", "in a password as %2F"),
        ("redis://me:hid#den@localhost", "in a password as %2F"),
        ("redis://me:hid@den@localhost", "in a password as %2F"),
        ("redis://hidden@localhost", "has no password beside its user"),
        ("redis://hidden:@localhost", "has no password beside its user"),
        ("redis+unix://localhost/redis.sock", "names no socket: write redis.unix:///path"),
        ("redis+unix://", "names no socket"),
        ("redis+unix:///", "names no socket"),
        ("redis+sentinel://h1,h2", "names no service: write redis.sentinel://host:26379/SERVICE"),
        ("redis+sentinel:///reports", "has no valid host: write host, host:26379"),
        ("redis+sentinel://h1,,h2/reports", "has no valid host"),
        ("redis+sentinel://h1/reports/x", "has no valid database"),
        ("redis+cluster://h1/1", "has database 0 only: leave the number out"),
        ("redis://localhost?timeout=0", "option timeout as more than 0 and at most 3600 seconds, not '0'"),
        ("redis://localhost?timeout=nan", "option timeout as more than 0"),
        ("redis://localhost?connect_timeout=soon", "option connect_timeout as more than 0 .* not 'soon'"),
        ("redis://localhost?timeout=", "option timeout as more than 0"),
    ],
)
def test_what_is_wrong_with_a_url(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        read(url)
    assert not any(piece in str(caught.value) for piece in ("hid", "den@", "hidden"))


def test_a_password_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"takes option password as a text") as caught:
        read("redis://localhost", password=12345)
    assert "12345" not in str(caught.value)


@pytest.fixture
def limited(start: Start, stack: ExitStack) -> Limited:
    """A link of the administrator's, and a backend of user `few`."""
    server = start()
    link = stack.enter_context(linked(server))
    link.call("ACL", "SETUSER", "few", "on", f">{PASSWORD}", "~*", "+@all")
    return link, stack.enter_context(closing(open_backend(server.url.replace("//", f"//few:{PASSWORD}@"))))


@pytest.mark.parametrize("refused", ["EXISTS", "GET", "HDEL", "HSET", "PEXPIRE", "RPUSH", "SADD", "SET", "ZADD"])
def test_callbacks_of_a_close_that_was_cut_short_come_when_that_is_repeated(limited: Limited, refused: str) -> None:
    link, backend = limited
    parent = Jobs(backend=backend).batch(on_done=a_job({}))
    batch = Jobs(backend=backend).batch(on_done=a_job({}), parent=parent)
    parent.close()
    link.call("ACL", "SETUSER", "few", f"-{refused}")
    with suppress(ConfigurationError):
        batch.close()
    link.call("ACL", "SETUSER", "few", f"+{refused}")
    for _ in range(2):
        batch.close()
    assert batch.status().has_ended
    assert parent.status().has_ended
    assert len(backend.fetch_many(QUEUE, limit=9)) == 2


TAKEN = ["DEL", "EXISTS", "HDEL", "HMGET", "HSET", "HSETNX", "RPUSH", "SADD", "SET", "ZADD", "ZREM", "ZREMRANGEBYRANK"]


@pytest.mark.parametrize("refused", TAKEN)
def test_no_job_is_lost_or_doubled_while_a_user_lacks_a_command(limited: Limited, refused: str) -> None:
    """Each call is made with the command taken away, and again once it is granted."""
    link, backend = limited

    def twice(call: Callable[[], Any]) -> Any:
        link.call("ACL", "SETUSER", "few", f"-{refused}")
        with suppress(ConfigurationError):
            call()
        link.call("ACL", "SETUSER", "few", f"+{refused}")
        return call()

    [plain] = pack_all(backend, [a_job("plain")])
    twice(lambda: backend._enqueue([plain]))
    names = ["acked", "failed", "released", "late", "dead", "lost", "moved"]
    for name in names:
        job = a_job(name, identifier=name, idempotency_key=name, unique=True)
        twice(partial(backend.enqueue, job))
    backend.enqueue(a_job("due", identifier="due", scheduled_at=datetime.now(UTC) + timedelta(seconds=0.05)))
    wait_until(lambda: backend.stats(QUEUE).delayed == 0)
    leases = twice(lambda: backend._fetch(QUEUE, 20, 30.0, "one")) or backend.fetch_many(QUEUE, limit=20)
    by_id = {lease.id: lease for lease in leases}
    assert sorted(by_id) == sorted([plain.id, *names, "due"])
    settlements: dict[str, Settlement] = {
        plain.id: Release(0.0),
        "acked": Ack((a_job("follow-up"),)),
        "failed": Nack(0.0, "boom"),
        "released": Release(0.0),
        "late": Nack(0.05, "boom"),
        "dead": Abandon("failed", "boom"),
        "lost": Forfeit("SIGSEGV"),
        "moved": Move("elsewhere"),
        "due": Release(0.0),
    }
    twice(lambda: backend.settle_many([(by_id[name], settlement) for name, settlement in settlements.items()]))
    twice(lambda: backend.reap(QUEUE, ReapPolicy(back_off=0.0)))
    assert twice(lambda: backend.bulk(MessageFilter(states=(State.DEAD,)), Verb.RESUME)) <= 1
    wait_until(lambda: backend.stats(QUEUE).delayed == 0)
    twice(lambda: backend.claims.claim(QUEUE, limit=2, ttl=60.0, grace=60.0))
    for held in backend.claims.list_claims(QUEUE, limit=9):
        twice(partial(backend.claims.release, QUEUE, held.id))
    found = [lease.id for queue in (QUEUE, "elsewhere") for lease in backend.fetch_many(queue, limit=20)]
    kept = [ident for ident in found if ident in settlements]
    assert sorted(kept) == sorted(set(settlements) - {"acked"})
    assert len(found) == len(kept) + 1
    assert sum(link.call("HLEN", f"jobpool:{{{queue}}}:body") for queue in (QUEUE, "elsewhere")) == len(found)
