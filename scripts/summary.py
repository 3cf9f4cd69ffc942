"""Print one plain line about a JUnit XML file. Exit 1 when something failed, or nothing ran.

python scripts/summary.py results.xml
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def summarise(path: Path) -> tuple[str, bool]:
    """Return the line, and whether all is well."""
    if not path.exists():
        return "no test ran: pytest stopped before the first one", False
    suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    count = {
        name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    }
    seconds = sum(float(suite.get("time", 0)) for suite in suites)
    failed = count["failures"] + count["errors"]
    ran = count["tests"] - count["skipped"]
    line = f"{ran - failed} passed, {failed} failed, {count['skipped']} skipped in {seconds:.0f} s"
    if ran == 0:
        return f"no test ran: {line}", False
    return line, failed == 0


if __name__ == "__main__":
    text, well = summarise(Path(sys.argv[1]))
    print(text)
    sys.exit(0 if well else 1)
