"""`jobpool doctor`: a search for settings of the pool, the machine and the broker that can lose jobs.

Facts are gathered apart from the judgements, which are pure functions of them. Each backend judges its broker's own
settings (`QueueBackend.diagnose`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jobpool.broker.config_file import ConfigFile
from jobpool.broker.finding import Finding
from jobpool.settings import Settings

if TYPE_CHECKING:
    from jobpool.ops.doctor.serving import Silent


def examine(settings: Settings, sys_path: Sequence[str], config: ConfigFile, silent: Silent) -> Iterator[Finding]:
    """Yield every finding. Nothing raises: a failed question is a finding itself.

    Apps are looked for in `sys_path`, besides the working directory. `config` is the file that applies.
    `silent`: asked for the schedules that fire nothing because a clock was ahead. Blocks for a few calls to the broker,
    and while the app is imported (see `handlers.load`).
    """
    # Not for each pool, which judges only its configuration, before it starts its fork server.
    from jobpool.ipc.frames import Loaded
    from jobpool.master.serving import named_queues
    from jobpool.ops.doctor import broker, configuration, handlers, machine, serving

    app = handlers.load(settings, sys_path)
    infos = app.handlers if isinstance(app, Loaded) else []
    if infos and not settings.queues:
        settings = replace(settings, queues=tuple((queue, 1.0) for queue in named_queues(infos)))
    yield from configuration.judge(settings)
    yield from configuration.judge_hidden(config)
    yield from configuration.judge_file(config)
    yield from machine.judge(settings)
    answers = True
    for finding in broker.examine(settings):
        answers = answers and not (finding.check == "broker" and finding.is_bad)
        yield finding
    yield from handlers.examine(settings, app)
    yield from serving.examine(settings, infos, silent if answers else None)
