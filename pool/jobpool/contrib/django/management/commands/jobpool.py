"""`manage.py jobpool`: the command `jobpool`, with all its verbs and options, for the tasks of this project."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from jobpool.cli.watch import DJANGO_APP


class Command(BaseCommand):  # type: ignore[misc]
    """The command; its words are jobpool's own, as they were typed."""

    help = "Run the project's tasks: `manage.py jobpool --workers 4`. All options: `manage.py jobpool --help`."
    requires_system_checks = ()  # the app looks at TASKS, and reading verbs import nothing

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER, help="Verb and options of jobpool.")

    def run_from_argv(self, argv: list[str]) -> None:
        own = CommandParser(add_help=False, allow_abbrev=False)  # these two have been obeyed by now
        own.add_argument("--settings")
        own.add_argument("--pythonpath")
        self.handle(words=own.parse_known_args(argv[2:])[1])

    def handle(self, *_: Any, words: list[str], **__: Any) -> None:
        from jobpool.cli.main import FOR_THE_GROUP, cli

        if getattr(settings, "TASKS", None):
            from jobpool.contrib.django.backend import entries

            for entry in entries()[:1]:
                if entry.url is not None:  # where the project's tasks are sent; `--backend` outdoes it
                    os.environ["JOBPOOL_BACKEND"] = entry.url
        # The pool's processes find the project as this one does, whatever the working directory is.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))
        app = [] if FOR_THE_GROUP & set(words) else ["--app", DJANGO_APP]
        cli.main([*app, *words], "manage.py jobpool")
