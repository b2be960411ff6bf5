"""The source of a module as a tree: find a node by a selector, and write a changed node back.

`tests.planting` describes selectors. What is changed is written into the text in the place of the
old node; the rest of the text stays as it is, so that tracebacks can be read.
"""

import ast
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cached_property
from textwrap import dedent, indent
from typing import Any, NoReturn

KINDS: dict[str, Any] = {
    "if": ast.If,
    "while": ast.While,
    "for": (ast.For, ast.AsyncFor),
    "try": ast.Try,
    "with": (ast.With, ast.AsyncWith),
    "def": (ast.FunctionDef, ast.AsyncFunctionDef),
    "except": ast.ExceptHandler,
    "return": ast.Return,
    "raise": ast.Raise,
    "break": ast.Break,
    "continue": ast.Continue,
    "=": (ast.Assign, ast.AnnAssign),
    "await": ast.Await,
    "lambda": ast.Lambda,
    "ternary": ast.IfExp,
    ":=": ast.NamedExpr,
    "[]": ast.Subscript,
    "tuple": ast.Tuple,
    "list": ast.List,
    "dict": ast.Dict,
    "comprehension": (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
}
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=", "is", "is not", "in", "not in")
_ARITHMETIC = ("+", "-", "*", "/", "//", "%", "|", "&", "<<", ">>")
OPERATORS: dict[str, Any] = {
    **{sign: type(ast.parse(f"a {sign} b").body[0].value.ops[0]) for sign in _COMPARISONS},  # type: ignore[attr-defined]
    **{sign: type(ast.parse(f"a {sign} b").body[0].value.op) for sign in _ARITHMETIC},  # type: ignore[attr-defined]
    "and": ast.And,
    "or": ast.Or,
    "not": ast.Not,
}
_WORD = re.compile(r"""not in\b|is not\b|'[^']*':?|"[^"]*":?|\S+""")
_BODIES = frozenset({"body", "orelse", "finalbody", "handlers", "cases"})
_DROPPED_FROM = frozenset(
    {"args", "keywords", "elts", "keys", "values", "ifs", "patterns", "decorator_list"}
)
_NEED_PARENTHESES = (
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Lambda, ast.Await),
    *(ast.Yield, ast.YieldFrom, ast.MatchOr),
)


class NotPlanted(ValueError):
    """An anchor does not lead to one place. The message names fault, symbol and candidates."""


