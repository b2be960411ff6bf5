"""Where services call ports: every such place, found in the source, and which one a call came from.

A place is an expression such as ``self._backend.ledger.get_task``: a method of a port on something
that holds that port. What holds one is found by annotations (``ledger: Ledger``) and by assignments
from what is known already (``bus = self._backend.bus``), by the last name of the expression.
"""

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import longshore.services
from longshore.ports.alerts import Alerts
from longshore.ports.backend import Backend
from longshore.ports.blobs import BlobStore
from longshore.ports.configuration import Budgets, Definitions, Keys, QueueControls
from longshore.ports.events import EventBus, EventLog
from longshore.ports.ledger import Ledger
from longshore.ports.output import OutputLog
from longshore.ports.runner import Runner, RunningAttempt
from longshore.ports.task_queue import TaskQueue
from longshore.ports.worker_registry import WorkerRegistry

# Not the clock: its contract has no errors, and no service can continue without the time.
PORTS: dict[str, type] = {
    "ledger": Ledger,
    "queue": TaskQueue,
    "queue_controls": QueueControls,
    "events": EventLog,
    "bus": EventBus,
    "output": OutputLog,
    "blobs": BlobStore,
    "definitions": Definitions,
    "keys": Keys,
    "budgets": Budgets,
    "alerts": Alerts,
    "worker_registry": WorkerRegistry,
    "runner": Runner,
    "child": RunningAttempt,
}
SERVICES = Path(next(iter(longshore.services.__path__)))
_BY_CLASS = {port.__name__: name for name, port in PORTS.items()}


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """One place in the source of a service that calls a method of a port."""

    file: str  # below the services' folder
    line: int
    method: str  # with its port: "ledger.commit"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.method}"


def methods_of(port: str) -> dict[str, Any]:
    """The methods in the contract of a port; what is a property there cannot fail."""
    result = vars(PORTS[port]).items()
    return {
        name: member
        for name, member in result
        if inspect.isfunction(member) and not name.startswith("_")
    }


@cache
def all_sites() -> frozenset[Site]:
    """Every place in every service."""
    return frozenset(site for sites in _sites_by_file().values() for site, _ in sites)


@cache
def _sites_by_file() -> dict[str, list[tuple[Site, range]]]:
    """The places in each file, with the lines of the statement that each is in."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(SERVICES.rglob("*.py"))}
    everywhere = _fields(Backend)
    for tree in trees.values():
        everywhere |= _annotated_names(tree, in_classes=True)
    return {
        str(path): list(_sites_in(path, tree, everywhere))
        for path, tree in trees.items()
        # It watches processes and has no port but the clock.
        if path.name != "supervisor.py"
    }


def _fields(of: type) -> dict[str, str]:
    return {
        name: _BY_CLASS[kind.removesuffix(" | None")]
        for name, kind in inspect.get_annotations(of).items()
        if kind.removesuffix(" | None") in _BY_CLASS
    }


def _port_in(annotation: ast.expr) -> str | None:
    names = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]
    return next((_BY_CLASS[name] for name in names if name in _BY_CLASS), None)


def _annotated_names(tree: ast.AST, *, in_classes: bool) -> dict[str, str]:
    """Names that are annotated as a port; fields of classes hold it wherever they are read."""
    result: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            if (port := _port_in(node.returns)) is not None:
                result[node.name] = port
        elif isinstance(node, ast.AnnAssign) or (isinstance(node, ast.arg) and not in_classes):
            if node.annotation is None or (port := _port_in(node.annotation)) is None:
                continue
            name = node.arg if isinstance(node, ast.arg) else _last_name(node.target)
            result[name] = port
    return result


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=ast.Attribute(attr="require_queue" | "require_bus" as name)):
            return name.removeprefix("require_")
    return ""


def _sites_in(
    path: Path, tree: ast.Module, everywhere: dict[str, str]
) -> Iterator[tuple[Site, range]]:
    holders = everywhere | _annotated_names(tree, in_classes=False)
    for _ in range(2):  # one assignment may stand before the one that it follows from
        holders |= _assigned_names(tree, holders)
    file = str(path.relative_to(SERVICES))
    for statement, node in _attributes(tree):
        port = holders.get(_last_name(node.value))
        if port is not None and node.attr in methods_of(port):
            lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
            yield Site(file, node.end_lineno or node.lineno, f"{port}.{node.attr}"), lines


def _assigned_names(tree: ast.Module, holders: dict[str, str]) -> dict[str, str]:
    result: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        pairs: list[tuple[ast.expr, ast.expr]] = []
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs += zip(target.elts, node.value.elts, strict=True)
            else:
                pairs.append((target, node.value))
        ports = {holders.get(_last_name(side)) for pair in pairs for side in pair} - {None}
        for target, value in pairs:
            port = holders.get(_last_name(value))
            if port is None and len(ports) == 1 and len(node.targets) > 1:
                port = next(iter(ports))  # child = self._child = await …
            if port is not None and _last_name(target):
                result[_last_name(target)] = port
    return result


def _attributes(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Attribute]]:
    """Every attribute that is read, with the smallest statement or function around it."""
    waiting: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while waiting:
        statement, node = waiting.pop()
        if isinstance(node, ast.stmt | ast.Lambda):
            statement = node
        if isinstance(node, ast.Attribute):
            yield statement, node
        waiting += [(statement, child) for child in ast.iter_child_nodes(node)]


CallPath = tuple[str, ...]
"""Where a call came from: each service's line on the way to it, the outermost first."""


class UnknownSite(LookupError):
    """A call that came from nowhere in the list: the list is not whole."""


def call_path_of(frame: FrameType | None, method: str) -> tuple[Site, CallPath] | None:
    """The place of a call that is just made, and how it was come to; None: not by a service."""
    files = _sites_by_file()
    site: Site | None = None
    way: list[str] = []
    while frame is not None:
        sites = files.get(frame.f_code.co_filename)
        if sites is not None:
            line = frame.f_lineno
            way.append(f"{Path(frame.f_code.co_filename).stem}:{line}")
            fitting = [item for item in sites if item[0].method == method and line in item[1]]
            if site is None and fitting:
                site = min(fitting, key=lambda item: (len(item[1]), abs(item[0].line - line)))[0]
        frame = frame.f_back
    if not way:
        return None
    if site is None:
        message = f"{method} from {' < '.join(way)}"
        raise UnknownSite(message)
    return site, tuple(reversed(way))


def by_method(sites: frozenset[Site]) -> dict[str, list[Site]]:
    """The same, by the method that is called."""
    result: dict[str, list[Site]] = defaultdict(list)
    for site in sorted(sites):
        result[site.method].append(site)
    return result
