from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobpool.errors import ConfigurationError
from jobpool.handlers import app
from jobpool.handlers.builtin import MAKERS
from jobpool.handlers.registry import DEFAULT
from jobpool.ipc.frames import HandlerInfo, Loaded, decode
from jobpool.ipc.process_options import ChildOptions

GOOD = "import jobpool.handlers.registry as r\n@r.handler({name!r}, queue='reports', timeout=5)\ndef f(ctx): ...\n"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty registry and working directory; what was imported is forgotten."""
    monkeypatch.setattr(DEFAULT, "_handlers", {})
    monkeypatch.setattr(DEFAULT, "_allowed", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def load(*apps: str, **options: object) -> list[str]:
    return [info.name for info in own(app.load(ChildOptions(apps=list(apps), **options)))]  # type: ignore[arg-type]


def own(infos: list[HandlerInfo]) -> list[HandlerInfo]:
    return [info for info in infos if info.name not in MAKERS]


def test_a_module_in_the_working_directory_is_found(tmp_path: Path) -> None:
    write(tmp_path / "shop_a/jobs.py", GOOD.format(name="report"))
    [info] = own(app.load(ChildOptions(apps=["shop_a.jobs"])))
    assert (info.name, info.timeout) == ("report", 5.0)
    assert sys.path[0] == str(tmp_path)


def test_options_that_are_only_false_or_true_reach_the_master(tmp_path: Path) -> None:
    write(
        tmp_path / "jobs_e.py",
        GOOD.format(name="report").replace("timeout=5", "result_ttl=False, ack_in_transaction=1"),
    )
    [info] = own(app.load(ChildOptions(apps=["jobs_e"])))
    assert (info.result_ttl, info.ack_in_transaction) == (0.0, True)
    assert decode(Loaded([info]).encode()) == Loaded([info])


def test_a_file_is_found_and_finds_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "deep/neighbour_b.py", "NAME = 'mail'\n")
    write(tmp_path / "deep/jobs_b.py", "from neighbour_b import NAME\n" + GOOD.format(name="x").replace("'x'", "NAME"))
    assert load("deep/jobs_b.py") == ["mail"]
    assert load("deep/jobs_b.py") == ["mail"]


def test_sys_path_comes_before_the_working_directory(tmp_path: Path) -> None:
    write(tmp_path / "jobs_c.py", GOOD.format(name="here"))
    write(tmp_path / "first/jobs_c.py", GOOD.format(name="first"))
    assert load("jobs_c", sys_path=[str(tmp_path / "first")]) == ["first"]


def test_the_allowed_handlers_are_set(tmp_path: Path) -> None:
    write(tmp_path / "jobs_d.py", GOOD.format(name="report"))
    load("jobs_d", queue_handlers={"q": []})
    with pytest.raises(LookupError, match="not allowed"):
        DEFAULT.resolve("report", "q")


TEXTLESS = "class Bad(Exception):\n    __str__ = None\nraise Bad\n"
EARLY = "from django.core.exceptions import AppRegistryNotReady as Early\nraise Early('no apps')"
LATE = "import jobpool.handlers.registry as r\n@r.handler\ndef f(a: int, ctx: r.JobContext): ...\n"
OPTED = "import jobpool\n\n@jobpool.handler({})\ndef f(): ...\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("import nonsense_z", "needs the module 'nonsense_z', which is not installed", id="no package"),
        pytest.param("def f(:", "bad_app.py:1:", id="syntax"),
        pytest.param("x = 1\n1/0", "ZeroDivisionError: division by zero ({file}:2)", id="exception"),
        pytest.param("\0", "bad_app does not import: ", id="a NUL byte"),
        pytest.param(TEXTLESS, "does not import: Bad: it cannot be shown ({file}:3)", id="an exception without a text"),
        pytest.param(EARLY, "; start a Django project as `python manage.py jobpool`", id="an app of Django"),
        pytest.param("raise SystemExit(3)", "called sys.exit(3) while it was imported ({file}:1)", id="exit"),
        pytest.param("x = 1", "bad_app registers no handler: decorate a function with @jobpool.handler", id="nothing"),
        pytest.param(GOOD.format(name="a") * 2, "does not import: two handlers are named 'a'", id="two of a name"),
        pytest.param(LATE, "must take the job's context", id="no context"),
        pytest.param(OPTED.format("timeout='60s'"), "or a timedelta, not '60s' ({file}:3)", id="out of bounds"),
        pytest.param(OPTED.format("backoff='fixed bsae=1s'"), "did you mean base=? ({file}:3)", id="back-off"),
        pytest.param(OPTED.format("max_retires=3"), "'max_retires'; write max_retries ({file}:3)", id="no option"),
    ],
)
def test_what_is_wrong_with_an_app_is_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    path = write(tmp_path / "bad_app.py", text)
    with pytest.raises(ConfigurationError) as raised:
        load("bad_app")
    assert why.format(file=path) in str(raised.value)
    assert "bad_app" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "None" not in str(raised.value)
    assert not hasattr(raised.value, "__notes__")


def test_a_package_whose_modules_have_the_handlers(tmp_path: Path) -> None:
    write(tmp_path / "shop_f/__init__.py", "")
    write(tmp_path / "shop_f/jobs.py", GOOD.format(name="a"))
    with pytest.raises(ConfigurationError, match="module of it does, name that: --app shop_f"):
        load("shop_f")
    assert load("shop_f.jobs") == ["a"]


def test_a_file_in_a_circle_of_imports(tmp_path: Path) -> None:
    write(tmp_path / "circle_f.py", "import circle_g\nname = 'x'\n")
    write(tmp_path / "circle_g.py", "from circle_f import name\n")
    with pytest.raises(ConfigurationError, match=r"\(most likely due to a circular import\) \(.*circle_g.py:1\)"):
        load("./circle_f.py")


@pytest.mark.parametrize(
    ("handler", "kind"), [(signal.SIG_IGN, ConfigurationError), (signal.default_int_handler, KeyboardInterrupt)]
)
def test_an_interrupt_is_the_apps_own_where_the_signal_is_ignored(
    tmp_path: Path, handler: Any, kind: type[BaseException]
) -> None:
    write(tmp_path / "bad_app.py", "raise KeyboardInterrupt")
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(kind):
            load("bad_app")
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_file_of_a_package_that_is_not_installed_is_told_where_that_is(tmp_path: Path) -> None:
    write(tmp_path / "src/acme_s/__init__.py", "")
    write(tmp_path / "src/acme_s/jobs_s.py", "from acme_s import NAME\n")
    with pytest.raises(ConfigurationError, match=rf"needs the module 'acme_s'.*; it is in {tmp_path}/src: set PYTH"):
        load("src/acme_s/jobs_s.py")


def test_an_error_deeper_than_the_app_brings_the_stack_from_the_app_on(tmp_path: Path) -> None:
    write(tmp_path / "deep_e.py", "def find():\n    raise LookupError('no\\nshop')\n")
    path = write(tmp_path / "deep_app.py", "import deep_e\ndeep_e.find()\n")
    with pytest.raises(ConfigurationError) as raised:
        load("deep_app")
    assert str(raised.value).endswith("deep_e.py:2)")
    [stack] = raised.value.__notes__
    assert stack.splitlines()[:2] == ["Traceback (most recent call last):", f'  File "{path}", line 2, in <module>']
    assert stack.endswith("LookupError: no\nshop")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_app", "there is no module 'no_such_app' for the app no_such_app: looked in {cwd} and on sys.path"),
        ("json.no_such_part", "there is no module 'json.no_such_part'"),
        ("gone/jobs.py", "there is no such file"),
        ("json.py", "its name is that of another module, 'json': rename the file"),
    ],
)
def test_an_app_that_is_not_there(tmp_path: Path, name: str, why: str) -> None:
    write(tmp_path / "json.py", GOOD.format(name="x"))
    with pytest.raises(ConfigurationError) as raised:
        load(name)
    assert why.format(cwd=tmp_path) in str(raised.value)


@pytest.mark.parametrize("inits", [[], ["shop_r"], ["shop_r", "shop_r/jobs"]], ids=["none", "outer", "both"])
@pytest.mark.parametrize(
    ("folder", "name"),
    [(".", "shop_r/jobs/mails.py"), ("shop_r", "jobs/mails.py"), ("shop_r/jobs", "mails.py")],
    ids=["from above", "from between", "from its folder"],
)
def test_a_relative_import_of_a_file_names_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inits: list[str], folder: str, name: str
) -> None:
    """Without `__init__.py` only the innermost folder is known to be a package."""
    for place in inits:
        write(tmp_path / place / "__init__.py", "")
    path = write(tmp_path / "shop_r/jobs/mails.py", "from ..models import Customer\n")
    monkeypatch.chdir(tmp_path / folder)
    with pytest.raises(ConfigurationError) as raised:
        load(name)
    module, root = "shop_r.jobs.mails", tmp_path
    if folder != "." and not inits:
        module, root = "jobs.mails", tmp_path / "shop_r"
    started = "" if root == Path.cwd() else f", started in {root}"
    assert f"name the module, --app {module}{started} ({path}:1)" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "folder", "advice"),
    [("jobs", "src/shop_s", "src.shop_s.jobs, started in {tmp}"), ("src/shop_s/jobs.py", ".", "shop_s.jobs")],
    ids=["a module, in its own package", "a file of an installed package"],
)
def test_a_relative_import_is_never_told_to_do_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str, advice: str
) -> None:
    path = write(tmp_path / "src/shop_s/jobs.py", "from .models import Customer\n")
    if advice == "shop_s.jobs":
        monkeypatch.syspath_prepend(tmp_path / "src")  # as `pip install -e .` does
    else:
        write(tmp_path / "src/__init__.py", "")
    monkeypatch.chdir(tmp_path / folder)
    with pytest.raises(ConfigurationError) as raised:
        load(name)
    assert f"name the module, --app {advice.format(tmp=tmp_path)} ({path}:1)" in str(raised.value)


def test_a_child_stays_small() -> None:
    heavy = "asyncio, click, rich, pydantic, psutil, sqlite3"
    code = f"import sys, jobpool.child.main; print([n for n in {heavy.split(', ')!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
