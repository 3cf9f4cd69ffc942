"""The verbs on a SQLite file, called in this process. What the pool would do between them is done by hand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from calling import Jobpool
from msgspec.structs import replace

from jobpool.broker.backend import QueueBackend
from jobpool.broker.packing import pack_all
from jobpool.cli.init import FILES
from jobpool.cli.init import _write as write_first_files
from jobpool.cli.messages import moment
from jobpool.message.death import Death
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import decode
from jobpool.settings import load


def enqueue(jobpool: Jobpool, *words: str) -> str:
    result = jobpool("enqueue", *words, code=0)
    return result.stdout.strip()


def kill_off(broker: QueueBackend, queue: str, reason: str = "timeout") -> str:
    """Lease the next message of `queue` and abandon it."""
    [lease] = broker.fetch_many(queue, limit=1)
    assert broker.abandon(lease, reason, "Traceback:\n  deep\nValueError: no paper")
    return lease.id


def payload_of(jobpool: Jobpool, ident: str) -> object:
    return json.loads(jobpool("inspect", ident, "--json").stdout)["payload"]


# --- enqueue ---------------------------------------------------------------------------------------


def test_a_payload_is_json_or_key_value(jobpool: Jobpool) -> None:
    for words, payload in [
        ([], {}),
        (['{"customer": 7}'], {"customer": 7}),
        (["[1, 2]"], [1, 2]),
        (["7"], 7),
        (['"a=b"'], "a=b"),
        (["null"], None),
        (
            ["customer=7", "month=2026-06", "draft=true", "name=Zoë Ünlü"],
            {"customer": 7, "month": "2026-06", "draft": True, "name": "Zoë Ünlü"},
        ),
        (["url=https://x.org/?a=b"], {"url": "https://x.org/?a=b"}),
        (['number="7"', "empty=", "name=NaN"], {"number": "7", "empty": "", "name": "NaN"}),
    ]:
        assert payload_of(jobpool, enqueue(jobpool, "report", *words)) == payload, words


def test_a_job_that_was_enqueued_unseen_is_remarked_unless_that_was_asked_for(jobpool: Jobpool) -> None:
    told = "the job was not checked, and is in queue 'default': no app is named (--app, or apps in jobpool.toml)\n"
    for words in (["report", "customer=1"], ["report", "--json"]):
        assert jobpool("enqueue", *words).stderr.endswith(told)
    for words in (["report", "--no-check"], ["report", "-Q", "reports"], ["report", "-q"], ["shell", "words=ls"]):
        assert jobpool("enqueue", *words).stderr == ""


def test_enqueue_with_every_option(jobpool: Jobpool) -> None:
    ident = enqueue(
        *(jobpool, "report", "-Q", "reports", "-p", "1", "--delay", "1h", "--max-retries", "3"),
        *("--timeout", "5m", "--id", "monthly-2026-06"),
    )
    assert ident == "monthly-2026-06"
    message = json.loads(jobpool("inspect", ident, "--json").stdout)
    assert {key: message[key] for key in ("queue", "priority", "state", "max_retries", "timeout")} == {
        "queue": "reports",
        "priority": 1,
        "state": "delayed",
        "max_retries": 3,
        "timeout": 300.0,
    }


def test_the_ends_of_a_job_and_of_its_lease_are_told_apart(jobpool: Jobpool, broker: QueueBackend) -> None:
    idents = [broker.enqueue(JobDefinition("report", expires_in=seconds)) for seconds in (3600.0, None)]
    broker.fetch("default", ttl=60.0)
    told = [json.loads(jobpool("inspect", ident, "--json").stdout) for ident in idents]
    ends = [datetime.fromisoformat(end) for end in (told[0]["lease_until"], told[0]["expires_at"])]
    assert timedelta(minutes=58) < ends[1] - ends[0] < timedelta(minutes=60)
    assert (told[1]["lease_until"], told[1]["expires_at"]) == (None, None)
    assert moment(1e300) is None, "a body may hold any number"


def test_many_jobs_from_lines(jobpool: Jobpool, broker: QueueBackend) -> None:
    lines = '{"handler": "a", "payload": {"n": 1}, "queue": "x"}\n\n{"handler": "b", "id": "mine", "delay": "1h"}\n'
    assert jobpool("enqueue", "--file", "-", "-Q", "y", input=lines, code=0).stdout.split()[1] == "mine"
    assert (broker.stats("x").waiting, broker.stats("y").delayed) == (1, 1)


def test_lines_are_payloads_when_the_handler_is_named(jobpool: Jobpool) -> None:
    result = jobpool("enqueue", "report", "--file", "-", "--json", input="1\n[2]\n")
    assert [payload_of(jobpool, ident) for ident in json.loads(result.stdout)] == [1, [2]]


def test_a_bad_line_is_named_and_says_what_is_enqueued_already(jobpool: Jobpool, broker: QueueBackend) -> None:
    result = jobpool("enqueue", "report", "--file", "-", input="{}\n" * 1200 + "{oops\n", code=2)
    assert "line 1201 is not a JSON value: " in result.stderr
    assert "(1,000 jobs before it are enqueued; their ids are printed above)" in result.stderr
    assert broker.stats("default").waiting == 1000
    large = json.dumps("x" * 1_000_000)
    result = jobpool("enqueue", "report", "--file", "-", input=f"{large}\n" * 6 + "{oops\n")
    assert "(4 jobs before it are enqueued; " in result.stderr, "a round trip carries at most 4 MiB"


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_jobs_whose_ids_cannot_be_printed_are_counted(broker: QueueBackend, words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "jobpool", "enqueue", "report", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, broker.stats("default").waiting) == (1, 1)
    assert done.stderr.startswith("1 job enqueued, though not every id could be printed\n")


def test_what_needs_a_key_store_is_in_the_message(jobpool: Jobpool, broker: QueueBackend) -> None:
    guarded = ["--idempotency-key", " month-6 ", "--single-instance", "--concurrency-key", "tenant-7"]
    message = broker.inspect(enqueue(jobpool, "report", *guarded, "--job-name", "monthly", "--expires-in", "2h"))
    assert message is not None
    envelope = decode(message.body, attempts=0)
    assert (envelope.name, envelope.idempotency_key) == ("monthly", "month-6")
    assert (envelope.single_instance, envelope.concurrency_key) == (True, "tenant-7")
    assert envelope.expires == pytest.approx(message.enqueued_at + 7200, abs=60)


def test_a_unique_job_is_there_once_and_its_id_is_told_again(jobpool: Jobpool, broker: QueueBackend) -> None:
    ident = enqueue(jobpool, "report", "--unique", "--idempotency-key", "month-6")
    line = json.dumps({"handler": "report", "idempotency_key": "month-6", "unique": True, "expires_in": "5m"})
    assert jobpool("enqueue", "--file", "-", input=f"{line}\n{line}\n").stdout.split() == [ident, ident]
    assert broker.stats("default").waiting == 1


# --- reading ---------------------------------------------------------------------------------------


def test_stats_of_all_queues_or_some(jobpool: Jobpool, broker: QueueBackend) -> None:
    enqueue(jobpool, "a", "-Q", "reports")
    enqueue(jobpool, "a", "-Q", "mail", "--delay", "1h")
    enqueue(jobpool, "a", "-Q", "mail")
    kill_off(broker, "mail")
    counts = {row["queue"]: row for row in json.loads(jobpool("stats", "--json").stdout)}
    assert counts["reports"]["waiting"] == 1
    assert (counts["mail"]["delayed"], counts["mail"]["dead"]) == (1, 1)
    assert [row["queue"] for row in json.loads(jobpool("stats", "mail", "--json").stdout)] == ["mail"]
    assert [row["queue"] for row in json.loads(jobpool("stats", "-Q", "mail,x", "--json").stdout)] == ["mail", "x"]


def test_stats_shows_a_command_that_starts_a_pool(jobpool: Jobpool, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue(jobpool, "a", "-Q", "mail")
    assert "such as `jobpool --queue mail --app YOUR_APP`" in jobpool("stats").stderr
    monkeypatch.setenv("JOBPOOL_APPS", "jobs.py")
    assert "such as `jobpool --queue mail`" in jobpool("stats").stderr


def test_a_table_in_a_pipe_is_plain_and_aligned(jobpool: Jobpool) -> None:
    enqueue(jobpool, "a", "-Q", "a-rather-long-name")
    head, row = jobpool("stats").stdout.splitlines()
    assert head.split() == ["QUEUE", "WAITING", "DELAYED", "LEASED", "DEAD", "OLDEST", "POOLS"]
    assert row.split()[:5] == ["a-rather-long-name", "1", "0", "0", "0"]
    assert head.index("WAITING") + len("WAITING") - 1 == row.index(" 1 ") + 1


def test_list_filters_and_limits(jobpool: Jobpool) -> None:
    first, second, third = (enqueue(jobpool, "a", "-Q", queue, "note=disk full") for queue in ("x", "y", "x"))

    def listed(*words: str) -> list[str]:
        return [row["id"] for row in json.loads(jobpool("list", "--json", *words).stdout)]

    assert listed() == [first, second, third]
    assert listed("queue:x") == listed("-Q", "x") == [first, third]
    assert listed(second) == [second]
    assert listed("disk full", "queue:y") == [second]
    assert listed("--limit", "2") == [first, second]
    assert listed("--limit", "0") == [first, second, third]
    assert "there are more than 2; --limit 0 lists all" in jobpool("list", "--limit", "2").stderr


def test_ages_and_ends_are_told_by_the_brokers_clock(
    jobpool: Jobpool, broker: QueueBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine whose clock is two hours behind it."""
    for _ in range(2):
        broker.enqueue(JobDefinition("report", queue="reports"))
    dead, held = broker.fetch_many("reports", limit=2)
    broker.abandon(dead, "failed")
    jobpool("message", "post", "mail", "A")
    monkeypatch.setattr(type(broker), "broker_time", lambda _: time.time() + 7200.0)
    for words in (["list", "id:" + dead.id], ["dead", "list"], ["status", dead.id], ["message", "list", "mail"]):
        assert "2h00m" in jobpool(*words).stdout, words
    assert "its lease or claim has ended" in jobpool("list", "id:" + held.id).stdout
    assert "failed for good 2h00m ago" in jobpool("result", dead.id).stderr


