"""`jobpool claim …` and `jobpool message …`, on SQLite."""

from __future__ import annotations

import json
import re
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from calling import Jobpool
from click.testing import Result

from jobpool.broker.claim_store import NewPost
from jobpool.broker.opening import open_backend
from jobpool.clock import SystemClock

LATE = "0123456789abcdef" * 2


@pytest.fixture
def answer(jobpool: Jobpool) -> Callable[..., Any]:
    """What a verb answers with --json."""

    def call(*words: str, input: str | None = None) -> Any:
        result = jobpool(*words, "--json", input=input, code=0)
        return json.loads(result.stdout)

    return call


Answer = Callable[..., Any]


def refused(result: Result) -> str:
    """The one sentence of a call that failed."""
    assert result.exit_code != 0
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


# --- the whole way ------------------------------------------------------------------------------------------


def test_from_the_post_to_the_last_delete(jobpool: Jobpool, answer: Answer) -> None:
    ids = jobpool("message", "post", "mail", '{"to": "a@example.org"}', "plain text", "--ttl", "1d").stdout.split()
    assert [one["payload"] for one in answer("message", "list", "mail")] == [{"to": "a@example.org"}, "plain text"]
    claim = answer("claim", "create", "mail", "--ttl", "10m", "--grace", "2m")
    assert (claim["queue"], claim["ttl"], claim["grace"], claim["age"]) == ("mail", 600.0, 120.0, 0)
    assert [message["id"] for message in claim["messages"]] == ids
    assert answer("message", "list", "mail") == []
    assert "1 message deleted" in jobpool("message", "delete", "mail", ids[0], "--claim", claim["id"]).stderr
    assert [message["id"] for message in answer("claim", "show", "mail", claim["id"])["messages"]] == ids[1:]
    assert answer("claim", "renew", "mail", claim["id"], "--ttl", "1h")["ttl"] == 3600.0
    [listed] = answer("claim", "list")
    assert (listed["id"], listed["count"]) == (claim["id"], 1)
    assert "1 message released" in jobpool("claim", "release", "mail", claim["id"], LATE, "nonsense").stderr
    assert answer("claim", "release", "mail", claim["id"]) == {"released": 0}
    assert answer("claim", "list", "mail") == []
    assert jobpool("message", "pop", "mail", "--limit", "5").stdout == '"plain text"\n'
    assert answer("message", "list", "mail", "--claimed") == []


def test_for_people_it_is_tables(jobpool: Jobpool) -> None:
    jobpool("message", "post", "mail", '{"to": "a@example.org"}')
    jobpool("enqueue", "send", "to=b", "-Q", "mail")
    created = jobpool("claim", "create", "mail", "--limit", "1")
    first, header, row = created.stdout.splitlines()
    claim = first.removeprefix("claim ")
    assert "age 0s, held for 5m00s, grace 1m00s" in created.stderr
    assert header.split() == ["ID", "HANDLER", "AGE", "LEFT", "CLAIMS", "MESSAGE"]
    assert row.endswith('1  {"to":"a@example.org"}')
    listed = jobpool("message", "list", "mail", "--claimed").stdout.splitlines()
    assert listed[0].split() == ["ID", "HANDLER", "AGE", "LEFT", "CLAIMS", "CLAIM", "MESSAGE"]
    assert claim in listed[1]
    assert listed[2].split()[1] == "send"
    assert jobpool("claim", "list").stdout.splitlines()[1].split() == [claim, "mail", "1", "0s", "5m00s", "1m00s"]
    assert "1 message held for 5m00s from now" in jobpool("claim", "renew", "mail", claim).stderr
    assert jobpool("stats").stdout.splitlines()[0].split()[-1] == "POSTED"


def posted(*bodies: bytes) -> None:
    """Post bytes into the queue `mail` of the database that the command line uses."""
    with closing(open_backend("sqlite:///jobpool.db")) as backend:
        backend.claims.post("mail", [NewPost(f"m{number}", True, body) for number, body in enumerate(bodies)])


BYTES = [b"\xff\xfe\0 no text", b"\x1b[31mred\x1b[0m\r", "Zürich ✓".encode()]


def test_what_is_popped_comes_out_as_it_was_posted(jobpool: Jobpool) -> None:
    posted(*BYTES)
    assert jobpool("message", "pop", "mail", "--limit", "20").stdout_bytes == b"\n".join([*BYTES, b""])


def test_json_carries_all_bytes_of_what_is_popped(answer: Answer) -> None:
    posted(*BYTES, b'{"to": "a"}')
    binary, *others = answer("message", "pop", "mail", "--limit", "20")
    assert b64decode(binary["base64"]) == BYTES[0]
    assert [one["payload"] for one in others] == ["\x1b[31mred\x1b[0m\r", "Zürich ✓", {"to": "a"}]
    assert not any("base64" in one for one in others)


