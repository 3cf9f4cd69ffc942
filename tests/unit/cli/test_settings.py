from __future__ import annotations

import grp
import os
import pwd
import re
import tempfile
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from support.tables import row

from jobpool.broker.config_file import find_config, hidden_beside
from jobpool.broker.opening import default_url
from jobpool.broker.values import ReapPolicy
from jobpool.cli.main import cli
from jobpool.errors import ConfigurationError
from jobpool.master.run import limits_of
from jobpool.master.serving import unserved_limits
from jobpool.message.allowances import Allowances
from jobpool.policy.limits import Limits
from jobpool.policy.retry import RetryPolicy
from jobpool.settings import NOT_SETTINGS, REMOVED, SETTINGS, Settings, load


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- where values come from ------------------------------------------------------------------------


def test_the_file_is_searched_upwards_and_the_database_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "jobpool.toml", "workers = 3\n")
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert load().workers == 3
    assert load().backend == default_url() == f"sqlite:///{tmp_path}/jobpool.db"


def test_a_table_in_pyproject_counts_and_a_pyproject_without_one_does_not(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "[tool.jobpool]\nworkers = 3\n")
    inner = write(tmp_path / "inner" / "pyproject.toml", "[tool.other]\n").parent
    config = find_config(start=inner)
    assert config.path == tmp_path / "pyproject.toml"
    found = load(config=config.path)
    assert (found.workers, found.backend) == (3, default_url(config))
    assert found.backend == f"sqlite:///{tmp_path}/jobpool.db"


def test_jobpool_toml_wins_over_pyproject_in_the_same_directory(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "[tool.jobpool]\nworkers = 3\n")
    write(tmp_path / "jobpool.toml", "workers = 4\n")
    assert load().workers == 4
    assert hidden_beside(find_config()) == tmp_path / "pyproject.toml"


def test_nothing_is_hidden_by_a_file_alone(tmp_path: Path) -> None:
    shared = write(tmp_path / "pyproject.toml", "[tool.jobpool]\nworkers = 3\n")
    assert hidden_beside(find_config()) is None
    named = write(tmp_path / "prod.toml", "workers = 4\n")
    assert hidden_beside(find_config(named)) is None
    write(tmp_path / "jobpool.toml", "workers = 4\n")
    for text in ("[tool.other]\n", "not TOML"):
        write(shared, text)
        assert hidden_beside(find_config()) is None, text


def test_a_mark_of_the_byte_order_at_the_beginning_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "jobpool.toml").write_text("workers = 4\n", "utf-8-sig")
    assert load().workers == 4


@pytest.mark.parametrize("name", ["jobpool.toml", "pyproject.toml"])
@pytest.mark.parametrize(
    ("spoilt", "mode", "given", "why"),
    [
        ("folder", 0o1777, None, "can be written by everybody"),
        ("folder", 0o755, (4242, -1), "belongs to user 4242"),
        ("folder", 0o770, (-1, 4242), "can be written by its group"),
        ("file", 0o666, None, "can be written by everybody"),
        ("file", 0o644, (4242, -1), "belongs to user 4242"),
    ],
)
def test_a_found_file_that_another_user_may_have_written_is_refused(
    tmp_path: Path, name: str, spoilt: str, mode: int, given: tuple[int, int] | None, why: str
) -> None:
    file = write(tmp_path / "planted" / name, "[tool.jobpool]\nworkers = 3\n" if name[0] == "p" else "workers = 3\n")
    place = file.parent if spoilt == "folder" else file
    below = file.parent / "below"
    below.mkdir()
    if given is not None:
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(place, *given)
    place.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"{place} {why}.*--config {file}, or JOBPOOL_CONFIG"):
        find_config(start=below)
    assert find_config(file).values["workers"] == 3, "named, it is read"


def test_a_pyproject_of_others_without_a_table_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "jobpool.toml", "workers = 3\n")
    inner = write(tmp_path / "inner" / "pyproject.toml", "[tool.other]\n").parent
    inner.chmod(0o777)
    assert find_config(start=inner).path == tmp_path / "jobpool.toml"


def test_a_group_of_the_users_own_is_nobody_else(tmp_path: Path) -> None:
    file = write(tmp_path / "own" / "jobpool.toml", "workers = 3\n")
    user = pwd.getpwuid(os.geteuid())
    group = grp.getgrgid(user.pw_gid)
    if group.gr_name != user.pw_name or set(group.gr_mem) - {user.pw_name}:
        pytest.skip("this user's group is not its own")
    for place in (file, file.parent):
        os.chown(place, -1, group.gr_gid)
        place.chmod(0o775)
    assert find_config(start=file.parent).path == file


