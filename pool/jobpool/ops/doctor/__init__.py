"""`jobpool doctor`: what in the configuration, the machine and the broker loses jobs.

Facts are gathered apart from the judgements, which are pure functions of them. Each backend judges its broker's own
settings (`QueueBackend.diagnose`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from jobpool.broker.config_file import ConfigFile
from jobpool.broker.finding import Finding, Level
from jobpool.ops.doctor import broker, configuration, handlers, machine
from jobpool.settings import Settings


def examine(
    settings: Settings, *, sys_path: Iterable[str | Path] = (), config: ConfigFile | None = None
) -> Iterator[Finding]:
    """Yield every finding, as soon as it is known. Nothing raises: a failed question is a finding itself.

    Apps are looked for in `sys_path`, besides the working directory. `config` is the file that applies. Blocks for a
    few calls to the broker, and for up to `handlers.PATIENCE` seconds while the app is imported.
    """
    yield from configuration.judge(settings)
    if config is not None:
        yield from configuration.judge_file(config)
    yield from machine.judge(settings)
    yield from broker.examine(settings)
    yield from handlers.examine(settings, [str(path) for path in sys_path])


def is_well(findings: Iterable[Finding], *, strict: bool = False) -> bool:
    """Return whether there is no problem; `strict`: and no warning either."""
    return not any(finding.level is Level.PROBLEM or (strict and finding.is_bad) for finding in findings)
