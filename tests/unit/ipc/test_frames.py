from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import row

from jobpool.ipc.frames import (
    NO_JOBS,
    RESULT_HEAD,
    Ask,
    BadFrame,
    BootFailed,
    Exited,
    Frame,
    HandlerInfo,
    Loaded,
    LoadFailed,
    Ready,
    Reply,
    Result,
    Said,
    Spawn,
    Spawned,
    SpawnFailed,
    decode,
    nonce_of,
    run_packet,
    to_raw,
    with_ticket,
)
from jobpool.message.batches import BatchCall, BatchStatus
from jobpool.message.definition import JobDefinition
from jobpool.message.outcome import ResultKind

NEXT = JobDefinition("next")

ONE_OF_EACH: list[Frame] = [
    Ready(),
    Said(1, 20, "x"),
    BootFailed("no module named 'nope'"),
    Result(9, ResultKind.SUCCEEDED, 12.5, 0.25),
    Result(9, ResultKind.RETRY, 12.5, 0.25, "out", "error: ü", 30.0, to_raw([NEXT]), "max_jobs"),
    Result(9, ResultKind.SNOOZE, 0.0, 0.0, after=5),
    Result(9, ResultKind.SUCCEEDED, 12.5, 0.25, kept='{"a":1}'),
    Ask(to_raw([NEXT, JobDefinition("report", {"n": 1})])),
    Ask(NO_JOBS, pack=True),
    Ask(to_raw([NEXT]), batch=BatchCall("open", "june", "year", ("on_done",))),
    Reply(["id1", "id2"]),
    Reply(["id1"], packed=[{"id": "id1", "body": "{}"}]),
    Reply([], batch=BatchStatus("june", True, 3, 1, 1, 0, ("a",), 12.5, nested=("b",))),
    Reply([], "InvalidJob", "queue name '' is refused"),
    Loaded([HandlerInfo("a"), HandlerInfo("b", 3, 1.5, True, backoff="fixed")], False, ["poller"], 0.5),
    LoadFailed("myapp does not import: SyntaxError", "Traceback ..."),
    Spawn(child=5, slot=3),
    Spawned(child=5, pid=4242),
    SpawnFailed(child=5, error="EAGAIN"),
    Exited(5, 4242, None, 11, True, 0.5, 1 << 20),
    Exited(5, 4242, 3, None),
]


def test_a_frame_comes_back_as_it_went() -> None:
    for frame in ONE_OF_EACH:
        assert decode(frame.encode()) == frame


def test_a_run_cut_anywhere_in_its_head_is_a_bad_frame() -> None:
    run = run_packet(2**64 - 1, 7, 2, 1, 3600.0, b"")
    ticketed = with_ticket(run, b'{"ack":"a:b"}')
    assert nonce_of(run) == nonce_of(ticketed) == 2**64 - 1
    for packet in (run, ticketed):
        for length in range(len(packet)):
            with row(packet[:length]), pytest.raises(BadFrame):
                nonce_of(packet[:length])


def test_a_plain_success_is_a_head_and_nothing_else() -> None:
    assert len(Result(9, ResultKind.SUCCEEDED, 12.5, 0.25).encode()) == RESULT_HEAD.size


def test_a_field_of_a_later_version_is_left_out() -> None:
    """A pool that is older than the installed code hears from its processes, after a reload."""
    assert decode(b'\x20{"handlers":[{"name":"report","colour":"red"}],"sound":1}') == Loaded([HandlerInfo("report")])


def test_rubbish_is_a_bad_frame() -> None:
    for packet in [
        b"",
        b"\x00",
        b"\x01",
        b"\x01short",
        b"\x12",
        b"\x20",
        b"\x20null",
        b"\x20[]",
        b'\x20"text"',
        b'\x20{"handlers":[{"nome":1}]}',
        b"\x22{}",
        b"\x22[1,2]",
        b"\x22not json",
        b'\x13{"definitions":[%b]}' % (b"[" * 10**5 + b"]" * 10**5),
        b'\x13{"definitions":[],"batch":{"verb":"drop","id":"june"}}',
        b'\x13{"definitions":[],"batch":{"verb":"close","id":7}}',
        b'\x15{"nonce":1,"level":true,"text":""}',
        b'\x15{"nonce":1.0,"level":20,"text":""}',
        b'\x15{"nonce":1,"level":"20","text":""}',
        b'\x15{"nonce":1,"level":20,"text":7}',
        b'\x15{"nonce":1,"level":20,"text":"","left_out":99999999999999999999}',
        b'\x15{"nonce":1,"level":20,"text":"","left_out":-1}',
        b"\xff" * 40,
        RESULT_HEAD.pack(0x12, 1, 99, 0.0, 0.0),
        RESULT_HEAD.pack(0x12, 1, 0, 0.0, 0.0) + b"[1,2]",
        RESULT_HEAD.pack(0x12, 1, 0, 0.0, 0.0) + b'[1,"",0,[],""]',
        RESULT_HEAD.pack(0x12, 1, 0, 0.0, 0.0) + b'["","",null,[],""]',
        RESULT_HEAD.pack(0x12, 1, 0, 0.0, 0.0) + b'["","",0,{},""]',
        RESULT_HEAD.pack(0x12, 1, 0, 0.0, 0.0) + b"7",
    ]:
        with row(packet), pytest.raises(BadFrame):
            decode(packet)


def test_a_frame_with_values_that_no_child_has_is_a_bad_one() -> None:
    frames: list[Frame] = [
        *[Result(9, ResultKind.SUCCEEDED, bad, 0.25) for bad in (math.nan, math.inf, -1.0, 1e300)],
        *[Result(9, ResultKind.SUCCEEDED, 12.5, bad) for bad in (math.nan, math.inf, -1.0, 1e300)],
        Result(9, ResultKind.RETRY, 12.5, 0.25, after=-1.0),
        BootFailed(["an error"]),  # type: ignore[arg-type]
    ]
    for frame in frames:
        with row(frame), pytest.raises(BadFrame):
            decode(frame.encode())


def test_a_job_that_json_cannot_carry_is_not_sent_as_another() -> None:
    for payload in ({7: 1}, b"bytes", 2**70, "\ud800"):
        job = JobDefinition("report", [])
        job.payload.append(payload)
        with row(payload), pytest.raises(TypeError):
            to_raw([job])


def test_a_frame_cut_anywhere_never_raises_anything_else() -> None:
    for packet in [frame.encode() for frame in ONE_OF_EACH]:
        for length in range(len(packet)):
            _decode_or_bad_frame(packet[:length])


@given(st.sampled_from(list(range(256))), st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(tag: int, rest: bytes) -> None:
    _decode_or_bad_frame(bytes([tag]) + rest)


def _decode_or_bad_frame(packet: bytes) -> None:
    with contextlib.suppress(BadFrame):
        decode(packet)
