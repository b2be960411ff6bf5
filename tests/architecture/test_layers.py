"""Who may import whom, read from the source by ``ast``; nothing is imported to find out.

The layers keep decisions pure and backends exchangeable, and an import in the wrong
direction works perfectly well until the day it matters. So each rule is a row of
a table here, and a module that no row speaks of is itself a problem: somebody
should decide where it belongs.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "longshore"
FACADES = {"", "aws", "durations", "retry"}
_PURE = {"core", "errors"}
_INNER = _PURE | {"ports", "services", "settings", "facade"}
# Layer -> layers it may import besides its own. An adapter's own layer is its folder, and what
# several need alike is in adapters/shared.
MAY_IMPORT: dict[str, set[str]] = {
    "core": _PURE,
    "errors": set(),
    "failpoints": set(),
    "facade": _PURE,
    "settings": _PURE | {"facade"},
    "ports": _PURE,
    "adapters": _PURE | {"ports", "failpoints"},
    "services": _PURE | {"ports", "settings"},
    "runners": _PURE | {"ports"},
    "interfaces": _INNER,
    "wiring": _INNER | {"adapters", "interfaces", "runners"},
    "testing": _INNER | {"adapters", "failpoints", "interfaces", "runners", "wiring"},
    "__main__": {"interfaces"},
}
# Part of the package -> what it may take from other projects; the longest prefix counts.
THIRD_PARTIES: dict[str, set[str]] = {
    "retry": {"tenacity"},
    "settings": {"pydantic"},
    "adapters.aws": {"aiobotocore", "aiohttp", "boto3", "botocore"},
    "adapters.shared": {"msgspec"},
    "adapters.alerts.slack": {"slack_sdk"},
    "adapters.alerts.trying": {"tenacity"},
    "adapters.alerts.webhook": {"httpx"},
    "adapters.sqlite": {"apsw"},
    "interfaces.cli": {"click", "rich", "typer", "yaml"},
    "interfaces.cli.desks.remote": {"httpx"},
    "interfaces.cli.desks.wire": {"httpx"},
    "interfaces.definition_documents": {"yaml"},
    "interfaces.lambdas": {"aws_lambda_powertools"},
    "interfaces.python": {"pydantic", "pydantic_core"},
    "interfaces.rest": {"fastapi", "pydantic", "starlette", "uvicorn"},
    "interfaces.rpc": {"connectrpc", "google"},
    "interfaces.web": {"fastapi", "starlette"},
    "runners.agent": {"aiohttp", "claude_agent_sdk", "jsonschema"},
    "testing": {"hypothesis"},
    "testing.auditing": {"apsw", "msgspec"},
    "testing.crashing": {"apsw"},
    "testing.power": {"apsw"},
    "testing.contracts": {"hypothesis", "pytest"},
}
# Clocks, chance and the outside world: what would make a decision differ from run to run.
NOT_IN_CORE = {"asyncio", "os", "random", "socket", "subprocess", "threading", "time", "uuid"}
# What is often imported and seldom needs the whole system: it builds it when it does.
QUICK_TO_START = {("interfaces", "cli"), ("interfaces", "python")}
# The second does not read it: it makes a child's what its order says.
MAY_TOUCH_THE_ENVIRONMENT = {("settings",), ("runners", "keeper", "leader")}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One source file and what it is called."""

    path: str
    # Without the leading "longshore"; empty for the package itself.
    name: tuple[str, ...]
    source: str
    tree: ast.Module

    @property
    def layer(self) -> str | None:
        return layer_of(self.name)

    @property
    def is_entry(self) -> bool:
        """Whether it may build the system: the outermost door of an interface or a runner."""
        if self.name[:2] in {*QUICK_TO_START, ("interfaces", "lambdas")}:
            return True
        return self.name == ("interfaces", "rest", "app") or (
            self.name[:1] == ("runners",) and self.name[-1] == "__main__"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported name, in full, and whether it waits for a call or for a type checker."""

    target: str
    line: int
    lazy: bool


def layer_of(name: tuple[str, ...]) -> str | None:
    """The row of `MAY_IMPORT` for a module's name, or None when no row speaks of it."""
    head = name[0] if name else ""
    if head in FACADES:
        return "facade"
    return head if head in MAY_IMPORT else None


def modules_of(package: Path) -> list[Module]:
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = parts[:-1] if parts[-1] == "__init__" else parts
        source = path.read_text(encoding="utf-8")
        relative = path.relative_to(package).as_posix()
        found.append(Module(path=relative, name=name, source=source, tree=ast.parse(source)))
    return found


def imports_of(node: ast.AST, *, lazy: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inside = lazy or _is_for_later(child)
        for target in _targets(child):
            yield Import(target=target, line=child.lineno, lazy=lazy)
        yield from imports_of(child, lazy=inside)


def _is_for_later(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _targets(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(level=0, module=str(module), names=names):
            return [f"{module}.{alias.name}" for alias in names]
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(target)), *_],
        ):
            return [target]
    return []


def problems_of(package: Path) -> list[str]:
    """Every broken rule in the package, as ``path:line: what is wrong``."""
    return [
        f"{module.path}:{line}: {problem}"
        for module in modules_of(package)
        for line, problem in _problems(module)
    ]


def _problems(module: Module) -> Iterator[tuple[int, str]]:
    if module.layer is None:
        yield 1, "no rule for this module: give it a row in MAY_IMPORT or FACADES"
        return
    for found in imports_of(module.tree):
        problem = _import_problem(module, found)
        if problem:
            yield found.line, f"{module.layer} must not import {found.target}{problem}"
    yield from _relative_imports(module.tree)
    if module.name not in MAY_TOUCH_THE_ENVIRONMENT:
        yield from _environment_reads(module.tree)
    yield from _shape_problems(module)


def _import_problem(module: Module, found: Import) -> str | None:
    """What is wrong with an import, as the end of a sentence; None when nothing is."""
    top, *rest = found.target.split(".")
    if top == "longshore":
        return _own_problem(module, tuple(rest), lazy=found.lazy)
    if top in sys.stdlib_module_names:
        return ": not a pure module" if module.layer == "core" and top in NOT_IN_CORE else None
    if module.layer == "facade" and found.lazy:
        return None
    return None if top in _third_parties(module.name) else ": not a third party of this part"


def _own_problem(module: Module, target: tuple[str, ...], *, lazy: bool) -> str | None:
    # A name that is no layer is one that the package itself exports.
    layer = layer_of(target) or "facade"
    if layer == module.layer:
        same_folder = layer != "adapters" or target[1:2] in (module.name[1:2], ("shared",))
        return None if same_folder else ": another adapter"
    if module.layer == "facade" and lazy and layer != "testing":
        return None
    if layer == "testing" and module.name[:2] == ("interfaces", "cli"):
        # Two commands are for checking: what they need is loaded when they are given.
        return None if lazy else " at the top: inside the function that needs it"
    if layer == "wiring" and module.is_entry:
        late_enough = lazy or module.name[:2] not in QUICK_TO_START
        return None if late_enough else " at the top: inside the function that needs it"
    return None if layer in MAY_IMPORT[module.layer or ""] else f": {layer} is out of its reach"


def _third_parties(name: tuple[str, ...]) -> set[str]:
    for length in range(len(name), 0, -1):
        allowed = THIRD_PARTIES.get(".".join(name[:length]))
        if allowed is not None:
            return allowed
    return set()


def _relative_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "relative import: write the module's full name"


def _environment_reads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    problem = "only settings.py touches the environment"
    nodes = list(ast.walk(tree))
    imported = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names_of_os = {alias.asname or "os" for alias in imported if alias.name == "os"}
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
                name in names_of_os and attribute in ENVIRONMENT
            ):
                yield node.lineno, problem
            case ast.ImportFrom(module="os", names=names) if ENVIRONMENT & {n.name for n in names}:
                yield node.lineno, problem


