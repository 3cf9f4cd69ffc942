"""Check the English of code, its errors, and docs: docstrings without a verb, forbidden phrases, long sentences.

python scripts/prose.py               exit 1 where a room has more findings than scripts/prose_allowed.toml allows
python scripts/prose.py --list PATH   print every finding below a path
python scripts/prose.py --write       lower the allowed counts; write a new table if there is none
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = ROOT / "scripts/prose_allowed.toml"
FOLDERS = ("pool", "backends", "bench", "scripts", "docs")
COMMENTS = {".toml": "#", ".sql": "--", ".lua": "--"}
UNCHECKED = ("docs/changelog.md", "scripts/prose.py")  # history, and the forbidden words themselves
LONGEST_SENTENCE_WORDS = 25

HEADLESS = r"(?:What|Who|Whom|Whose|Whoever|Whatever|Whether|Those)\b"
NO_VERB = re.compile(
    rf"{HEADLESS}|(?:An?|The|Its?|This|That|These|Each|Every|All|Both|One|Two|Three|Several|No|None|Nothing|Not|Another"
    r"|Where|When|Why|How|Which|As|At|By|For|From|In|Into|Of|On|With|Without|After|Before|Until|Under|If|So|Somebody"
    r"|Something|Everything|Seconds|Bytes|Unix|Always|Never|Called|Given|Runs|Raises|Counts|Returns|Asks|Takes|Behind"
    r"|Names|Jobs|Messages|Leases|Places|Settings|Records|Rows|Whole|Safe|Live|Alive|Head)\b|[^A-Z]|[A-Z]{2}"
)
CLAUSES = r"(?m)(?:^|[.!?:] )"
PHRASES = {
    "a relative clause needs a noun": rf"{CLAUSES}{HEADLESS}(?! follows\b)[^.!?:]*(?:[.!:]|$)",
    "is not a": r"(?<![Tt]here )(?<!still )\b(?:is|are) no (?!(?:more than|older|longer|other)\b)\w+",
    "if, not a question": rf"{CLAUSES}(?:Does|Is|Are|Was|Were|Has|Had|Did) [^.!?;:]*, [^.!?;:]*(?:[.!;:]|$)",
    "after": r"\b(?:goes on|comes?|right|waits?|those|messages?|options|numbers?|stands?|put|due|one|two) behind\b",
    "at most N": r"(?i)\bso many\b",
    "forever": r"(?i)\bfor ever\b",
    "anyone": r"(?i)\bwhoever\b",
}


def findings(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield kind (`phrase` or `sentence`), line and text of everything to mend in a file."""
    source = path.read_text("utf-8")
    for line, text in _texts(source, path.suffix):
        plain = re.sub(r"`+[^`]+`+", "x", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
        for mend, pattern in PHRASES.items():
            for match in re.finditer(pattern, plain):
                yield "phrase", line, f"{mend}: {match[0].strip(' .:')}"
        for sentence in re.split(r"(?<=[.!?])[)\"*]*\s+|\n\s*\n|\n *[*-] ", plain):
            words = len(re.findall(r"\S*\w\S*", sentence))
            if words > LONGEST_SENTENCE_WORDS or sentence.count(";") > 1:
                yield "sentence", line, f"{words} words: {' '.join(sentence.split())}"
    if path.suffix == ".py":
        yield from _headless(ast.parse(source))


def _texts(source: str, suffix: str) -> Iterator[tuple[int, str]]:
    if suffix == ".py":
        yield from _code(source)
    elif suffix == ".md":
        yield from _page(source)
    else:
        mark = re.escape(COMMENTS[suffix])
        for block in re.finditer(rf"(?m)(?:^ *{mark}.*\n?)+", source):
            yield source.count("\n", 0, block.start()) + 1, re.sub(rf"(?m)^ *{mark} ?", "", block[0])


def _headless(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            attribute = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
            wrong = re.compile(HEADLESS) if attribute else NO_VERB
        elif isinstance(node, ast.ClassDef):
            wrong = re.compile(rf"{HEADLESS}|(?:How|Where|When|See|Since)\b")
        else:
            continue
        text = ast.get_docstring(node) or ""
        if text and wrong.match(text):
            yield "phrase", node.body[0].lineno, f"{node.name}: begin with a verb or a noun: {text.splitlines()[0]}"


def _code(source: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings, texts below fields, help texts, errors and blocks of comments, each with its line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                shown = re.sub(r"(?m)(?<=\n\n)(?: {4}.*\n*)+", "", inspect.cleandoc(text))
                yield node.lineno, re.sub(r"(?m)^\|.*", lambda row: row[0].replace("|", "\n\n"), shown)
            case ast.keyword(arg="help" | "short_help" | "epilog", value=ast.Constant(value=str(text))):
                yield node.value.lineno, text
            case ast.Raise(exc=ast.Call(args=said)):
                for one in said:
                    parts = one.values if isinstance(one, ast.JoinedStr) else [one]
                    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
                    yield node.lineno, text.replace(": ", ". ")  # the cause, and the mend
    block: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        alone = token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
        if token.type == tokenize.COMMENT and not alone:
            yield token.start[0], re.sub(r"(noqa|type: ignore)\S*", "", token.string[1:]).strip()
        if alone:
            block.append(token.string.lstrip("#! "))
        elif block and token.type != tokenize.NL:
            yield token.start[0] - len(block), "\n".join(block)
            block = []


def _page(source: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, items and cells of a page in Markdown, without its code and comments."""
    source = re.sub(r"(?ms)^ *```.*?^ *```|<!--.*?-->|(?-s:^#.*)", lambda block: "\n" * block[0].count("\n"), source)
    line = 1
    for piece in re.split(r"(\n\s*\n|\n(?= *(?:[*#|-]|\d+\.) )|\n(?=\|))", source):
        for cell in re.split(r"(?<!\\)\|", piece) if piece.startswith("|") else [piece]:
            yield line, cell.lstrip(" *#-\n")
        line += piece.count("\n")


def room(path: Path) -> str:
    """Return the key of a file in the table: its folder, at most three deep, or the page itself."""
    relative = path.relative_to(ROOT)
    return str(relative if path.suffix in (".md", ".toml") else Path(*relative.parent.parts[:3]))


def files() -> list[Path]:
    """Return all files that are checked."""
    found = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", *COMMENTS}
    ]
    return [path for path in sorted([*found, ROOT / "README.md"]) if str(path.relative_to(ROOT)) not in UNCHECKED]


def main(arguments: list[str]) -> int:
    """Check, list or write; return the exit status."""
    if arguments[:1] == ["--list"]:
        for path in files():
            if str(path.relative_to(ROOT)).startswith(arguments[1]):
                for kind, line, text in findings(path):
                    print(f"{path.relative_to(ROOT)}:{line}: {kind}: {text}")
        return 0
    counts: dict[str, Counter[str]] = {"phrase": Counter(), "sentence": Counter()}
    for path in files():
        for kind, _, _ in findings(path):
            counts[kind][room(path)] += 1
    allowed = tomllib.loads(ALLOWED.read_text("utf-8")) if ALLOWED.exists() else counts
    if arguments == ["--write"]:
        lines = []
        for kind, rooms in counts.items():
            lower = {name: min(count, allowed[kind].get(name, 0)) for name, count in rooms.items()}
            lines += [f"[{kind}]", *(f'"{name}" = {count}' for name, count in sorted(lower.items()) if count), ""]
        ALLOWED.write_text("\n".join(lines).rstrip() + "\n", "utf-8")
    worse = [
        f"{name}: {count} findings ({kind}), {allowed[kind].get(name, 0)} allowed: see scripts/prose.py --list {name}"
        for kind, rooms in counts.items()
        for name, count in sorted(rooms.items())
        if count > allowed[kind].get(name, 0)
    ]
    if worse:
        print(*worse, sep="\n", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
