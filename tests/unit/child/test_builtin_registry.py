"""Built-in handlers beside an app's own: names, options, hooks, allowlists of queues, and where jobs run."""

# ruff: noqa: ARG001 - a handler takes its context, whether it looks at it or not
from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from support.built_in import attempt, output, refusal
from support.tables import row

from jobpool import Jobs, open_backend
from jobpool.cli.session import check_apps
from jobpool.client.worker import JobFailedError, QueueWorker, inline_runner
from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.handlers.builtin import MAKERS
from jobpool.handlers.registry import HandlerNotAllowed, HandlerRegistry, UnknownHandler
from jobpool.ipc.frames import HandlerInfo
from jobpool.ipc.process_options import ForkServerConfig
from jobpool.master.run import fork_server_config
from jobpool.message.allowances import Allowances
from jobpool.message.context import JobContext
from jobpool.message.definition import JobDefinition
from jobpool.message.outcome import ResultKind, Status
from jobpool.settings import Settings
from jobpool.testing import VirtualPool

ECHO: dict[str, Any] = {"allowed_shell_commands": ["echo"]}
OWN = ("callable", "command", "event", "shell")
"""Those that are looked at here."""


def own(ctx: JobContext) -> str:
    return "mine"


def told(registry: HandlerRegistry) -> dict[str, bool]:
    return {info.name: info.enabled for info in registry.built_in_infos() if info.name in OWN}


# --- beside an app's own -------------------------------------------------------------------------


def test_they_are_always_there_and_refuse_what_nothing_allows(registry: HandlerRegistry) -> None:
    assert told(registry) == dict.fromkeys(OWN, False)
    assert registry.names() == []
    assert registry.why_empty()
    for name in OWN:
        assert refusal(name, {"name": "x"} if name == "event" else "x", registry)
    with pytest.raises(UnknownHandler):
        registry.resolve("shells", "default")


def test_an_own_handler_of_the_name_takes_its_place(registry: HandlerRegistry) -> None:
    registry.handler("shell")(own)
    registry.prepare()
    assert output("shell", "echo hi", registry) == "mine"
    assert "shell" not in told(registry)


def enable_command(registry: HandlerRegistry) -> None:
    registry.command("app:report")(own)


def allow(**allowances: Any) -> Callable[[HandlerRegistry], None]:
    return lambda registry: registry.allow(Allowances(**allowances))


@pytest.mark.parametrize(
    ("name", "enable", "by"),
    [
        ("shell", allow(allowed_shell_commands=["git"]), "allowed_shell_commands"),
        ("shell", allow(allow_all_shell_commands=True), "allowed_shell_commands"),
        ("callable", allow(allowed_callables=["a:b"]), "allowed_callables"),
        ("event", allow(allowed_events=["x"]), "allowed_events"),
        ("command", enable_command, f"@jobpool.command of {__file__}:"),
        ("shell", lambda registry: registry.builtin("shell", timeout=5), f"jobpool.builtin('shell') of {__file__}:"),
    ],
)
def test_but_not_where_the_built_in_one_is_in_use_too(
    registry: HandlerRegistry, name: str, enable: Callable[[HandlerRegistry], None], by: str
) -> None:
    registry.handler(name)(own)
    registry.prepare()
    enable(registry)
    with pytest.raises(ConfigurationError) as raised:
        registry.prepare()
    text = str(raised.value)
    assert text.startswith(f"two handlers are named {name!r}: {__file__}:{own.__code__.co_firstlineno} (own) and the")
    assert by in text
    assert text.endswith("rename yours")


def test_nor_where_a_worker_is_told_to_allow_it(registry: HandlerRegistry) -> None:
    registry.handler("shell")(own)
    assert output("shell", "x", registry, allowed_events=["x"]) == "mine"
    with pytest.raises(ConfigurationError, match="two handlers are named 'shell'"):
        QueueWorker(open_backend("memory://"), registry, allowances=Allowances(**ECHO))


def test_an_app_needs_nothing_of_its_own_where_they_have_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"""
import json
from dataclasses import asdict
from jobpool.handlers.app import load
from jobpool.errors import ConfigurationError
from jobpool.ipc.process_options import ChildOptions
import sys
def loaded(*apps, **allowances):
    found = load(ChildOptions(apps=list(apps), allowances=allowances))
    return sorted(info.name for info in found if info.enabled and info.name in {OWN})
open("only_listens.py", "w").write("import jobpool\\n@jobpool.listener('x')\\ndef f(ctx): ...\\n")
open("only_commands.py", "w").write("import jobpool\\n@jobpool.command\\ndef f(ctx): ...\\n")
try:
    loaded("only_listens")
except ConfigurationError as error:
    print(error)
print(loaded("only_listens", allowed_events=["x"]))
print(loaded(allowed_shell_commands=["git"], allowed_callables=["a:b"]))
print(loaded("only_commands"))
print(sorted(name for name in sys.modules if name.startswith("jobpool.handlers.builtin.")))
"""
    monkeypatch.chdir(tmp_path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "only_listens registers listeners alone: allow their events, --allowed-events x",
        "['event']",
        "['callable', 'shell']",
        "['command']",
        "['jobpool.handlers.builtin.command', 'jobpool.handlers.builtin.event']",
    ], "and of what is not used, nothing is imported"