def _shape_problems(module: Module) -> Iterator[tuple[int, str]]:
    empty_init = module.path.endswith("__init__.py") and not module.source.strip()
    if not empty_init and not ast.get_docstring(module.tree):
        yield 1, "no docstring: say what the module is for"


# Path, source, what the report must say; every source but one has its docstring.
PLANTED = [
    ("core/a.py", "import time", "core must not import time"),
    ("core/a.py", "def f():\n    from os import path", "core must not import os.path"),
    ("core/a.py", "import asyncio.events", "core must not import asyncio.events"),
    ("core/a.py", "import pydantic", "core must not import pydantic"),
    ("core/a.py", "from longshore.ports import clock", "ports is out of its reach"),
    ("core/a.py", "import longshore.failpoints", "failpoints is out of its reach"),
    ("services/a.py", "import longshore.failpoints", "failpoints is out of its reach"),
    ("ports/a.py", "import msgspec", "ports must not import msgspec"),
    ("ports/a.py", "from longshore.services.worker import loop", "services is out of its reach"),
    ("services/a.py", "from longshore.adapters.sqlite import x", "adapters is out of its reach"),
    ("services/a.py", "import apsw", "services must not import apsw"),
    ("services/a.py", "def f():\n    import longshore.wiring", "wiring is out of its reach"),
    ("adapters/memory/a.py", "from longshore.adapters.sqlite import x", "another adapter"),
    ("adapters/sqlite/a.py", "from longshore.adapters import memory", "another adapter"),
    ("adapters/shared/a.py", "from longshore.adapters.sqlite import x", "another adapter"),
    ("adapters/memory/a.py", "import apsw", "adapters must not import apsw"),
    ("adapters/sqlite/a.py", "import longshore.services.x", "services is out of its reach"),
    ("interfaces/web/a.py", "import longshore.adapters.memory.x", "adapters is out of its reach"),
    ("interfaces/web/a.py", "import longshore.wiring", "wiring is out of its reach"),
    ("interfaces/cli/main.py", "from longshore.wiring import wire", "at the top"),
    ("interfaces/python/a.py", "from longshore.wiring import wire", "at the top"),
    ("interfaces/python/a.py", "import typer", "interfaces must not import typer"),
    ("runners/python/a.py", "from longshore.services import x", "services is out of its reach"),
    ("wiring/a.py", "from longshore.testing import clock", "testing is out of its reach"),
    ("interfaces/cli/a.py", "from longshore.testing import clock", "testing.clock at the top"),
    ("interfaces/python/a.py", "import longshore.testing", "testing is out of its reach"),
    ("__init__.py", "def f():\n    import longshore.testing", "testing is out of its reach"),
    ("__init__.py", "from longshore.services import x", "services is out of its reach"),
    ("aws.py", "import boto3", "facade must not import boto3"),
    ("services/a.py", "from longshore import Client", "facade is out of its reach"),
    ("services/a.py", "import_module('longshore.adapters.aws')", "adapters is out of its reach"),
    ("services/a.py", "if TYPE_CHECKING:\n    import apsw", "services must not import apsw"),
    ("testing/simulation/a.py", "import pytest", "testing must not import pytest"),
    ("services/a.py", "from . import b", "relative import"),
    ("services/a.py", "import os\nos.getenv('HOME')", "only settings.py touches the environment"),
    ("services/a.py", "import os as o\no.environ['HOME']", "only settings.py touches"),
    ("services/a.py", "from os import environ", "only settings.py touches the environment"),
    ("helpers.py", "", "no rule for this module"),
]