def test_the_search_ends_at_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "jobpool.toml", "workers = 3\n")
    deep = tmp_path / "home" / "deep"
    deep.mkdir(parents=True)
    assert find_config(start=deep).path == tmp_path / "jobpool.toml"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find_config(start=deep).path is None
    assert find_config(start=tmp_path).path == tmp_path / "jobpool.toml"
    write(tmp_path / "home" / "jobpool.toml", "workers = 4\n")
    assert find_config(start=deep).path == tmp_path / "home" / "jobpool.toml"


def test_the_search_ends_at_the_edge_of_the_file_system(tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    write(tmp_path / "jobpool.toml", "workers = 3\n")
    with tempfile.TemporaryDirectory(dir=shared) as elsewhere:
        (tmp_path / "mounted").symlink_to(elsewhere)
        assert find_config(start=tmp_path / "mounted").path is None


def test_environment_is_stronger_than_the_file_and_flags_than_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "jobpool.toml", 'workers = 2\nttl = 2\nstop_grace = "2s"\n')
    monkeypatch.setenv("JOBPOOL_TTL", "3s")
    monkeypatch.setenv("JOBPOOL_STOP_GRACE", "3s")
    settings = load({"stop_grace": "4s", "kill_grace": None})
    assert (settings.workers, settings.ttl, settings.stop_grace, settings.kill_grace) == (2, 3.0, 4.0, 1.0)


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_TTL", "")
    assert load().ttl == 30.0


@pytest.mark.parametrize("end", ["\n", "\r", " \n"])
def test_a_url_may_end_a_line_as_in_a_secret_that_echo_made(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_BACKEND", f"sqlite:////srv/jobs.db{end}")
    assert load().backend == default_url() == "sqlite:////srv/jobs.db"


def test_a_named_file_ends_the_search(tmp_path: Path) -> None:
    write(tmp_path / "jobpool.toml", "workers = 2\n")
    named = write(tmp_path / "else" / "prod.toml", "ttl = 9\n")
    settings = load(config=named)
    assert settings.ttl == 9
    assert settings.backend == f"sqlite:///{tmp_path}/else/jobpool.db"


def test_jobpool_config_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_CONFIG", str(write(tmp_path / "prod.toml", "ttl = 9\n")))
    assert load().ttl == 9


def test_relative_paths_in_the_file_count_from_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "jobpool.toml", 'backend = "sqlite:///data/jobs.db"\n')
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert load().backend == f"sqlite:///{tmp_path}/data/jobs.db"


@pytest.mark.parametrize("url", ["sqlite:////var/lib/jobs.db", "redis://localhost/0", "memory://"])
def test_absolute_urls_stay_as_they_are(tmp_path: Path, url: str) -> None:
    write(tmp_path / "jobpool.toml", f'backend = "{url}"\n')
    assert load().backend == url


