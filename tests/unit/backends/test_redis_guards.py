"""Guards, where the contract leaves the how open: what stands in the server, for how long, and what is left behind."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from redis_rig import Rig, take
from support.claims import a_post
from support.jobs import QUEUE, a_job, new_lease, new_leases, numbered
from support.looks import begin

from jobpool.errors import BackendUnavailable
from jobpool.message.guards import Begin, Guards, Hold, Rate
from jobpool.message.settlement import Settled
from jobpool_backends.redis import RedisBackend, keys
from jobpool_backends.redis.keys import guarded_token
from jobpool_torture.network import Proxy

ALL = Guards(key="order-17", keep=50.0, holds=(Hold("job:nightly"), Hold("queue", 5)), rates=(Rate("queue", 5),))


def beside(rig: Rig) -> set[str]:
    """The keys of the key store, as they are now, without the prefix."""
    kinds = ("done", "runs", "hold", "guarded", "rate")
    names = (name.removeprefix(rig.key("")) for name in rig.names())
    return {name for name in names if name.split(":")[0] in kinds}


def test_a_first_run_or_a_pop_whose_answer_is_lost_is_not_undone_in_silence() -> None:
    with Rig() as rig, Proxy(rig.server.host, rig.server.port) as proxy:
        backend = RedisBackend.from_url(f"redis://{proxy.host}:{proxy.port}?prefix={rig.prefix}")
        assert backend.keys.first_run("other", "key")  # from now on the server knows the scripts
        assert backend.claims.pop("other", 1) == []
        backend.claims.post(QUEUE, [a_post() for _ in range(3)])
        proxy.drop_replies(1)
        assert backend.keys.first_run(QUEUE, "order-17")
        assert not backend.keys.first_run(QUEUE, "order-17")
        proxy.drop_replies(1)
        with pytest.raises(BackendUnavailable):
            backend.claims.pop(QUEUE, 1)
        proxy.cut()
        assert len(backend.claims.pop(QUEUE, 3)) == 2
        backend.close()


def test_after_the_ack_only_the_done_key_and_the_starts_are_left_and_they_end_by_themselves(rig: Rig) -> None:
    backend = rig.open()
    lease = new_lease(backend)
    assert begin(backend, lease, ALL)
    assert beside(rig) == {"runs:order-17", "hold:job:nightly", "hold:queue", "guarded", "rate:queue"}
    assert backend.ack(lease.guarded(ALL)) is Settled.OK
    assert beside(rig) == {"done:order-17", "rate:queue"}
    assert 49_000 < rig.call("PTTL", rig.key("done:order-17")) <= 50_002
    assert 119_000 < rig.call("PTTL", rig.key("rate:queue")) <= 120_002


def test_what_ended_without_a_word_is_removed_by_a_later_begin(turned: Rig, backend: RedisBackend) -> None:
    backend.enqueue_many(numbered(30))
    for number, lease in enumerate(take(backend, 29, ttl=10.0)):
        assert begin(backend, lease, Guards(key=f"order-{number}", holds=(Hold(f"job:{number}"),)))
    assert len(beside(turned)) == 59
    turned.server.advance(10.0)
    [other] = take(backend)
    for _ in range(3):
        assert begin(backend, other, Guards(holds=(Hold("queue", 5),)))
    assert beside(turned) == {"hold:queue", "guarded"}
    assert turned.holds("guarded") == 1


def test_what_was_settled_without_its_guards_is_removed_too(turned: Rig, backend: RedisBackend) -> None:
    one, other = new_leases(backend, 2, ttl=10.0)
    assert begin(backend, one, ALL)
    assert backend.ack(one) is Settled.OK
    turned.server.advance(5.0)
    other = backend.renew(other, 60.0)
    assert begin(backend, other, Guards())
    assert turned.holds("guarded") == 1  # till the deadline nobody looks
    turned.server.advance(5.0)
    assert begin(backend, other, Guards())
    assert beside(turned) == {"rate:queue"}


def test_a_lease_that_is_renewed_keeps_its_places_and_is_looked_at_again(turned: Rig, backend: RedisBackend) -> None:
    long, other = new_leases(backend, 2, ttl=10.0)
    assert begin(backend, long, replace(ALL, rates=()))
    for _ in range(5):
        turned.server.advance(9.0)
        long, other = (lease for lease in backend.renew_many([long, other], 10.0) if lease)
        assert begin(backend, other, Guards())
        assert begin(backend, other, Guards(key="order-17")).answer is Begin.HELD
    turned.server.advance(10.0)
    backend.reap(QUEUE)
    [again, *_] = take(backend, 2)
    assert begin(backend, again, Guards())
    assert beside(turned) == set()


def test_the_next_delivery_keeps_what_is_tidied_up_behind_the_last(turned: Rig, backend: RedisBackend) -> None:
    backend.enqueue_many(numbered(2))
    [first] = take(backend, ttl=10.0)
    assert begin(backend, first, ALL)
    turned.server.advance(10.0)
    backend.reap(QUEUE)
    second, other = take(backend, 2)
    assert begin(backend, second, ALL)  # and tidies up
    assert begin(backend, other, Guards(key="order-17")).answer is Begin.HELD
    assert backend.keys.holders(QUEUE, "job:nightly") == [second.id]
    assert turned.holds("guarded") == 1


def test_starts_that_are_counted_no_more_are_not_kept(turned: Rig) -> None:
    keys = turned.open().keys
    hour, second = Rate("x", 3, 3600.0), Rate("x", 1, 1.0)
    for rate, token in ((hour, "a"), (second, "b"), (hour, "c")):
        assert keys.take(QUEUE, rate, token) == 0.0
        turned.server.advance(3660.0)
    assert keys.take(QUEUE, hour, "d") == 0.0
    assert turned.holds("rate:x") == 2  # and the length of the window


def test_a_large_batch_is_several_scripts_and_answered_in_order(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_LEASES_PER_SCRIPT", 4)
    backend = rig.open()
    backend.enqueue_many([a_job(number, queue=f"q{number % 2}") for number in range(20)])
    leases = [lease for pair in zip(take(backend, 10, "q0"), take(backend, 10, "q1"), strict=True) for lease in pair]
    guards = Guards(holds=(Hold("queue", 7),))
    answers = backend.keys.begin_many([(lease, guards) for lease in leases])
    assert [bool(answer) for answer in answers] == [True] * 14 + [False] * 6


def test_a_batch_costs_one_round_trip_on_one_server(rig: Rig, backend: RedisBackend) -> None:
    backend.enqueue_many([a_job(number, queue=f"q{number % 5}") for number in range(50)])
    leases = [lease for number in range(5) for lease in take(backend, 10, f"q{number}")]
    backend.keys.begin_many([(lease, ALL) for lease in leases])
    calls = rig.spent(lambda: backend.keys.begin_many([(lease, ALL) for lease in leases]))
    assert (calls["evalsha"], calls["eval"], calls["time"]) == (1, 0, 1)


def test_the_guards_of_a_lease_are_always_the_same_bytes(backend: RedisBackend) -> None:
    """`settle.lua` finds what `acquire_guards.lua` has noted by them."""
    lease = new_lease(backend)
    holds = '[["job:nightly",1],["queue",5]]'
    assert guarded_token(lease, ALL) == (
        f'{lease.owner_token}["order-17",50000000,{holds},[["queue",5,60000000]]]'.encode()
    )
    assert guarded_token(lease, Guards()) == f'{lease.owner_token}["",86400000000,[],[]]'.encode()
