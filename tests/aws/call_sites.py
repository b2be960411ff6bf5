"""Every place from which AWS is asked: found by reading the code, and met by running it.

A *way out* is a function through which others ask: ``Aws.call`` itself, and what passes on whatever
operation it is given. A *site* is an expression that calls a way out. Sites inside of ways out are
noted as well; but what a trouble is planned for is the outermost one, where somebody has to live
with what became of the call.

Ways out are known by what variables are called: ``self._tables.query(…)`` is one because a
``Tables`` is called ``tables`` everywhere; ``strangely_named`` sees to it.
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
FILES = (*sorted(ADAPTERS.rglob("*.py")), PACKAGE / "testing" / "auditing" / "from_dynamo.py")

WAYS_OUT: dict[str, dict[str, tuple[str, ...]]] = {
    "calls": {"Aws": ("call",)},
    "tables": {"Tables": ("item", "items", "query")},
    "house": {"House": ("get", "all_of", "put", "update")},
    "queue_calls": {"Sqs": ("call", "counts", "names", "send", "delete", "hide", "replace")},
    "queue_batches": {"Batches": ("each",)},
    "bus": {"EventBridgeBus": ("_each",)},
    "blobs": {"S3BlobStore": ("_call",), "_Reader": ("_get",)},
    "output_tiles": {"Tiles": ("_dynamo",)},
    "deploying_stack": {"Stacks": ("_call",)},
    "examining_calls": {"Asking": ("ask",)},
    "from_dynamo": {"_Look": ("_call",)},
}
"""By module and class. What begins with an underscore is a way out inside of its class alone."""

PARTS: dict[str, tuple[str, ...]] = {
    "tables": ("Tables._some",),
    "house": ("House._write", "until_known"),
    "queue_calls": ("Sqs._url", "Sqs._looked_up"),
    "queue_batches": ("Batches._go_on", "Batches._send", "Batches._batch"),
}
"""Functions that belong to ways out, and are called by them alone."""

HANDED = {"Batches": "_call", "_Look": "_ask"}
"""Attributes that are a way out which was handed over as a function."""

CALLED = {"aws": "Aws", "tables": "Tables", "house": "House", "sqs": "Sqs"} | {
    "batches": "Batches",
    "asking": "Asking",
}
CLIENTS = ("client", "_client")
"""What a client of the vendor's library is called: whatever is called of it is a site."""

VENDORS = ("aiobotocore", "boto3", "botocore")
ASKS_NOBODY = {"generate_presigned_url": "an address is signed here, and nobody is asked"}


class Place(NamedTuple):
    """A site in the code."""

    module: str
    function: str
    number: int  # among those of the function
    within: bool  # inside of a way out

    def __str__(self) -> str:
        return f"{self.module}:{self.function}" + (f"#{self.number}" if self.number > 1 else "")


End = tuple[str, int, int]
"""Where an expression ends: no two calls end at the same place."""


