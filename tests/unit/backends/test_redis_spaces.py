"""Records and logs, where the contract leaves the how open: what is left of them, and large answers."""

from __future__ import annotations

from redis_rig import Rig

from jobpool.broker.backend import QueueBackend

SPACE = "pools"
OF_RECORDS = ("values", "names", "ends")


def listed(backend: QueueBackend, **options: object) -> list[str]:
    return [key for key, _ in backend.keys.list_records(SPACE, **options)]  # type: ignore[arg-type]


def test_records_that_have_ended_are_removed_by_the_next_that_are_written(turned: Rig) -> None:
    backend = turned.open()
    backend.keys.put_records(SPACE, {f"pool-{number}": b"{}" for number in range(90)}, 10.0)
    backend.keys.put_records(SPACE, {"long": b"{}"}, 1000.0)
    turned.server.advance(10.0)
    assert listed(backend) == ["long"]
    assert [turned.holds(name, SPACE) for name in OF_RECORDS] == [91] * 3
    backend.keys.put_records(SPACE, {"new": b"{}"}, 10.0)
    assert [turned.holds(name, SPACE) for name in OF_RECORDS] == [2] * 3


def test_a_space_ends_with_its_last_record(rig: Rig) -> None:
    backend = rig.open()
    for ttl in (10.0, 100.0, 1.0):
        backend.keys.put_records(SPACE, {f"for-{ttl}": b"{}"}, ttl)
    assert all(99_000 < rig.call("PTTL", rig.key(name, SPACE)) <= 100_002 for name in OF_RECORDS)
    backend.keys.delete_records(SPACE, ["for-10.0", "for-100.0", "for-1.0"])
    assert rig.names() == set()


def test_many_large_records_come_in_several_answers(rig: Rig) -> None:
    backend = rig.open()
    records = {f"{number:03d}": bytes([number]) * 250_000 for number in range(90)}
    backend.keys.put_records(SPACE, records, 100.0)
    listed(backend, limit=1)  # so that the server knows the script
    before = rig.commands()
    assert dict(backend.keys.list_records(SPACE)) == records
    assert (rig.commands() - before)["evalsha"] == 3
    assert listed(backend, after="003", limit=50) == [f"{number:03d}" for number in range(4, 54)]


def test_thousands_of_records_are_listed_past_those_that_have_ended(turned: Rig) -> None:
    backend = turned.open()
    backend.keys.put_records(SPACE, {f"a-{number:04d}": b"" for number in range(7000)}, 1.0)
    turned.server.advance(1.0)
    backend.keys.put_records(SPACE, {f"b-{number:04d}": b"" for number in range(1200)}, 100.0)
    assert listed(backend) == [f"b-{number:04d}" for number in range(1000)]
    assert len(listed(backend, limit=10_000)) == 1200
    assert listed(backend, prefix="b-1", after="b-1197") == ["b-1198", "b-1199"]


def test_a_prefix_and_an_after_that_lie_apart(rig: Rig) -> None:
    backend = rig.open()
    backend.keys.put_records(SPACE, dict.fromkeys(("a", "b", "b\u00ff", "b\U0001f600", "c"), b""), 10.0)
    assert listed(backend, prefix="b", after="a") == ["b", "b\u00ff", "b\U0001f600"]
    assert listed(backend, prefix="b", after="b") == ["b\u00ff", "b\U0001f600"]
    assert listed(backend, prefix="b", after="c") == []
    assert listed(backend, after="b\u00ff") == ["b\U0001f600", "c"]


def test_a_call_of_more_lines_than_a_log_keeps_leaves_the_newest(rig: Rig) -> None:
    backend = rig.open()
    lines = [(f"job-{number % 2}", str(number).encode()) for number in range(20_000)]
    backend.keys.append_log(SPACE, lines, 3)
    assert backend.keys.read_log(SPACE, "job-1") == [b"19999", b"19997", b"19995"]
    backend.keys.append_log(SPACE, lines, 9000)
    assert rig.call("LLEN", rig.key("log:job-0", SPACE)) == 9000
    assert backend.keys.read_log(SPACE, "job-0", limit=2) == [b"19998", b"19996"]
    assert backend.keys.list_logs(SPACE) == ["job-0", "job-1"]


def test_a_server_that_forgets_its_scripts_does_no_harm(rig: Rig) -> None:
    backend = rig.open()
    for number in range(2):
        rig.call("SCRIPT", "FLUSH")
        backend.keys.put_records(SPACE, {"a": b"1"}, 10.0)
        rig.call("SCRIPT", "FLUSH")
        assert backend.keys.get_record(SPACE, "a") == b"1"
        rig.call("SCRIPT", "FLUSH")
        assert listed(backend) == ["a"]
        rig.call("SCRIPT", "FLUSH")
        backend.keys.append_log(SPACE, [("job", b"line")], 10)
        assert len(backend.keys.read_log(SPACE, "job")) == number + 1
        rig.call("SCRIPT", "FLUSH")
        backend.keys.delete_records(SPACE, ["a"])
        assert listed(backend) == []
