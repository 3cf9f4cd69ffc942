"""From a URL to a backend: schemes, missing packages, passwords, and what applies when nothing is named."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.modest import Faulty
from support.tables import row

from jobpool.broker.config_file import ConfigFile
from jobpool.broker.opening import (
    _split_state,
    default_signer,
    default_url,
    faulty_package,
    open_backend,
    redact,
    scheme_of,
)
from jobpool.cli.main import explained
from jobpool.client.jobs import Jobs
from jobpool.clock import ManualClock
from jobpool.errors import ConfigurationError
from jobpool.message.definition import JobDefinition
from jobpool.message.signing import EnvelopeSigner
from jobpool.settings import Settings, load
from jobpool_backends.sqlite import SqliteBackend


def installed(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """These backends, and no others, are installed."""
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: list(points))


FORK_DURING_AN_IMPORT = """
import os, signal, sys, threading, time
from contextlib import suppress
from jobpool.broker.opening import open_backend
from jobpool.errors import BackendUnavailable

def first_use():
    with suppress(BackendUnavailable):
        open_backend("redis://127.0.0.1:1")

threading.Thread(target=first_use).start()
while "jobpool_backends.redis" not in sys.modules:
    time.sleep(0.0005)
if (pid := os.fork()) == 0:
    signal.alarm(10)
    first_use()
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_fork_while_another_thread_imports_a_backend_leaves_the_child_able_to() -> None:
    assert subprocess.run([sys.executable, "-c", FORK_DURING_AN_IMPORT], timeout=60, check=False).returncode == 0


AT_EXIT = """
import atexit, jobpool
jobs = jobpool.Jobs("{url}")
atexit.register(lambda: jobs.enqueue("report"))
"""


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "postgresql://127.0.0.1:1/x", "beanstalk://127.0.0.1:1"])
def test_a_first_enqueue_at_the_interpreters_exit_reaches_for_the_broker(url: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AT_EXIT.format(url=url)], timeout=60, check=False, capture_output=True, text=True
    )
    assert "BackendUnavailable" in ended.stderr


def test_a_backend_is_found_by_its_scheme() -> None:
    signer, clock = EnvelopeSigner("secret"), ManualClock()
    backend = open_backend("memory://", signer=signer, clock=clock)
    assert type(backend).__name__ == "MemoryBackend"
    assert backend.signer is signer
    assert backend.clock is clock
    backend.close()


def test_sync_runs_jobs_with_the_runner() -> None:
    ran: list[JobDefinition] = []
    backend = open_backend("sync://", runner=ran.append)
    job = JobDefinition("report", {"customer": 7})
    ident = backend.enqueue(job)
    assert ran == [replace(job, identifier=ident)]


def test_an_option_reaches_the_backend() -> None:
    with pytest.raises(ConfigurationError, match="colour"):
        open_backend("memory://", colour="blue")


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(
        ConfigurationError, match=r"no backend for nosuch:// is installed; known are .*memory://.*sqlite://"
    ):
        open_backend("nosuch://localhost")
    for scheme, meant in [("beanstalkd", "beanstalk"), ("postgress", "postgres"), ("sb", "Endpoint=sb")]:
        with row(scheme), pytest.raises(ConfigurationError, match=f"; did you mean '{meant}://…'"):
            open_backend(f"{scheme}://localhost")


