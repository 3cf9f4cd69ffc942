"""The order of words, the flags, help and completion: nothing here touches a broker."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from calling import Jobpool
from click.shell_completion import BashComplete
from click.testing import CliRunner

from jobpool.cli.main import Verbs, _verb, arrange, cli, explained, walk
from jobpool.settings import SETTINGS, load

VERBS_OF_CLI = cli.list_commands(click.Context(cli))


def test_words_find_their_verb() -> None:
    for words, arranged in [
        ("", "run"),
        ("-w 4 -Q reports", "run -w 4 -Q reports"),
        ("run -w 4", "run -w 4"),
        ("-w4 --queue=reports stats", "stats --queue reports"),
        ("-Q stats", "run -Q stats"),
        ("-Q stats stats", "stats -Q stats"),
        ("-qvC prod.toml list", "list -q -v -C prod.toml"),
        ("-vw4 list", "list -v"),
        ("--work 4 list", "run --work 4 list"),
        ("-C prod.toml dead list --json", "dead list -C prod.toml --json"),
        ("dead -C prod.toml purge queue:a", "dead purge -C prod.toml queue:a"),
        ("dead", "dead list"),
        ("dead --json", "dead list --json"),
        ("--burst", "run --burst"),
        ("-v", "run -v"),
        ("--help", "--help"),
        ("-w 4 --help", "--help"),
        ("--no-such -h", "-h"),
        ("-V", "-V"),
        ("dead -h", "dead -h"),
        ("enqueue report a=1 -Q mail", "enqueue report a=1 -Q mail"),
        ("--no-such list", "run --no-such list"),
    ]:
        assert arrange(cli, words.split(), "run") == arranged.split(), words


def test_no_option_takes_a_value_in_one_verb_and_none_in_another() -> None:
    takes: dict[str, bool] = {}
    for option in _options():
        for name in (*option.opts, *option.secondary_opts):
            value = not (option.is_flag or option.count)
            assert takes.setdefault(name, value) is value, name


def test_every_setting_has_its_flag_and_every_flag_of_the_pool_is_a_setting() -> None:
    own = {
        "until_empty",
        "once",
        "max_total",
        "fail_on_dead",
        "progress",
        "watch",
        "config",
        "verbose",
        "quiet",
        "help",
    }
    flags = {param.name for param in _verb(cli, "run").params} - own
    assert flags == SETTINGS.keys() - {"signing_key"}  # which everybody on the machine could read there


def test_flags_reach_the_settings() -> None:
    for flag, key, value in [
        ("--stop-grace=10", "stop_grace", 10.0),
        ("-c3", "workers", 3),
        ("--concurrency=3", "workers", 3),
        ("--broker=memory://", "backend", "memory://"),
    ]:
        root = cli.make_context("jobpool", [flag])
        run = _verb(cli, "run").make_context("run", [flag], parent=root)
        assert getattr(load({key: run.params[key]}), key) == value, flag


def test_help_fits_a_screen_and_shows_the_verbs_and_what_is_often_used() -> None:
    result = CliRunner().invoke(cli, ["--help"], terminal_width=78)  # click leaves two of eighty columns free
    assert result.exit_code == 0
    for text in ("enqueue", "top", "--workers", "--until-empty", "--stop-grace", "Exit codes:", "jobpool run --help"):
        assert text in result.stdout
    lines = result.stdout.splitlines()
    assert len(lines) <= len(VERBS_OF_CLI) + 24
    assert max(map(len, lines)) <= 80


def test_help_of_run_shows_every_option_by_section_with_a_sentence_of_its_own(jobpool: Jobpool) -> None:
    shown = " ".join(jobpool("run", "--help").stdout.split())
    for setting in SETTINGS.values():
        if setting.flags:
            assert " ".join(f"{setting.section}:".split()) in shown
            assert setting.means in shown
            assert all(flag in shown for flag in setting.flags)
    assert len({setting.means for setting in SETTINGS.values()}) == len(SETTINGS) <= 48


@pytest.mark.parametrize("verb", [*VERBS_OF_CLI, "dead list", "dead retry", "dead purge"])
def test_every_verb_has_help(jobpool: Jobpool, verb: str) -> None:
    assert "Usage: " in jobpool(*verb.split(), "-h", code=0).stdout


def test_version(jobpool: Jobpool) -> None:
    assert jobpool("-V").stdout.startswith("jobpool 0.")
    words = [sys.executable, "-m", "jobpool", "-V"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == jobpool("-V").stdout


def test_completion() -> None:
    for words, incomplete, offered in [
        ([], "st", {"stats", "status"}),
        ([], "--wor", {"--workers"}),
        (["-w", "4"], "--stop", {"--stop-grace"}),
        (["dead"], "re", {"retry"}),
        (["-C", "x.toml", "stats"], "--js", {"--json"}),
    ]:
        complete = BashComplete(cli, {}, "jobpool", "_JOBPOOL_COMPLETE")
        assert {item.value for item in complete.get_completions(words, incomplete)} == offered, (words, incomplete)


def test_the_words_of_a_pool_load_no_other_verb_and_do_not_look_through_what_is_installed() -> None:
    program = (
        "import sys\nfrom jobpool.cli.main import arrange, cli\n"
        "heavy = {'rich', 'sqlite3', 'psutil', 'orjson'} & set(sys.modules)\n"
        "assert arrange(cli, ['-w', '4'], 'run') == arrange(cli, ['-w', '4', 'run'], 'run')\n"
        "verbs = {name for name in sys.modules if name.startswith('jobpool.cli.')}\n"
        "other = {f'jobpool.cli.{name}' for name in ('bulk', 'claims', 'cron', 'enqueue', 'messages', 'top')}\n"
        "sys.exit(', '.join(sorted(heavy | other & verbs | {'importlib.metadata'} & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_lists_all_verbs_and_loads_no_more_of_them_than_the_pools() -> None:
    program = (
        "import contextlib, sys\nfrom jobpool.cli.main import cli\n"
        "with contextlib.suppress(SystemExit):\n    cli.main(['--help'])\n"
        "print(*{f'jobpool.cli.{name}' for name in ('bulk', 'control', 'messages')} & set(sys.modules))"
    )
    *told, loaded = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
    assert not loaded
    described = {line.split()[0]: line.split(maxsplit=1)[1:] for line in told if line.startswith("  ")}
    assert all(described[name] for name in cli.list_commands(click.Context(cli)))


def _options() -> Iterator[click.Option]:
    assert isinstance(cli, Verbs)
    for command in walk(cli):
        yield from (param for param in command.params if isinstance(param, click.Option))


def test_settings_that_a_verb_has_no_use_for_may_be_set_elsewhere(
    jobpool: Jobpool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.joinpath("jobpool.toml").write_text('name = "mine"\n')
    monkeypatch.setenv("JOBPOOL_LOG_FORMAT", "json")
    jobpool("enqueue", "report", "-q", code=0)
    jobpool("--name", "mine", "list", code=0)


def test_a_full_disk_is_no_fault_of_jobpool() -> None:
    assert explained(OSError(errno.ENOSPC, "No space left on device")) == (1, "No space left on device", "")


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_limit_of_the_machine_is_no_fault_of_jobpool(error: Exception) -> None:
    code, sentence, hint = explained(error)
    assert (code, hint) == (1, "")
    assert "TasksMax=" in sentence
