"""The log events of the package, read from its source."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "longshore"
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")


@dataclass(frozen=True, slots=True)
class LogCall:
    """One call that writes a log event."""

    name: str
    level: str
    fields: frozenset[str]


def log_calls() -> list[LogCall]:
    """Returns every call of the package that writes a log event with a literal name."""
    return [call for file in sorted(PACKAGE.rglob("*.py")) for call in _calls_in(file)]


def _calls_in(file: Path) -> Iterator[LogCall]:
    tree = ast.parse(file.read_text("utf-8"))
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)
    ]
    for scope in functions:
        names = _dictionaries(scope)
        for node in ast.walk(scope):
            if isinstance(node, ast.Call):
                yield from _events_of(node, names)


def _events_of(node: ast.Call, dictionaries: Mapping[str, frozenset[str]]) -> Iterator[LogCall]:
    keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    match node.func:
        case ast.Name("log_and_continue"):
            unavailable = keywords.pop("unavailable", None)
            spread = [keyword.value for keyword in node.keywords if keyword.arg is None]
            fields = set(keywords).union(*(_fields_of(value, dictionaries) for value in spread))
            yield from _event(node.args[1], "error", fields)
            if unavailable is not None:
                yield from _event(unavailable, "warning", {*fields, "error"})
        case ast.Attribute(ast.Name("logger" | "_logger"), level) if level in LEVELS and node.args:
            extra = keywords.get("extra")
            fields = set() if extra is None else _fields_of(extra, dictionaries)
            yield from _event(node.args[0], "error" if level == "exception" else level, fields)


def _event(name: ast.expr, level: str, fields: set[str]) -> Iterator[LogCall]:
    if isinstance(name, ast.Constant) and "." in str(name.value):
        yield LogCall(str(name.value), level, frozenset(fields))


def _fields_of(node: ast.expr, dictionaries: Mapping[str, frozenset[str]]) -> set[str]:
    if isinstance(node, ast.Name):
        return set(dictionaries.get(node.id, ()))
    fields: set[str] = set()
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                fields |= _fields_of(value, dictionaries)
            elif isinstance(key, ast.Constant):
                fields.add(str(key.value))
    return fields


def _dictionaries(scope: ast.AST) -> dict[str, frozenset[str]]:
    """Returns the keys of the dictionaries that are assigned to variables."""
    keys: dict[str, frozenset[str]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            targets = node.targets[0]
            pairs = [(targets, node.value)]
            if isinstance(targets, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(targets.elts, node.value.elts, strict=True))
            for target, value in pairs:
                if isinstance(target, ast.Name) and isinstance(value, ast.Dict):
                    keys[target.id] = frozenset(_fields_of(value, keys))
    return keys