def test_a_pool_needs_no_app_to_run_programs_or_functions() -> None:
    settings = Settings(queues=(("default", 1.0),), backend="memory://")
    for allowed in ({"allowed_shell_commands": ("git",)}, {"allowed_shell_commands": ("*",)}):
        assert check_apps(replace(settings, **allowed)).apps == ()  # type: ignore[arg-type]
    assert check_apps(replace(settings, allowed_callables=("a:b",))).apps == ()
    with pytest.raises(ConfigurationError, match="no application"):
        check_apps(replace(settings, allowed_events=("x",)))  # without an app, nothing listens


def test_what_a_pool_allows_is_what_its_children_are_told() -> None:
    allowed: dict[str, Any] = {"allowed_events": ("x",), "allowed_callables": ("a:b",), "output_cap": 5000}
    settings = Settings(queues=(("default", 1.0),), backend="memory://", **allowed)
    told = ForkServerConfig.from_json(fork_server_config(settings).to_json()).options.allowances
    assert Allowances(**told) == Allowances(**allowed)


def test_a_built_in_one_that_cannot_be_made_says_so(registry: HandlerRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAKERS, "shell", "jobpool.handlers.builtin.gone")
    made = attempt("shell", "echo", registry)
    assert made.kind is ResultKind.FAILED
    assert made.error.startswith("the built-in handler 'shell' cannot be used here: No module named")


# --- options and hooks ---------------------------------------------------------------------------


def test_options_are_those_of_a_handler(registry: HandlerRegistry) -> None:
    registry.builtin("shell", max_retries=3, timeout=60)
    [info] = [info for info in registry.built_in_infos() if info.name == "shell"]
    assert info == HandlerInfo("shell", 3, 60.0, queues=["default"], built_in=True)
    handler = registry.resolve("shell", "default")
    assert (handler.max_retries, handler.timeout) == (3, 60.0)


def test_hooks_surround_a_built_in_handler_as_any_other(registry: HandlerRegistry) -> None:
    seen: list[Any] = []
    registry.builtin(
        "shell",
        before_run=lambda ctx: seen.append(("before", ctx.payload)),
        after_run=lambda result: seen.append(("after", result.success, result.output.strip(), result.error)),
    )
    assert output("shell", "echo hi", registry, **ECHO) == "hi"
    assert "is not allowed" in refusal("shell", "rm x", registry, **ECHO)
    refused = "program 'rm' is not allowed here; allowed_shell_commands names echo"
    assert seen == [
        ("before", "echo hi"),
        ("after", True, "hi", None),
        ("before", "rm x"),
        ("after", False, "", refused),
    ]


def test_options_are_set_once(registry: HandlerRegistry) -> None:
    for _ in range(2):
        registry.builtin("shell", timeout=5)  # a module that is imported under two names
    with pytest.raises(ConfigurationError) as raised:
        registry.builtin("shell", timeout=6)
    line = raised.traceback[0].lineno + 1  # it counts from 0
    assert str(raised.value) == (
        f"jobpool.builtin('shell') is called twice, {__file__}:{line - 2} and {__file__}:{line}: set all at one"
    )


def test_a_bad_option_is_refused(registry: HandlerRegistry) -> None:
    for name, options, error, text in [
        ("shells", {}, ConfigurationError, "no built-in handler is named 'shells': callable, command"),
        ("shell", {"timeout": -1}, InvalidJob, "timeout of handler 'shell'"),
        ("shell", {"max_retries": 1.5}, InvalidJob, "max_retries of handler 'shell'"),
        ("shell", {"before_run": "x"}, InvalidJob, "before_run of handler 'shell' must be a plain function"),
    ]:
        with row(name, options), pytest.raises(error, match=text):
            registry.builtin(name, **cast(dict[str, Any], options))


# --- allowances ----------------------------------------------------------------------------------


