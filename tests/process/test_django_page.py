"""docs/django.md in the project of Django's own tutorial: made by django-admin, served by one pool, with real tasks."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

from support.pages import blocks, page, run

HAS_OWN_TASKS = importlib.util.find_spec("django.tasks") is not None

MODELS = """
from django.db import models


class Question(models.Model):
    question_text = models.CharField(max_length=200)
    pub_date = models.DateTimeField("date published")
"""
MORE_SETTINGS = """
import sys

if not sys.argv[0].endswith("first_use.py"):  # an option of Postgres, with which SQLite would not open
    DATABASES["default"]["OPTIONS"] = {"pool": True}
DATABASES["default"]["CONN_MAX_AGE"] = 60
TASKS["now"] = {**TASKS["default"], "OPTIONS": {"backend": "sync://"}}
"""
MORE_TASKS = """
import threading

from asgiref.sync import sync_to_async


@task(priority=10)
async def count(least):
    thread = await sync_to_async(threading.current_thread)()
    return f"{await Question.objects.acount() >= least} in {thread.name}"


@task
def rename(question, text):
    assert Question.objects.filter(pk=question).update(question_text=text) == 1


@task(takes_context=True)
def flaky(context):
    if context.attempt == 1:
        raise ValueError("not the first time")
    return f"{Question.objects.count()} at attempt {context.attempt}"
"""
FIRST_USE = """
import django

django.setup()
from django.core.management import call_command

call_command("makemigrations", "polls", verbosity=0)
call_command("migrate", "polls", verbosity=0)
call_command("check")

from polls.tasks import count, flaky, remind, rename
from polls.views import ask

ask(None)
rename.using(backend="now").enqueue(1, text="What else?")
count.enqueue(1)
flaky.enqueue()
remind.enqueue("Bob", day=2)
"""


def make_project(folder: Path) -> None:
    """Make the tutorial's project with what the page says to write."""
    settings, tasks, views, plain = blocks(page("django"))
    if not HAS_OWN_TASKS:
        settings = settings.replace("INSTALLED_APPS += [", 'INSTALLED_APPS += ["django_tasks", ')
        tasks = tasks.replace("from django.tasks", "from django_tasks")
    start = "from django.core.management import call_command as call; call('startproject', 'mysite', '.')"
    run(folder, "python", "-c", f"{start}; call('startapp', 'polls')")
    with (folder / "mysite" / "settings.py").open("a") as file:
        file.write(f"\n{settings}{MORE_SETTINGS}")
    (folder / "polls" / "models.py").write_text(MODELS)
    (folder / "polls" / "tasks.py").write_text(tasks + plain + MORE_TASKS)
    (folder / "polls" / "views.py").write_text(views)
    (folder / "first_use.py").write_text(FIRST_USE)


def settings_with(option: str) -> str:
    backend = "jobpool.contrib.django.JobpoolBackend"
    return f"TASKS = {{'default': {{'BACKEND': {backend!r}, 'OPTIONS': {{{option}}}}}}}\n"


def test_the_tutorial_project_runs_tasks_and_plain_handlers(tmp_path: Path) -> None:
    make_project(tmp_path)

    run(tmp_path, "python", "first_use.py", DJANGO_SETTINGS_MODULE="mysite.settings")
    manage = ("python", str(tmp_path / "manage.py"), "jobpool")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    said = run(elsewhere, *manage, "--workers", "1", "--until-empty", "-v", "--settings=mysite.settings").stderr

    done = dict(re.findall(r'job succeeded .* name=polls\.tasks\.(\w+) .* output="(.*?)(?: …)?"', said))
    assert done == {
        "announce": "announced: What else?",
        "count": "True in MainThread",
        "flaky": "1 at attempt 2",
    }, said
    assert "handler=remind seconds=" in said
    assert "mailing, attempt 1" in said
    assert "handlers=django.task,remind,url queues=default,mails" in said
    assert "a child is replaced" not in said  # neither the connection that is kept nor the coroutine's loop is left
    assert json.loads(run(elsewhere, *manage, "stats", "--json").stdout) == []

    typed = page("django").rpartition("$ ")[2].splitlines()[0].split()
    assert typed[:2] == ["DJANGO_SETTINGS_MODULE=mysite.settings", "jobpool"]
    said = run(tmp_path, *typed[1:], DJANGO_SETTINGS_MODULE="mysite.settings").stdout
    assert said.startswith("Ann was reminded on day 1")
    (tmp_path / "wrong.py").write_text(settings_with("'max_retires': 3"))
    for variables, told in (
        ({}, "DJANGO_SETTINGS_MODULE is not set: start it as `python manage.py jobpool`"),
        ({"DJANGO_SETTINGS_MODULE": "wrong"}, "OPTIONS has no 'max_retires'; did you mean 'max_retries'?"),
    ):
        assert told in run(tmp_path, *typed[1:], fails=True, **variables).stderr
