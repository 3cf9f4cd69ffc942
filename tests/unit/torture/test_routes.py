"""Which URLs can be led through a proxy, and how; for the others, why not."""

from __future__ import annotations

from jobpool_torture.network import Route, find_route

KEY = "SharedAccessKeyName=root;SharedAccessKey=a=b;"


def test_a_server_in_a_url_is_found_and_replaced() -> None:
    for url, server, led in [
        ("redis://broker", ("broker", 6379), "redis://127.0.0.1:99"),
        ("redis://broker:7000/3?prefix=a", ("broker", 7000), "redis://127.0.0.1:99/3?prefix=a"),
        ("redis://me:p%40ss@broker:7000/0", ("broker", 7000), "redis://me:p%40ss@127.0.0.1:99/0"),
        ("redis://me:pa:ss@10.0.0.1?prefix=x/y@z", ("10.0.0.1", 6379), "redis://me:pa:ss@127.0.0.1:99?prefix=x/y@z"),
        ("redis://[::1]:7000/0", ("::1", 7000), "redis://127.0.0.1:99/0"),
        ("REDIS://broker", ("broker", 6379), "REDIS://127.0.0.1:99"),
        ("postgresql://u:p@db/app?schema=s", ("db", 5432), "postgresql://u:p@127.0.0.1:99/app?schema=s"),
        ("postgres://u@db.example:5433/app", ("db.example", 5433), "postgres://u@127.0.0.1:99/app"),
        ("postgresql://u@db/app?sslmode=require", ("db", 5432), "postgresql://u@127.0.0.1:99/app?sslmode=require"),
        ("beanstalk://queue?ttr=5", ("queue", 11300), "beanstalk://127.0.0.1:99?ttr=5"),
        (
            f"Endpoint=sb://127.0.0.1:5673;{KEY}UseDevelopmentEmulator=true?lock=5",
            ("127.0.0.1", 5673),
            f"Endpoint=sb://127.0.0.1:99;{KEY}UseDevelopmentEmulator=true?lock=5",
        ),
        (
            f" endpoint=SB://localhost/;usedevelopmentemulator = TRUE ;{KEY}",
            ("localhost", 5672),
            f" endpoint=SB://127.0.0.1:99/;usedevelopmentemulator = TRUE ;{KEY}",
        ),
    ]:
        route = find_route(url)
        assert isinstance(route, Route), url
        assert (route.host, route.port) == server, url
        assert route.to("127.0.0.1", 99) == led, url
        assert find_route(led) == Route(route.before, "127.0.0.1", 99, route.after), url


def test_what_no_proxy_can_stand_before_has_a_reason() -> None:
    for url, why in [
        ("rediss://broker:6380/0", "TLS"),
        ("redis+cluster://a:7000,b:7000", "cluster"),
        ("rediss+cluster://a", "cluster"),
        ("redis+sentinel://a,b/service", "sentinels"),
        ("redis+unix:///run/redis.sock", "Unix socket"),
        ("redis://a,b", "several servers"),
        ("redis:///0", "names no host"),
        ("postgresql://u@db1,db2:5433/app", "several servers"),
        ("postgresql://u@db/app?sslmode=verify-full", "TLS"),
        ("postgresql:///app", "Unix socket"),
        ("postgresql://%2Fvar%2Frun/app", "Unix socket"),
        ("postgresql://u@db/app?host=/var/run", "option host"),
        ("postgresql://u@db/app?hostaddr=10.0.0.1", "option hostaddr"),
        ("beanstalk://a,b:11301", "several servers"),
        ("beanstalk://", "names no host"),
        ("servicebus://shop", "TLS"),
        (f"Endpoint=sb://shop.servicebus.windows.net/;{KEY}", "TLS"),
        (f"Endpoint=sb://127.0.0.1:5673;{KEY}UseDevelopmentEmulator=false", "TLS"),
        ("sqlite:////tmp/jobpool.db", "no network"),
        ("memory://", "no network"),
        ("sync://", "no network"),
        ("kafka://broker", "kafka:// URL"),
        ("/tmp/jobpool.db", "not a URL"),
    ]:
        reason = find_route(url)
        assert isinstance(reason, str), url
        assert why in reason, url


def test_an_ipv6_proxy_is_written_in_brackets() -> None:
    route = find_route("redis://broker/0")
    assert isinstance(route, Route)
    assert route.to("::1", 99) == "redis://[::1]:99/0"


def test_no_reason_repeats_a_password() -> None:
    reason = find_route("postgresql://u:secret@a,b/app?password=secret")
    assert isinstance(reason, str)
    assert "secret" not in reason
