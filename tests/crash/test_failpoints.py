"""Failpoints are where they have to be, and nothing happens at one that nobody has armed."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore import failpoints
from longshore.failpoints import reach
from longshore.ports.accounts import Accounts
from longshore.ports.blobs import BlobStore
from longshore.ports.definitions import Definitions
from longshore.ports.events import EventBus, EventLog
from longshore.ports.keys import Keys
from longshore.ports.ledger import Ledger
from longshore.ports.output import OutputLog
from longshore.ports.queue import TaskQueue
from longshore.ports.queues import Queues
from longshore.testing.crashing.matrix import FAILPOINTS
from longshore.testing.crashing.watching import CALLS

ADAPTERS = Path(failpoints.__file__).parent / "adapters"
PORTS = {
    "ledger": Ledger,
    "queue": TaskQueue,
    "queues": Queues,
    "events": EventLog,
    "bus": EventBus,
    "output": OutputLog,
    "blobs": BlobStore,
    "definitions": Definitions,
    "keys": Keys,
    "accounts": Accounts,
}
# A process that is killed around one of these has changed nothing.
READS = {
    "ledger": {
        *("epoch", "atomic", "task", "tasks", "job", "list_tasks", "list_jobs", "task_states"),
        *("find", "unrung", "held", "open_intents", "unrecorded_ends", "untold_parents"),
        *("untold_ends", "nudged", "failed", "failed_tenants", "parked"),
    },
    "queue": {"depth", "dead_letters"},
    "queues": {"paused", "paused_of"},
    "events": {"history", "latest", "query"},
    "bus": set(),
    "output": {"read", "wait"},
    "blobs": {"get", "stream", "size", "keys", "url"},
    "definitions": {"get", "list"},
    "keys": {"find", "list"},
    "accounts": {"account"},
}
# What others can see of a process, now or when it is gone.
LASTING = {
    *("mkdir", "mkfifo", "link", "rename", "unlink", "rmdir", "rmtree"),
    *("fsync", "ftruncate", "create_subprocess_exec", "kill_group"),
}
# Function -> why nobody has to be killed in it.
WITHOUT_ONE = {
    "bells.py:__init__": "a folder that anybody may make",
    "bells.py:_find_ropes": "removes what is left of another process, which anybody may do",
    "bells.py:_drop": "removes what is left of another process, which anybody may do",
    "blobs.py:discard": "removes a draft that has no name; the blob's row is decided elsewhere",
    "blobs.py:_sync_folder": "a part of keep",
    "presence.py:__init__": "a folder that anybody may make",
    "presence.py:_give_name": "a part of appear",
    "runner.py:_make": "a part of _write_order",
    "turnstile.py:__init__": "a file that anybody may make, of a size that it always has",
}


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for folder in ("sqlite", "process"):
        for path in sorted((ADAPTERS / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{path.name}:{node.name}", node


def called_in(function: ast.AST) -> list[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return [
        func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls
    ]


def reached_in_adapters() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in ADAPTERS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="reach"), args=[ast.Constant(value=name)]):
                    found[name] += 1
    return found


def test_each_failpoint_stands_in_one_place() -> None:
    assert reached_in_adapters() == Counter(failpoints.FAILPOINTS)


def test_no_two_failpoints_have_one_name() -> None:
    assert len(set(FAILPOINTS)) == len(FAILPOINTS)


def test_whatever_lasts_longer_than_the_process_has_a_failpoint_beside_it() -> None:
    without = {
        name
        for name, function in functions()
        if LASTING.intersection(called := called_in(function)) and "reach" not in called
    }

    assert without == set(WITHOUT_ONE)


@pytest.mark.parametrize("port", PORTS)
def test_each_call_of_a_port_is_watched_or_changes_nothing(port: str) -> None:
    calls = {name for name in vars(PORTS[port]) if not name.startswith("_")}

    assert calls == {*CALLS[port], *READS[port]}


def test_nothing_happens_at_a_failpoint_unless_it_is_armed() -> None:
    assert failpoints._armed is None

    reach("write.committed")


def test_who_arms_them_hears_of_each_that_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", None)
    heard: list[str] = []
    failpoints.arm(heard.append)

    reach("write.committing")
    reach("write.committed")

    assert heard == ["write.committing", "write.committed"]
