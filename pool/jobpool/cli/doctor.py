"""`jobpool doctor`: what in the configuration, the machine and the broker loses jobs."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import Any

import click
from msgspec.structs import asdict

from jobpool.cli import options
from jobpool.cli.options import Command, as_json, option
from jobpool.cli.output import answered, asks_json, note, plural
from jobpool.cli.session import Session, find_app, search_path
from jobpool.errors import ConfigurationError
from jobpool.message.printable import one_line
from jobpool.telemetry.logs import configure, is_colourful

_NAME_WIDTH = 28
_STYLES: dict[str, dict[str, Any]] = {"warning": {"fg": "yellow"}, "problem": {"fg": "red", "bold": True}}


@click.command("doctor", cls=Command, common=options.COMMON_KEYS)
@option("--strict", is_flag=True, help="Exit with 1 on warnings too.")
@option("--ignore", multiple=True, metavar="CHECK", help="Name of a check to leave out; repeatable.")
@as_json
@options.settings
def doctor(session: Session, strict: bool, ignore: tuple[str, ...], **flags: Any) -> int:
    """Check configuration, machine and broker for what loses jobs; a line a check, each with its mend.

    Takes all options of the pool, and starts none. Exits 0: well, or warnings only; 1: a problem.
    """
    from jobpool.cron.runner import silent_schedules
    from jobpool.ops.doctor import examine

    settings = session.settings(**flags)
    configure(session.log_level("error"), settings.log_format)
    found, ignored = [], set()
    config = session.config_file()
    sys_path = search_path(config.directory)
    apps = list(settings.apps)
    for index, app in enumerate(apps):
        with contextlib.suppress(ConfigurationError):  # a missing file is a finding
            apps[index] = find_app(app, sys_path)
    settings = replace(settings, apps=tuple(apps))
    for finding in examine(settings, sys_path, config, silent_schedules):
        if finding.check in ignore:
            ignored.add(finding.check)
            continue
        found.append(finding)
        if not asks_json():
            style = _STYLES.get(finding.level.value, {}) if is_colourful(sys.stdout) else {}
            level = click.style(f"{finding.level.value:<7}", **style, reset=bool(style))
            click.echo(f"{level}  {finding.check:<{_NAME_WIDTH}}  {one_line(str(finding))}")  # not `say`: colours
    counts = {word: sum(finding.level.value == word for finding in found) for word in ("problem", "warning")}
    well = not (counts["problem"] or (strict and counts["warning"]))
    if not answered({"well": well, "findings": [asdict(finding) for finding in found]}):
        told = [plural(count, word) for word, count in counts.items() if count]
        note(f"{plural(len(found), 'line')} of checks: {', '.join(told) or 'all is well'}")
    if missed := sorted(set(ignore) - ignored):
        note(f"no check to ignore is called {', '.join(missed)}")
    return 0 if well else 1
