"""What the doctor finds: each check, well and ill, with its mend. Facts are given, or made on the real machine."""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from support.servers import RedisServer
from support.servers.ports import free_port

from jobpool.broker.config_file import find_config
from jobpool.broker.finding import Finding, Level
from jobpool.broker.opening import open_backend
from jobpool.errors import ConfigurationError
from jobpool.ipc import linux
from jobpool.ipc.frames import HandlerInfo
from jobpool.message.definition import JobDefinition
from jobpool.message.setting_types import usable_cpus
from jobpool.ops.doctor import broker, configuration, examine, handlers, machine, serving
from jobpool.ops.doctor.machine import Supervisor, find_supervisor, memory_of, parse_systemd
from jobpool.ops.runtime_dir import register, runtime_dir, this_pool
from jobpool.settings import Settings, load
from jobpool_backends.sqlite import database

KEY = "0123456789abcdef"
GIB = 2**30
NOW = 1_800_000_000.0


def nothing_silent(*_: object) -> tuple[Finding, ...]:
    """Find no schedule that fires nothing."""
    return ()


def settings(**flags: Any) -> Settings:
    return load(flags)


def levels(findings: Any) -> list[Level]:
    """What is bad has its reason and its mend."""
    found = list(findings)
    assert all(finding.mend and finding.check and finding.found for finding in found if finding.is_bad)
    return [finding.level for finding in found]


# --- findings ---------------------------------------------------------------------------------------------------------


def test_a_finding_is_one_sentence() -> None:
    for finding, text in [
        (Finding("x", Level.OK, "all is so"), "all is so"),
        (Finding("x", Level.PROBLEM, "it is so", "that hurts", "mend it"), "it is so: that hurts; mend it"),
        (Finding("x", Level.WARNING, "it is so", mend="mend it"), "it is so; mend it"),
    ]:
        assert str(finding) == text, finding


# --- configuration ----------------------------------------------------------------------------------------------------

NETWORK = "redis://localhost/0"


def test_signing_keys() -> None:
    for case, flags, expected, text in [
        ("no key, no network", {}, Level.OK, "only this machine's users"),
        ("no key on a network", {"backend": NETWORK}, Level.PROBLEM, "can have any handler run"),
        ("a key", {"backend": NETWORK, "signing_key": KEY}, Level.OK, "messages are signed (1 key)"),
        ("a short key", {"signing_key": KEY[:15]}, Level.PROBLEM, "has 15 bytes, fewer than 16"),
        ("a very short key", {"signing_key": "x"}, Level.PROBLEM, "has 1 byte, fewer than 16"),
        ("no key, no URL", {"backend": "nonsense"}, Level.NOTE, "is not known"),
        ("bytes count, not letters", {"signing_key": "é" * 8}, Level.OK, "messages are signed"),
        ("a short old key", {"signing_key": [KEY, "old"]}, Level.PROBLEM, "has 3 bytes"),
        ("the same key twice", {"signing_key": [KEY, KEY]}, Level.WARNING, "listed twice"),
        ("no file of keys", {"signing_key_file": "/nowhere/keys"}, Level.PROBLEM, "cannot be read"),
    ]:
        found = list(configuration.judge_keys(settings(**cast(dict[str, Any], flags))))
        assert levels(found) == [expected], case
        assert text in str(found[0]), case
        assert KEY not in str(found), case


@pytest.mark.parametrize(("mode", "expected"), [(0o600, Level.OK), (0o640, Level.OK), (0o644, Level.PROBLEM)])
def test_a_file_of_keys_that_everybody_reads(tmp_path: Path, mode: int, expected: Level) -> None:
    file = tmp_path / "keys"
    file.write_text(KEY)
    file.chmod(mode)
    found = list(configuration.judge_keys(settings(signing_key_file=str(file))))
    assert levels(found) == [expected]
    assert (f"chmod 600 {file}" in str(found[0])) is (expected is Level.PROBLEM)