class Reader(ast.NodeVisitor):
    """Finds the sites of one module."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.found: dict[End, Place] = {}
        self.strange: list[str] = []
        self.ways: list[tuple[int, int]] = []  # lines of ways out
        self._classes: list[str] = []
        self._functions: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._classes.append(node.name)
        self.generic_visit(node)
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outermost = not self._functions
        name = ".".join((*self._classes, node.name))
        if outermost and (node.name in self._own_ways or name in PARTS.get(self.module, ())):
            self.ways.append((node.lineno, node.end_lineno or node.lineno))
        arguments = node.args
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self._look_at_name(one.arg, one.annotation, one.lineno)
        if outermost:
            self._functions.append(name)
        self.generic_visit(node)
        if outermost:
            self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._look_at_name(_last_of(node.target), node.annotation, node.lineno)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        made_by = _last_of(node.value) if isinstance(node.value, ast.Await | ast.Call) else ""
        for target in node.targets:
            name = _last_of(target)
            self._look_at_name(name, ast.Name(made_by), node.lineno)
            if made_by == "client" and name not in CLIENTS:
                self.strange.append(f"{self.module}:{node.lineno}: {name} is a client")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if self._is_site(node.func):
            self._note(node)
        self.generic_visit(node)

    @property
    def _own_ways(self) -> tuple[str, ...]:
        of_class = self._classes[-1] if self._classes else ""
        return WAYS_OUT.get(self.module, {}).get(of_class, ())

    @property
    def _handed(self) -> str | None:
        return HANDED.get(self._classes[-1]) if self._classes else None

    def _is_site(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Call):  # getattr(client, operation)(…): what a way out is
            given = [_last_of(one) for one in function.args]
            is_asked = _last_of(function.func) == "getattr" and given[0] in CLIENTS
            return is_asked and not self._is_within(function)
        if not isinstance(function, ast.Attribute):
            return False
        receiver, name = _last_of(function.value), function.attr
        if receiver in CLIENTS:
            return name not in ASKS_NOBODY
        if receiver == "self":
            return name in self._own_ways or name == self._handed
        kind = CALLED.get(receiver.lstrip("_"), receiver)
        ways = [ways for kinds in WAYS_OUT.values() for one, ways in kinds.items() if one == kind]
        return any(name in some and not name.startswith("_") for some in ways)

    def _note(self, node: ast.Call) -> None:
        function = self._functions[-1] if self._functions else "module"
        same = [one for one in self.found.values() if one.function == function]
        within = self._is_within(node)
        end = (self.module, node.end_lineno or 0, node.end_col_offset or 0)
        self.found[end] = Place(self.module, function, len(same) + 1, within)

    def _is_within(self, node: ast.expr) -> bool:
        return any(first <= node.lineno <= last for first, last in self.ways)

    def _look_at_name(self, name: str, kind: ast.expr | None, line: int) -> None:
        """Names must tell what things are."""
        wanted = [one for one, of in CALLED.items() if kind is not None and _names(kind, of)]
        if wanted and name.lstrip("_") not in wanted:
            self.strange.append(f"{self.module}:{line}: {name} is {_a(CALLED[wanted[0]])}")


def _a(kind: str) -> str:
    return f"an {kind}" if kind.startswith("A") else f"a {kind}"


def _last_of(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Await(value=value) | ast.Call(func=value):
            return _last_of(value)
    return ""


def _names(kind: ast.expr, wanted: str) -> bool:
    """Whether an annotation or a constructor says that something is one of these."""
    parts = [kind]
    while parts:
        part = parts.pop()
        match part:
            case ast.Constant(value=str(text)) if text == wanted:
                return True
            case ast.BinOp(left=left, right=right):
                parts += [left, right]
            case _ if _last_of(part) == wanted:
                return True
    return False


@cache
def _read() -> dict[str, Reader]:
    read = {}
    for file in FILES:
        reader = read[str(file)] = Reader(file.stem)
        reader.visit(ast.parse(file.read_text(encoding="utf-8")))
    return read


@cache
def places() -> frozenset[Place]:
    """Every site there is."""
    return frozenset(place for reader in _read().values() for place in reader.found.values())


def strangely_named() -> list[str]:
    """Where a name does not tell what it is, so that its calls would not be found."""
    return [text for reader in _read().values() for text in reader.strange]


def other_ways() -> Iterator[str]:
    """Modules elsewhere that have the vendor's library in hand, past all ways out."""
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if str(file) not in _read() and any(vendor in text for vendor in VENDORS):
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.Import(names=names):
                        modules = [one.name for one in names]
                    case ast.ImportFrom(module=str(module)):
                        modules = [module]
                    case _:
                        continue
                if any(one.partition(".")[0] in VENDORS for one in modules):
                    yield f"{file.relative_to(PACKAGE)}:{node.lineno}"


# When it runs ------------------------------------------------------------------------------------


def reader_of(frame: FrameType) -> Reader | None:
    return _read().get(frame.f_code.co_filename)


def in_a_way_out(frame: FrameType) -> bool:
    reader = reader_of(frame)
    line = frame.f_code.co_firstlineno
    return reader is not None and any(first <= line <= last for first, last in reader.ways)


def place_at(frame: FrameType) -> Place | None:
    """The site whose call a frame is in the middle of; None: none that is known."""
    reader = reader_of(frame)
    if reader is None:
        return None
    line, column = _end_of(frame.f_code, frame.f_lasti)
    return reader.found.get((reader.module, line, column))


@cache
def _end_of(code: CodeType, at: int) -> tuple[int, int]:
    _, line, _, column = list(code.co_positions())[at // 2]
    return line or 0, column or 0
