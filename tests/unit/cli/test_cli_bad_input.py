"""What bad input gets: one clear sentence with the cause and the mend, the documented exit code, and no traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from calling import Jobpool

from jobpool.broker.opening import open_backend
from jobpool.cli.session import find_app
from jobpool.errors import ConfigurationError


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--wrokers", "4"], 2, "No such option '--wrokers'. (Did you mean"),
        (["enqueue", "report", "--wait"], 2, "No such option '--wait'; `jobpool result ID --timeout 30s` waits"),
        (["--reload"], 2, "No such option '--reload'; `--watch` reloads a pool"),
        (["stats", "--jsno"], 2, "No such option '--jsno'"),
        (["statz"], 2, "'statz' is not a verb of jobpool; did you mean 'stats'?"),
        (["pruge"], 2, "'pruge' is not a verb of jobpool; did you mean 'purge'?"),
        (["pauze"], 2, "'pauze' is not a verb of jobpool; did you mean 'pause'?"),  # and not purge
        (["prge"], 2, "'prge' is not a verb of jobpool; did you mean 'purge'?"),
        (["zzzzzz"], 2, "'zzzzzz' is not a verb of jobpool; the verbs are cancel, claim, cron, dead, doctor, edit, en"),
        (["enqueue", "resize", "--name", "monthly"], 2, "Did you mean '--job-name'?"),
        (["message", "pop", "mail", "-n", "2"], 2, "Did you mean '--limit'?"),
        (["cron", "next", "-n", "1"], 2, "Did you mean '--limit'?"),
        (["top", "-b", "memory://"], 2, "has no use for -b (elsewhere: URL of the broker"),
        (["start"], 2, "'start' is not a verb of jobpool; did you mean 'run'?"),
        (["revoke", "0a1b"], 2, "'revoke' is not a verb of jobpool; did you mean 'cancel'?"),
        (["requeue", "--all"], 2, "'requeue' is not a verb of jobpool; did you mean 'dead retry'?"),
        (["beat"], 2, "'beat' is not a verb of jobpool; did you mean 'run --cron'?"),
        (["info"], 2, "'info' is not a verb of jobpool; did you mean 'stats'?"),
        (["retry"], 2, "'retry' is not a verb of jobpool; did you mean 'dead retry'?"),  # and not result
        (["push"], 2, "'push' is not a verb of jobpool; did you mean 'enqueue'?"),  # and not pause
        (["remove"], 2, "'remove' is not a verb of jobpool; the verbs are cancel, claim"),  # and not resume
        (["queues"], 2, "'queues' is not a verb of jobpool; did you mean 'enqueue'?"),
        (["control", "shutdown"], 2, "'control' is not a verb of jobpool; did you mean 'pause'?"),
        (["empty", "reports"], 2, "'empty' is not a verb of jobpool; did you mean 'purge'?"),
        (["flower"], 2, "'flower' is not a verb of jobpool; did you mean 'top'?"),
        (["jobs.py"], 2, "'jobs.py' is not a verb of jobpool; did you mean '--app jobs.py'?"),
        (["run", "-w", "2", "jobs.py"], 2, "`jobpool run` takes options only; for an app write --app jobs.py"),
        (["stop"], 2, "'stop' is not a verb of jobpool; Ctrl-C, or the signal TERM, stops a pool"),
        (["reload"], 2, "'reload' is not a verb of jobpool; the signal HUP loads a pool's app anew"),
        (["version"], 2, "'version' is not a verb of jobpool; did you mean '--version'?"),
        (["show"], 2, "'show' is not a verb of jobpool; did you mean 'inspect'?"),
        (["dead", "show"], 2, "'show' is not a verb of jobpool dead; the verbs are list, purge, retry"),
        (["dead", "retyr"], 2, "dead; did you mean 'retry'?\n`jobpool dead --help` lists what there is."),
        (["cron", "history"], 2, "'history' is not a verb of jobpool cron; did you mean 'jobpool history'?"),
        (["-Q", "reports,3"], 2, "--queue: '3' after a comma would be a queue; a weight is written NAME=3"),
        (["--ttl", "soon"], 2, "--ttl: 'soon' is not a duration: write seconds, such as 90, or"),
        (["--once", "--max", "3"], 2, "--once and --max exclude each other"),
        ([], 2, "no application: name the module with your handlers, --app myapp.jobs or apps in"),
        (["-A", "no_such_app"], 2, "app 'no_such_app' cannot be found: no module 'no_such_app' in"),
        (["-A", "shop.py:app"], 2, "app 'shop.py:app' cannot be found: name the module or file alone, 'shop.py'"),
        (["-A", r"C:\shop\jobs.py"], 2, r"app 'C:\\shop\\jobs.py' cannot be found: it is a path of Windows"),
        (["-A", "."], 2, "app '.' cannot be found: no such file in"),
        (["init", "--broker-only", "--force"], 2, "--force and --broker-only exclude each other"),
        (["init", "there", "--broker-only"], 2, "directory and --broker-only exclude each other"),
        (["claim", "create", "mail", "--ttl", "1d"], 2, "ttl is 60 to 43,200 seconds (12h00m), not 86400.0"),
        (["-A", "no/such.py"], 2, "app 'no/such.py' cannot be found: no such file in"),
        (["-b", "nonsense", "stats"], 2, "backend 'nonsense' is not a URL"),
        (
            ["-b", "pigeon://coop", "stats"],
            2,
            "no backend for pigeon:// is installed; known are beanstalk://, memory://",
        ),
        (["-b", "memory://", "enqueue", "a"], 2, "memory:// ends with this command, it is for tests: use sqlite"),
        (["-b", "redis://127.0.0.1:1", "stats"], 1, "nothing listens there"),
        (["-b", "/x.db", "stats"], 2, "backend '/x.db' is not a URL: did you mean 'sqlite:////x.db'?"),
        (["stats", "odd name"], 2, "queue name 'odd name' is refused"),
        (["enqueue"], 2, "the name of a handler is missing: jobpool enqueue HANDLER [PAYLOAD]"),
        (["enqueue", "a", "{oops"], 2, "the payload '{oops' is neither JSON nor key=value"),
        (["enqueue", "a", "b", "c=1"], 2, "'b' is not key=value"),
        (["enqueue", "a", "b=1", "b=2"], 2, "'b' is given twice"),
        (["enqueue", "a", "NaN"], 2, "the payload 'NaN' is neither JSON nor key=value"),
        (["enqueue", "a", "n=123456789012345678901234567890"], 2, "payload"),
        (["enqueue", "a", "-Q", "büro"], 2, "queue name 'büro' is refused"),
        (["enqueue", "a", "-p", "300"], 2, "priority must be a whole number from 0 to 255, not 300"),
        (["enqueue", "a", "--delay", "tomorrow"], 2, "'tomorrow' is not a duration"),
        (["enqueue", "a", "--delay", "9e15"], 2, "'9e15' is not a duration"),
        (["list", "age:>9e15"], 2, "'9e15' is not a duration"),
        (["history", "x"], 2, "history is off: set history"),
        (["history", "x", "--history", "nowhere"], 2, "'off', 'table' or 'file:PATH'"),
        (["history", "x", "--limit", "0"], 2, "--limit"),
        (["history", "x", "--rollup"], 2, "use --handler, not a name"),
        (["history", "--rollup", "--by", "year"], 2, "--by"),
        (["history", "--rollup", "--limit", "3"], 2, "--limit is not for --rollup"),
        (["history", "--rollup", "--history", "table"], 2, "--history is not for --rollup"),
        (["history", "x", "--handler", "report"], 2, "--handler needs --rollup"),
        (["history", "x", "--since", "1h"], 2, "--since needs --rollup"),
        (["history", "--limit", "20"], 2, "--limit needs a NAME"),
        (["history", "-Q", "reports"], 2, "-Q needs a NAME"),
        (["history", "--rollup", "--since", "110000w"], 2, "a hundred years at most"),
        (["claim", "create", "mail", "--limit", "21"], 2, "1 to 20"),
        (["claim", "create", "mail", "--grace", "13h"], 2, "60 to 43,200 seconds"),
        (["claim", "create", "mail", "--ttl", "soon"], 2, "--ttl"),
        (["claim", "create", "mail", "--max-claims", "-1"], 2, "max_claims"),
        (["claim", "create", "no/queue"], 2, "queue name"),
        (["pause", "reports", "--until=tomorrow"], 2, "'tomorrow' is not a time: write 2h, or 2026-07-01T08:00+"),
        (["pause", "reports", "--until=2026-07-01T08:00"], 2, "needs a time zone"),
        (["pause", "reports", "--until=-5"], 2, "'-5' is not a time"),
        (["pause", "reports", "--until=2020-01-01T00:00Z"], 2, "a pause ends in the future, a year from now at most"),
        (["message", "post", "mail", "1", "--ttl", "15d"], 2, "60 to 1,209,600 seconds"),
        (["message", "post", "mail", "1", "--delay", "901"], 2, "0 to 900 seconds"),
        (["message", "post", "mail"], 2, "give the messages"),
        (["message", "post", "mail", "-"], 2, "--file - reads stdin"),
        (["message", "pop", "mail", "--limit", "21"], 2, "1 to 20"),
        (["message", "delete", "mail"], 2, "ID..."),
        (["purge", "-Q", "a", "-Q", "b", "--all"], 2, "-Q names one queue here, not a and b"),
        (["init", "-b", "sqlite:///\udcff.db"], 2, "--backend has bytes that are not UTF-8"),
        (["enqueue", "a", "--timeout", "-1"], 2, "is not a duration"),
        (["enqueue", "a", "--id", "a b"], 2, "identifier 'a b' is refused"),
        (["enqueue", "a", "--unique"], 2, "unique needs an idempotency_key"),
        (["enqueue", "a", "--idempotency-key", "k" * 10_240], 2, "idempotency_key"),
        (["enqueue", "a", "--single-instance", "--job-name", "n" * 10_240], 2, "1 to 255 printable characters"),
        (["enqueue", "a", "--expires-in", "0"], 2, "expires_in must be more than 0 and at most 3162240000 seconds"),
        (["enqueue", "a", "--expires-in", "1m", "--delay", "1m"], 2, "it starts after 60 s at the earliest"),
        (["enqueue", "a", "--file", "gone.ndjson"], 2, "No such file or directory"),
        (["inspect", "nothing"], 1, "no message 'nothing': it is done and gone, or never was on this broker"),
        (["purge"], 2, "say which messages: a FILTER such as queue:reports reason:timeout, or --all"),
        (["purge", "state:leased"], 2, "leased messages cannot be purged"),
        (["dead", "retry"], 2, "say which messages"),
        (["dead", "retry", "state:waiting"], 2, "this verb is for dead letters only"),
        (["dead", "retry", "--all", "--rate", "0"], 2, "--rate"),
        (["list", "--limit", f"{2**64}"], 2, "--limit"),
        (["message", "list", "mail", "--limit", f"{2**64}"], 2, "--limit"),
        (["dead", "retry", "--all", "--rate", "nan"], 2, "nan is not a number from 0.001"),
        (["dead", "retry", "--all", "--rate", "inf"], 2, "inf is not a number from 0.001"),
        (["top", "--once", "--interval", "nan"], 2, "--interval: 'nan' is not a duration"),
        (["top", "--once", "--interval", "inf"], 2, "--interval: 'inf' is not a duration"),
        (["top", "--once", "--interval", "0"], 2, "--interval is 0.1 seconds or more"),
        (["dead", "purge"], 2, "say which messages"),
        (["dead", "purge", "queue:x", "--all"], 2, "a FILTER and --all exclude each other"),
        (["dead", "purge", "--keep", "-1"], 2, "--keep"),
        (["dead", "purge", "--older-than", "soon"], 2, "age:>soon is not clear"),
        (["dead", "purge", "--older-than", "1h", "age:>2h"], 2, "more than one age:> term"),
        (["dead", "list", "state:waiting"], 2, "this verb is for dead letters only"),
        (["edit", "queue:reports"], 2, "say what to change: --at or --now, --priority, --move"),
        (["edit", "--now"], 2, "say which messages"),
        (["edit", "--all", "queue:reports", "--now"], 2, "a FILTER and --all exclude each other"),
        (["edit", "state:dead", "--now"], 2, "only jobs that wait or are delayed can be edited"),
        (["edit", "queue:reports", "--now", "--at", "2h"], 2, "--at and --now exclude each other"),
        (["edit", "queue:reports", "--at", "tomorrow"], 2, "'tomorrow' is not a time: write 2h, or 2026-07-01T08:00+"),
        (["edit", "queue:reports", "--at", "2026-07-01T08:00", "--yes"], 2, "the time of a job needs a time zone"),
        (["edit", "queue:reports", "--priority", "256"], 2, "--priority"),
        (["edit", "queue:reports", "--move", "no such name!", "--yes"], 2, "queue name 'no such name!' is refused"),
        (["list", "colour:red"], 2, "there is no filter key 'colour'"),
        (["list", "state:gone"], 2, "there is no state 'gone': use one of waiting, delayed, leased, dead"),
        (["health"], 3, "no pool of this user runs on this machine"),
        (["top", "--once"], 1, "no pool of this user runs on this machine"),
    ],
)
def test_one_sentence_and_the_exit_code(jobpool: Jobpool, words: list[str], code: int, sentence: str) -> None:
    if words[:1] in (["stats"], ["inspect"], ["edit"], ["pause"]):
        jobpool("init", "--broker-only", code=0)
    result = jobpool(*words, code=code)
    assert sentence in result.stderr
    assert "Traceback" not in result.output
    assert len(result.stderr.splitlines()) <= 2
    assert len(result.stderr) < 1000, "a value of 10 KB is not read out"
    assert result.stdout == ""


def test_a_table_that_is_not_read_is_an_error_with_its_mend(jobpool: Jobpool, tmp_path: Path) -> None:
    for name, heading, mend in (
        ("jobpool.toml", "jobpool", "take the heading away: its settings stand at the top level"),
        ("jobpool.toml", "tool.jobpool", "take the heading away"),
        ("pyproject.toml", "jobpool", "write [tool.jobpool]"),
    ):
        (tmp_path / name).write_text(f"[{heading}]\nworkers = 2\n")
        assert f"{name} has a table [{heading}], which is not read: {mend}" in jobpool("stats", code=2).stderr
        (tmp_path / name).unlink()


def test_a_line_that_is_no_job(jobpool: Jobpool) -> None:
    for line, sentence in [
        ("[1]", 'line 1: it is not an object with "handler"; name a HANDLER if the lines are payloads'),
        ('{"handler": "a", "que": "x"}', "line 1: a definition has no field 'que'"),
        ('{"handler": "a", "priority": "high"}', "line 1: priority must be a whole number"),
        (
            '{"handler": "a", "scheduled_at": "2026-06-01T08:00:00"}',
            "line 1: scheduled_at 2026-06-01T08:00:00 has no t",
        ),
        ("\xff", "line 1 is not a JSON value: "),
    ]:
        assert sentence in jobpool("enqueue", "--file", "-", input=line, code=2).stderr, line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_database_that_is_not_writable(jobpool: Jobpool, tmp_path: Path) -> None:
    open_backend(f"sqlite:///{tmp_path}/jobpool.db").close()
    (tmp_path / "jobpool.db").chmod(0o400)
    assert "read-only" in jobpool("enqueue", "a", code=1).stderr


def test_a_probe_looks_for_pools_although_the_configuration_file_is_broken_by_now(
    jobpool: Jobpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOBPOOL_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    Path("jobpool.toml").write_text("broken [\n")
    assert f"(looked in {tmp_path}/jobpool)" in jobpool("health", code=3).stderr


def test_a_traceback_only_when_asked_for(jobpool: Jobpool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("-vv", "", True), ("-v --verbose", "", True), ("", "1", True), ("-v", "", False), ("", "0", False)]
    for words, variable, asked in rows:
        monkeypatch.setenv("JOBPOOL_DEBUG", variable)
        assert ("Traceback" in jobpool("stats", "-b", "nonsense", *words.split()).stderr) is asked, words


def test_a_colon_in_the_path_of_an_app_is_no_mistake(tmp_path: Path) -> None:
    app = tmp_path / "shop:v2" / "jobs.py"
    app.parent.mkdir()
    app.touch()
    assert find_app("shop:v2/jobs.py", (str(tmp_path),)) == str(app)


@pytest.mark.parametrize("word", ["acme/jobs", "acme/jobs/", "./acme/jobs"])
def test_a_folder_of_a_package_is_told_how_to_be_named(tmp_path: Path, word: str) -> None:
    (tmp_path / "acme" / "jobs").mkdir(parents=True)
    with pytest.raises(ConfigurationError) as raised:
        find_app(word, (str(tmp_path),))
    assert "for a package" not in str(raised.value), "it has no __init__.py"
    (tmp_path / "acme" / "jobs" / "__init__.py").touch()
    with pytest.raises(ConfigurationError, match=r"no such file in .*; for a package write --app acme\.jobs$"):
        find_app(word, (str(tmp_path),))


def test_a_module_in_src_is_told_how_to_be_found(tmp_path: Path) -> None:
    (tmp_path / "src" / "acme").mkdir(parents=True)
    (tmp_path / "src" / "acme" / "__init__.py").touch()
    with pytest.raises(ConfigurationError, match=rf"no module 'acme' in .*; it is in {tmp_path}/src: set PYTHONPATH="):
        find_app("acme.jobs", (str(tmp_path),))


def test_an_empty_signing_key_is_not_mended_by_no_check(jobpool: Jobpool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY", "")
    assert "--no-check" not in jobpool("enqueue", "report", code=2).stderr