def test_a_configuration_file_with_a_secret_that_everybody_reads(tmp_path: Path) -> None:
    for text, mode, expected, secret in [
        (f'signing_key = "{KEY}"', 0o644, Level.PROBLEM, "signing_key"),
        ('backend = "redis://me:hidden@h/0"', 0o604, Level.PROBLEM, "the password in backend"),
        (f'signing_key = "{KEY}"', 0o640, Level.OK, ""),
        ('backend = "redis://h/0"', 0o644, Level.OK, ""),
    ]:
        file = tmp_path / "jobpool.toml"
        file.write_text(text)
        file.chmod(mode)
        [found] = configuration.judge_file(find_config(file))
        assert found.level is expected, (text, mode)
        assert secret in found.why, (text, mode)
        assert "hidden" not in str(found), (text, mode)
        assert KEY not in str(found), (text, mode)


def test_a_configuration_file_that_hides_another(tmp_path: Path) -> None:
    (tmp_path / "jobpool.toml").write_text("workers = 1")
    (tmp_path / "pyproject.toml").write_text("[tool.jobpool]\nworkers = 2")
    [warned] = configuration.judge_hidden(find_config(start=tmp_path))
    assert warned.level is Level.WARNING
    assert str(warned).startswith(f"{tmp_path}/pyproject.toml has settings, too")


def test_settings_that_do_not_fit_together() -> None:
    for flags, level, text in [
        ({}, Level.OK, "fit together"),
        ({"signing_key_file": "/nowhere"}, Level.OK, "fit together"),
        (
            {"queues": "a", "rate_limits": {"mail": 5}},
            Level.WARNING,
            "does not serve; it serves 'a': it limits nothing",
        ),
    ]:
        found = list(configuration.judge_fit(settings(**cast(dict[str, Any], flags))))
        assert levels(found) == [level], flags
        assert text in str(found[0]), flags


def judged_ttl(ttl: float, options: str = "") -> Finding:
    return configuration.judge_ttl(ttl, f"{NETWORK}{options}")


def judged_retries(**flags: str) -> Finding:
    return configuration.judge_retries(settings(**flags).retry)


def test_one_fact_at_a_time() -> None:
    memory = machine.judge_memory
    for found, level, text in [
        (judged_ttl(30.0), Level.OK, "ttl is 30 s"),
        (judged_ttl(30.0, "?timeout=19"), Level.OK, "may take 19 s"),
        (judged_ttl(30.0, "?dead_max=9&timeout=20"), Level.PROBLEM, "and their jobs run twice; set ttl to 60 or more"),
        (judged_ttl(5.0), Level.PROBLEM, "a call to the broker may take 5 s"),
        (judged_ttl(2.0), Level.PROBLEM, "set ttl to 15 or more, or ?timeout= in backend to 0.6 or less"),
        (judged_ttl(2.0, "?timeout=0.5"), Level.WARNING, "a master that stands still"),
        (judged_ttl(5.0, "?timeout=soon"), Level.PROBLEM, "may take 5 s: one renewal"),
        (judged_ttl(7200.0), Level.WARNING, "after the death of a machine"),
        (configuration.judge_timeout(3600, 0), Level.OK, ""),
        (configuration.judge_timeout(0, 60), Level.OK, ""),
        (configuration.judge_timeout(0, 0), Level.WARNING, "for ever"),
        (judged_retries(), Level.OK, "as many attempts as a job or its handler asks for, or one"),
        (judged_retries(retry="exponential"), Level.OK, "attempts at most: 25, also of a job that asks for none"),
        (judged_retries(retry="fixed base=5s attempts=3"), Level.OK, "attempts at most: 3,"),
        (judged_retries(retry="none attempts=5"), Level.WARNING, "an outage of a second uses them all up"),
        (judged_retries(retry="none attempts=1"), Level.OK, "attempts at most: 1,"),
        (judged_retries(retry="exponential attempts=1"), Level.PROBLEM, "no job is ever tried again"),
        (judged_retries(retry="exponential base=5s"), Level.OK, "as many attempts as a job or its handler asks for"),
        (configuration.judge_crashes(5), Level.OK, ""),
        (configuration.judge_crashes(0), Level.WARNING, "does so for ever"),
        (machine.judge_open_files(4, 65536), Level.OK, ""),
        (machine.judge_open_files(4, None), Level.OK, ""),
        (machine.judge_open_files(4, 256), Level.PROBLEM, ""),
        (memory(4, 0, 8 * GIB), Level.OK, ""),
        (memory(4, GIB, 8 * GIB), Level.OK, ""),
        (memory(9, GIB, 8 * GIB), Level.PROBLEM, ""),
        (memory(9, GIB, 0), Level.NOTE, ""),
        (machine.judge_clock(NOW), Level.OK, ""),
        (machine.judge_clock(0.0), Level.PROBLEM, ""),
        (machine.judge_clock(5e9), Level.PROBLEM, ""),
        *((machine.judge_zone(zone), Level.OK, "") for zone in ("", "Europe/Zurich", ":Asia/Tokyo", "CET-1CEST")),
        *((machine.judge_zone(zone), Level.WARNING, "") for zone in ("Europe/Zürich", "Mars/Olympus")),
        (machine.judge_kernel(), Level.OK, ""),
        *((broker.judge_skew(ahead, 0.0), Level.OK, "") for ahead in (None, 0.0, -0.9)),
        *((broker.judge_skew(ahead, 0.0), Level.WARNING, "") for ahead in (1.5, -1.5)),
        (broker.judge_skew(1.5, 0.6), Level.OK, ""),
        (broker.judge_skew(6.0, 0.0), Level.PROBLEM, ""),
        (broker.judge_skew(-3600.0, 1.0), Level.PROBLEM, ""),
    ]:
        assert levels([found]) == [level], found
        assert text in str(found), found