def test_what_is_no_url_says_how_to_write_one() -> None:
    for url, mend in [
        *((url, "write scheme://…, with one of beanstalk://") for url in ("", "://", "nosuch")),
        ("sqlite:jobpool.db", "did you mean 'sqlite:///FILE'?"),
        ("redis", "did you mean 'redis://HOST'?"),
        ("memory", "did you mean 'memory://'?"),
        ("redis:me:hidden@h", "did you mean 'redis://HOST'?"),
        ("jobpool.db", "did you mean 'sqlite:///jobpool.db'?"),
        ("./data/jobs", "did you mean 'sqlite:///data/jobs'?"),
        ("/var/lib/jobpool.db", "did you mean 'sqlite:////var/lib/jobpool.db'?"),
        ("me:hidden/jobpool.db", "write scheme://"),
    ]:
        with row(url), pytest.raises(ConfigurationError, match=re.escape(f" is not a URL: {mend}")) as refused:
            open_backend(url)
        assert "hidden" not in str(refused.value), url


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, EntryPoint("far", "a_package_that_is_not_there.far:Far", "jobpool.backends"))
    with pytest.raises(ConfigurationError, match="'a_package_that_is_not_there', which is not installed") as caught:
        open_backend("far://me:hidden@host")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "wanted", "url"),
    [
        ("redis", "redis[hiredis]>=8,<9", "redis://localhost"),
        ("psycopg", "psycopg[binary]>=3.2", "postgresql://localhost"),
        ("greenstalk", "greenstalk>=2.1,<3", "beanstalk://localhost"),
        ("azure", "azure-servicebus>=7.15,<7.16", "servicebus://name"),
        ("azure.servicebus", "azure-servicebus>=7.15,<7.16", "servicebus://name"),
        ("azure.identity", "azure-identity>=1.19,<2", "servicebus://name"),
    ],
)
def test_a_missing_client_library_is_named_as_pip_takes_it(module: str, wanted: str, url: str) -> None:
    """In an interpreter that cannot find it: here it is installed."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert wanted in [each for extra in project["optional-dependencies"].values() for each in extra]
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Missing())
from jobpool.errors import ConfigurationError
from jobpool.broker.opening import open_backend
try:
    open_backend({url!r})
except ConfigurationError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert f"which is not installed: pip install '{wanted}'" in run.stdout


def test_a_backend_that_is_broken_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, EntryPoint("odd", "jobpool_backends.nowhere:Odd", "jobpool.backends"))
    with pytest.raises(ConfigurationError, match=r"cannot be imported: No module named 'jobpool_backends.nowhere'"):
        open_backend("odd://host")


AUTHORED = """
import jobpool

class Hollow(jobpool.QueueBackend):
    @classmethod
    def _open(cls, url, options, **common):
        return cls(**common)

class Rude(Hollow):
    scheme, capabilities = "rude", jobpool.Capabilities(transactions=True)
    _enqueue = _fetch = _wait_any = _settle = _renew = _bulk = _inspector = None
    def __init__(self, **common):
        pass

class Shut(jobpool.QueueBackend):
    pass

class Nothing:
    pass
