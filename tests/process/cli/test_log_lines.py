"""The log of a pool as its user sees it: what handlers print and log, and how the pool gets on."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from cli_shell import Shell

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "logging.md").read_text("utf-8")

APP = """
import logging, os, subprocess, sys, time, jobpool
print("imported with password=hunter2")
sys.stderr.write("half a line of the import\\n")
logging.getLogger("early").error("logged at import")
at_import = logging.StreamHandler()
chatty = logging.getLogger("chatty")
chatty.addHandler(at_import)
chatty.propagate = False

@jobpool.handler("talk")
def talk(ctx):
    print("\\033[31mred\\033[0m token=abcdef")
    print("10 %", end="\\r"); print("100 %")
    logging.getLogger("shop").info("an info")
    logging.getLogger("shop").debug("a debug")
    chatty.warning("through a handler of the import")
    try:
        raise LookupError("inner")
    except LookupError:
        logging.exception("it broke")
    subprocess.run(["echo", "from a subprocess"])
    if (pid := os.fork()) == 0:
        print("from a fork")
        os._exit(0)
    os.waitpid(pid, 0)
    print("no end of line", end="")

@jobpool.handler("flood")
def flood(ctx):
    for number in range(20_000):
        print("line", number)

@jobpool.handler("crash")
def crash(ctx):
    print("last words")
    os.system("echo raw words, token=secret")
    os.abort()

@jobpool.handler("wait")
def wait(ctx, seconds=60):
    print("it waits")
    time.sleep(seconds)