# --- who stops the pool -----------------------------------------------------------------------------------------------


def test_the_grace_of_a_stop() -> None:
    for supervisor, stop_grace, level in [
        (None, 1000.0, Level.OK),
        (Supervisor("systemd", 90.0, "TimeoutStopSec"), 25.0, Level.OK),
        (Supervisor("systemd", 27.0, "TimeoutStopSec"), 25.0, Level.OK),
        (Supervisor("systemd", 26.0, "TimeoutStopSec"), 25.0, Level.PROBLEM),
        (Supervisor("systemd", float("inf"), "TimeoutStopSec"), 25.0, Level.OK),
        (Supervisor("Kubernetes", 30.0, "terminationGracePeriodSeconds", known=False), 25.0, Level.OK),
        (Supervisor("Kubernetes", 30.0, "terminationGracePeriodSeconds", known=False), 30.0, Level.WARNING),
        (Supervisor("docker", 10.0, "the time", known=False), 10.0, Level.WARNING),
        (Supervisor("docker", 10.0, "the time", known=False), 8.0, Level.OK),
    ]:
        found = machine.judge_stop(stop_grace, supervisor)
        assert levels([found]) == [level], (supervisor, stop_grace)
        if found.is_bad:
            assert supervisor is not None, (supervisor, stop_grace)
            assert f"set {supervisor.setting} to {stop_grace + 5:.0f} s or more" in found.mend, (supervisor, stop_grace)
            tells = f"{machine.STOP_VARIABLE}={stop_grace + 5:.0f} here" in found.mend
            assert tells is not supervisor.known, (supervisor, stop_grace)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system that is nobody's."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/jobpool@reports.service\n")
    return tmp_path


def systemctl(folder: Path, answer: str) -> dict[str, str]:
    """An environment in which systemd answers this."""
    program = folder / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$5" = "" ] && [ "$4" = "jobpool@reports.service" ] && echo "{answer}"\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:/usr/bin:/bin", "INVOCATION_ID": "1"}


