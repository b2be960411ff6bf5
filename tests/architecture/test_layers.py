"""Which layer may import which, read from the source by ``ast`` without importing it.

The layers keep decisions pure and backends exchangeable. Each rule is a row of a table here. A
module without a row is reported too: decide where it belongs, then add the row.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "longshore"
# Not shipped. Its modules are named with the prefix `verification`.
VERIFICATION = ROOT / "verification"
FACADES = {"", "aws", "core.text.durations", "retry"}
_PURE = {"core", "errors"}
_INNER = _PURE | {"ports", "services", "settings", "facade"}
_EXECUTION = {
    *("execution", "execution.forkserver", "execution.host", "execution.process_table"),
    *("execution.linux", "execution.runners", "execution.slot_page"),
}
# Layer -> layers that it may import besides its own. The longest prefix of a module's name counts.
# An adapter's own layer is its folder; adapters/shared has what several adapters need.
MAY_IMPORT: dict[str, set[str]] = {
    "core": _PURE,
    "errors": set(),
    "facade": _PURE,
    "settings": _PURE | {"facade"},
    "ports": _PURE,
    "adapters": _PURE | {"ports", "adapters.shared.failpoints"},
    "adapters.shared.failpoints": set(),
    "services": _PURE | {"ports", "settings"},
    "execution": _PURE,
    "execution.linux": set(),  # system calls of the fork server, its children and the worker
    "execution.process_table": set(),  # reads /proc for the host and for the fork server
    "execution.slot_page": set(),  # memory that the host shares with the fork server's children
    "execution.forkserver": _PURE
    | {"execution", "execution.linux", "execution.process_table"}
    | {"execution.runners", "execution.slot_page"},
    "execution.host": _PURE
    | {"execution", "execution.process_table", "execution.slot_page", "ports"}
    | {"adapters.shared.failpoints"},
    "execution.runners": _PURE | {"execution", "execution.linux", "ports"},
    "interfaces": _INNER - {"ports"},
    "wiring": _INNER | _EXECUTION | {"adapters", "interfaces"},
    # It shares no code with the services that it checks; it only decompresses like the adapters.
    "audit": {"adapters"},
    "testing": _INNER | _EXECUTION | {"adapters", "interfaces", "wiring"},
    "verification": _INNER
    | _EXECUTION
    | {"adapters", "adapters.shared.failpoints", "audit", "interfaces", "testing", "wiring"},
    "__main__": {"interfaces"},
}
# Part of the package -> third-party packages that it may import; the longest prefix counts.
THIRD_PARTIES: dict[str, set[str]] = {
    "retry": {"tenacity"},
    "services": {"msgspec"},
    "settings": {"pydantic"},
    "adapters.aws": {"aiobotocore", "aiohttp", "boto3", "botocore"},
    "adapters.aws.deploy": {"botocore", "pydantic", "yaml"},
    "adapters.shared": {"msgspec"},
    "adapters.alerts.delivery": {"httpx2"},
    "adapters.sqlite": {"apsw", "backports", "compression", "msgspec"},
    "interfaces.cli": {"click", "rich", "typer", "yaml"},
    "interfaces.client": {"httpx2"},
    "interfaces.document_files": {"yaml"},
    "interfaces.lambdas": {"aws_lambda_powertools", "starlette"},
    "interfaces.python": {"msgspec", "pydantic", "pydantic_core"},
    "interfaces.rest": {"fastapi", "msgspec", "pydantic", "starlette", "uvicorn"},
    "interfaces.rpc": {"connectrpc", "google"},
    "interfaces.web": {"fastapi", "starlette"},
    "execution.slot_protocol": {"msgspec"},
    "execution.host.report_decoder": {"msgspec"},  # checks long messages without their values
    "execution.runners.agent": {"aiohttp", "claude_agent_sdk", "jsonschema"},
    "audit": {"apsw", "msgspec"},
    "testing.contracts": {"hypothesis", "pytest"},
    "verification.crash": {"apsw"},
    "verification.backups": {"apsw"},
    "verification.power": {"apsw"},
}
# Clocks, randomness and I/O: a decision that used them could differ from run to run.
NOT_PURE = {"asyncio", "os", "random", "socket", "subprocess", "threading", "time", "uuid"}
# Layers without I/O: decisions and the protocol of an attempt.
PURE_LAYERS = {"core", "execution"}
# Checks of the system. Only the command that runs the audit imports it, when it is called; the
# package does not import `verification`, which is not shipped.
CHECKING = {"audit", "verification"}
# Often imported without being used: they import `wiring` inside a function.
QUICK_TO_START = {("interfaces", "cli"), ("interfaces", "python")}
# The second only sets the environment of a child process.
MAY_TOUCH_THE_ENVIRONMENT = {("settings",), ("execution", "forkserver", "child")}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One source file and its module name."""

    path: str
    # Without the leading "longshore", but with a leading "verification"; empty for the package.
    name: tuple[str, ...]
    source: str
    tree: ast.Module

    @property
    def layer(self) -> str | None:
        return layer_of(self.name)

    @property
    def is_entry(self) -> bool:
        """Whether it may import `wiring`: an entry point of an interface or a runner."""
        if self.name[:2] in {*QUICK_TO_START, ("interfaces", "lambdas")}:
            return True
        return self.name == ("interfaces", "rest", "app") or (
            self.name[:1] == ("execution",) and self.name[-1] == "__main__"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """An imported name in full; lazy if a call or only the type checker imports it."""

    target: str
    line: int
    lazy: bool


def layer_of(name: tuple[str, ...]) -> str | None:
    """The row of `MAY_IMPORT` for a module's name, or None if there is none."""
    head = name[0] if name else ""
    if head in FACADES:
        return "facade"
    rows = (".".join(name[:length]) for length in range(len(name), 0, -1))
    return next((row for row in rows if row in MAY_IMPORT), None)


def modules_of(package: Path) -> list[Module]:
    top = package.parent if package.name == "verification" else package
    modules = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(top).with_suffix("").parts
        name = parts[:-1] if parts[-1] == "__init__" else parts
        source = path.read_text(encoding="utf-8")
        relative = path.relative_to(top).as_posix()
        modules.append(Module(path=relative, name=name, source=source, tree=ast.parse(source)))
    return modules


def imports_of(node: ast.AST, *, lazy: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inside = lazy or _is_lazy(child)
        for target in _targets(child):
            yield Import(target=target, line=child.lineno, lazy=lazy)
        yield from imports_of(child, lazy=inside)


def _is_lazy(node: ast.AST) -> bool:
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
    for item in imports_of(module.tree):
        problem = _import_problem(module, item)
        if problem:
            yield item.line, f"{module.layer} must not import {item.target}{problem}"
    yield from _relative_imports(module.tree)
    if module.name not in MAY_TOUCH_THE_ENVIRONMENT:
        yield from _environment_reads(module.tree)
    yield from _shape_problems(module)


def _import_problem(module: Module, imported: Import) -> str | None:
    """The problem with an import as the end of a message, or None if it is allowed."""
    top, *rest = imported.target.split(".")
    if top in {"longshore", "verification"}:
        name = tuple(rest) if top == "longshore" else (top, *rest)
        return _own_problem(module, name, lazy=imported.lazy)
    if top in sys.stdlib_module_names:
        return ": not a pure module" if module.layer in PURE_LAYERS and top in NOT_PURE else None
    if module.layer == "facade" and imported.lazy:
        return None
    return None if top in _third_parties(module.name) else ": not a third party of this part"


def _own_problem(module: Module, target: tuple[str, ...], *, lazy: bool) -> str | None:
    # A name without a layer is a name that the package itself exports.
    layer = layer_of(target) or "facade"
    if layer == module.layer:
        same_folder = layer != "adapters" or target[1:2] in (module.name[1:2], ("shared",))
        return None if same_folder else ": another adapter"
    if module.layer == "facade" and lazy and layer not in {*CHECKING, "testing"}:
        return None
    if layer == "audit" and module.name[:2] == ("interfaces", "cli"):
        return None if lazy else " at the top: inside the function that needs it"
    if layer == "wiring" and module.is_entry:
        late_enough = lazy or module.name[:2] not in QUICK_TO_START
        return None if late_enough else " at the top: inside the function that needs it"
    return None if layer in MAY_IMPORT[module.layer or ""] else f": {layer} is not allowed here"


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
    problem = "only settings touches the environment"
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


FAILPOINTS = "adapters.shared.failpoints is not allowed here"
# Path, source, and a part of the expected report.
PLANTED = [
    ("core/a.py", "import time", "core must not import time"),
    ("core/a.py", "def f():\n    from os import path", "core must not import os.path"),
    ("core/a.py", "import asyncio.events", "core must not import asyncio.events"),
    ("core/a.py", "import pydantic", "core must not import pydantic"),
    ("core/a.py", "from longshore.ports import clock", "ports is not allowed here"),
    ("core/a.py", "from longshore.adapters.shared import failpoints", FAILPOINTS),
    ("services/a.py", "from longshore.adapters.shared import failpoints", FAILPOINTS),
    ("ports/a.py", "import msgspec", "ports must not import msgspec"),
    ("ports/a.py", "from longshore.services.worker import loop", "services is not allowed here"),
    ("services/a.py", "from longshore.adapters.sqlite import x", "adapters is not allowed here"),
    ("services/a.py", "import apsw", "services must not import apsw"),
    ("services/a.py", "def f():\n    import longshore.wiring", "wiring is not allowed here"),
    ("adapters/aws/a.py", "from longshore.adapters.sqlite import x", "another adapter"),
    ("adapters/sqlite/a.py", "from longshore.testing import memory", "testing is not allowed here"),
    ("adapters/shared/a.py", "from longshore.adapters.sqlite import x", "another adapter"),
    ("adapters/aws/a.py", "import apsw", "adapters must not import apsw"),
    ("adapters/sqlite/a.py", "import longshore.services.x", "services is not allowed here"),
    ("interfaces/web/a.py", "import longshore.adapters.sqlite.x", "adapters is not allowed here"),
    ("interfaces/web/a.py", "from longshore.ports import clock", "ports is not allowed here"),
    ("interfaces/cli/a.py", "import longshore.ports.backend", "ports is not allowed here"),
    ("interfaces/web/a.py", "import longshore.wiring", "wiring is not allowed here"),
    ("interfaces/cli/main.py", "from longshore.wiring import wire", "at the top"),
    ("interfaces/python/a.py", "from longshore.wiring import wire", "at the top"),
    ("interfaces/python/a.py", "import typer", "interfaces must not import typer"),
    ("execution/a.py", "import os", "execution must not import os: not a pure module"),
    ("execution/a.py", "import longshore.ports.runner", "ports is not allowed here"),
    ("execution/a.py", "import longshore.execution.host.x", "execution.host is not allowed here"),
    ("execution/runners/a.py", "from longshore.services import x", "services is not allowed here"),
    ("execution/runners/a.py", "import longshore.execution.host.x", "host is not allowed here"),
    ("execution/runners/a.py", "from longshore.adapters.shared import failpoints", FAILPOINTS),
    ("execution/host/a.py", "import longshore.execution.runners.x", "runners is not allowed here"),
    ("execution/host/a.py", "import longshore.adapters.shared.codec", "adapters is not allowed"),
    ("execution/forkserver/a.py", "import longshore.execution.host.x", "host is not allowed here"),
    ("execution/forkserver/a.py", "import jsonschema", "forkserver must not import jsonschema"),
    ("wiring/a.py", "from longshore.testing import clock", "testing is not allowed here"),
    ("wiring/a.py", "from longshore.audit import audit", "audit is not allowed here"),
    ("wiring/a.py", "def f():\n    import verification.crash", "verification is not allowed here"),
    ("audit/a.py", "from longshore.core.tasks import states", "core is not allowed here"),
    ("interfaces/cli/a.py", "from longshore.audit import audit", "audit.audit at the top"),
    ("interfaces/cli/a.py", "def f():\n    import verification.simulation", "not allowed here"),
    ("interfaces/cli/a.py", "def f():\n    import longshore.testing", "testing is not allowed"),
    ("interfaces/python/a.py", "import longshore.testing", "testing is not allowed here"),
    ("__init__.py", "def f():\n    import longshore.testing", "testing is not allowed here"),
    ("__init__.py", "def f():\n    import longshore.audit", "audit is not allowed here"),
    ("__init__.py", "def f():\n    import verification.power", "verification is not allowed here"),
    ("__init__.py", "from longshore.services import x", "services is not allowed here"),
    ("aws.py", "import boto3", "facade must not import boto3"),
    ("services/a.py", "from longshore import Client", "facade is not allowed here"),
    ("services/a.py", "import_module('longshore.adapters.aws')", "adapters is not allowed here"),
    ("services/a.py", "if TYPE_CHECKING:\n    import apsw", "services must not import apsw"),
    ("testing/a.py", "import pytest", "testing must not import pytest"),
    ("testing/a.py", "import verification.simulation", "verification is not allowed here"),
    ("verification/simulation/a.py", "import pytest", "verification must not import pytest"),
    ("verification/simulation/a.py", "import apsw", "verification must not import apsw"),
    ("services/a.py", "from . import b", "relative import"),
    (
        "services/a.py",
        "import os\nos.getenv('HOME')",
        "only settings touches the environment",
    ),
    ("services/a.py", "import os as o\no.environ['HOME']", "only settings touches"),
    (
        "services/a.py",
        "from os import environ",
        "only settings touches the environment",
    ),
    ("helpers.py", "", "no rule for this module"),
]

ALLOWED = [
    ("__init__.py", ""),
    (
        "__init__.py",
        "from longshore.core.tasks.task import Task\ndef f():\n    import longshore.wiring",
    ),
    ("aws.py", "from longshore.errors import NotFound\ndef f():\n    import boto3"),
    ("settings/__init__.py", "import os\nimport pydantic\nos.environ['HOME']"),
    ("core/a.py", "import json\nfrom datetime import datetime\nfrom longshore.core import task"),
    ("ports/a.py", "import asyncio\nfrom longshore.ports.clock import Clock"),
    ("adapters/sqlite/a.py", "import apsw\nfrom longshore.adapters.sqlite.database import x"),
    ("adapters/aws/a.py", "from longshore.adapters.shared import codec"),
    (
        "execution/host/a.py",
        "import os\nfrom longshore.adapters.shared.failpoints import reach\nos.getpid()",
    ),
    ("services/a.py", "from longshore.settings import WorkerSettings\nimport longshore.ports.x"),
    ("interfaces/cli/main.py", "import typer\ndef f():\n    from longshore.wiring import wire"),
    ("interfaces/cli/a.py", "def f():\n    from longshore.audit import audit"),
    ("interfaces/cli/a.py", "if TYPE_CHECKING:\n    from longshore.audit import audit"),
    ("interfaces/python/a.py", "import pydantic\ndef f():\n    from longshore.wiring import wire"),
    ("interfaces/python/a.py", "if TYPE_CHECKING:\n    from longshore.wiring import Services"),
    ("__init__.py", "if TYPE_CHECKING:\n    from longshore.interfaces.python.a import task"),
    ("interfaces/lambdas/a.py", "from longshore.wiring import wire"),
    ("execution/runners/__main__.py", "from longshore.wiring import wire"),
    ("execution/forkserver/a.py", "import os\nimport longshore.execution.runners.channel"),
    ("execution/runners/a.py", "import longshore.execution.protocol"),
    ("wiring/a.py", "import longshore.adapters.sqlite.x\nimport longshore.interfaces.cli.main"),
    ("testing/contracts/a.py", "import pytest\nimport longshore.testing.memory.x"),
    ("verification/crash/a.py", "import apsw\nimport longshore.adapters.shared.failpoints"),
    ("verification/power/a.py", "import verification.crash.x\nimport longshore.audit.audit"),
]


def _plant(top: Path, path: str, source: str) -> Path:
    """Write a file into the package that its path belongs to. Returns the package."""
    package = top / ("verification" if path.startswith("verification/") else "longshore")
    file = (top if package.name == "verification" else package) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'"""Planted."""\n{source}\n')
    return package


@pytest.mark.parametrize("package", [PACKAGE, VERIFICATION], ids=lambda package: package.name)
def test_every_module_imports_only_what_its_layer_may(package: Path) -> None:
    problems = problems_of(package)

    assert modules_of(package)

    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("path", "source", "report"), PLANTED)
def test_a_planted_violation_is_named(tmp_path: Path, path: str, source: str, report: str) -> None:
    problems = problems_of(_plant(tmp_path, path, source))

    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:")
    assert report in problems[0]


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_an_allowed_import_is_not_reported(tmp_path: Path, path: str, source: str) -> None:
    problems = problems_of(_plant(tmp_path, path, source))

    assert problems == []


def test_every_violation_in_a_tree_is_named(tmp_path: Path) -> None:
    planted = {path: source for path, source, _ in PLANTED if "/" in path}

    packages = {_plant(tmp_path, path, source) for path, source in planted.items()}

    problems = [problem for package in packages for problem in problems_of(package)]

    assert {problem.split(":")[0] for problem in problems} == set(planted)


def test_a_module_without_a_docstring_is_named_unless_it_is_an_empty_init(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").write_text("")
    (tmp_path / "core" / "task.py").write_text("LIMIT = 3\n")

    problems = problems_of(tmp_path)

    assert problems == ["core/task.py:1: no docstring: say what the module is for"]