class Source:
    """The text and the tree of a module, and the part of it that a symbol names."""

    def __init__(self, text: str, at: str, fault: str = "") -> None:
        self._text = text
        self._subject = f"{fault}: {at}"
        self._tree = ast.parse(text)
        self._scope: list[ast.AST] = [self._tree]
        for name in filter(None, at.partition(":")[2].split(".")):
            definitions = [pair for node in self._scope for pair in _definitions(node)]
            self._scope = [node for node, names in definitions if name in names]
            if not self._scope:
                names = sorted({name for _, names in definitions for name in names})
                self.fail(f"there is no {name!r}, only {', '.join(names)}")

    def fail(self, reason: str) -> NoReturn:
        raise NotPlanted(f"{self._subject}: {reason}")

    def find(self, selector: str, nth: int | None = None) -> Any:
        """Returns the node that the selector matches."""
        kind, *words = words_of(selector)
        alike = [node for node in self._nodes if self._is(node, kind)]
        matches = [node for node in alike if self._mentions(node, words)]
        return self._single(selector, matches, nth, alike)

    def condition(self, selector: str, nth: int | None) -> Any:
        """Returns the condition in which all words of the selector occur."""
        tests = [test for node in self._nodes for test in _conditions(node)]
        words = words_of(selector)
        matches = [test for test in tests if self._mentions(test, words)]
        return self._single(f"condition {selector}", matches, nth, tests)

    def string(self, part: str, nth: int | None) -> Any:
        """Returns the string that has this part."""
        strings = [node for node in self._nodes if self._whole_string(node) is node]
        matches = [node for node in strings if with_text(node, part, part)]
        return self._single(
            part, matches, nth, [node for node in strings if with_text(node, "", "")]
        )

    def parent(self, node: ast.AST) -> Any:
        return self._parents[node][0]

    def item_value(self, key: ast.AST) -> ast.expr | None:
        """Returns the value of a dictionary's key; None if the node is no such key."""
        parent, field, index = self._parents.get(key, (None, "", 0))
        return parent.values[index] if isinstance(parent, ast.Dict) and field == "keys" else None

    def replace(self, node: ast.AST, new: str) -> str:
        """Put new text in place of an expression, or of the statement around it."""
        match ast.parse(_with_placeholders(new)).body:
            case [ast.Expr(value=value)] if isinstance(node, ast.expr):
                return self.put(node, _Filling([node, *_parts(node)]).visit(value))
        statement = self._statement(node)
        return self._splice(statement, self._block(new, node, statement))

    def put(self, old: ast.AST, new: Any) -> str:
        """Put one expression in the place of another."""
        whole = self._whole_string(old)
        parent, field, index = self._parents[old]
        if isinstance(getattr(parent, field), list):
            getattr(parent, field)[index] = new
        else:
            setattr(parent, field, new)
        return self._splice(whole, _written(new if whole is old else whole))

    def rewrite(self, node: ast.AST) -> str:
        """Write out a node that was changed in the tree."""
        while not hasattr(node, "lineno"):
            node = self.parent(node)
        node = self._whole_string(node)
        return self._splice(node, _written(node))

    def insert(self, node: ast.AST, before: str, after: str) -> str:
        """Insert statements around the statement around a node."""
        statement = self._statement(node)
        blocks = [self._block(new, node, statement) if new else "" for new in (before, after)]
        margin = "\n" + " " * statement.col_offset
        own = self._text[self._span(statement)]
        return self._splice(statement, margin.join(filter(None, [blocks[0], own, blocks[1]])))

    def swap(self, first: ast.AST, second: ast.AST) -> str:
        """Exchange the statements around two nodes."""
        spans = [self._span(self._statement(node)) for node in (first, second)]
        earlier, later = sorted(spans, key=lambda span: span.start)
        text, between = self._text, self._text[earlier.stop : later.start]
        return text[: earlier.start] + text[later] + between + text[earlier] + text[later.stop :]

    def drop(self, node: ast.AST) -> str:
        """Leave out a node."""
        parent, field, index = self._parents[node]
        siblings, span = getattr(parent, field), self._span(node)
        if isinstance(node, ast.stmt):
            return self._splice(node, "pass" if len(siblings) == 1 else "")
        if isinstance(node, ast.ExceptHandler):
            return self._splice(node, "")
        if isinstance(parent, ast.BinOp):
            return self.put(parent, parent.right if node is parent.left else parent.left)
        if field not in _DROPPED_FROM:
            self.fail(f"cannot be dropped: {self._line(node)}")
        if field == "decorator_list":
            return self._text[: span.start - 1] + self._text[span.stop :].lstrip()
        if isinstance(parent, ast.BoolOp | ast.MatchOr) and len(siblings) == 2:
            return self.put(parent, siblings[1 - index])
        for items in (parent.keys, parent.values) if isinstance(parent, ast.Dict) else (siblings,):
            del items[index]
        return self.rewrite(parent)

    @cached_property
    def _parents(self) -> dict[ast.AST, tuple[Any, str, int]]:
        """The parent of each node, the field of the parent that has it, and its index there."""
        return {
            child: (node, field, index)
            for node in ast.walk(self._tree)
            for field, value in ast.iter_fields(node)
            for index, child in enumerate(value if isinstance(value, list) else [value])
            if isinstance(child, ast.AST)
        }

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        """All nodes of the symbol in the order of the source, outer ones first."""
        nodes = [node for top in self._scope for node in _preorder(top)]
        return sorted(nodes, key=lambda node: self._span(self._whole_string(node)).start)

    def _is(self, node: ast.AST, word: str) -> bool:
        """Returns whether a word of a selector names this very node."""
        if word in KINDS:
            return isinstance(node, KINDS[word])
        augments = word[:-1] in _ARITHMETIC and word.endswith("=")
        if operator := OPERATORS.get(word[:-1] if augments else word):
            signs = getattr(node, "ops", [getattr(node, "op", None)])
            matches = any(isinstance(sign, operator) for sign in signs)
            return matches and isinstance(node, ast.AugAssign) is augments
        if word.endswith("()"):
            return isinstance(node, ast.Call) and _last_name(node.func) == word[:-2]
        if word.endswith("="):
            return isinstance(node, ast.keyword) and node.arg == word[:-1]
        if word.endswith(":"):
            return self.item_value(node) is not None and self._is(node, word[:-1])
        if word.isidentifier() and word not in ("None", "True", "False"):
            return _last_name(node) == word
        try:
            value = ast.literal_eval(word)
        except (SyntaxError, ValueError):
            self.fail(f"{word!r} is no word of a selector")
        return isinstance(node, ast.Constant) and repr(node.value) == repr(value)

    def _mentions(self, node: ast.AST, words: list[str]) -> bool:
        return all(any(self._is(part, word) for part in _head(node)) for word in words)

    def _single(self, selector: str, matches: list[Any], nth: int | None, alike: list[Any]) -> Any:
        if len(matches) == 1 if nth is None else 0 < nth <= len(matches):
            return matches[(nth or 1) - 1]
        lines = "".join(f"\n  {self._line(node)}" for node in matches or alike) or " none"
        which = "" if nth is None else f" (expected: number {nth})"
        return self.fail(f"{selector!r} matches {len(matches)} nodes{which}; candidates:{lines}")

    def _line(self, node: ast.AST) -> str:
        span = self._span(self._whole_string(node))
        number = self._text.count("\n", 0, span.start) + 1
        return f"line {number}: {self._text[span].splitlines()[0]}"

    def _statement(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self.parent(node)
        return node

    def _whole_string(self, node: ast.AST) -> ast.AST:
        """Returns the f-string around a node, or the node: before Python 3.12 the parts of an
        f-string have no positions."""
        whole, around = node, node
        while around in self._parents:
            around = self.parent(around)
            whole = around if isinstance(around, ast.JoinedStr) else whole
        return whole

    def _block(self, new: str, node: ast.AST, statement: ast.stmt) -> str:
        """Returns statements with the indentation of another, except on the first line."""
        tree = ast.parse(_with_placeholders(dedent(new)))
        text = ast.unparse(_Filling([statement, *_parts(node)]).visit(tree))
        return indent(text, " " * statement.col_offset).lstrip()

    def _span(self, node: Any) -> slice:
        while not hasattr(node, "lineno") and node in self._parents:
            node = self.parent(node)
        if not hasattr(node, "lineno"):
            return slice(0, 0)
        start = self._offset(node.lineno, node.col_offset)
        return slice(start, self._offset(node.end_lineno, node.end_col_offset))

    def _offset(self, line: int, column: int) -> int:
        """Returns the index in the text; columns of a tree count bytes."""
        start = self._line_starts[line - 1]
        return start + len(self._text[start : start + column].encode()[:column].decode())

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self._text))]

    def _splice(self, node: ast.AST, new: str) -> str:
        span = self._span(node)
        if isinstance(node, ast.GeneratorExp) and not new.startswith("("):
            new = f"({new})"  # the old parentheses may be those of the call around it
        return self._text[: span.start] + new + self._text[span.stop :]


