"""Every durable write has a failpoint, and failpoints that are not armed do nothing."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import longshore
from longshore.adapters.shared import failpoints
from longshore.adapters.shared.failpoints import reach
from longshore.ports.blobs import BlobStore
from longshore.ports.configuration import Budgets, Definitions, Keys, QueueControls
from longshore.ports.events import EventLog
from longshore.ports.ledger import Ledger
from longshore.ports.output import OutputLog
from longshore.ports.retention import Retention
from longshore.ports.task_source import TaskSource
from verification.crash.failpoint_ports import (
    BACKUP_FAILPOINTS,
    PACKAGE_FAILPOINTS,
    RARE_FAILPOINTS,
    SLOT_FAILPOINTS,
    WRITE_CALLS,
)
from verification.crash.matrix import FAILPOINTS

PACKAGE = Path(longshore.__file__).parent
PORTS = {
    "ledger": Ledger,
    "source": TaskSource,
    "queue_controls": QueueControls,
    "events": EventLog,
    "output": OutputLog,
    "blobs": BlobStore,
    "definitions": Definitions,
    "keys": Keys,
    "budgets": Budgets,
    "retention": Retention,
}
# A process that is killed around one of these has changed nothing.
READS = {
    "ledger": {
        *("epoch", "atomic", "get_task", "get_tasks", "get_job", "list_tasks", "list_jobs"),
        *("task_states", "find_ids", "unqueued_tasks", "leased_tasks", "open_intents"),
        *("unrecorded_ends", "unnotified_dependents", "unreported_ends", "wait_for_wake"),
        *("failed_tasks", "failed_tenants", "parked_tasks"),
    },
    "source": {"claims_with_commands", "wait_for_ends", "depth"},
    "queue_controls": {"list_pauses", "paused_queues"},
    "events": {"history", "latest", "query"},
    "output": {"read", "wait_for_output"},
    "blobs": {"get", "stream", "size", "list_keys"},
    "definitions": {"get", "list"},
    "keys": {"find", "list", "tenants"},
    "budgets": {"get"},
    "retention": {"ended_jobs", "is_removed"},
}
# What other processes can see, now or after this process ends.
WRITE_METHODS = {
    *("mkdir", "mkfifo", "link", "rename", "unlink", "rmdir", "rmtree"),
    *("fsync", "ftruncate", "create_subprocess_exec", "_kill_group"),
}
# Function -> why no process has to be killed in it.
EXEMPT = {
    "notifier.py:_map_page": "creates a page of zeros, which any process may do",
    "notifier.py:wake_others": "removes what a dead process left, which any process may do",
    "notifier.py:_refresh_peers": "removes what a dead process left, which any process may do",
    "blobs.py:_put_file": "removes a draft that has no name; the blob's row is decided elsewhere",
    "store_file.py:sync_folder": "a part of _create and of _persist in blobs.py",
    "registry.py:_publish_lock": "a part of register",
    "slots.py:_folder_left_by": "names what an ended task has left; its files are stored later",
    "slots.py:_remove_file": "a part of take_back and of the end of a task",
    "launcher.py:_encode": "creates empty folders, and gives them to their user in each attempt",
    "task_users.py:open_folder": "creates an empty folder, and sets its mode again at each start",
}


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for folder in ("adapters/sqlite", "execution/host"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{path.name}:{node.name}", node


def calls_in(function: ast.AST) -> list[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return [
        func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls
    ]


def reached_in_package() -> Counter[str]:
    counts: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="reach"), args=[ast.Constant(value=name)]):
                    counts[name] += 1
    return counts


def test_each_failpoint_is_reached_in_one_function() -> None:
    assert reached_in_package() == Counter(
        (*PACKAGE_FAILPOINTS, *SLOT_FAILPOINTS, *BACKUP_FAILPOINTS, *RARE_FAILPOINTS)
    )


def test_no_two_failpoints_have_the_same_name() -> None:
    assert len(set(FAILPOINTS)) == len(FAILPOINTS)


def test_every_function_with_a_durable_write_has_a_failpoint() -> None:
    without = {
        name
        for name, function in functions()
        if WRITE_METHODS.intersection(called := calls_in(function)) and "reach" not in called
    }

    assert without == set(EXEMPT)


@pytest.mark.parametrize("port", PORTS)
def test_each_call_of_a_port_has_failpoints_or_only_reads(port: str) -> None:
    calls = {name for name in vars(PORTS[port]) if not name.startswith("_")}

    assert calls == {*WRITE_CALLS[port], *READS[port]}


def test_nothing_happens_at_a_failpoint_unless_it_is_armed() -> None:
    assert failpoints._armed is None

    reach("write.committed")


def test_an_armed_callback_gets_each_reached_failpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", None)
    reached: list[str] = []
    failpoints.arm(reached.append)

    reach("write.committing")
    reach("write.committed")

    assert reached == ["write.committing", "write.committed"]