def test_systemd_is_asked_for_its_unit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = systemctl(root, "1min 30s")
    monkeypatch.setenv("PATH", environ["PATH"])
    found = find_supervisor(environ, root)
    assert found == Supervisor("systemd (jobpool@reports.service)", 90.0, "TimeoutStopSec")
    assert levels([machine.judge_stop(120.0, found)]) == [Level.PROBLEM]


def test_systemd_that_does_not_answer_is_passed_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_supervisor({"INVOCATION_ID": "1", "PATH": "/nowhere"}, root) is None


@pytest.mark.parametrize(
    ("environ", "docker", "name", "seconds"),
    [
        ({}, False, None, 0),
        ({"TIMEOUT_STOP_SEC": "45"}, False, "TIMEOUT_STOP_SEC", 45),
        ({"TIMEOUT_STOP_SEC": "2m", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True, "TIMEOUT_STOP_SEC", 120),
        ({"TIMEOUT_STOP_SEC": "soon"}, False, "TIMEOUT_STOP_SEC", 0),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False, "Kubernetes", 30),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True, "Kubernetes", 30),
        ({}, True, "docker", 10),
    ],
)
def test_who_supervises(root: Path, environ: dict[str, str], docker: bool, name: str | None, seconds: float) -> None:
    if docker:
        (root / ".dockerenv").touch()
        (root / "proc/self/mountinfo").write_text("31 30 8:1 /hosts /etc/hosts rw - ext4 /dev/sda1 rw\n")
    found = find_supervisor(environ, root)
    assert (found and found.name) == name
    assert not found or found.seconds == seconds


def test_an_unpacked_image_is_not_a_container(root: Path) -> None:
    (root / ".dockerenv").touch()
    assert find_supervisor({}, root) is None


def test_times_as_systemd_writes_them() -> None:
    for text, seconds in [
        ("1min 30s", 90),
        ("25s", 25),
        ("500ms", 0.5),
        ("1h", 3600),
        ("1.5s", 1.5),
        ("infinity", float("inf")),
        ("", None),
        ("soon", None),
        ("5 parsecs", None),
    ]:
        assert parse_systemd(text) == seconds, text


# --- the machine ------------------------------------------------------------------------------------------------------


def test_a_kernel_without_pidfds_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConfigurationError("no pidfd")

    monkeypatch.setattr(linux, "check_kernel", refuse)
    found = machine.judge_kernel()
    assert levels([found]) == [Level.PROBLEM]
    assert "no pidfd: no pool starts here; use Linux 5.4 or later" in str(found)


def test_what_this_machine_says_of_itself() -> None:
    found = {finding.check: finding.level for finding in machine.judge(settings(workers=1))}
    assert [found[check] for check in ("kernel", "open-files", "memory", "clock")] == [Level.OK] * 4
    assert memory_of(Path("/")) > 64 * 2**20


@pytest.mark.parametrize(
    ("group", "limit"),
    [
        ("0::/", "memory.max"),
        ("0::/system.slice/jobpool.service", "system.slice/jobpool.service/memory.max"),
        ("0::/system.slice/jobpool.service", "system.slice/memory.max"),
        ("0::/../the/path/of/the/host", "memory.max"),
        ("9:cpu:/\n4:memory:/docker/01\n0::/", "memory/docker/01/memory.limit_in_bytes"),
    ],
)
def test_the_memory_of_a_container_or_service_is_its_limit(root: Path, group: str, limit: str) -> None:
    (root / "proc/meminfo").write_text("MemTotal:  8388608 kB\nMemFree: 1 kB\n")
    assert memory_of(root) == 8 * GIB
    (root / "proc/self/cgroup").write_text(f"{group}\n")
    file = root / "sys/fs/cgroup" / limit
    file.parent.mkdir(parents=True)
    file.write_text("max\n")
    assert memory_of(root) == 8 * GIB
    file.write_text(f"{GIB}\n")
    assert memory_of(root) == GIB
    assert memory_of(root / "nowhere") == 0


