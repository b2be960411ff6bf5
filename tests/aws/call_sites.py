"""Every call site of AWS: listed by reading the code, and recognised while the code runs.

An *entry point* is a function through which other code calls AWS: ``AwsClient.call`` itself, and
every function that passes on the operation it receives. A *site* is an expression that calls an
entry point. Sites inside entry points are recorded as well, but faults are planned for the
outermost site, whose code has to handle the outcome of the call.

Entry points are recognised by the names of variables: ``self._table.query(…)`` is one because a
``Table`` is called ``table`` or ``…_table`` everywhere; ``misnamed_variables`` checks this.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import longshore

PACKAGE = Path(longshore.__path__[0])
ADAPTERS = PACKAGE / "adapters" / "aws"
FILES = (
    *sorted(ADAPTERS.rglob("*.py")),
    PACKAGE / "aws.py",
    PACKAGE / "audit" / "dynamo_reader.py",
)

ENTRY_POINTS: dict[str, dict[str, tuple[str, ...]]] = {
    "client": {"AwsClient": ("call", "pages")},
    "tables": {"Table": ("get", "query", "page", "put", "update", "delete", "write", "transact")},
    "sqs": {
        "SqsClient": (
            "call",
            "counts",
            "list_names",
            "receive",
            "send",
            "delete",
            "hide",
            "replace",
            "_run",
        )
    },
    "blobs": {"S3BlobStore": ("_call",)},
    "stack_client": {"CloudFormationStack": ("_call",)},
    "doctor_probe": {"Probe": ("call",)},
    "dynamo_reader": {"_DynamoReader": ("_call",)},
}
"""By module and class. What begins with an underscore is an entry point only inside its class."""

ENTRY_POINT_HELPERS: dict[str, tuple[str, ...]] = {
    "client": ("retry_unknown_outcome",),
    "tables": ("Table._repeat",),
    "sqs": ("SqsClient._url", "SqsClient._run_batch"),
}
"""Functions that belong to entry points, and are called by them alone."""

INJECTED_CALLS = {"_DynamoReader": "_aws_call"}
"""Attributes that hold an entry point, passed as a function."""

CLASS_BY_VARIABLE = {
    "aws": "AwsClient",
    "table": "Table",
    "config_table": "Table",
    "events_table": "Table",
    "ledger_table": "Table",
    "output_table": "Table",
    "sqs": "SqsClient",
    "probe": "Probe",
}
CLIENTS = ("client", "_client")
"""Names of clients of the vendor's library: every call of their methods is a site."""

VENDOR_PACKAGES = ("aiobotocore", "boto3", "botocore")


class CallSite(NamedTuple):
    """A site in the code."""

    module: str
    function: str
    number: int  # among those of the function
    in_entry_point: bool  # inside an entry point

    def __str__(self) -> str:
        return f"{self.module}:{self.function}" + (f"#{self.number}" if self.number > 1 else "")


End = tuple[str, int, int]
"""Where an expression ends: no two calls end at the same place."""


