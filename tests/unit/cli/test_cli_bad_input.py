"""What bad input gets: one clear sentence with the cause and the mend, the documented exit code, and no traceback."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from jobpool.broker.opening import open_backend
from jobpool.cli.session import find_app
from jobpool.errors import ConfigurationError

Jobpool = Callable[..., Result]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--wrokers", "4"], 2, "No such option '--wrokers'. (Did you mean"),
        (["stats", "--jsno"], 2, "No such option '--jsno'"),
        (["statz"], 2, "'statz' is not a verb of jobpool; did you mean 'stats'?"),
        (["start"], 2, "'start' is not a verb of jobpool; did you mean 'run'?"),
        (["revoke", "0a1b"], 2, "'revoke' is not a verb of jobpool; did you mean 'cancel'?"),
        (["requeue", "--all"], 2, "'requeue' is not a verb of jobpool; did you mean 'dead retry'?"),
        (["beat"], 2, "'beat' is not a verb of jobpool; did you mean 'run --cron'?"),
        (["info"], 2, "'info' is not a verb of jobpool; did you mean 'stats'?"),
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
        (["dead", "retyr"], 2, "'retyr' is not a verb of jobpool dead; did you mean 'retry'?"),
        (["cron", "history"], 2, "'history' is not a verb of jobpool cron; did you mean 'jobpool history'?"),
        (["-w", "many", "-A", "jobs"], 2, "--workers: 'many' is not a number of workers"),
        (["-Q", "reports,3"], 2, "--queue: '3' after a comma would be a queue; a weight is written NAME=3"),
        (["-Q", "my queue"], 2, "--queue: queue name 'my queue' is refused: 1 to 100 letters"),
        (["--ttl", "soon"], 2, "--ttl: 'soon' is not a duration: write seconds, such as 90, or"),
        (["--once", "--max", "3"], 2, "--once and --max exclude each other"),
        ([], 2, "no application: name the module with your handlers, --app myapp.jobs or apps in"),
        (["-A", "no_such_app"], 2, "app 'no_such_app' cannot be found: no module 'no_such_app' in"),
        (["-A", "shop.py:app"], 2, "app 'shop.py:app' cannot be found: name the module or file alone, 'shop.py'"),
        (["-A", r"C:\shop\jobs.py"], 2, r"app 'C:\\shop\\jobs.py' cannot be found: it is a path of Windows"),
        (["-A", "no/such.py"], 2, "app 'no/such.py' cannot be found: no such file in"),
        (["-C", "nowhere.toml", "stats"], 2, "configuration file nowhere.toml does not exist"),
        (["-b", "nonsense", "stats"], 2, "backend 'nonsense' is not a URL"),
        (
            ["-b", "pigeon://coop", "stats"],
            2,
            "no backend for pigeon:// is installed; known are beanstalk://, memory://",
        ),
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
        (["history", "--rollup", "--since", "110000w"], 2, "a hundred years at most"),
        (["doctor", "--memory-limit", "9" * 400], 2, "is not a size"),
        (["purge", "-Q", "a", "-Q", "b", "--all"], 2, "-Q names one queue here, not a and b"),
        (["init", "-b", "sqlite:///\udcff.db"], 2, "--backend has bytes that are not UTF-8"),
        (["enqueue", "a", "--timeout", "-1"], 2, "is not a duration"),
        (["enqueue", "a", "--id", "a b"], 2, "identifier 'a b' is refused"),
        (["enqueue", "a", "--file", "gone.ndjson"], 2, "No such file or directory"),
        (["inspect", "nothing"], 1, "no message 'nothing': it is done and gone, or never was on this broker"),
        (["health"], 3, "no pool runs on this machine"),
        (["top", "--once"], 1, "no pool runs on this machine"),
    ],
)
def test_one_sentence_and_the_exit_code(jobpool: Jobpool, words: list[str], code: int, sentence: str) -> None:
    if words[:1] in (["stats"], ["inspect"]):
        assert jobpool("init", "--broker-only").exit_code == 0
    result = jobpool(*words)
    assert result.exit_code == code, result.stderr
    assert sentence in result.stderr
    assert "Traceback" not in result.output
    assert len(result.stderr.splitlines()) <= 2
    assert result.stdout == ""


def test_a_table_that_is_not_read_is_an_error_with_its_mend(jobpool: Jobpool, tmp_path: Path) -> None:
    for name, heading, mend in (
        ("jobpool.toml", "jobpool", "take the heading away: its settings stand at the top level"),
        ("jobpool.toml", "tool.jobpool", "take the heading away"),
        ("pyproject.toml", "jobpool", "write [tool.jobpool]"),
    ):
        (tmp_path / name).write_text(f"[{heading}]\nworkers = 2\n")
        result = jobpool("stats")
        assert result.exit_code == 2
        assert f"{name} has a table [{heading}], which is not read: {mend}" in result.stderr
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("worker", "workers"),
        ("broker", "backend"),
        ("concurrency", "workers"),
        ("timeout", "default_timeout"),
        ("max_retries", "retry"),
    ],
)
def test_an_unknown_configuration_key(
    jobpool: Jobpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, meant: str
) -> None:
    (tmp_path / "jobpool.toml").write_text(f"{key} = 4\n")
    for words in ([], ["stats"], ["enqueue", "a"]):
        result = jobpool(*words)
        assert result.exit_code == 2
        assert f"jobpool.toml: {key!r} is not a setting of jobpool; did you mean {meant!r}?" in result.stderr
    (tmp_path / "jobpool.toml").unlink()
    monkeypatch.setenv(f"JOBPOOL_{key.upper()}", "4")
    assert f"did you mean 'JOBPOOL_{meant.upper()}'?" in jobpool("stats").stderr
    assert not (tmp_path / "jobpool.db").exists()


@pytest.mark.parametrize("line", ['{"handler": "a", "scheduled_at": "2026-06-01T08:00:00"}'])
def test_a_naive_datetime(jobpool: Jobpool, line: str) -> None:
    result = jobpool("enqueue", "--file", "-", input=line)
    assert result.exit_code == 2
    assert "line 1: scheduled_at 2026-06-01T08:00:00 has no timezone" in result.stderr


def test_a_line_that_is_no_job(jobpool: Jobpool) -> None:
    for line, sentence in [
        ("[1]", 'line 1: it is not an object with "handler"; name a HANDLER if the lines are payloads'),
        ('{"handler": "a", "que": "x"}', "line 1: a definition has no field 'que'"),
        ('{"handler": "a", "priority": "high"}', "line 1: priority must be a whole number"),
        ("\xff", "line 1: "),
    ]:
        result = jobpool("enqueue", "--file", "-", input=line)
        assert result.exit_code == 2, line
        assert sentence in result.stderr, line


def test_a_database_that_cannot_be_made(jobpool: Jobpool) -> None:
    result = jobpool("-b", "sqlite:////proc/jobpool.db", "enqueue", "a")
    assert result.exit_code == 1
    assert "database /proc/jobpool.db cannot be opened: allow this user to read and write it" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_database_that_is_not_writable(jobpool: Jobpool, tmp_path: Path) -> None:
    open_backend(f"sqlite:///{tmp_path}/jobpool.db").close()
    (tmp_path / "jobpool.db").chmod(0o400)
    result = jobpool("enqueue", "a")
    assert result.exit_code == 1
    assert "read-only" in result.stderr


def test_a_file_that_is_no_database(jobpool: Jobpool, tmp_path: Path) -> None:
    (tmp_path / "jobpool.db").write_text("hello, I am a text file, and long enough to be looked at\n" * 40)
    result = jobpool("stats")
    assert result.exit_code == 1
    assert "is not a SQLite database: name another file" in result.stderr


@pytest.mark.parametrize(("words", "variable"), [(["-vv"], ""), (["-v", "--verbose"], ""), ([], "1")])
def test_a_traceback_only_when_asked_for(
    jobpool: Jobpool, monkeypatch: pytest.MonkeyPatch, words: list[str], variable: str
) -> None:
    monkeypatch.setenv("JOBPOOL_DEBUG", variable)
    assert "Traceback" in jobpool("stats", "-b", "nonsense", *words).stderr


def test_no_traceback_for_one_v(jobpool: Jobpool) -> None:
    assert "Traceback" not in jobpool("stats", "-b", "nonsense", "-v").stderr


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
    result = jobpool("enqueue", "report")
    assert result.exit_code == 2
    assert "--no-check" not in result.stderr