# Trees --------------------------------------------------------------------------------------------


def words_of(selector: str) -> list[str]:
    """Returns the words of a selector."""
    return _WORD.findall(selector)


def _definitions(node: ast.AST) -> Iterator[tuple[ast.AST, set[str]]]:
    """Yields what is defined directly in a module, class or function, with its names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child, {child.name}
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            parts = [part for target in targets for part in ast.walk(target)]
            yield child, {part.id for part in parts if isinstance(part, ast.Name)}
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _definitions(child)


def _preorder(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr_context):
            yield from _preorder(child)


def _head(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the node and all that is in it, without the statements of its body."""
    yield node
    for field, value in ast.iter_fields(node):
        if field not in _BODIES or isinstance(node, ast.expr):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _preorder(child)


def _conditions(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
            return [node.test]
        case ast.comprehension():
            return node.ifs
        case ast.match_case(guard=ast.expr() as guard):
            return [guard]
    return []


def _last_name(node: ast.AST) -> str | None:
    return getattr(node, "attr", None) or getattr(node, "id", None)


def with_text(node: ast.AST, old: str, new: str) -> ast.expr | None:
    """Returns a string or f-string with a part replaced; None if it has no such part."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and old in node.value:
        return ast.Constant(node.value.replace(old, new))
    if isinstance(node, ast.JoinedStr):
        values = [with_text(value, old, new) or value for value in node.values]
        if values != node.values:
            return ast.JoinedStr(values)
        if old in (text := ast.unparse(node)):
            return ast.parse(text.replace(old, new), mode="eval").body
    return None


def _parts(node: ast.AST) -> list[ast.AST]:
    """Returns the direct subexpressions in the order of the source; of a call, its arguments."""
    children = [child for child in ast.iter_child_nodes(node) if child is not _callee(node)]
    values = [child.value if isinstance(child, ast.keyword) else child for child in children]
    parts: list[Any] = [value for value in values if isinstance(value, ast.expr)]
    return sorted(parts, key=lambda part: (part.lineno, part.col_offset))


def _callee(node: ast.AST) -> ast.AST | None:
    return node.func if isinstance(node, ast.Call) else None


def _with_placeholders(new: str) -> str:
    return re.sub(r"\$(\d)", r"_part_\1", new)


class _Filling(ast.NodeTransformer):
    """Puts parts of the source in the place of the placeholders."""

    def __init__(self, parts: list[ast.AST]) -> None:
        self._parts = {f"_part_{number}": part for number, part in enumerate(parts)}

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        value = self.visit(node.value)
        return value if isinstance(value, ast.stmt) else ast.Expr(value)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return deepcopy(self._parts.get(node.id, node))


def _written(node: ast.AST) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, _NEED_PARENTHESES) else text