"""


@pytest.fixture
def app(shell: Shell) -> Shell:
    (shell.directory / "app.py").write_text(APP)
    shell.environment["JOBPOOL_APPS"] = "app"
    return shell


def pattern(line: str) -> str:
    """What a line of the page stands for: times, ids and measured seconds differ."""
    line = re.sub(r"(seconds|again_in)=[^ ]+", r"\1=ANY", re.sub(r"[0-9a-f]{16}", "IDENT", line.removesuffix("…")))
    return re.escape(line.rstrip()).replace("ANY", r"\S+").replace("IDENT", "[0-9a-f]{16}")


def test_the_example_of_the_page_prints_what_the_page_shows(shell: Shell) -> None:
    code = re.search(r"```python\n(# greetings\.py.*?)```", PAGE, re.DOTALL)
    shown = re.search(r"```console\n(.*?)```", PAGE, re.DOTALL)
    assert code
    assert shown
    (shell.directory / "greetings.py").write_text(code[1])
    commands = [line.removeprefix("$ jobpool ").split() for line in shown[1].splitlines() if line[:1] == "$"]
    *_, done = [shell.run(*words) for words in commands]
    assert done.returncode == 0, done.stderr
    told = [line for line in shown[1].splitlines() if line[:1] not in "$…"]
    assert len(told) > 8
    for line in told:
        found = re.search(rf"^\d\d:\d\d:\d\d\.\d{{3}} {pattern(line)}", done.stderr, re.MULTILINE)
        assert found, f"{line}\n--- not in\n{done.stderr}"


def test_an_app_that_does_not_import_is_an_object_of_json_with_its_stack(shell: Shell) -> None:
    (shell.directory / "helper.py").write_text("def need(name):\n    return {}[name]\n")
    (shell.directory / "app.py").write_text("import helper\nhelper.need('SHOP_URL')  # postgres://me:hunter2@db\n")
    done = shell.run("--app", "app", "--log-format", "json", code=1)
    *_, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert (last["level"], last["event"]) == ("critical", "the app does not load")
    assert last["error"].startswith("the app app does not import: KeyError: 'SHOP_URL'")
    assert "helper.need" in last["trace"]
    assert "postgres://me:***@db" in last["trace"], "without its secrets"


@pytest.mark.parametrize(("words", "event"), [((), "the pool ends"), (("cron", "run"), "the scheduler ends")])
def test_a_broker_that_is_away_is_an_object_of_json(shell: Shell, words: tuple[str, ...], event: str) -> None:
    (shell.directory / "app.py").write_text("import jobpool\njobpool.Scheduler().define('work').queue('q').hourly()\n")
    done = shell.run(*words, "--app", "app", "--log-format", "json", "-b", "redis://127.0.0.1:9", code=1)
    *_, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert (last["level"], last["event"]) == ("critical", event)
    assert "127.0.0.1:9" in last["error"]


def test_handlers_lines_in_json_are_objects_with_job_level_and_logger(app: Shell) -> None:
    trace = "4b" * 16
    ident = app.enqueue("talk", meta={"traceparent": f"00-{trace}-{'a1' * 8}-01"})
    done = app.run("--until-empty", "-w", "1", "--log-format", "json")
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    lines = {entry["event"]: entry for entry in entries if entry["logger"] == "jobpool.job"}
    of_import = {event for event, entry in lines.items() if entry.get("app") == "import"}
    assert of_import == {"imported with password=***", "half a line of the import", "logged at import"}
    said = {event: entry for event, entry in lines.items() if "app" not in entry}
    assert all((entry["handler"], entry["id"]) == ("talk", ident) for entry in said.values()), said
    assert {entry["trace_id"] for entry in [*said.values(), *entries] if entry.get("id") == ident} == {trace}
    broke = next(event for event in said if event.startswith("it broke\nTraceback"))
    assert "LookupError: inner" in broke
    levels = {event: (entry["level"], entry.get("from")) for event, entry in said.items()}
    assert levels == {
        "\x1b[31mred\x1b[0m token=***": ("info", None),
        "100 %": ("info", None),
        "an info": ("info", "shop"),
        "through a handler of the import": ("info", None),
        broke: ("error", "root"),
        "from a subprocess": ("info", None),
        "from a fork": ("info", None),
        "no end of line": ("info", None),
    }


@pytest.mark.parametrize("flags", [("--no-log-output",), ("-q",)])
def test_lines_of_handlers_can_be_turned_off(app: Shell, flags: tuple[str, ...]) -> None:
    app.enqueue("talk")
    app.enqueue("crash")
    done = app.run("--until-empty", "-w", "1", "--max-crashes", "1", *flags, code=0)
    assert "100 %" not in done.stderr
    assert "raw words" not in done.stderr
    assert ("it broke" in done.stderr) is ("-q" in flags)


def test_a_flood_is_thinned_counted_and_a_death_tells_job_and_last_words(app: Shell) -> None:
    flood, crash = app.enqueue("flood"), app.enqueue("crash")
    done = app.run("--until-empty", "-w", "2", "-v", "--max-crashes", "1")
    log = done.stderr
    assert "\x1b" not in log
    shown = re.findall(rf" flood {flood}: line (\d+)$", log, re.MULTILINE)
    left_out = [int(count.replace(",", "")) for count in re.findall(r": \[… ([\d,]+) lines left out …\]$", log, re.M)]
    assert 200 <= len(shown) < 2_000
    assert shown[:200] == [str(number) for number in range(200)]
    assert len(shown) + sum(left_out) == 20_000, left_out
    assert f"lines_left_out={sum(left_out)}" in log
    assert f" job succeeded                id={flood} handler=flood " in log
    assert log.count(f" crash {crash}: last words\n") == log.count(f" crash {crash}: raw words, token=***\n") == 2
    deaths = re.findall(rf"a child died .* id={crash} handler=crash cause=.*SIGABRT.* in crash", log)
    assert len(deaths) == 2


def test_a_terminal_shows_a_summary_and_a_stop_says_what_it_waits_for(app: Shell) -> None:
    ident = app.enqueue("wait")
    shown, code = app.on_a_terminal("-w", "1", "--stop-grace", "0.5", until=b"1/1 busy  0 waiting", then=signal.SIGINT)
    assert code == 0
    lines = [line.rpartition("\r\x1b[K")[2] for line in shown.splitlines()]
    assert any(line.endswith(f"wait {ident}: it waits") for line in lines), shown
    assert any(line.endswith("import: imported with password=***") for line in lines), shown
    stopping = next(line for line in lines if " stopping " in line)
    assert 'running=1 waits="up to 0.5s for them" then="kills them, as a second Ctrl-C does now"' in stopping
    assert shown.endswith("\r\x1b[K")


def test_the_output_of_the_last_failed_attempt_is_shown_with_the_message(shell: Shell) -> None:
    (shell.directory / "app.py").write_text(
        "import jobpool\n@jobpool.handler('fail', max_retries=1)\ndef fail(ctx):\n"
        "    print('attempt', ctx.attempt)\n    raise LookupError('x')\n"
    )
    ident = shell.enqueue("fail")
    shell.run("--until-empty", "-w", "1", "-A", "app")
    told = shell.call("inspect", ident).stdout
    assert told.endswith("\n\noutput of the last failed attempt\n  attempt 2\n"), told
    assert json.loads(shell.call("inspect", ident, "--json").stdout)["cause"]["output"] == "attempt 2"


def test_a_file_of_jobs_is_counted_on_a_terminal_and_its_ids_go_into_a_pipe(shell: Shell) -> None:
    (shell.directory / "jobs").write_text("{}\n" * 2500)
    words = ("enqueue", "some", "--file", "jobs")
    assert len(set(shell.call(*words).stdout.split())) == 2500
    shown, code = shell.on_a_terminal(*words, until=b"never", then=b"")
    assert code == 0
    assert [part for part in re.split(r"\r\x1b\[K|\r\n", shown) if part] == [
        *("1,000 jobs …", "2,000 jobs …", "2,500 jobs …", "2,500 jobs enqueued"),
    ]
