"""The demo's measuring, page and shelf code: plain functions on small inputs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from stdlib_reports import page
from stdlib_reports.measure import FileMeasure, measure_source, total
from stdlib_reports.shelf import Shelf
from stdlib_reports.survey import files_of, library, subjects

SOURCE = b'''"""A module."""
import os
import os.path  # twice the same
from xml import sax
from . import near


class Box:
    def grow(self, by):
        """One branch for the function, one for `if`, one for `and`."""
        if by and by > 0:
            def inner():
                return [x for x in by if x]
        return by


async def empty():
    pass
'''


def measured() -> FileMeasure:
    return measure_source("box.py", SOURCE)


def test_a_file_is_counted() -> None:
    file = measured()

    assert (file.lines, file.comments, file.classes) == (18, 1, 1)
    assert file.imports == {"os", "xml"}
    assert (file.documented, file.documentable) == (2, 5)


def test_branches_belong_to_the_function_that_they_are_in() -> None:
    branches = {function.name: function.branches for function in measured().functions}

    assert branches == {"grow": 3, "inner": 2, "empty": 1}


def test_a_function_has_its_line_and_its_length() -> None:
    [grow] = [function for function in measured().functions if function.name == "grow"]

    assert (grow.line, grow.lines) == (9, 6)


def test_what_is_no_python_is_refused() -> None:
    with pytest.raises(SyntaxError):
        measure_source("broken.py", b"def :")


def test_files_add_up() -> None:
    both = total("box", [measured(), measured()])

    assert (both.files, both.lines, both.functions, both.classes, both.imports) == (2, 36, 6, 2, 2)
    assert (both.longest, both.branchiest) == (6, 3)
    assert both.documented_share == pytest.approx(0.4)


def test_nothing_adds_up_to_nothing() -> None:
    nothing = total("empty", [])

    assert (nothing.lines, nothing.longest, nothing.documented_share) == (0, 0, 0.0)


def test_the_library_has_its_packages_at_any_depth_and_no_test_suites() -> None:
    found = subjects()

    assert {"argparse", "json", "email", "email.mime", "concurrent.futures"} <= set(found)
    assert not [name for name in found if {"test", "tests", "idle_test"} & set(name.split("."))]
    assert len(found) >= 190
    assert found == sorted(set(found))


def test_every_subject_has_a_file(tmp_path: Path) -> None:
    (tmp_path / "alone.py").touch()
    (tmp_path / "pack" / "inner").mkdir(parents=True)
    (tmp_path / "pack" / "tests").mkdir()
    for name in ("pack/__init__.py", "pack/part.py", "pack/inner/__init__.py", "pack/tests/__init__.py"):
        (tmp_path / name).touch()

    assert subjects(tmp_path) == ["alone", "pack", "pack.inner"]
    assert [path.name for path in files_of("pack", tmp_path)] == ["__init__.py", "part.py"]
    assert [path.name for path in files_of("alone", tmp_path)] == ["alone.py"]
    assert files_of("json.decoder") == [library() / "json" / "decoder.py"]


def test_an_unknown_subject_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="'no_such_thing'"):
        files_of("no_such_thing")


def test_the_longest_bar_fills_the_chart_and_the_others_are_in_proportion() -> None:
    chart = page.bars([("a", 100), ("b", 50), ("c", 0)], "lines")

    assert re.findall(r"<rect [^>]*width='(\d+)'", chart) == ["560", "280", "1"]


def test_names_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    file = FileMeasure(evil, 1, 0, 0, 0, 1)

    assert evil not in page.report(total(evil, [file]), [file])
    assert evil not in page.bars([(evil, 1)], evil)


def test_a_report_fetches_nothing() -> None:
    text = page.report(total("box", [measured()]), [measured()]) + page.index([total("box", [measured()])])

    assert "http" not in text
    assert "<svg" in text
    assert "url(" not in text


def test_the_index_lists_the_largest_first_and_links_every_report() -> None:
    text = page.index([total("small", []), total("box", [measured()])])

    assert re.findall(r"href='([^']+)'", text) == ["box.html", "small.html"]


def test_a_report_put_twice_is_there_once(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.prepare()
    for text in ("first", "second"):
        place = shelf.put(total("box", [measured()]), text)

    assert place.read_text() == "second"
    assert sorted(os.listdir(shelf.reports)) == ["box.html", "box.json"]
    assert shelf.totals() == [total("box", [measured()])]


def test_the_ledger_keeps_its_order(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    assert shelf.entries() == []

    for attempt in (1, 2):
        shelf.note("00ff", "flaky", attempt, attempt + 1)

    assert [(entry.job, entry.attempt, entry.fence, entry.pid) for entry in shelf.entries()] == [
        ("00ff", 1, 2, os.getpid()),
        ("00ff", 2, 3, os.getpid()),
    ]