ALLOWED = [
    ("__init__.py", ""),
    ("__init__.py", "from longshore.core.task import Task\ndef f():\n    import longshore.wiring"),
    ("aws.py", "from longshore.errors import NotFound\ndef f():\n    import boto3"),
    ("settings.py", "import os\nimport pydantic\nos.environ['HOME']"),
    ("core/a.py", "import json\nfrom datetime import datetime\nfrom longshore.core import task"),
    ("ports/a.py", "import asyncio\nfrom longshore.ports.clock import Clock"),
    ("adapters/sqlite/a.py", "import apsw\nfrom longshore.adapters.sqlite.database import x"),
    ("adapters/aws/a.py", "from longshore.adapters.shared import codec"),
    ("adapters/process/a.py", "import os\nfrom longshore.failpoints import reach\nos.getpid()"),
    ("services/a.py", "from longshore.settings import WorkerSettings\nimport longshore.ports.x"),
    ("interfaces/cli/main.py", "import typer\ndef f():\n    from longshore.wiring import wire"),
    ("interfaces/cli/a.py", "def f():\n    from longshore.testing.auditing import audit"),
    ("interfaces/python/a.py", "import pydantic\ndef f():\n    from longshore.wiring import wire"),
    ("interfaces/python/a.py", "if TYPE_CHECKING:\n    from longshore.wiring import Services"),
    ("__init__.py", "if TYPE_CHECKING:\n    from longshore.interfaces.python.a import task"),
    ("interfaces/lambdas/a.py", "from longshore.wiring import wire"),
    ("runners/python/__main__.py", "from longshore.wiring import wire"),
    ("wiring/a.py", "import longshore.adapters.sqlite.x\nimport longshore.interfaces.cli.main"),
    ("testing/contracts/a.py", "import pytest\nimport longshore.adapters.memory.x"),
]


def _plant(package: Path, path: str, source: str) -> None:
    file = package / path
    file.parent.mkdir(parents=True)
    file.write_text(f'"""Planted."""\n{source}\n')


def test_the_package_keeps_to_its_layers() -> None:
    problems = problems_of(PACKAGE)

    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("path", "source", "report"), PLANTED)
def test_a_planted_violation_is_named(tmp_path: Path, path: str, source: str, report: str) -> None:
    _plant(tmp_path / "longshore", path, source)

    problems = problems_of(tmp_path / "longshore")

    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:")
    assert report in problems[0]


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_what_the_rules_allow_is_not_reported(tmp_path: Path, path: str, source: str) -> None:
    _plant(tmp_path / "longshore", path, source)

    problems = problems_of(tmp_path / "longshore")

    assert problems == []


def test_every_violation_in_a_tree_is_named(tmp_path: Path) -> None:
    package = tmp_path / "longshore"
    planted = {path: source for path, source, _ in PLANTED if "/" in path}
    for path, source in planted.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(f'"""Planted."""\n{source}\n')

    problems = problems_of(package)

    assert {problem.split(":")[0] for problem in problems} == set(planted)


def test_a_module_without_a_docstring_is_named_unless_it_is_an_empty_init(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").write_text("")
    (tmp_path / "core" / "task.py").write_text("LIMIT = 3\n")

    problems = problems_of(tmp_path)

    assert problems == ["core/task.py:1: no docstring: say what the module is for"]
