"""scripts/prose.py: the English that it refuses, and the English that it lets pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import prose


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """The answer."""\n',
        'def f():\n    """`flag`: on or off."""\n',
        'class C:\n    """What one call does."""\n',
        'x = 1\n"""What is left."""\n',
        "# What was refused is tried again.\n",
        "x = 1  # an id that is no id\n",
        "# Does the new code not import, the old children go on.\n",
        "# The next command goes on behind it.\n",
        'option(help="So many children.")\n',
        "# It waits for ever.\n",
        'raise ValueError("that is no number")\n',
        'raise ValueError(f"{text!r} is no number: write 5")\n',
        'raise Refused("option", "that is no number")\n',
        "# Wake whoever waits.\n",
        f"# It {'very ' * 25}long.\n",
        "# One; two; three.\n",
    ],
)
def test_it_refuses(tmp_path: Path, source: str) -> None:
    (tmp_path / "bad.py").write_text(source)
    assert list(prose.findings(tmp_path / "bad.py"))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("good.py", 'def f():\n    """Return the answer, if there is no error."""\n'),
        (
            "good.py",
            'class C:\n    """The state of one call."""\n\n    @property\n    def x(self):\n        """The id."""\n',
        ),
        ("good.py", '"""A table.\n\n| id | one; two | three; four |\n"""\n' + 'x = "What is this; that; those"\n'),
        ("good.py", 'raise ValueError(f"there is no {name}: ' + "write one of " * 8 + '")\n'),
        ("good.md", "# What it is\n\nIs it fast, or not?\n\n```\nWhat is no word of this page\n```\n"),
        ("good.sql", "-- Return the first message.\nSELECT 'for ever';\n"),
    ],
)
def test_it_lets_pass(tmp_path: Path, name: str, source: str) -> None:
    (tmp_path / name).write_text(source)
    assert not list(prose.findings(tmp_path / name))