"""


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (
            "authored:Hollow",
            "backend mine:// (authored:Hollow) lacks _bulk, _enqueue, _fetch, _inspector, _reap, _renew, _settle,"
            " _wait_any, capabilities, scheme: see docs/backends.md#writing-your-own",
        ),
        ("authored:Rude", "(authored:Rude) lacks _enqueue_in, _reap, super().__init__(…): see"),
        ("authored:Shut", "authored:Shut has no _open"),
        ("authored:Nothing", "(authored:Nothing) is not a QueueBackend: see"),
        ("authored:Absent", "(authored:Absent) cannot be imported: AttributeError: module 'authored' has no attribute"),
        ("unfinished:Absent", "(unfinished:Absent) cannot be imported: SyntaxError: "),
    ],
)
def test_what_an_author_left_out_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, told: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "authored.py").write_text(AUTHORED)
    (tmp_path / "unfinished.py").write_text("class Absent(:")
    installed(monkeypatch, EntryPoint("mine", place, "jobpool.backends"))
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        open_backend("mine://host")


def test_a_fault_is_that_of_the_backend_whose_code_it_passed() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        Faulty().lost()
    for error, package in ((caught.value, "support"), (ZeroDivisionError(), "jobpool")):
        assert faulty_package(error) == package
        assert explained(error)[2] == f"A fault in {package}; -vv shows where: please report it."


def test_scheme() -> None:
    for url, scheme in [
        ("memory://", "memory"),
        ("SQLite:///jobpool.db", "sqlite"),
        ("rediss://host/0", "rediss"),
        ("postgresql+psycopg://host/db", "postgresql+psycopg"),
        ("Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k=", "servicebus"),
        (" endpoint = sb://x/", "servicebus"),
    ]:
        assert scheme_of(url) == scheme, url


def test_passwords_are_never_shown() -> None:
    for url, shown in [
        ("sqlite:////srv/jobs.db", "sqlite:////srv/jobs.db"),
        ("redis://localhost/0", "redis://localhost/0"),
        ("postgresql://me@localhost/0", "postgresql://me@localhost/0"),
        ("redis://hidden@localhost/0", "redis://***@localhost/0"),
        ("redis+sentinel://hid/den@h:1,i/s/0", "redis+sentinel://***@h:1,i/s/0"),
        ("REDISS://hid?den@h", "REDISS://***:***"),
        ("redis://hid/den?x=1@h", "redis://***:***"),
        ("redis://hidden:@h", "redis://***:***@h"),
        ("redis://me:hidden@localhost/0", "redis://me:***@localhost/0"),
        ("redis://:hidden@localhost/0", "redis://:***@localhost/0"),
        ("redis://me:hid@den@localhost/0", "redis://me:***@localhost/0"),
        ("redis://me:hid/den@localhost/0", "redis://me:***@localhost/0"),
        ("redis://h/0?password=hidden&db=1", "redis://h/0?password=***&db=1"),
        ("postgresql://h/d?user=u&sslpassword=hidden", "postgresql://h/d?user=u&sslpassword=***"),
        (
            "Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey=hidden+/=;EntityPath=q",
            "Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey=***;EntityPath=q",
        ),
        (
            "Endpoint=sb://x/;SharedAccessSignature=SharedAccessSignature sr=1&sig=hidden;EntityPath=q?lock=30",
            "Endpoint=sb://x/;SharedAccessSignature=***;EntityPath=q?lock=30",
        ),
        (
            "Endpoint=sb://x/;SharedAccessKey=hidden;UseDevelopmentEmulator=true;?lock=30&key=hidden",
            "Endpoint=sb://x/;SharedAccessKey=***;UseDevelopmentEmulator=true;?lock=30&key=***",
        ),
        ("Endpoint=http://x/;SharedAccessKey=hidden", "Endpoint=http://x/;SharedAccessKey=***"),
        ("Endpoint=sb://x/;SharedAccessKey=hid;den=1", "Endpoint=sb://x/;SharedAccessKey=***;***"),
        ("host=db user=me password=hidden", "host=***"),
        ("password = 'hid den' host=db", "password =***"),
        ("me:hidden@host?password=hidden", "me:***"),
        ("hidden@host", "***"),
        ("redis://me:hidden", "redis://me:***"),
        ("redis://me:hid%40den", "redis://me:***"),
        ("redis://me%3Ahidden@h/0", "redis://me:***@h/0"),
        ("redis://me:hid?den@h/0?db=1", "redis://me:***"),
        ("redis://me:hid\nden@h", "redis://me:***@h"),
        ("redis://h/0?password=hid&den&db=1", "redis://h/0?password=***&***&db=1"),
        ("servicebus://Endpoint=sb://x/;SharedAccessKey=hid/den=", "servicebus://Endpoint=sb://x/;SharedAccessKey=***"),
        ("sb://x/;SharedAccessSignature=hidden;x=hidden", "sb://x/;SharedAccessSignature=***"),
        ("postgresql://host=db password=hid:den user=me", "postgresql://host=db password=***"),
        ("redis://h/0?pass%77ord=hidden", "redis://h/0?pass%77ord=***"),
        ("postgresql://h1:1,[::1]:2/d?user=x", "postgresql://h1:1,[::1]:2/d?user=x"),
    ]:
        assert redact(url) == shown, url


SCHEMES = ("nosuch", "sync", "memory", "sqlite", "redis", "redis+sentinel", "postgresql", "beanstalk", "servicebus")


def test_errors_hold_no_password() -> None:
    for url in [
        "me:hidden@host?password=hidden",
        "host=db password=hidden",
        "Endpoint=sb://x/;SharedAccessKey=hidden",
        "Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey=hidden;x=1",
        *(f"{scheme}://me:{end}@host:x/0" for scheme in SCHEMES for end in ("hidden", "a?hidden", "a?b&hidden")),
        *(f"{scheme}://me:{end}" for scheme in SCHEMES for end in ("hidden", "1?hidden@host", "a?hidden=1@h")),
    ]:
        with row(url), pytest.raises(ConfigurationError) as caught:
            open_backend(url)
        assert "hidden" not in str(caught.value), url


ODD = st.text(st.sampled_from("ab1:@/?#&;=%'\" \\\n"), max_size=6)


@given(ODD, ODD, st.sampled_from(SCHEMES), st.sampled_from(["@h", "@h:1/0", "@h/0?db=1", "@h?password=hidden"]))
def test_no_odd_character_brings_a_password_to_light(before: str, after: str, scheme: str, rest: str) -> None:
    assert "hidden" not in redact(f"{scheme}://me:{before}hidden{after}{rest}")
    assert "hidden" not in redact(f"{scheme}://:{before}hidden{after}@h")
    assert "hidden" not in redact(f"host=h password={before}hidden{after} user=me")
    key = f"{before}hidden{after}".replace(";", "")  # which ends a value there: a key in base64 holds none
    assert "hidden" not in redact(f"Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey={key}")
    assert "hidden" not in redact(f"{scheme}://h/0?password={quote(before)}hidden{quote(after)}&db=1")


def test_a_backend_that_is_no_text_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "jobpool.toml").write_text('backend = {url = "redis://h", password = "hidden"}\n')
    for read in (default_url, load):
        with pytest.raises(ConfigurationError, match="backend") as caught:
            read()
        assert "hidden" not in str(caught.value)


def test_the_settings_of_a_pool_show_no_secret() -> None:
    pool = Settings(queues=(("default", 1.0),), backend="redis://me:hidden@host", signing_key=("hidden",))
    assert "hidden" not in repr(pool)


# --- what applies when nothing is named ------------------------------------------------------------------------------


def test_the_configuration_file_names_the_backend_and_the_environment_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobpool.toml").write_text('backend = "memory://"\n')
    assert default_url() == "memory://"
    monkeypatch.setenv("JOBPOOL_BACKEND", "sync://")
    assert default_url() == "sync://"
    monkeypatch.setenv("JOBPOOL_BACKEND", "")
    assert default_url() == "memory://"


def test_a_misspelt_backend_is_refused_where_the_default_would_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBPOOL_BACKEND", "")
    monkeypatch.setenv("JOBPOOL_WORKERS", "2")
    assert default_url() == f"sqlite:///{tmp_path}/jobpool.db"
    monkeypatch.setenv("JOBPOOL_BACKEDN", "memory://")
    with pytest.raises(ConfigurationError, match=r"variable JOBPOOL_BACKEDN is not .*did you mean 'JOBPOOL_BACKEND'"):
        default_url()
    monkeypatch.delenv("JOBPOOL_BACKEDN")
    (tmp_path / "jobpool.toml").write_text('bakend = "memory://"\n')
    with pytest.raises(ConfigurationError, match=r"jobpool\.toml: 'bakend' is not .*did you mean 'backend'"):
        default_url()


def test_a_backend_in_the_file_that_is_no_url_is_refused(tmp_path: Path) -> None:
    for value in (7, "", ["memory://"]):
        config = ConfigFile(tmp_path / "jobpool.toml", tmp_path, {"backend": value})
        with row(value), pytest.raises(ConfigurationError, match=r"jobpool\.toml: backend must be a URL"):
            default_url(config)


def signature(signer: EnvelopeSigner) -> str:
    return signer.sign(b"body")


def by(key: str) -> str:
    return EnvelopeSigner(key).sign(b"body")


def test_the_first_key_that_is_set_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (signature(default_signer()), load().signing_keys()) == ("", ())
    monkeypatch.setenv("JOBS_SIGNING_KEY", "fourth")
    assert (signature(default_signer()), load().signing_keys()) == (by("fourth"), ("fourth",))
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY", "third")
    assert (signature(default_signer()), load().signing_keys()) == (by("third"), ("third",))
    (tmp_path / "jobpool.toml").write_text('signing_key = "second"\n')
    assert (signature(default_signer()), load().signing_keys()) == (by("second"), ("second",))
    assert signature(default_signer("first")) == by("first")
    assert signature(default_signer(["first", "old"])) == by("first")


def test_keys_are_written_alike_for_producers_and_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for written, keys in [
        ("a,b c", ["a,b c"]),
        (" key\n", ["key"]),
        ('["new", "old"]', ["new", "old"]),
        ('["key\\n"]', ["key\n"]),  # of a list, as it is
    ]:
        (tmp_path / "jobpool.toml").write_text(f"signing_key = {json.dumps(written)}\n")
        for variable in (None, "JOBPOOL_SIGNING_KEY", "JOBS_SIGNING_KEY"):
            with row(written, variable), monkeypatch.context() as patch:
                if variable:
                    (tmp_path / "jobpool.toml").unlink(missing_ok=True)
                    patch.setenv(variable, written)
                assert load().signing_keys() == tuple(keys)
                assert signature(default_signer()) == by(keys[0])
                assert all(default_signer().verify(b"body", by(key)) for key in keys)


def test_keys_that_cannot_be_used_never_fall_through_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_SIGNING_KEY", "fallback")
    for written, told in [
        *((empty, "a signing key must not be empty") for empty in ("", " \n", '["a", ""]')),
        *((odd, "a signing key must be a text in quotes") for odd in ("[1]", '[["x"]]')),
        *((cut, "not a JSON list") for cut in ('["a"', "[key]")),
        ("[]", "list of signing keys is empty"),
    ]:
        (tmp_path / "jobpool.toml").write_text(f"signing_key = {json.dumps(written)}\n")
        for variable in (None, "JOBPOOL_SIGNING_KEY", "JOBS_SIGNING_KEY"):
            with row(written, variable), monkeypatch.context() as patch:
                if variable:
                    (tmp_path / "jobpool.toml").unlink(missing_ok=True)
                    patch.setenv(variable, written)
                with pytest.raises(ConfigurationError, match=f"{variable or 'signing_key'}: .*{told}"):
                    load()
                with pytest.raises(ConfigurationError, match=told):
                    default_signer()


def test_a_file_of_keys_goes_before_an_empty_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("mine\n")
    (tmp_path / "jobpool.toml").write_text('signing_key_file = "keys"\n')
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY", "")
    assert signature(default_signer()) == by("mine")
    assert load().signing_keys() == ("mine",)


def test_keys_from_a_file_beside_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("new\n\nold\n")
    (tmp_path / "jobpool.toml").write_text('signing_key_file = "keys"\nsigning_key = "other"\n')
    below = tmp_path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    signer = default_signer()
    assert signature(signer) == by("new")
    assert signer.verify(b"body", by("old"))
    assert load().signing_keys() == ("new", "old")


def test_keys_from_a_file_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("mine\n")
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY_FILE", str(tmp_path / "keys"))
    assert signature(default_signer()) == by("mine")


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o644, 1), (0o602, 1)])
def test_a_file_of_keys_that_everybody_can_use_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warnings: int
) -> None:
    (tmp_path / "keys").write_text("mine\n")
    (tmp_path / "keys").chmod(mode)
    (tmp_path / "jobpool.toml").write_text('backend = "memory://"\nsigning_key_file = "keys"\n')
    with Jobs() as jobs:
        jobs.enqueue(JobDefinition("report"))
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == warnings
    assert all("chmod 600" in text and "mine" not in text for text in told)


def test_a_file_of_keys_that_cannot_be_used_is_an_error_and_not_signing_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY", "not a fallback")
    for name, text, message in [
        ('"missing"', "", "cannot be read"),
        *(('"blank"', blank, "holds no key: write one a line") for blank in ("", "\n", " \n\t\n")),
        ("7", "", "must be a text"),
        ('""', "", "jobpool.toml: signing_key_file: it is empty: leave it out"),
    ]:
        (tmp_path / "blank").write_text(text)
        (tmp_path / "jobpool.toml").write_text(f"signing_key_file = {name}\n")
        for read in (default_signer, lambda: load().signing_keys()):
            with row(name, text), pytest.raises(ConfigurationError, match=message):
                read()
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY_FILE", "")
    for read in (default_signer, lambda: load().signing_keys()):
        with pytest.raises(ConfigurationError, match="JOBPOOL_SIGNING_KEY_FILE: it is empty"):
            read()


def test_the_option_state_is_taken_out_of_a_url_and_shows_no_password() -> None:
    state = "redis://:hidden@h/1"
    for url, rest, found in (
        ("beanstalk://h", "beanstalk://h", ""),
        ("beanstalk://h?state=sqlite:///s.db", "beanstalk://h?", "sqlite:///s.db"),
        ("beanstalk://h?ttr=10&state=sqlite:///s.db&timeout=3", "beanstalk://h?ttr=10&timeout=3", "sqlite:///s.db"),
        ("beanstalk://h?state=sqlite:///s.db&ttr=10", "beanstalk://h?&ttr=10", "sqlite:///s.db"),
        (f"beanstalk://h?state={quote(state)}", "beanstalk://h?", state),
        (f"Endpoint=sb://h/;SharedAccessKeyName=n;state={state}", "Endpoint=sb://h/;SharedAccessKeyName=n", state),
        ("sqlite:///upstate=1.db", "sqlite:///upstate=1.db", ""),
    ):
        assert _split_state(url) == (rest, found)
        assert "hidden" not in redact(url)


def test_a_broker_to_borrow_from_that_is_refused_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(SqliteBackend, "close", lambda _: closed.append(True))
    with pytest.raises(ConfigurationError, match="keeps keys of its own"):
        open_backend(f"memory://?state=sqlite:///{tmp_path}/state.db")
    assert closed
