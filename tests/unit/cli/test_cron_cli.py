"""`jobpool cron`: firing, listing and looking ahead, and a clear sentence for each mistake."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from calling import Jobpool

from jobpool.broker.backend import QueueBackend
from jobpool.broker.key_store import read_record
from jobpool.cron import scheduler as schedulers
from jobpool.cron.records import SPACE, Record
from jobpool.handlers.registry import DEFAULT

APP = """
import jobpool

scheduler = jobpool.Scheduler()

@jobpool.handler
def clean_up(ctx):
    pass

@jobpool.handler
def broken(ctx):
    raise RuntimeError("no paper")

scheduler.define("report", {"kind": "sales"}).named("nightly").queue("reports").daily_at("02:30").zone("Europe/Zurich")
scheduler.define("clean_up").every_minute()
scheduler.define("broken").daily_at("03:00").environments("test")
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes an app; what its import does to this process is undone."""
    monkeypatch.setattr(schedulers, "_all", [])
    monkeypatch.setattr(DEFAULT, "_handlers", {})
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(text: str = APP) -> str:
        (tmp_path / "cron_cli_app.py").write_text(text)
        return "--app=cron_cli_app.py"

    return write


def test_the_schedules_are_listed_with_what_is_known_of_them(
    jobpool: Jobpool, broker: QueueBackend, app: Callable[..., str]
) -> None:
    flag = app(APP.replace('.daily_at("02:30")', '.cron("30 2 29 2 *")'))
    jobpool("cron", "run", "--once", flag, "--name", "shop", code=0)
    first, nightly, clean, broken = jobpool("cron", flag).stdout.splitlines()
    assert first.split() == ["NAME", "EXPRESSION", "ZONE", "QUEUE", "LAST", "NEXT", "FIRES", "OWNER"]
    assert nightly.split()[:8] == ["nightly", "30", "2", "29", "2", "*", "Europe/Zurich", "reports"]
    assert nightly.split()[8] == "-"
    assert "shop " in clean
    assert "everywhere" in nightly
    assert broken.split()[-6:] == ["(inline)", "-", "-", "in", "test", "-"], "it never fires here"
    rows = {row["name"]: row for row in json.loads(jobpool("cron", "list", flag, "--json").stdout)}
    record = read_record(broker.keys.get_record(SPACE, "clean_up"), Record)
    assert record is not None
    assert datetime.fromisoformat(rows["clean_up"]["last"]) == record.last
    assert rows["clean_up"]["owner"]["name"] == "shop"
    assert rows["nightly"]["last"] is None
    assert rows["broken"]["environments"] == ["test"]
    assert (rows["broken"]["fires_here"], rows["broken"]["next"]) == (False, None)
    assert rows["nightly"]["declared"].endswith("cron_cli_app.py:14")


def test_a_failed_run_and_what_waits_for_it_are_told(jobpool: Jobpool, app: Callable[..., str]) -> None:
    flag = app(
        APP.replace('.daily_at("03:00").environments("test")', ".every_minute()")
        + 'scheduler.define("clean_up").named("after").depends_on("broken").queue("reports").every_minute()\n'
        'scheduler.define("clean_up").named("sent").queue("reports").every_minute()\n'
    )
    assert 'raise RuntimeError("no paper")' in jobpool("cron", "run", "--once", flag, code=1).stderr, "the stack"
    lasts = {line.split()[0]: line for line in jobpool("cron", flag).stdout.splitlines()}
    assert "Z failed " in lasts["broken"]
    assert "Z not fired " in lasts["after"]
    rows = {row["name"]: row for row in json.loads(jobpool("cron", flag, "--json").stdout)}
    assert {name: row["failed"] for name, row in rows.items()} == {
        "nightly": None, "clean_up": False, "broken": True, "after": True, "sent": None,
    }  # fmt: skip
    assert rows["after"]["last"] is None
    assert rows["after"]["not_fired"] == rows["broken"]["last"]


def test_schedules_that_a_clock_has_silenced_are_told(
    jobpool: Jobpool, broker: QueueBackend, app: Callable[..., str]
) -> None:
    flag = app()
    record = msgspec.json.encode(Record(datetime(2126, 1, 1, tzinfo=UTC)))
    broker.keys.put_records(SPACE, {"nightly": record, "clean_up": record}, 3600.0)
    listed = jobpool("cron", flag)
    assert "silent until 2126-01-01T01:30:00Z" in listed.stdout
    mend = "nightly, clean_up: a clock was ahead: nothing fires until it is as late again; set the clock"
    assert mend in listed.stderr
    rows = {row["name"]: row for row in json.loads(jobpool("cron", flag, "--json").stdout)}
    assert (rows["nightly"]["silent_until"], rows["broken"]["silent_until"]) == ("2126-01-01T00:00:00Z", None)
    coming = jobpool("cron", "next", "nightly", "--limit", "1", flag)
    assert "2126-01-01T01:30:00Z" in coming.stdout
    assert "nightly: a clock was ahead" in coming.stderr
    [problem] = [line for line in jobpool("doctor", flag).stdout.splitlines() if line.split()[1] == "schedules"]
    assert problem.startswith("problem ")
    assert "silent: clean_up until 2126-01-01T00:00:00Z: a clock was ahead" in problem


def test_one_looks_ahead_without_a_broker(jobpool: Jobpool, app: Callable[..., str]) -> None:
    shown = jobpool("cron", "next", app(), "-b", "redis://127.0.0.1:1/0")
    assert (shown.exit_code, len(shown.stdout.splitlines()), shown.stderr) == (
        0, 6, "1 left out: 1 only in other environments, see --environment: test\n",
    )  # fmt: skip


def test_an_environment_that_no_schedule_names_is_warned_of(jobpool: Jobpool, app: Callable[..., str]) -> None:
    flag = app()
    warning = "no schedule names this environment environment=tset named=test"
    assert warning in jobpool("cron", "run", "--once", flag, "--environment", "tset").stderr
    for words in [("--environment", "test"), ()]:
        assert "no schedule names" not in jobpool("cron", "run", "--once", flag, *words).stderr


def test_schedules_that_are_refused_together_are_a_problem_to_the_doctor(
    jobpool: Jobpool, app: Callable[..., str]
) -> None:
    flag = app(APP + 'scheduler.define("clean_up").hourly()\n')
    done = jobpool("doctor", flag, code=1)
    [problem] = [line for line in done.stdout.splitlines() if line.split()[1] == "schedules"]
    assert "two scheduled jobs are named 'clean_up'" in problem
    assert "no scheduler starts with that" in problem


def test_what_the_app_prints_at_its_import_is_not_in_the_answer(jobpool: Jobpool, app: Callable[..., str]) -> None:
    flag = app(APP + 'print("made by hand")')
    result = jobpool("cron", "next", flag, "--json")
    assert len(json.loads(result.stdout)) == 5
    assert "made by hand" in result.stderr


def test_the_next_instants_of_all_and_of_one(jobpool: Jobpool, app: Callable[..., str]) -> None:
    flag = app()
    rows = json.loads(jobpool("cron", "next", flag, "--json").stdout)
    assert len(rows) == 5
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    lines = jobpool("cron", "next", "nightly", "--limit", "400", flag).stdout.splitlines()
    assert len(lines) == 401
    shown = {line.split()[4] for line in lines[1:]}
    assert shown == {"CET", "CEST"}
    assert {line.split()[3] for line in lines[1:]} <= {"02:30", "03:00"}, "03:00 where there is no half past two"


def test_what_never_fires_here_is_left_out_and_counted(jobpool: Jobpool, app: Callable[..., str]) -> None:
    daily = APP.replace("every_minute()", "daily()")
    flag = app(daily + 'scheduler.define("clean_up").named("off").environments("test").disable()\n')
    shown = jobpool("cron", "next", "--limit", "8", flag, "--json")
    assert {row["name"] for row in json.loads(shown.stdout)} == {"nightly", "clean_up"}
    assert shown.stderr.strip() == "2 left out: 1 disabled; 1 only in other environments, see --environment: test"
    shown = jobpool("cron", "next", "--limit", "2", flag, "broken", "--environment", "test")
    assert (len(shown.stdout.splitlines()), shown.stderr) == (3, "")
    shown = jobpool("cron", "next", "off", flag)
    assert (shown.stdout, shown.stderr) == ("", "nothing is due any more\n1 left out: 1 disabled\n")

    rows = {row["name"]: row for row in json.loads(jobpool("cron", flag, "--environment=test", "--json").stdout)}
    assert {name for name, row in rows.items() if row["next"] is not None} == {"nightly", "clean_up", "broken"}
    [off] = [line for line in jobpool("cron", flag).stdout.splitlines() if line.startswith("off ")]
    assert off.split()[-3:] == ["-", "disabled", "-"]


def test_a_trial_does_what_is_due_in_a_minute(jobpool: Jobpool, broker: QueueBackend, app: Callable[..., str]) -> None:
    flag = app()
    done = jobpool("cron", "run", "--test-time", "2026-07-01T02:30:59+02:00", flag, "--json")
    assert [(row["name"], row["status"], row["at"]) for row in json.loads(done.stdout)] == [
        ("nightly", "fired", "2026-07-01T00:30:00Z"),
        ("clean_up", "fired", "2026-07-01T00:30:00Z"),
    ]
    assert (done.exit_code, broker.stats("reports").waiting) == (0, 1)
    assert "  report (nightly)  " in jobpool("list").stdout
    failed = jobpool("cron", "run", "--test-time", "2026-07-01T03:00Z", "--environment", "test", flag, code=1)
    assert "RuntimeError: no paper" in failed.stdout
    elsewhere = jobpool("cron", "run", "--test-time", "2026-07-01T03:00Z", flag)
    assert "it runs in test only, and this is no environment" in elsewhere.stdout
    assert broker.keys.list_records(SPACE) == []


@pytest.mark.parametrize("mode", ["--once", "--test-time=2026-07-01T03:00Z"])
def test_jobs_that_cannot_run_are_warned_of(jobpool: Jobpool, app: Callable[..., str], mode: str) -> None:
    text = APP + "\n@jobpool.handler\ndef mail(ctx, to: str): ...\n"
    text += 'scheduler.define("mail").queue("default").every_minute()\nscheduler.define("cleanup").every_minute()\n'
    text += 'scheduler.define("mail", {"to": "a"}).named("chain").queue("default").every_minute()'
    text += '.then(jobpool.Jobs().define("mail").queue("mails"))\n'
    flag = app(text + 'scheduler.define("nope").every_minute().environments("elsewhere")\n')
    done = jobpool("cron", "run", mode, flag)
    warnings = [line for line in done.stderr.splitlines() if "jobs of a schedule cannot run" in line]
    names = [line.partition("schedule=")[2].partition(" ")[0] for line in warnings]
    assert names == ["mail", "cleanup", "chain"], done.stderr


def test_what_a_schedule_has_probably_forgotten_is_warned_of(jobpool: Jobpool, app: Callable[..., str]) -> None:
    text = 'import jobpool\n@jobpool.handler(queue="sweeps")\ndef sweep(ctx): ...\n'
    text += "scheduler = jobpool.Scheduler()\n"
    text += 'scheduler.define("sweep").every_minute()\nscheduler.define(sweep.define()).named("untimed")\n'
    text += 'scheduler.define(sweep.define()).named("well").daily()\n'
    done = jobpool("cron", "run", "--once", app(text))
    inline, untimed = [line for line in done.stderr.splitlines() if " WARNING " in line]
    assert "schedule=sweep" in inline
    assert "its handler names queue 'sweeps', but it runs inline" in inline
    assert "schedule=untimed" in untimed
    assert "a schedule names no time" in untimed


def test_nothing_due_is_said(jobpool: Jobpool, app: Callable[..., str]) -> None:
    flag = app('import jobpool\nscheduler = jobpool.Scheduler()\nscheduler.define("a").queue("q").yearly()\n')
    done = jobpool("cron", "run", "--test-time", "2026-07-01T03:00Z", flag)
    assert (done.exit_code, done.stdout, done.stderr.strip()) == (0, "", "nothing is due")


MISTAKES = [
    pytest.param((), "no application: name the module", 2, id="no app"),
    pytest.param(("--app=nowhere.py",), "cannot be found", 2, id="app not there"),
    pytest.param(("APP:import jobpool",), "declares no schedule", 2, id="no schedules"),
    pytest.param(("APP", "--test-time", "tomorrow"), "'tomorrow' is not a date and time", 2, id="bad time"),
    pytest.param(("APP", "--test-time", "2026-07-01"), "no time zone: write 2026-07-01T00:00Z", 2, id="naive time"),
    pytest.param(("APP", "--test-time", "0001-01-01T00:00+01:00"), "outside the years 1 to 9999", 2, id="too early"),
    pytest.param(("APP", "--test-time", "9999-12-31T23:59-05:00"), "outside the years 1 to 9999", 2, id="too late"),
    pytest.param(("APP", "--once", "--test-time", "2026-07-01T00:00Z"), "exclude each other", 2, id="two ways"),
    pytest.param(
        ("APP", "--test-time", "2026-07-01T00:00Z", "--cron-grace", "1h"), "is not for --test-time", 2, id="no grace"
    ),
    pytest.param(("APP", "--json"), "--json is for --once or --test-time", 2, id="json of a log"),
    pytest.param(("APP", "--environment", ""), "--environment: it is empty: leave it out", 2, id="no environment"),
    pytest.param(
        ("APP", "--cron-grace", "3d"), "less than or equal to 43200 s (12h00m), not '3d'", 2, id="grace too long"
    ),
    pytest.param(("APP", "--once", "-b", "sync://"), "--only-scheduler", 2, id="no keys"),
    pytest.param(("APP", "-b", "redis://127.0.0.1:1/0"), "nothing listens there", 1, id="broker down"),
    pytest.param(("APP", "--once", "-b", "redis://127.0.0.1:1/0"), "nothing listens there", 1, id="broker down, once"),
]


@pytest.mark.parametrize(("words", "sentence", "code"), MISTAKES)
def test_a_mistake_is_one_sentence(
    jobpool: Jobpool, app: Callable[..., str], words: tuple[str, ...], sentence: str, code: int
) -> None:
    flags = [app(*word.split(":")[1:]) if word.startswith("APP") else word for word in words]
    done = jobpool("cron", "run", *flags, code=code)
    assert done.stderr.startswith("jobpool: ")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_is_none_and_a_circle(jobpool: Jobpool, app: Callable[..., str]) -> None:
    done = jobpool("cron", "next", "nightli", app(), code=2)
    assert "no schedule is named 'nightli'; did you mean 'nightly'?" in done.stderr
    sys.modules.pop("cron_cli_app")
    circle = app(
        'import jobpool\ns = jobpool.Scheduler()\ns.define("a").depends_on("b")\ns.define("b").depends_on("a")\n'
    )
    assert "Circular dependency detected in jobs." in jobpool("cron", circle, code=2).stderr
