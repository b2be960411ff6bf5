"""Plant a fault in the source, anchored by symbol and operation.

A fault names a symbol and says what is done to it, and quotes no line of the source::

    at="services.worker.artifacts:_consider", do=Condition("startswith()", False)

``at`` is a module below ``longshore`` (or ``verification``) and a qualified name in it: a
function, a class, or a
variable of a module or class. Nothing after the colon means the whole module. ``do`` is one
operation, or a tuple of operations that are applied in order.

An operation finds its node by a *selector*: words separated by spaces. The first word says which
kind of node it is, the others must occur in it (in a statement with a body: before the body).

=========================  =================================================================
``settle()``               a call, by the last name of what is called
``state``                  a variable or an attribute, by its last name
``limit=``                 a keyword argument
``'text'`` ``0`` ``None``  a constant
``'HOME':`` ``FAILED:``    an item of a dictionary, by its key
``<=`` ``not in`` ``and``  an expression with this operator
``=`` ``+=``               an assignment
``if`` ``for`` ``return``  such a statement; ``await`` and others: see `source_tree.KINDS`
=========================  =================================================================

A selector that matches several nodes needs ``nth``, which counts from 1 in the order of the source.
Prefer words that outlive a renamed local variable: what is called, attributes, constants.

New text is Python. In it ``$0`` is what is replaced, and ``$1``, ``$2``… are its parts: the
arguments of a call, the operands of an operator, otherwise the direct subexpressions in the order
of the source. If a statement is replaced, they are the parts of the selected node.
"""

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from symtable import SymbolTable, symtable
from typing import Protocol

from tests.source_tree import OPERATORS, NotPlanted, Source, with_text, words_of

__all__ = [
    "After",
    "Argument",
    "Before",
    "Change",
    "Condition",
    "Drop",
    "NotPlanted",
    "Operation",
    "Operator",
    "Replace",
    "Swap",
    "Text",
    "Value",
    "plant",
    "undefined_names",
]

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "longshore"


class Operation(Protocol):
    """One change of one place."""

    def apply(self, source: Source) -> str:
        """Returns the text of the module with the change in it."""


@dataclass(frozen=True, slots=True)
class Change:
    """A symbol, and what is done to it."""

    at: str
    do: Operation | tuple[Operation, ...]

    def file(self, package: Path = PACKAGE) -> Path:
        """Returns the file of the symbol's module."""
        parts = self.at.partition(":")[0].split(".")
        path = package.parent if parts[0] == "verification" else package
        if parts[0] == "verification" and package == PACKAGE:
            path = ROOT
        path = path.joinpath(*parts)
        package_file = path / "__init__.py"
        return package_file if package_file.exists() else path.with_suffix(".py")

    def applied(self, text: str, *, fault: str) -> str:
        """Returns the text of the module with the change in it.

        Raises:
            NotPlanted: an anchor matches nothing, or more than one node.
        """
        for operation in self.do if isinstance(self.do, tuple) else (self.do,):
            text = operation.apply(Source(text, self.at, fault))
        return text


def undefined_names(text: str) -> set[str]:
    """Returns the names that a module reads and that nothing defines.

    A fault with such a name only breaks the code, which shows nothing about the test.
    """
    module = symtable(text, "module", "exec")
    defined = {*dir(builtins), "__file__"}
    for symbol in module.get_symbols():
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
            defined.add(symbol.get_name())
    return set(_globals_read(module)) - defined