def test_workers_are_no_more_than_the_cpu_quota_of_the_service_or_of_a_slice_around_it(root: Path) -> None:
    cpus = usable_cpus(root)
    (root / "proc/self/cgroup").write_text("0::/jobs.slice/jobpool.service\n")
    service = root / "sys/fs/cgroup/jobs.slice/jobpool.service/cpu.max"
    service.parent.mkdir(parents=True)
    for quota, found in ("max 100000", cpus), ("6400000 100000", min(cpus, 64)), ("50000 100000", 1):
        service.write_text(f"{quota}\n")
        assert usable_cpus(root) == found, quota
    service.write_text("max 100000\n")
    (service.parent.parent / "cpu.max").write_text("20000 100000\n")
    assert usable_cpus(root) == 1


def test_workers_are_no_more_than_the_cpu_quota_of_version_1(root: Path) -> None:
    cpus = usable_cpus(root)
    (root / "proc/self/cgroup").write_text("4:cpu,cpuacct:/docker/0123\n")
    container = root / "sys/fs/cgroup/cpu"
    container.mkdir(parents=True)
    (container / "cpu.cfs_period_us").write_text("50000\n")
    for quota, found in ("-1", cpus), ("3200000", min(cpus, 64)), ("25000", 1):
        (container / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        assert usable_cpus(root) == found, quota


# --- the broker -------------------------------------------------------------------------------------------------------


def test_a_broker_that_answers_is_not_to_be_started(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database at all")
    [found] = broker.examine(settings(backend=f"sqlite:///{tmp_path}/jobs.db"))
    assert levels([found]) == [Level.PROBLEM]
    assert "is not a SQLite database" in found.found
    assert "start it" not in str(found)


def test_a_broker_that_keeps_no_messages() -> None:
    found = list(broker.examine(settings(backend="sync://")))
    assert levels(found) == [Level.PROBLEM]
    assert "no pool can serve it" in str(found[0])


def test_a_database_that_this_user_may_not_make_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").mkdir()
    monkeypatch.setattr(database, "_may_write", lambda folder: folder != tmp_path / "a b")
    [found] = broker.examine(settings(backend=f"sqlite:///{tmp_path}/a%20b/jobs.db?timeout=3"))
    assert found.level is Level.PROBLEM
    assert "allow writing to its directory" in str(found)


def test_the_default_broker_is_asked_for_everything() -> None:
    [nothing] = broker.examine(settings())
    assert nothing.level is Level.NOTE
    assert "there is no database" in nothing.found
    open_backend(settings().backend).close()
    found = {finding.check: finding.level for finding in broker.examine(settings())}
    assert list(found) == [
        *("broker", "broker.fit", "sqlite.journal", "sqlite.synchronous", "sqlite.file-system", "sqlite.space"),
        *("sqlite.mode", "broker.clock"),
    ]
    assert found["broker"] is found["broker.clock"] is found["broker.fit"] is Level.OK


def test_the_clock_of_a_real_server_that_is_an_hour_ahead(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", turned=True) as server:
        server.turn_to(time.time() + 3600)
        found = {finding.check: finding for finding in broker.examine(settings(backend=server.url))}
    assert found["broker.clock"].level is Level.PROBLEM
    assert "s ahead of this machine's: jobs with a time" in str(found["broker.clock"])


# --- the app ----------------------------------------------------------------------------------------------------------


def test_handlers_against_the_settings() -> None:
    for handler, flags, level, text in [
        (HandlerInfo("a", timeout=60), {}, Level.OK, "within the settings: a"),
        (HandlerInfo("a", timeout=0), {}, Level.WARNING, "timeout=0 (unlimited) on a: one that hangs"),
        (HandlerInfo("a", max_retries=3), {}, Level.OK, "within the settings: a"),
        (HandlerInfo("a", max_retries=3), {"retry": "none"}, Level.WARNING, "retry is 'none', and max_retries is set"),
        (HandlerInfo("a", max_retries=3, backoff="fixed"), {"retry": "none"}, Level.OK, "within the settings: a"),
        (HandlerInfo("a", max_retries=3), {"retry": "exponential"}, Level.OK, "within the settings"),
        (
            HandlerInfo("a", max_retries=3),
            {"retry": "exponential attempts=3"},
            Level.WARNING,
            "retry has attempts=3, and max_retries asks for more on a",
        ),
        (HandlerInfo("a"), {"queue_handlers": {"default": ["b"]}}, Level.PROBLEM, "what no app registers: b"),
        (
            HandlerInfo("shell", enabled=False),
            {"queue_handlers": {"default": ["shell"]}},
            Level.WARNING,
            "on queue 'default' built-in handlers that may do nothing: shell: every job for them is dead at once",
        ),
        (
            HandlerInfo("a"),
            {"allowed_shell_commands": "*"},
            Level.WARNING,
            "allowed_shell_commands has '*', any",
        ),
        (HandlerInfo("a"), {"allowed_shell_commands": "git,/bin/sh"}, Level.WARNING, "whatever it is told: /bin/sh"),
        (HandlerInfo("shell"), {"allowed_shell_commands": "git"}, Level.OK, "within the settings: shell"),
        (HandlerInfo("url", enabled=False), {"queue_handlers": {"default": ["url"]}}, Level.OK, "within the settings"),
        (HandlerInfo("a"), {"allowed_url_networks": "10.0.0.0/8,169.254.0.0/16"}, Level.WARNING, ": 169.254.0.0/16:"),
        (HandlerInfo("a"), {"allowed_url_networks": "::/0"}, Level.WARNING, "where a cloud serves credentials: ::/0"),
        (HandlerInfo("a"), {"allowed_url_networks": "10.1.2.0/24"}, Level.OK, "within the settings: a"),
    ]:
        found = list(handlers.judge([handler], settings(**cast(dict[str, Any], flags))))
        assert levels(found) == [level], (handler, flags)
        assert text in str(found[0]), (handler, flags)


APP = """
import threading, time
import jobpool

print("said while it is imported")
threading.Thread(target=time.sleep, args=(600,)).start()

@jobpool.handler(timeout=0, max_retries=3)
def endless(ctx): ...
"""


def examined(tmp_path: Path, app: str) -> list[Finding]:
    (tmp_path / "myjobs.py").write_text(app)
    return looked_at(settings(apps="myjobs"), tmp_path)


def looked_at(chosen: Settings, tmp_path: Path) -> list[Finding]:
    return list(handlers.examine(chosen, handlers.load(chosen, [str(tmp_path)])))


def test_the_handlers_of_a_real_app(tmp_path: Path) -> None:
    found = examined(tmp_path, APP)
    assert levels(found) == [Level.WARNING] * 2
    assert "timeout=0 (unlimited) on endless" in str(found[0])
    assert "threads running after its import: Thread-1" in str(found[1])


@pytest.mark.parametrize(
    ("app", "text"),
    [
        ("import nothing_of_that_name", "needs the module 'nothing_of_that_name', which is not installed"),
        ("", "registers no handler"),
        ("import os; os._exit(3)", "while it was imported, the app ended its process with status 3"),
        (
            "import os, sys; os.write(2, b'first\\nno \\xff license\\n\\n'); os._exit(1)",
            "with status 1, and its last words were: no \ufffd license",
        ),
        ("import os; os.abort()", "the app was killed by SIGABRT"),
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
    ],
)
def test_an_app_that_does_not_import(tmp_path: Path, app: str, text: str) -> None:
    found = examined(tmp_path, app)
    assert levels(found) == [Level.PROBLEM]
    assert text in str(found[0])


def test_an_import_that_hangs_is_a_problem_that_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "myjobs.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
        "def connect():\n    time.sleep(600)\nconnect()\n"
    )
    found = looked_at(settings(apps="myjobs", boot_timeout="1s"), tmp_path)
    assert levels(found) == [Level.PROBLEM]
    where = re.search(r"not imported after 1 s \(boot_timeout\): it is at (.+), line 4 in connect", str(found[0]))
    assert where is not None, found
    assert where[1].endswith('/myjobs.py"')


def test_what_forked_children_miss_of_an_app(tmp_path: Path) -> None:
    (tmp_path / "myjobs.py").write_text(
        "import ctypes, jobpool, sqlite3\nfrom logging.handlers import RotatingFileHandler, TimedRotatingFileHandler\n"
        f"logs = TimedRotatingFileHandler({str(tmp_path / 'day.log')!r}), RotatingFileHandler('/dev/null')\n"
        f"import logging; log = logging.FileHandler({str(tmp_path / 'new.log')!r}, 'w')\n"
        "libc = ctypes.CDLL(None)\n"
        f"db = sqlite3.connect({str(tmp_path / 'orders.db')!r})\n"
        "libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)\n"
        "@jobpool.handler\ndef report(ctx): ...\n"
    )
    [_, rotating, native, cut] = looked_at(settings(apps="myjobs", workers=2), tmp_path)
    assert levels([rotating, native, cut]) == [Level.WARNING] * 3
    assert ("day.log" in rotating.found, "new.log" in rotating.found) == (True, False)
    assert (native.mend, "orders.db" in cut.found) == ("set preload = false", True)
    importing = settings(apps="myjobs", preload="false", workers=1)
    app = handlers.load(importing, [str(tmp_path)])
    [_, well] = handlers.examine(importing, app)
    [_, emptied] = handlers.examine(settings(apps="myjobs", preload="false", workers=2), app)
    assert levels([well, emptied]) == [Level.OK, Level.WARNING]
    assert "new.log" in emptied.found


def test_an_app_that_alone_takes_more_memory_than_a_child_may(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(
        "import jobpool\nDATA = bytearray(64 << 20)\n@jobpool.handler\ndef report(ctx): ...\n"
    )
    app = handlers.load(settings(apps="large"), [str(tmp_path)])
    for flags, level in [
        ({"memory_limit": "60M"}, Level.PROBLEM),
        ({"memory_limit": "1G", "recycle": "memory=60M"}, Level.WARNING),
        ({"memory_limit": "1G", "recycle": "memory=1G"}, None),
        ({}, None),
    ]:
        found = list(handlers.examine(settings(apps="large", **flags), app))
        assert [one.level for one in found if one.check == "memory"] == ([level] if level else []), flags


def test_schedules_whose_jobs_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "scheduled.py").write_text(
        "import jobpool\nscheduler = jobpool.Scheduler()\n"
        "for name, payload, queue in [('sweep', {}, 'default'), ('swep', {}, 'default'), ('swep', {}, 'others'),\n"
        "    ('mail', {'path': 1}, 'default'), ('shell', 'ls', 'default'), ('inlined', {}, None)]:\n"
        "    made = scheduler.define(name, payload).named(f'{name}-{queue}')\n"
        "    made.queue(queue) if queue else None\n"
        "@jobpool.handler\ndef sweep(): ...\n"
        "@jobpool.handler\ndef mail(path: str): ...\n"
    )
    found = [str(one) for one in looked_at(settings(apps="scheduled"), tmp_path) if "schedule" in str(one)]
    assert "schedule 'swep-default': the app has no handler 'swep'; did you mean 'sweep'?" in found[0]
    assert "schedule 'mail-default': handler 'mail' cannot take these arguments: field 'path' must be text" in found[1]
    assert "schedule 'inlined-None': the app has no handler 'inlined'" in found[2]
    assert len(found) == 3, "the handler of a queue that is not this app's may be another app's"


def test_an_app_that_enqueues_at_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    enqueues = "import jobpool\n@jobpool.handler\ndef mail(path: str): ...\n{}mail.enqueue('a')\n"
    (tmp_path / "enqueuing.py").write_text(enqueues.format(""))
    (tmp_path / "guarded.py").write_text(enqueues.format("if __name__ == '__main__':\n    "))
    found = looked_at(settings(apps="enqueuing"), tmp_path)
    assert ["enqueues at its import, so each start adds its jobs again" in str(one) for one in found].count(True) == 1
    assert Level.WARNING not in levels(looked_at(settings(apps="guarded"), tmp_path))


def test_without_an_app_the_handlers_are_not_looked_at() -> None:
    found = list(handlers.examine(settings(), None))
    assert levels(found) == [Level.NOTE]
    assert "no app is named" in str(found[0])
    assert levels(list(handlers.examine(settings(allowed_shell_commands="*"), None))) == [Level.NOTE, Level.WARNING]


def test_an_app_with_listeners_alone_is_one_where_its_events_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "myevents.py").write_text("import jobpool\n@jobpool.listener('paid')\ndef thank(ctx): ...\n")
    found = looked_at(settings(apps="myevents", allowed_events="paid"), tmp_path)
    assert levels(found) == [Level.OK, Level.OK]
    assert "event" in str(found[0])


# --- what nothing serves ----------------------------------------------------------------------------------------------


def test_jobs_that_would_wait_where_nothing_serves_them() -> None:
    chosen = settings(queues="big", dead_letter_queue="letters")
    app = [HandlerInfo("report", queues=["reports"], schedules=["nightly"]), HandlerInfo("mail", queues=["mails"])]
    with closing(open_backend(chosen.backend)) as backend:
        for queue in ("big", "mails", "letters", "typo", "typo"):
            backend.enqueue(JobDefinition("mail", queue=queue))
        backend.enqueue(JobDefinition("renamed", queue="big"))

    def told() -> list[tuple[Level, str]]:
        return [(finding.level, finding.found) for finding in serving.examine(chosen, app, nothing_silent)]

    lacking = (Level.WARNING, "jobs wait in queue 'big' whose handlers the app lacks: renamed")
    typo = (Level.WARNING, "2 jobs wait in queue 'typo'")
    assert told() == [
        (Level.NOTE, "jobs of report go to queue 'reports'"),
        (Level.NOTE, "jobs of mail go to queue 'mails'"),
        (Level.NOTE, "the app has schedules: nightly"),
        (Level.WARNING, "1 job waits in queue 'mails'"),
        typo,
        lacking,
    ]
    about = {"version": "1", "workers": 1, "since": 0.0, "scheduler": True, "queues": ("mails", "reports")}
    directory = runtime_dir()
    register(directory, this_pool(name="other", backend=f"{chosen.backend}?timeout=3", directory=directory, **about))
    assert told() == [typo, lacking]
    levels(serving.examine(chosen, app, nothing_silent))


# --- all of it --------------------------------------------------------------------------------------------------------


def test_everything_is_looked_at_also_while_the_broker_is_down() -> None:
    url = f"redis://user:topsecret@127.0.0.1:{free_port()}/0"
    found = list(examine(settings(backend=url, signing_key=KEY), (), find_config(), nothing_silent))
    assert [finding.check for finding in found if finding.level is Level.PROBLEM] == ["broker"]
    assert "topsecret" not in str(found)
    assert [finding.check for finding in found] == [
        *("signing-key", "settings", "ttl", "timeout", "retry", "crashes", "stop-grace"),
        *("kernel", "open-files", "memory", "clock", "time-zone", "broker", "handlers", "serving"),
    ]


ROOT = Path(__file__).resolve().parents[3]


def test_every_check_is_documented() -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    plain = {finding.check for finding in examine(settings(backend=url), (), find_config(), nothing_silent)}
    files = [
        *(ROOT / "pool/jobpool/ops/doctor").glob("*.py"),
        *(ROOT / "backends/jobpool_backends").glob("*/checks.py"),
    ]
    text = "".join(file.read_text() for file in files)
    dotted = set(re.findall(r'"((?:beanstalk|broker|memory|postgres|redis|sqlite)\.[a-z-]+)"', text))
    assert len(plain | dotted) >= 26
    page = (ROOT / "docs/doctor.md").read_text()
    assert [name for name in sorted(plain | dotted) if f"`{name}`" not in page] == []
