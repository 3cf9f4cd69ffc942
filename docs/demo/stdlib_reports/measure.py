"""Measuring Python source with `ast`: pure functions from bytes to numbers. This is the CPU-bound work of the demo."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass, field

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_ONE_BRANCH = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
    ast.comprehension,
)


@dataclass(frozen=True, slots=True)
class FunctionMeasure:
    """One function. `branches` is the cyclomatic complexity: 1 plus the points at which its own code can fork."""

    name: str
    line: int
    lines: int
    branches: int


@dataclass(frozen=True, slots=True)
class FileMeasure:
    """One file. `documented` of `documentable` definitions (the module, classes, functions) have a docstring."""

    name: str
    lines: int
    comments: int
    classes: int
    documented: int
    documentable: int
    functions: tuple[FunctionMeasure, ...] = ()
    imports: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Totals:
    """A whole subject, as the index shows it."""

    subject: str
    files: int
    lines: int
    comments: int
    functions: int
    classes: int
    imports: int
    longest: int
    branchiest: int
    documented_share: float


def measure_source(name: str, source: bytes) -> FileMeasure:
    """Parse and measure one file.

    Raises:
        SyntaxError: It is not Python of this interpreter's version.
    """
    tree = ast.parse(source, filename=name)
    walk = _Walk()
    walk.visit(tree)
    return FileMeasure(
        name=name,
        lines=source.count(b"\n"),
        comments=_comments(source),
        classes=walk.classes,
        documented=walk.documented,
        documentable=walk.documentable,
        functions=tuple(walk.functions),
        imports=frozenset(walk.imports),
    )


def total(subject: str, files: list[FileMeasure]) -> Totals:
    """Add the files up."""
    functions = [function for file in files for function in file.functions]
    documentable = sum(file.documentable for file in files)
    return Totals(
        subject=subject,
        files=len(files),
        lines=sum(file.lines for file in files),
        comments=sum(file.comments for file in files),
        functions=len(functions),
        classes=sum(file.classes for file in files),
        imports=len(frozenset().union(*(file.imports for file in files))),
        longest=max((function.lines for function in functions), default=0),
        branchiest=max((function.branches for function in functions), default=0),
        documented_share=sum(file.documented for file in files) / documentable if documentable else 0.0,
    )


def _comments(source: bytes) -> int:
    return sum(token.type == tokenize.COMMENT for token in tokenize.tokenize(io.BytesIO(source).readline))


@dataclass(slots=True)
class _Walk(ast.NodeVisitor):
    """One pass over a tree. `open` holds the branch counts of the functions that we are inside of."""

    functions: list[FunctionMeasure] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    classes: int = 0
    documented: int = 0
    documentable: int = 0
    open: list[int] = field(default_factory=list)

    def generic_visit(self, node: ast.AST) -> None:
        if self.open and isinstance(node, _ONE_BRANCH):
            self.open[-1] += 1
        ast.NodeVisitor.generic_visit(self, node)

    def visit_Module(self, node: ast.Module) -> None:
        self._document(node)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes += 1
        self._document(node)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        if self.open:
            self.open[-1] += len(node.values) - 1
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.imports.update(alias.name.partition(".")[0] for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level:
            self.imports.add(node.module.partition(".")[0])

    def _function(self, node: _Function) -> None:
        self._document(node)
        self.open.append(1)
        self.generic_visit(node)
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        self.functions.append(FunctionMeasure(node.name, node.lineno, lines, self.open.pop()))

    def _document(self, node: ast.Module | ast.ClassDef | _Function) -> None:
        self.documentable += 1
        self.documented += ast.get_docstring(node, clean=False) is not None