def _globals_read(table: SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_global() and symbol.is_referenced():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals_read(child)


def plant(changes: Iterable[Change], package: Path, *, fault: str) -> None:
    """Write the changes into the files of a copy of the package."""
    for change in changes:
        file = change.file(package)
        file.write_text(change.applied(file.read_text("utf-8"), fault=fault), encoding="utf-8")


# Operations ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drop:
    """Leave out what is selected.

    That is a statement (also one that only makes or awaits the selected call), an ``except``, a
    decorator, an operand, an item of a list or dictionary, a filter of a comprehension, or an
    alternative of a ``case``.
    """

    target: str
    nth: int | None = None

    def apply(self, source: Source) -> str:
        node = source.find(self.target, self.nth)
        while isinstance(source.parent(node), ast.Await | ast.Expr | ast.MatchValue):
            node = source.parent(node)
        return source.drop(node)


@dataclass(frozen=True, slots=True)
class _Selecting:
    target: str
    new: str
    nth: int | None = None


class Replace(_Selecting):
    """Put a new expression in the place of the selected one.

    If the new text is a statement, it replaces the statement around the selected node.
    """

    def apply(self, source: Source) -> str:
        return source.replace(source.find(self.target, self.nth), self.new)


class Value(_Selecting):
    """Replace the value of what is selected.

    That is what a ``return`` returns, an assignment assigns, a keyword argument passes, an item of
    a dictionary holds, or a ``for`` iterates over.
    """

    def apply(self, source: Source) -> str:
        node = source.find(self.target, self.nth)
        value = source.item_value(node) or getattr(node, "iter", getattr(node, "value", None))
        return source.replace(value or source.fail(f"{self.target!r} has no value"), self.new)


class Operator(_Selecting):
    """Use another operator in place of the first word of the selector."""

    def apply(self, source: Source) -> str:
        node, new = source.find(self.target, self.nth), OPERATORS[self.new]()
        if isinstance(node, ast.Compare):
            old = OPERATORS[words_of(self.target)[0]]
            node.ops[[isinstance(sign, old) for sign in node.ops].index(True)] = new
        else:
            node.op = new
        return source.rewrite(node)


class Before(_Selecting):
    """Insert statements before the statement around the selected node."""

    def apply(self, source: Source) -> str:
        return source.insert(source.find(self.target, self.nth), f"{self.new}\n", "")


class After(_Selecting):
    """Insert statements after the statement around the selected node."""

    def apply(self, source: Source) -> str:
        return source.insert(source.find(self.target, self.nth), "", f"\n{self.new}")


@dataclass(frozen=True, slots=True)
class Condition:
    """Replace a condition, selected by words that all occur in it (none, if it is the only one).

    That is the condition of an ``if``, ``elif``, ``while``, ``assert`` or ternary, or the filter of
    a comprehension or ``case``.
    """

    words: str
    new: str | bool
    nth: int | None = None

    def apply(self, source: Source) -> str:
        return source.replace(source.condition(self.words, self.nth), str(self.new))


@dataclass(frozen=True, slots=True)
class Text:
    """Replace part of a string, or of an f-string as ``ast.unparse`` writes it."""

    old: str
    new: str
    nth: int | None = None

    def apply(self, source: Source) -> str:
        node = source.string(self.old, self.nth)
        return source.put(node, with_text(node, self.old, self.new))


@dataclass(frozen=True, slots=True)
class Argument:
    """Pass another argument to a call, or one more, or (with None) one less.

    ``which`` is the name of a keyword, or the index of a positional argument.
    """

    call: str
    which: int | str
    new: str | None
    nth: int | None = None

    def apply(self, source: Source) -> str:
        call: ast.Call = source.find(self.call, self.nth)
        names = [*range(len(call.args)), *(keyword.arg for keyword in call.keywords)]
        there = dict(zip(names, [*call.args, *call.keywords], strict=True)).get(self.which)
        if there is not None and self.new is not None:
            value = there.value if isinstance(there, ast.keyword) else there
            return source.replace(value, self.new)
        if there is not None:
            return source.drop(there)
        if self.new is None or (isinstance(self.which, int) and self.which != len(call.args)):
            source.fail(f"{self.call!r} has no argument {self.which!r}, only {names}")
        value = ast.parse(self.new, mode="eval").body
        if isinstance(self.which, int):
            call.args.append(value)
        else:
            call.keywords.append(ast.keyword(self.which, value))
        return source.rewrite(call)


@dataclass(frozen=True, slots=True)
class Swap:
    """Exchange the statements around two selected nodes."""

    first: str
    second: str

    def apply(self, source: Source) -> str:
        return source.swap(source.find(self.first), source.find(self.second))
