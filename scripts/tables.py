"""Write the parts of the docs that come from the code: what each broker can do, and every setting.

python scripts/tables.py            write
python scripts/tables.py --check    exit 1 when a page is not current
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from jobpool.broker.values import Capabilities
from jobpool.settings import SETTINGS

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- made by scripts/tables.py -->", "<!-- end of what scripts/tables.py made -->"


def capabilities() -> str:
    """Return a table: a row for each capability, a column for each broker, those with the most first."""
    backends = {point.load() for point in entry_points(group="jobpool.backends")}  # several schemes may lead to one
    kept = [(backend.scheme, asdict(backend.capabilities)) for backend in backends if backend.capabilities.leases]
    kept.sort(key=lambda broker: (-list(broker[1].values()).count(True), broker[0]))
    rows = [["", *(f"`{scheme}`" for scheme, _ in kept)], ["---"] * (len(kept) + 1)]
    for name, means in texts_below_fields(Capabilities).items():
        rows.append([means.partition(". ")[0].rstrip("."), *(_shown(values[name]) for _, values in kept)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def settings() -> str:
    """Return an item for each setting, below its section's name. Its flag is its name with dashes."""
    sections: dict[str, list[str]] = {}
    for key, one in SETTINGS.items():
        default = f" (`{one.default}`)" if one.default else ""
        sections.setdefault(one.section, []).append(f"* `{key}`{default}: {one.means}")
    return "\n\n".join("\n".join([f"**{name.partition('  ')[0]}**\n", *items]) for name, items in sections.items())


PAGES: dict[str, Callable[[], str]] = {"backends.md": capabilities, "operating.md": settings}


def texts_below_fields(owner: type[Any]) -> dict[str, str]:
    """Return the string below each annotated field of a class, on one line."""
    [definition] = ast.parse(inspect.getsource(owner)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def renewed(page: str, content: str) -> str:
    """Return the page, with what stands between its markers replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has lost its markers, {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{after}"


def stale() -> dict[Path, str]:
    """Return the pages that are not current, with what they should be."""
    found = {}
    for name, content in PAGES.items():
        page = (DOCS / name).read_text("utf-8")
        current = renewed(page, content())
        if current != page:
            found[DOCS / name] = current
    return found


def main(arguments: list[str]) -> int:
    """Write or check; the exit status."""
    pages = stale()
    if "--check" in arguments:
        for path in pages:
            print(f"docs/{path.name} is not current: run scripts/fix", file=sys.stderr)
        return 1 if pages else 0
    for path, current in pages.items():
        path.write_text(current, "utf-8")
    return 0


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