@pytest.mark.parametrize("service", ["", "REDIS_", "METRICS_", "WORKERS_2_"])
def test_what_kubernetes_sets_for_a_service_of_that_name_is_no_error(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word, value in {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "80",
        "SERVICE_PORT_HTTP_WEB": "80",
        "PORT": "tcp://10.0.0.1:80",
        "PORT_80_TCP": "tcp://10.0.0.1:80",
        "PORT_80_TCP_PROTO": "tcp",
        "PORT_80_TCP_PORT": "80",
        "PORT_53_UDP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(f"JOBPOOL_{service}{word}", value)
    monkeypatch.setenv("JOBPOOL_DEBUG", "1")
    load()


# --- forms -----------------------------------------------------------------------------------------


def test_a_setting_is_read_from_every_form_in_which_it_may_be_written() -> None:
    """From a text, as variables and flags give it, from texts of a repeated flag, and from the types of TOML."""
    for key, written, value in [
        ("queues", "reports", (("reports", 1.0),)),
        ("queues", "reports=8, mail", (("reports", 8.0), ("mail", 1.0))),
        ("queues", ["reports=8", "mail=0.5"], (("reports", 8.0), ("mail", 0.5))),
        ("queues", {"reports": 8, "mail": 1}, (("reports", 8.0), ("mail", 1.0))),
        ("queues", "3", (("3", 1.0),)),
        ("apps", "a.b,c", ("a.b", "c")),
        ("queue_handlers", "reports=render,mail;mail=", {"reports": ["render", "mail"], "mail": []}),
        ("queue_handlers", ("q=a,b", "r=", "q=c"), {"q": ["a", "b", "c"], "r": []}),
        ("queue_handlers", {"reports": ["render"], "mail": []}, {"reports": ["render"], "mail": []}),
        ("concurrency_limits", "reports = 4, mail=2", {"reports": 4, "mail": 2}),
        ("concurrency_per_key", ("reports=4", "mail=0"), {"reports": 4}),
        ("rate_limits", {"reports": 600, "mail": 0}, {"reports": 600}),
        ("result_ttl", ("reports=1h", "mails=90"), {"reports": 3600.0, "mails": 90.0}),
        ("result_ttl", {"reports": 0}, {"reports": 0.0}),
        ("idempotency_ttl", "3d", 259200.0),
        ("memory_limit", "512M", (512 << 20, None)),
        ("memory_limit", 1024, (1024, None)),
        ("memory_limit", "512M queue=big", (512 << 20, "big")),
        ("recycle", "jobs=7", (7, 0, "suspect")),
        ("recycle", "memory=1G failure=ALWAYS", (0, 1 << 30, "always")),
        ("on_crash", None, ("forfeit", None)),
        ("on_crash", "EXPIRE", ("expire", None)),
        ("on_crash", "queue=careful", ("forfeit", "careful")),
        ("on_crash", "expire queue=careful", ("expire", "careful")),
        ("dead_letter_queue", "failures", "failures"),
        ("url_limits", "body=64K", (30.0, 65536)),
        ("url_limits", "timeout=2m", (120.0, 1 << 20)),
        ("metrics", 9100, ("127.0.0.1", 9100)),
        ("metrics", "9100", ("127.0.0.1", 9100)),
        ("metrics", ":9100", ("127.0.0.1", 9100)),
        ("metrics", "0", ("127.0.0.1", 0)),
        ("metrics", "0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("metrics", "[::1]:9100", ("::1", 9100)),
        ("history", "OFF", (None, False, 100, ())),
        ("history", "table keep=7 mask=iban,ssn", (None, True, 7, ("iban", "ssn"))),
        ("history", "file:/var/log/my jobs.ndjson keep=7", (Path("/var/log/my jobs.ndjson"), False, 7, ())),
        ("retry", "exponential", RetryPolicy("exponential", 0.2, 2.0, 5.0, 0.2, 25)),
        ("retry", "exponential base=1s", RetryPolicy()),
        ("retry", "Exponential base=1 max=1m", RetryPolicy("exponential", 1.0, 2.0, 60.0, 0.15, 0)),
        ("retry", "exponential attempts=25", RetryPolicy("exponential", 1.0, 2.0, 300.0, 0.15, 25)),
        ("retry", "exponential attempts=0 multiplier=3", RetryPolicy("exponential", 1.0, 3.0, 300.0, 0.15, 0)),
        ("retry", "fixed attempts=3", RetryPolicy("fixed", 5.0, max_attempts=3)),
        ("retry", "fixed base=300ms", RetryPolicy("fixed", 0.3)),
        ("retry", "none", RetryPolicy("none")),
        ("retry", "none attempts=2", RetryPolicy("none", max_attempts=2)),
    ]:
        assert getattr(load({key: written}), key) == value, (key, written)
    assert load({"workers": "auto"}).workers == load().workers >= 1


def test_tables_in_the_file(tmp_path: Path) -> None:
    write(tmp_path / "jobpool.toml", 'ttl = 9\n[queue_handlers]\nreports = ["render"]\n[rate_limits]\nmails = 60\n')
    settings = load()
    assert (settings.ttl, settings.queue_handlers, settings.rate_limits) == (9, {"reports": ["render"]}, {"mails": 60})


def test_the_limits_of_queues_reach_the_master() -> None:
    assert limits_of(load()) == Limits()
    assert not limits_of(load())
    tables = {"concurrency_limits": {"reports": 4}, "concurrency_per_key": {"reports": 2}}
    rates = {"rate_limits": {"reports": 600}, "rate_per_key": {"mails": 6}}
    meant = Limits(3600.0, {"reports": 4}, {"reports": 2}, rates={"reports": 600}, rates_per_key={"mails": 6})
    assert limits_of(load({"idempotency_ttl": "1h", **tables, **rates})) == meant


def test_a_limit_for_a_queue_that_is_not_served_is_told_and_does_no_harm() -> None:
    pool = load({"queues": "reports,mails", "rate_limits": "report=4"})
    [said] = unserved_limits(pool, pool.queue_names)
    assert said == "rate_limits limits queue 'report', which this pool does not serve; it serves 'reports', 'mails'"
    pool = load({"rate_limits": "reports=4"})
    assert not unserved_limits(pool, ["reports"])
    assert not unserved_limits(pool, []), "which queues the app names is not known yet"


def test_built_in_handlers_may_do_nothing_unless_it_is_said() -> None:
    assert load().allowances == Allowances()
    callables = ("shop.texts:count", "shop:ship")
    programs = "git, /usr/bin/gzip"
    given = {"allowed_callables": "shop.texts:count, shop:ship", "allowed_events": "paid"}
    allowed = Allowances(callables, ("git", "/usr/bin/gzip"), allowed_events=("paid",))
    assert load({**given, "allowed_shell_commands": programs}).allowances == allowed
    everything = load({"allowed_shell_commands": "git, *"}).allowances
    assert (everything.allow_all_shell_commands, everything.allowed_shell_commands) == (True, ("git",))


# --- refusals: the cause, its source, the mend ------------------------------------------------------


def test_a_bad_flag_is_refused_with_its_name_and_what_it_takes() -> None:
    for key, value, sentence in [
        ("ttl", "0", "--ttl must be greater than 0, not "),
        ("default_timeout", "1e10", "--default-timeout: '1e10' is not a duration"),
        ("max_timeout", "1e10", "--max-timeout: '1e10' is not a duration"),
        ("ttl", "soon", "--ttl: 'soon' is not a duration: write seconds, such as 90"),
        ("memory_limit", "much", "--memory-limit: 'much' is not a size"),
        ("output_cap", "10", "--output-cap must be greater than or equal to 1024"),
        ("workers", "0", "--workers: '0' is not a number of workers: 1 to 1024, or 'auto'"),
        ("workers", "four", "--workers: 'four' is not a number of workers"),
        ("workers", "5000", "--workers: '5000' is not a number of workers"),
        ("queues", ("reports,3",), "--queue: '3' after a comma would be a queue; a weight is written NAME=3"),
        ("queues", ("reports=0",), "--queue: the weight of queue 'reports' must be a number above 0, not '0'"),
        ("queues", ("a", "a=2"), "--queue: queue 'a' is named twice"),
        ("queues", ("my queue",), "--queue: queue name 'my queue' is refused: 1 to 100 letters, digits"),
        ("queue_handlers", ("reports",), "--queue-handlers: 'reports' names no handlers: write QUEUE=HANDLER,HANDLER"),
        ("queue_handlers", ("q=quick,r=fail",), "--queue-handlers: 'r=fail' is not a handler: write q=a,b;other=c"),
        ("queues", ('["a", "b"]',), '--queue: \'["a", "b"]\' is written as in a file: here it is a text without br'),
        ("queue_handlers", ('{q=["b"]}',), "--queue-handlers: '{q=[\"b\"]}' is written as in a file"),
        ("allowed_callables", ("os.system",), "--allowed-callables: 'os.system' is not written module:function"),
        ("allowed_callables", ("os:path.join",), "--allowed-callables: 'os:path.join' is not written module:function"),
        ("allowed_shell_commands", ("bin/x",), "--allowed-shell-commands: 'bin/x' is neither a program's name nor an"),
        ("cron", "maybe", "--cron: 'maybe' is neither true nor false"),
        ("allowed_events", ("a\nb",), "--allowed-events: 'a\\nb' is not 1 to 255 printable characters"),
        ("allowed_url_networks", ("10.1.2.3/24",), "--allowed-url-networks: 10.1.2.3/24 has host bits set: write it"),
        ("url_limits", "timeout=2d", "--url-limits: timeout= must be above 0, and at most 86400 seconds, not 172800"),
        ("url_limits", "body=0", "--url-limits: body= must be 1 to 1073741824 bytes, not 0"),
        ("url_limits", "1m", "--url-limits: '1m' is not known there: write words such as 'timeout=30s body=1M'"),
        ("retry", "twice", "--retry must be 'none', 'fixed' or 'exponential', then words such as base=5s"),
        ("retry", "fixed bse=5s", "--retry: 'bse=5s' is not known there; did you mean base=?"),
        ("retry", "exponential bsae=1 jitter=10%", "--retry: 'bsae=1' is not known there; did you mean base=?"),
        ("retry", "none 5 attempts=3", "--retry: '5' is not known there; write attempts="),
        ("retry", "", "--retry must be 'none', 'fixed' or 'exponential', then words such as base=5s"),
        ("retry", "none base=5s", "--retry: 'none' takes attempts= and not base=: use 'exponential', or leave it out"),
        ("retry", "fixed jitter=10%", "--retry: 'fixed' takes base=, attempts= and not jitter="),
        ("retry", "fixed base=5s base=6s", "--retry: base= is given twice"),
        ("retry", "exponential jitter=1.5", "--retry: jitter=1.5: '1.5' is not a share: 0 to 1, or a percentage"),
        ("retry", 3, "--retry must be a text, not 3"),
        ("recycle", "jobs=many", "--recycle: jobs=many: 'many' is not a whole number, 0 or more"),
        ("recycle", "failure=once", "--recycle: failure=once: must be 'suspect', 'always' or 'never', not 'once'"),
        ("recycle", "100", "--recycle: '100' is not known there: write words such as 'jobs=1000 memory=512M"),
        ("metrics", "here", "'here' is not an address: write a port up to 65535, such as 9100, or HOST:PORT"),
        ("metrics", "localhost:65536", "--metrics: 'localhost:65536' is not an address"),
        ("metrics", True, "--metrics: True is not an address"),
        ("history", "here", "--history must be 'off', 'table' or 'file:PATH', such as 'file:history.ndjson'"),
        ("history", "table keep=0", "--history: keep=0: must be 1 to 100000"),
        ("backend", "", "--backend: it is empty: leave it out"),
        ("backend", 3, "--backend must be a text"),
        ("max_crashes", "-1", "--max-crashes: '-1' is not a whole number, 0 or more"),
        ("log_level", "loud", "--log-level must be 'debug', 'info', "),
        ("name", "my pool", "--name: 'my pool' is not a name: 1 to 100 letters"),
        ("on_crash", "explode", "--on-crash must be 'forfeit' or 'expire', not 'explode'"),
        ("on_crash", "queue=no/queue", "--on-crash: queue=no/queue: queue name 'no/queue' is refused"),
        ("memory_limit", "1G queue=", "--memory-limit: queue=: queue name '' is refused"),
        ("memory_limit", "0 queue=big", "--memory-limit: nothing is sent to 'big' by a limit of 0: write"),
        ("dead_letter_queue", "x" * 101, "--dead-letter-queue: queue name"),
        ("concurrency_limits", ("a",), "--concurrency-limit: 'a' names no limit: write QUEUE=N"),
        ("concurrency_limits", ("a=-1",), "limit of queue 'a' must be a whole number from 0 (no limit) to 1000000, n"),
        ("rate_limits", ("a=1000001",), "--rate-limit: the limit of queue 'a' must be a whole number from 0 (no lim"),
        ("rate_limits", ("a=2.5",), "must be a whole number from 0 (no limit) to 1000000, not '2.5'"),
        ("rate_limits", {"a": True}, "must be a whole number from 0 (no limit) to 1000000, not True"),
        ("rate_per_key", ("a=1", "a=2"), "--rate-per-key: queue 'a' is named twice"),
        ("concurrency_per_key", ("my queue=1",), "--concurrency-per-key: queue name 'my queue' is refused"),
        ("concurrency_per_key", 4, "--concurrency-per-key: 4 is neither a text nor a list of texts"),
        ("result_ttl", ("1h",), "--result-ttl: '1h' names no time: write QUEUE=TIME, such as reports=1h"),
        ("result_ttl", ("a=31d",), "--result-ttl: the time for results of queue 'a' is at most 30 days"),
        ("result_ttl", ("a=soon",), "--result-ttl"),
        ("idempotency_ttl", "0", "--idempotency-ttl must be greater than 0"),
        ("idempotency_ttl", "367d", "--idempotency-ttl must be less than or equal to 31622400"),
    ]:
        with row(key, value), pytest.raises(ConfigurationError) as refused:
            load({key: value})
        assert sentence in str(refused.value), (key, value)


def test_an_unknown_key_or_variable_names_the_nearest_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, meant in [
        ("worker", "workers"),
        ("workres", "workers"),
        ("broker", "backend"),
        ("concurrency", "workers"),
        ("timeout", "default_timeout"),
        ("max_retries", "retry"),
        ("port", ""),  # Kubernetes sets none that is a bare number
    ]:
        file = write(tmp_path / "jobpool.toml", f"{key} = 4\n")
        hint = f"; did you mean {meant!r}?" if meant else ""
        with row(key), pytest.raises(ConfigurationError) as refused:
            load()
        assert str(refused.value) == f"{file}: {key!r} is not a setting of jobpool{hint}"
        file.unlink()
        variable = f"JOBPOOL_{key.upper()}"
        monkeypatch.setenv(variable, "4")
        with row(key), pytest.raises(ConfigurationError) as refused:
            load()
        hint = f"; did you mean 'JOBPOOL_{meant.upper()}'?" if meant else ""
        assert str(refused.value) == f"environment variable {variable} is not a setting of jobpool{hint}"
        monkeypatch.delenv(variable)


def test_an_error_says_which_source_it_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "jobpool.toml", 'ttl = "x"\n')
    monkeypatch.setenv("JOBPOOL_KILL_GRACE", "y")
    with pytest.raises(ConfigurationError) as refused:
        load()
    assert f"{file}: ttl: 'x' is not a duration" in str(refused.value)
    assert "JOBPOOL_KILL_GRACE: 'y' is not a duration" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("jobpool.toml", "workers = ", "jobpool.toml is not valid TOML"),
        ("pyproject.toml", "[tool]\njobpool = 3\n", r"tool.jobpool must be a table, \[tool.jobpool\]"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    write(tmp_path / name, text)
    with pytest.raises(ConfigurationError, match=sentence):
        load()


def test_a_named_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml does not exist; `jobpool init` writes one"):
        load(config="nowhere.toml")


# --- signing keys -----------------------------------------------------------------------------------


def test_keys_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_SIGNING_KEY", "hush-hush")
    assert "hush-hush" not in repr(load({"backend": "redis://:hush-hush@localhost"}))


# --- what the master gets ---------------------------------------------------------------------------


def test_without_any_source_the_defaults_hold() -> None:
    assert load({"backend": "memory://"}) == Settings(backend="memory://")


def test_a_default_is_what_its_words_mean() -> None:
    for key, setting in SETTINGS.items():
        if setting.default is not None:
            assert setting.read(setting.default) == getattr(Settings(), key), key


# --- settings of former versions --------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(REMOVED))
def test_a_setting_of_former_versions_is_refused_with_what_to_write_instead(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    instead = f"is not a setting any more: {REMOVED[key]}"
    file = write(tmp_path / "jobpool.toml", f"{key} = 1\n")
    with pytest.raises(ConfigurationError) as refused:
        load()
    assert str(refused.value) == f"{file}: {key!r} {instead}"
    file.unlink()
    if key.upper() not in NOT_SETTINGS:
        monkeypatch.setenv(f"JOBPOOL_{key.upper()}", "1")
        with pytest.raises(ConfigurationError) as refused:
            load()
        assert str(refused.value) == f"environment variable JOBPOOL_{key.upper()} {instead}"
    flag = "--" + key.replace("_", "-")
    with pytest.raises(SystemExit, match="2"):
        cli([flag, "1"])
    assert capsys.readouterr().err == f"jobpool: {flag} {instead}\n"


def test_what_is_to_be_written_instead_can_be_read() -> None:
    assert not REMOVED.keys() & SETTINGS.keys()
    for sentence in REMOVED.values():
        for key, written in re.findall(r'(?:into|write) (\w+)(?:, such as| =) "(.*?)"', sentence):
            SETTINGS[key].read(written.replace("NAME", "careful"))


def test_a_crash_budget_that_cannot_be_is_refused_when_it_is_made() -> None:
    for fields in [
        *({"max_crashes": -1}, {"max_crashes": 1.5}, {"window": 0.0}, {"window": -3.0}, {"back_off": -1.0}),
        *({"back_off": float("inf")}, {"back_off_cap": -1.0}, {"back_off_cap": float("nan")}),
    ]:
        with row(fields), pytest.raises(ConfigurationError, match=r"crash|back_off"):
            ReapPolicy(**fields)  # type: ignore[arg-type]


def test_the_back_off_after_a_crash() -> None:
    """SEMANTICS §4: at once, then up to 1 s, doubling to 60 s."""
    ceilings = {crashes: ReapPolicy().ceiling(crashes) for crashes in (1, 2, 3, 7, 8, 5000)}
    assert ceilings == {1: 0.0, 2: 1.0, 3: 2.0, 7: 32.0, 8: 60.0, 5000: 60.0}


def test_settings_are_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        load().ttl = 3.0  # type: ignore[misc]
    assert isinstance(load(), Settings)
