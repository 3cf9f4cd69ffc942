"""The scripts: that they can be started, that a test run's line is true, and which English they let pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import mutations
import pytest
from scripts import names, prose, summary

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "scripts"
COMMANDS = [SCRIPTS / name for name in ("setup", "check", "fix", "test", "demo", "bench", "services", "site", "soak")]


@pytest.mark.parametrize("path", [*COMMANDS, ROOT / ".ci" / "run"], ids=lambda path: path.name)
def test_a_command_is_executable_and_stops_at_the_first_error(path: Path) -> None:
    text = path.read_text()

    assert os.access(path, os.X_OK)
    assert text.startswith("#!")
    assert "\nset -eu" in text


@pytest.mark.parametrize("path", [*COMMANDS, *SCRIPTS.glob("*.sh")], ids=lambda path: path.name)
def test_a_shell_script_parses(path: Path) -> None:
    subprocess.run(["sh", "-n", path], check=True)


def test_every_command_is_known_here() -> None:
    executable = {path for path in SCRIPTS.iterdir() if os.access(path, os.X_OK) and path.is_file()}

    assert executable == set(COMMANDS)


def test_each_mutation_finds_its_line_once_and_its_tests() -> None:
    for name, file, old, _, tests in mutations.MUTATIONS:
        assert (ROOT / file).read_text("utf-8").count(old) == 1, name
        assert all((ROOT / test).is_file() for test in tests.split()), name


def services(*arguments: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "services", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )


def test_services_has_nothing_to_do_where_the_servers_are() -> None:
    done = services("up")

    assert (done.returncode, done.stderr) == (0, "")
    assert "installed" in done.stdout


def test_services_names_what_is_missing_where_it_cannot_be_installed(tmp_path: Path) -> None:
    dirname = shutil.which("dirname")
    assert dirname is not None
    (tmp_path / "dirname").symlink_to(dirname)  # and neither a server nor apt-get

    done = services("up", path=str(tmp_path))

    assert (done.returncode, done.stdout) == (1, "")
    assert "missing on this machine: redis-server redis-sentinel" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["down"], ["up", "sideways"]], ids=" ".join)
def test_services_refuses_another_verb(arguments: list[str]) -> None:
    done = services(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert "usage" in done.stderr


def test_setup_refuses_an_option_that_it_does_not_know() -> None:
    done = subprocess.run([SCRIPTS / "setup", "--pyton"], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "--pyton" in done.stderr


def test_setup_names_the_python_that_is_missing() -> None:
    done = subprocess.run([SCRIPTS / "setup", "--python", "2.0"], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "no Python 2.0 on this machine" in done.stderr
    assert not (ROOT / ".venv-2.0").exists()


SUITE = '<testsuite tests="{tests}" failures="{failed}" errors="0" skipped="{skipped}" time="1.6"/>'


def test_the_summary_of_a_run(tmp_path: Path) -> None:
    for case, tests, failed, skipped, line, status in [
        ("all well", 5, 0, 1, "4 passed, 0 failed, 1 skipped in 2 s", 0),
        ("failures", 5, 2, 0, "3 passed, 2 failed, 0 skipped in 2 s", 1),
        ("none collected", 0, 0, 0, "no test ran: 0 passed, 0 failed, 0 skipped in 2 s", 1),
        ("all skipped", 3, 0, 3, "no test ran: 0 passed, 0 failed, 3 skipped in 2 s", 1),
    ]:
        results = tmp_path / "tests.xml"
        results.write_text(f"<testsuites>{SUITE}</testsuites>".format(tests=tests, failed=failed, skipped=skipped))
        done = subprocess.run(
            [sys.executable, SCRIPTS / "summary.py", results], capture_output=True, text=True, check=False
        )

        assert (done.stdout.strip(), done.returncode) == (line, status), case


def test_a_run_that_wrote_no_results_is_a_failure(tmp_path: Path) -> None:
    assert summary.summarise(tmp_path / "absent.xml") == ("no test ran: pytest stopped before the first one", False)


def test_names_that_lead_nowhere_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A head\n[a](page.md#a-head) [b](#none) [c](nowhere.md) `faults/a.py::test_b` a::b\n")
    monkeypatch.setattr(names, "DOCS", tmp_path)
    monkeypatch.setattr(names, "TESTS", tmp_path)
    assert [line.split(" ")[3] for line in names.wrong_links(page)] == ["#none,", "nowhere.md,"]
    assert [line.split(" ")[1] for line in names.missing_tests(page)] == ["has", "names"]


def test_a_row_of_faults_that_is_wrong_is_told() -> None:
    for case, cells, tests, brokers, told in [
        ("well", ["1", "x", "`faults/a.py::test_b`", "redis; all", "y", ""], {"test_b"}, {"redis"}, ""),
        ("an empty cell", ["1", "x", "", "redis", "y", ""], set(), set(), "lacks a cell"),
        ("tests", ["1", "x", "`faults/a.py::test_b`", "redis", "y", ""], set(), set(), "other tests"),
        ("brokers", ["1", "x", "`unit/a.py::test_b`", "redis", "y", ""], set(), {"sqlite"}, "not say"),
    ]:
        found = list(names.wrong_fault_row(1, cells, {f"faults/a.py::{test}" for test in tests}, brokers))
        assert len(found) == bool(told), case
        assert all(told in line for line in found), case


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """The answer."""\n',
        'def f():\n    """`flag`: on or off."""\n',
        'class C:\n    """What one call does."""\n',
        'x = 1\n"""What is left."""\n',
        "# What was refused is tried again.\n",
        "x = 1  # an id that is no id\n",
        "# Does the new code not import, the old children go on.\n",
        "# The next command goes on behind it.\n",
        'option(help="So many children.")\n',
        "# It waits for ever.\n",
        'raise ValueError("that is no number")\n',
        'raise ValueError(f"{text!r} is no number: write 5")\n',
        'raise Refused("option", "that is no number")\n',
        "# Wake whoever waits.\n",
        f"# It {'very ' * 25}long.\n",
        "# One; two; three.\n",
    ],
)
def test_it_refuses(tmp_path: Path, source: str) -> None:
    (tmp_path / "bad.py").write_text(source)
    assert list(prose.findings(tmp_path / "bad.py"))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("good.py", 'def f():\n    """Return the answer, if there is no error."""\n'),
        (
            "good.py",
            'class C:\n    """The state of one call."""\n\n    @property\n    def x(self):\n        """The id."""\n',
        ),
        ("good.py", '"""A table.\n\n| id | one; two | three; four |\n"""\n' + 'x = "What is this; that; those"\n'),
        ("good.py", 'raise ValueError(f"there is no {name}: ' + "write one of " * 8 + '")\n'),
        ("good.md", "# What it is\n\nIs it fast, or not?\n\n```\nWhat is no word of this page\n```\n"),
        ("good.sql", "-- Return the first message.\nSELECT 'for ever';\n"),
    ],
)
def test_it_lets_pass(tmp_path: Path, name: str, source: str) -> None:
    (tmp_path / name).write_text(source)
    assert not list(prose.findings(tmp_path / name))