def test_an_allowance_that_cannot_work_is_refused_when_it_is_made() -> None:
    for options, text in [
        ({"allowed_callables": "a:b"}, "allowed_callables: it must be a list of texts, not 'a:b'"),
        ({"allowed_callables": [1]}, "allowed_callables: it must be a list of texts, not [1]"),
        ({"allowed_shell_commands": [""]}, "allowed_shell_commands: '' is neither a program's name nor an absolute"),
        ({"allowed_shell_commands": ["bin/x"]}, "allowed_shell_commands: 'bin/x' is neither"),
        ({"allowed_shell_commands": ["../x"]}, "allowed_shell_commands: '../x' is neither"),
        ({"allowed_shell_commands": ["a\0b"]}, "is neither a program's name nor an absolute path"),
        ({"allowed_events": ["a\nb"]}, "allowed_events: 'a\\nb' is not 1 to 255 printable characters"),
        ({"allow_all_shell_commands": "no"}, "allow_all_shell_commands must be True or False, not 'no'"),
        ({"output_cap": -5}, "output_cap must be 2 bytes or more, not -5"),
        ({"output_cap": 1.5}, "output_cap must be 2 bytes or more, not 1.5"),
        ({"output_cap": True}, "output_cap must be 2 bytes or more, not True"),
        ({"allowed_url_networks": ["10.1.2.3/24"]}, "allowed_url_networks: 10.1.2.3/24 has host bits set"),
        ({"allowed_url_networks": ["example.com"]}, "allowed_url_networks: "),
        *(
            ({"allowed_callables": (name,)}, "is not written module:function")
            for name in ("os:", ":f", "a:b:c", "os:__import__", "__main__:f", "a.__b__:f", "a b:f", "a:b\n", "")
        ),
        *(
            ({"url_timeout": wrong}, f"url_timeout must be above 0, and at most 86400 seconds, not {wrong}")
            for wrong in (True, 0, 86401, math.nan)
        ),
        *(
            ({"url_max_bytes": wrong}, f"url_max_bytes must be 1 to 1073741824 bytes, not {wrong}")
            for wrong in (True, 0, 1.5, (1 << 30) + 1)
        ),
    ]:
        with row(options), pytest.raises(ConfigurationError) as raised:
            Allowances(**cast(dict[str, Any], options))
        assert text in str(raised.value), options


def test_rules_of_one_place_do_not_reach_another(registry: HandlerRegistry) -> None:
    view = registry.with_rules(Allowances(**ECHO), {"ops": []})
    registry.handler("late")(own)
    assert view.resolve("late", "default") is registry.resolve("late", "default")
    assert output("shell", "echo hi", view) == "hi"
    assert "nothing" not in output("shell", "echo hi", view)
    assert "allowed_shell_commands is empty" in refusal("shell", "echo hi", registry)
    assert registry.resolve("late", "ops")
    with pytest.raises(HandlerNotAllowed):
        view.resolve("late", "ops")


# --- the handlers that a queue allows, wherever jobs run -----------------------------------------


def test_a_worker_asks_the_queues_list_for_built_in_handlers_too(registry: HandlerRegistry) -> None:
    for allowed in ("shell", "mail"):
        backend = open_backend("memory://")
        backend.enqueue(JobDefinition("shell", "echo hi", queue="ops", max_retries=5))
        rules: dict[str, Any] = {"queue_handlers": {"ops": [allowed]}, "allowances": Allowances(**ECHO)}
        result = QueueWorker(backend, registry, **rules).process_once("ops")
        assert result.status is (Status.ACKED if allowed == "shell" else Status.DEAD_LETTERED), allowed
    assert "not allowed" in (result.error or "")
    assert result.attempts == 0, "given up at once"


def test_so_does_what_runs_jobs_inline(registry: HandlerRegistry) -> None:
    runner = inline_runner(registry, queue_handlers={"ops": ["mail"]}, allowances=Allowances(**ECHO))
    with Jobs("sync://", runner=runner) as jobs:
        assert jobs.define("shell", "echo hi").queue("elsewhere").dispatch().startswith("sync-")
        with pytest.raises(JobFailedError, match="handler 'shell' is not allowed on queue 'ops'"):
            jobs.define("shell", "echo hi").queue("ops").dispatch()


def test_a_denied_job_is_dead_at_once_however_many_retries_it_has(registry: HandlerRegistry) -> None:
    with VirtualPool(registry, allowances=Allowances(**ECHO)) as pool:
        pool.enqueue(JobDefinition("shell", "rm -rf /", max_retries=5))
        pool.enqueue(JobDefinition("shell", "echo hi"))
        dead, done = pool.run_all()
    assert (dead.status, dead.attempts) == (Status.DEAD_LETTERED, 1)
    assert dead.error == "program 'rm' is not allowed here; allowed_shell_commands names echo"
    assert (done.status, done.output) == (Status.ACKED, "hi")


def test_what_a_payload_of_a_wrong_shape_holds_is_not_shown() -> None:
    rules: dict[str, Any] = {"allowed_callables": ["a:b"], "allowed_shell_commands": ["gzip"], "allowed_events": ["a"]}
    payloads: dict[str, list[Any]] = {
        "command": [{"env": "hunter2"}, "x --password 'hunter2"],
        "shell": [
            *({"env": "hunter2"}, "x --password 'hunter2", ["gzip", {"password": "hunter2"}], ["gzip", "hunter2\0"]),
        ],
        "callable": [
            *(["hunter2"], {"callable": "a:b", "args": "hunter2"}, {"callable": "a:b", "kwargs": ["hunter2"]}),
        ],
        "event": [["hunter2"], "hunter2"],
    }
    for name, wrong in payloads.items():
        for payload in wrong:
            assert "hunter2" not in refusal(name, payload, **rules), (name, payload)