class CallSiteFinder(ast.NodeVisitor):
    """Finds the sites of one module."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.sites: dict[End, CallSite] = {}
        self.misnamed: list[str] = []
        self.entry_point_lines: list[tuple[int, int]] = []  # their first and last lines
        self._classes: list[str] = []
        self._functions: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._classes.append(node.name)
        self.generic_visit(node)
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outermost = not self._functions
        name = ".".join((*self._classes, node.name))
        if outermost and (
            node.name in self._own_entry_points or name in ENTRY_POINT_HELPERS.get(self.module, ())
        ):
            self.entry_point_lines.append((node.lineno, node.end_lineno or node.lineno))
        arguments = node.args
        for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self._check_name(item.arg, item.annotation, item.lineno)
        if outermost:
            self._functions.append(name)
        self.generic_visit(node)
        if outermost:
            self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._check_name(_last_name(node.target), node.annotation, node.lineno)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        made_by = _last_name(node.value) if isinstance(node.value, ast.Await | ast.Call) else ""
        for target in node.targets:
            name = _last_name(target)
            self._check_name(name, ast.Name(made_by), node.lineno)
            if made_by == "client" and name not in CLIENTS:
                self.misnamed.append(f"{self.module}:{node.lineno}: {name} is a client")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if self._is_site(node.func):
            self._add_site(node)
        self.generic_visit(node)

    @property
    def _own_entry_points(self) -> tuple[str, ...]:
        of_class = self._classes[-1] if self._classes else ""
        return ENTRY_POINTS.get(self.module, {}).get(of_class, ())

    @property
    def _injected_call(self) -> str | None:
        return INJECTED_CALLS.get(self._classes[-1]) if self._classes else None

    def _is_site(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Call):  # getattr(client, operation)(…), as in an entry point
            names = [_last_name(item) for item in function.args]
            is_asked = _last_name(function.func) == "getattr" and names[0] in CLIENTS
            return is_asked and not self._is_in_entry_point(function)
        if not isinstance(function, ast.Attribute):
            return False
        receiver, name = _last_name(function.value), function.attr
        if receiver in CLIENTS:
            return True
        if receiver == "self":
            return name in self._own_entry_points or name == self._injected_call
        kind = CLASS_BY_VARIABLE.get(receiver.lstrip("_"), receiver)
        ways = [
            ways for kinds in ENTRY_POINTS.values() for item, ways in kinds.items() if item == kind
        ]
        return any(name in some and not name.startswith("_") for some in ways)

    def _add_site(self, node: ast.Call) -> None:
        function = self._functions[-1] if self._functions else "module"
        same = [item for item in self.sites.values() if item.function == function]
        within = self._is_in_entry_point(node)
        end = (self.module, node.end_lineno or 0, node.end_col_offset or 0)
        self.sites[end] = CallSite(self.module, function, len(same) + 1, within)

    def _is_in_entry_point(self, node: ast.expr) -> bool:
        return any(first <= node.lineno <= last for first, last in self.entry_point_lines)

    def _check_name(self, name: str, kind: ast.expr | None, line: int) -> None:
        """Record a variable whose name does not match its class."""
        expected = [
            item
            for item, of in CLASS_BY_VARIABLE.items()
            if kind is not None and _mentions(kind, of)
        ]
        if expected and name.lstrip("_") not in expected:
            self.misnamed.append(
                f"{self.module}:{line}: {name} is {_with_article(CLASS_BY_VARIABLE[expected[0]])}"
            )


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind.startswith("A") else f"a {kind}"


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Await(value=value) | ast.Call(func=value):
            return _last_name(value)
    return ""


def _mentions(kind: ast.expr, class_name: str) -> bool:
    """Whether an annotation or a constructor says that something is one of these."""
    parts = [kind]
    while parts:
        part = parts.pop()
        match part:
            case ast.Constant(value=str(text)) if text == class_name:
                return True
            case ast.BinOp(left=left, right=right):
                parts += [left, right]
            case _ if _last_name(part) == class_name:
                return True
    return False


@cache
def _read_modules() -> dict[str, CallSiteFinder]:
    read = {}
    for file in FILES:
        reader = read[str(file)] = CallSiteFinder(file.stem)
        reader.visit(ast.parse(file.read_text(encoding="utf-8")))
    return read


@cache
def call_sites() -> frozenset[CallSite]:
    """Every site there is."""
    return frozenset(site for reader in _read_modules().values() for site in reader.sites.values())


def misnamed_variables() -> list[str]:
    """Variables whose names do not match their classes, so that their calls would be missed."""
    return [text for reader in _read_modules().values() for text in reader.misnamed]


def vendor_imports() -> Iterator[str]:
    """Modules elsewhere that have the vendor's library in hand, past all entry points."""
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if str(file) not in _read_modules() and any(vendor in text for vendor in VENDOR_PACKAGES):
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.Import(names=names):
                        modules = [item.name for item in names]
                    case ast.ImportFrom(module=str(module)):
                        modules = [module]
                    case _:
                        continue
                if any(item.partition(".")[0] in VENDOR_PACKAGES for item in modules):
                    yield f"{file.relative_to(PACKAGE)}:{node.lineno}"


# When it runs ------------------------------------------------------------------------------------


def finder_of(frame: FrameType) -> CallSiteFinder | None:
    return _read_modules().get(frame.f_code.co_filename)


def in_entry_point(frame: FrameType) -> bool:
    reader = finder_of(frame)
    line = frame.f_code.co_firstlineno
    return reader is not None and any(
        first <= line <= last for first, last in reader.entry_point_lines
    )


def call_site_at(frame: FrameType) -> CallSite | None:
    """The site whose call a frame is in the middle of; None: none that is known."""
    reader = finder_of(frame)
    if reader is None:
        return None
    line, column = _end_of(frame.f_code, frame.f_lasti)
    return reader.sites.get((reader.module, line, column))


@cache
def _end_of(code: CodeType, at: int) -> tuple[int, int]:
    _, line, _, column = list(code.co_positions())[at // 2]
    return line or 0, column or 0