def test_json_carries_all_bytes_of_a_job_that_cannot_be_trusted(
    jobpool: Jobpool, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobpool("enqueue", "send", "to=b", "-Q", "mail")
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY", "a key of ours that nobody else has")
    [job] = answer("message", "pop", "mail")
    assert "malformed" in job
    assert b'"send"' in b64decode(job["base64"])


def test_what_only_python_takes_for_json_is_text(jobpool: Jobpool, answer: Answer) -> None:
    answer("message", "post", "mail", "NaN", "Infinity", "nan")
    assert [one["payload"] for one in answer("message", "list", "mail")] == ["NaN", "Infinity", "nan"]
    assert "line 1 is not a JSON value: NaN" in refused(
        jobpool("message", "post", "mail", "--file", "-", input="NaN\n")
    )


def test_where_nothing_is_free_it_says_so(jobpool: Jobpool, answer: Answer) -> None:
    assert answer("claim", "create", "mail") is None
    assert "no message of queue 'mail' is free" in jobpool("claim", "create", "mail").stderr
    assert "is free" in jobpool("message", "list", "mail").stderr
    assert "is free" in jobpool("message", "pop", "mail").stderr
    assert "there are no claims" in jobpool("claim", "list").stderr


def test_a_long_list_says_that_there_are_more(jobpool: Jobpool) -> None:
    jobpool("message", "post", "mail", "1", "2", "3")
    listed = jobpool("message", "list", "mail", "--limit", "2")
    assert len(listed.stdout.splitlines()) == 3
    assert "more than 2" in listed.stderr
    assert len(jobpool("message", "list", "mail", "--limit", "0").stdout.splitlines()) == 4


def test_lists_and_looks_show_posted_messages_too(jobpool: Jobpool, answer: Answer) -> None:
    ident, text = answer("message", "post", "mail", '{"to": "a"}', "plain", "--ttl", "1h")
    claim = answer("claim", "create", "mail", "--limit", "1")["id"]
    first, second = answer("list", "queue:mail")
    assert (first["id"], first["state"], first["claim"], first["claims"]) == (ident, "leased", claim, 1)
    assert (first["message"], second["message"]) == ({"to": "a"}, "plain")
    assert first["ends_at"] is not None
    assert jobpool("list").stdout.splitlines()[2].split()[:4] == [text, "waiting", "mail", "-"]
    inspected = jobpool("inspect", ident).stdout
    assert '"to": "a"' in inspected
    assert re.search(rf"^claim +{claim}$", inspected, re.MULTILINE)
    assert "malformed" not in inspected


# --- refusals: one sentence each ------------------------------------------------------------------------------


def test_a_list_says_that_a_claim_has_ended(jobpool: Jobpool, monkeypatch: pytest.MonkeyPatch) -> None:
    jobpool("message", "post", "mail", "A")
    jobpool("claim", "create", "mail", "--ttl", "60s")
    over = "its lease or claim has ended: the next claim, pool or `jobpool reap` frees it"
    assert over not in jobpool("list").stdout
    later = time.time() + 61.0
    monkeypatch.setattr(SystemClock, "wall", lambda _: later)
    assert over in jobpool("list").stdout


def test_what_somebody_holds_keeps_no_other_from_being_deleted(jobpool: Jobpool, answer: Answer) -> None:
    """More than one call of a broker can delete: 20."""
    ids = answer("message", "post", "mail", *(str(number) for number in range(25)))
    held = [one["id"] for one in answer("claim", "create", "mail", "--limit", "2")["messages"]]
    deleted = jobpool("message", "delete", "mail", *ids, "--json", code=1)
    assert f"somebody holds {held[0]}, {held[1]}: name its claim with --claim" in deleted.stderr
    assert json.loads(deleted.stdout) == {"deleted": ids[2:], "forbidden": held}
    assert [one["id"] for one in answer("message", "list", "mail", "--claimed")] == held


def test_a_claim_that_has_ended_is_told(jobpool: Jobpool) -> None:
    posted()
    for words in (("claim", "show"), ("claim", "renew")):
        assert f"no live claim '{LATE}'" in refused(jobpool(*words, "mail", LATE))
    assert "done again by somebody else" in refused(jobpool("message", "delete", "mail", "x", "--claim", LATE))


def test_a_renewal_out_of_bounds_is_refused_with_the_bound(jobpool: Jobpool, answer: Answer) -> None:
    answer("message", "post", "mail", "1")
    claim = answer("claim", "create", "mail")["id"]
    for option in (("--ttl", "59"), ("--grace", "13h")):
        assert "60 to 43,200 seconds" in refused(jobpool("claim", "renew", "mail", claim, *option, code=2))


def test_what_was_posted_before_a_bad_line_is_told(jobpool: Jobpool, answer: Answer) -> None:
    """More than one round trip carries: 500."""
    lines = "\n".join([*map(str, range(699)), "", "no json"])
    for json_ in ([], ["--json"]):
        result = jobpool("message", "post", "mail", "--file", "-", *json_, input=lines, code=2)
        assert "line 701 is not a JSON value" in result.stderr
        assert "(500 messages before it are posted; their ids are printed above)" in result.stderr
        told = json.loads(result.stdout) if json_ else result.stdout.split()
        assert [one["id"] for one in answer("message", "list", "mail", "--limit", "0")][-500:] == told


def test_what_is_posted_is_not_told_as_a_job_to_cancel_or_edit(jobpool: Jobpool) -> None:
    [post] = jobpool("message", "post", "mail", "1").stdout.split()
    assert "no message matches" in jobpool("cancel", "queue:mail", "--dry-run").stderr
    assert "it was posted, and is not a job" in jobpool("cancel", post, "--dry-run").stderr
    [job] = jobpool("enqueue", "report", "-Q", "mail", "--no-check").stdout.split()
    for words in (("cancel",), ("edit", "--now")):
        told = jobpool(*words, "queue:mail", "--dry-run").stdout
        assert f"would {words[0]} 1 message:" in told
        assert job in told
        assert post not in told


def test_a_purge_says_that_claims_hold_messages(jobpool: Jobpool, answer: Answer) -> None:
    answer("message", "post", "mail", "1", "2")
    answer("claim", "create", "mail")
    said = jobpool("purge", "queue:mail", "--yes").stderr
    assert "no message matches that is free: pools or claims hold 2 messages" in said