def test_the_list_says_why_a_job_that_did_not_fail_is_delayed(jobpool: Jobpool, broker: QueueBackend) -> None:
    enqueue(jobpool, "report", "-Q", "reports")
    lease = broker.fetch("reports")
    assert lease is not None
    assert broker.release(lease, 600)
    assert "  snoozed, or waits for a lock, a limit or a handler; due in 9m59s\n" in jobpool("list").output
    ident = enqueue(jobpool, "report", "--delay", "10m")
    assert "  due in 9m5" in jobpool("list", ident).stdout


def test_nothing_found_is_said_on_stderr(jobpool: Jobpool, tmp_path: Path) -> None:
    for words in (["list"], ["dead"], ["inspect", "x"], ["stats"], ["purge", "--all", "-y"], ["claim", "list"]):
        result = jobpool(*words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"there is no database {tmp_path}/jobpool.db yet: `jobpool enqueue`, a producer" in result.stderr
    assert not list(tmp_path.glob("jobpool.db*")), "a verb that reads makes none"
    jobpool("init", "--broker-only", code=0)
    for words in (["list"], ["dead"], ["dead", "list"]):
        result = jobpool(*words)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no message matches\n")
    assert jobpool("stats").stderr == "every queue is empty\n"


def test_a_message_of_a_newer_version_is_shown_whatever_it_keeps(jobpool: Jobpool, broker: QueueBackend) -> None:
    [message] = pack_all(broker, [JobDefinition("report")])
    meta = b'"meta":{"v":2,"_expires":"soon"},"priority"'
    broker._enqueue([replace(message, body=message.body.replace(b'"priority"', meta, 1))])
    shown = json.loads(jobpool("inspect", message.id, "--json").stdout)
    assert (shown["meta"], shown["expires_at"]) == ({"v": 2, "_expires": "soon"}, None)
    jobpool("list", code=0)


def test_options_stand_before_the_verb_too(jobpool: Jobpool, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    jobpool("-b", other, "enqueue", "a", "--id", "x", code=0)
    jobpool("inspect", "x", "-b", other, code=0)
    jobpool("inspect", "x", code=2)
    jobpool("--app", "myapp", "-w", "4", "--cron", "-b", other, "inspect", "x", code=0)
    assert jobpool("-b", other, "--no-cron", "-Amyapp", "dead", "list").stderr == "no message matches\n"
    assert "No such option '--once'" in jobpool("-b", other, "--once", "stats").stderr


def test_reap_gives_back_what_has_expired(jobpool: Jobpool, broker: QueueBackend) -> None:
    ident = enqueue(jobpool, "report")
    [lease] = broker.fetch_many("default", limit=1)
    broker.forfeit(lease, Death("killed by SIGSEGV", "itself").to_text())
    [told] = json.loads(jobpool("reap", "default", "--json").stdout)
    assert (told["id"], told["crashes"], told["dead"], told["cause"]["how"]) == (ident, 1, False, "killed by SIGSEGV")
    assert jobpool("reap").stderr == "0 messages reaped\n"


# --- what destroys asks first ------------------------------------------------------------------------


def test_what_destroys_answers_in_json_too(jobpool: Jobpool, broker: QueueBackend) -> None:
    def answered(*words: str) -> object:
        return json.loads(jobpool(*words, "--json").stdout)

    for number in range(3):
        enqueue(jobpool, "a", f"n={number}")
    kill_off(broker, "default")
    assert answered("purge", "state:waiting", "--dry-run") == {"matched": 2, "purged": 0}
    assert answered("purge", "state:waiting", "--yes") == {"matched": 2, "purged": 2}
    assert answered("purge", "state:waiting", "--yes") == {"matched": 0, "purged": 0}
    assert answered("dead", "retry", "--all", "--yes") == {"matched": 1, "retried": 1}
    kill_off(broker, "default")
    assert answered("dead", "purge", "--all", "-y") == {"matched": 1, "purged": 1}
    assert answered("init", "--broker-only") == {"files": [], "broker": "sqlite"}
    assert answered("init") == {"files": ["jobpool.toml", "jobs.py"], "broker": None}


def test_without_a_terminal_and_without_yes_it_refuses(jobpool: Jobpool, broker: QueueBackend) -> None:
    enqueue(jobpool, "a")
    result = jobpool("purge", "queue:default", input="y\n", code=2)
    assert "purge 1 message? There is no terminal to ask on: give --yes, or --dry-run" in result.stderr
    assert broker.stats("default").waiting == 1


def test_a_reason_that_nothing_has_is_told(jobpool: Jobpool, broker: QueueBackend) -> None:
    enqueue(jobpool, "a")
    kill_off(broker, "default", "failed")
    told = "no message matches: none has the reason 'faild'; did you mean 'failed'?\n"
    assert jobpool("dead", "list", "reason:faild").stderr == told
    refused = jobpool("dead", "retry", "reason:faild", "-y")
    assert (refused.exit_code, refused.stderr) == (1, f"jobpool: {told}")
    assert jobpool("dead", "list", "reason:timeout").stderr == "no message matches\n"


def test_a_word_that_is_the_id_of_a_message_is_taken_as_one(jobpool: Jobpool) -> None:
    enqueue(jobpool, "a", "rep-1=1", "--id", "other")
    enqueue(jobpool, "a", "--id", "rep-1")
    assert [one["id"] for one in json.loads(jobpool("list", "rep-1", "--json").stdout)] == ["rep-1"]
    cancelled = jobpool("cancel", "rep-1")
    assert (cancelled.exit_code, cancelled.stdout) == (0, "rep-1  cancelled\n")
    assert jobpool("dead", "retry", "rep-1", "-y").stdout == "1 message retried\n"
    assert jobpool("edit", "rep-1", "--priority", "1").stdout == "rep-1  edited\n"
    assert jobpool("purge", "rep-1", "-y").stdout == "1 message purged\n"
    assert [one["id"] for one in json.loads(jobpool("list", "rep-1", "--json").stdout)] == ["other"]


# --- init --------------------------------------------------------------------------------------------


def test_init_writes_what_can_be_loaded_and_says_what_next(jobpool: Jobpool, tmp_path: Path) -> None:
    result = jobpool("init", "shop", code=0)
    assert result.stdout == ""
    assert [line.split("#")[0].strip() for line in result.stderr.splitlines()] == [
        "wrote shop/jobpool.toml and shop/jobs.py",
        "",
        "Next, in shop:",
        "jobpool enqueue count_primes below=2000000",
        "jobpool",
        "jobpool top",
    ]
    settings = load(config=tmp_path / "shop" / "jobpool.toml")
    assert settings.apps == ("jobs",)
    assert settings.backend == f"sqlite:///{tmp_path}/shop/jobpool.db"


def test_every_setting_that_init_comments_out_is_a_valid_one(jobpool: Jobpool, tmp_path: Path) -> None:
    jobpool("init")
    path = tmp_path / "jobpool.toml"
    written = load()
    lines = re.findall(r"^(?:# )?([a-z_]+ = .+)$", path.read_text(), re.MULTILINE)
    path.write_text("\n".join(lines))
    assert load() == written, "what is commented out is the default"
    assert len(lines) >= 25


def test_init_does_not_overwrite_unless_forced(jobpool: Jobpool, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("mine")
    result = jobpool("init", code=0)
    assert "jobs.py is there already, and is left as it is" in result.stderr
    assert "count_primes" not in result.stderr
    assert ((tmp_path / "jobs.py").read_text(), (tmp_path / "jobpool.toml").exists()) == ("mine", True)
    assert "jobpool.toml and jobs.py: already there; --force overwrites" in jobpool("init", code=2).stderr
    jobpool("init", "--force", code=0)
    assert "count_primes" in (tmp_path / "jobs.py").read_text()


def test_init_leaves_nothing_half_written(jobpool: Jobpool, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").symlink_to("nowhere/jobs.py")  # cannot be written, as on a full disk
    result = jobpool("init")
    assert (result.exit_code, f"{tmp_path} cannot be written" in result.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.py"]


def test_init_writes_any_url_as_toml(jobpool: Jobpool) -> None:
    for name in ("x\U0001f600", 'a"b', "a\\b", "a\x7fb", "a\tb"):
        jobpool("init", "-b", f"sqlite:///{name}.db", "--force", code=0)
        assert load().backend.endswith(f"/{name}.db")


def test_init_does_not_hide_the_settings_of_a_pyproject_unless_forced(jobpool: Jobpool, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.jobpool]\nworkers = 2\n")
    result = jobpool("init")
    assert (result.exit_code, (tmp_path / "jobpool.toml").exists()) == (2, False)
    assert "pyproject.toml has a table [tool.jobpool], which jobpool.toml would hide" in result.stderr
    jobpool("init", "--force", code=0)


def test_init_with_a_relative_url_prepares_the_file_that_the_configuration_means(
    jobpool: Jobpool, tmp_path: Path
) -> None:
    jobpool("init", "shop", "-b", "sqlite:///queue.db", code=0)
    assert (tmp_path / "shop" / "queue.db").exists()
    assert not (tmp_path / "queue.db").exists()


@pytest.mark.parametrize(("url", "mode"), [("redis://me:hidden@h/0", 0o600), ("redis://h/0", 0o644)])
def test_a_configuration_with_a_password_is_its_owners_alone(tmp_path: Path, url: str, mode: int) -> None:
    before = os.umask(0o022)
    try:
        write_first_files(tmp_path, FILES, url)
    finally:
        os.umask(before)
    assert (tmp_path / "jobpool.toml").stat().st_mode & 0o777 == mode
    assert (tmp_path / "jobs.py").stat().st_mode & 0o777 == 0o644


def test_init_says_that_the_variable_wins(jobpool: Jobpool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_BACKEND", "redis://nobody:secret@nowhere")
    said = jobpool("init").stderr
    assert "JOBPOOL_BACKEND wins over backend in jobpool.toml" in said
    assert "secret" not in said


@pytest.mark.parametrize("words", [("enqueue", "report"), ("message", "post", "reports", "{}")], ids=" ".join)
def test_a_file_that_nobody_configured_is_named_when_it_is_made(
    jobpool: Jobpool, tmp_path: Path, words: tuple[str, ...]
) -> None:
    told = f"no backend is configured: made {tmp_path}/jobpool.db"
    assert [told in jobpool(*words).stderr for _ in range(2)] == [True, False]
    assert "no backend is configured" not in jobpool("-b", f"sqlite:///{tmp_path}/other.db", *words).stderr


def test_init_writes_nothing_for_a_broker_that_cannot_be_prepared(jobpool: Jobpool, tmp_path: Path) -> None:
    result = jobpool("init", "-b", "sqlite:///nowhere/queue.db")
    assert result.exit_code != 0
    assert "nowhere" in result.stderr
    assert not (tmp_path / "jobpool.toml").exists()


def test_init_of_the_broker_only_writes_no_files(jobpool: Jobpool, tmp_path: Path) -> None:
    jobpool("init", code=0)
    (tmp_path / "jobs.py").unlink()
    for _ in range(2):
        result = jobpool("init", "--broker-only")
        assert (result.exit_code, result.stderr) == (0, "the sqlite:// broker is ready\n")
    assert (tmp_path / "jobpool.db").exists()
    assert not (tmp_path / "jobs.py").exists()


def test_below_the_folder_of_the_configuration_all_verbs_mean_the_same_files(
    jobpool: Jobpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "50%25 off?"  # a URL would read it as another one
    below = folder / "src" / "deep"
    below.mkdir(parents=True)
    (folder / "jobpool.toml").write_text(
        'backend = "SQLite:///queue.db"\napps = ["jobs.py"]\nhistory = "file:past.ndjson"\n'
    )
    (folder / "jobs.py").write_text("import jobpool\n\n@jobpool.handler('report')\ndef report(ctx): ...\n")
    monkeypatch.chdir(folder)
    ident = enqueue(jobpool, "report")
    monkeypatch.chdir(below)
    jobpool("inspect", ident, code=0)
    found = {one["check"]: one for one in json.loads(jobpool("doctor", "--json").stdout)["findings"]}
    assert found["handlers"]["found"] == "within the settings: report, url"
    assert str(folder / "queue.db") in found["sqlite.journal"]["found"] + found["sqlite.file-system"]["found"]
    assert load().history.path == folder / "past.ndjson"
    assert list(below.iterdir()) == []
