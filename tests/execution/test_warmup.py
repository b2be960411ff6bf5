"""The warm-up before any fork leaves nothing behind for children."""

import atexit
import copy
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import longshore
from longshore.execution.forkserver.__main__ import prebuild_functions
from longshore.execution.forkserver.child import set_thread_reset
from longshore.execution.forkserver.slot_child import WARMUP_RUNS, warm_up_slots
from longshore.execution.runners.context import current


def test_a_warm_up_leaves_nothing_behind(capfd: pytest.CaptureFixture[str]) -> None:
    def state() -> object:
        variables = dict(os.environ)  # noqa: TID251 - compared, not read as settings
        name = Path("/proc/self/comm").read_text()
        return sys.path, variables, name, sorted(os.listdir("/proc/self/fd"))

    at_exit: list[None] = []
    atexit.register(at_exit.append, None)
    before = copy.deepcopy(state())

    warm_up_slots(WARMUP_RUNS)

    assert state() == before
    assert at_exit == []
    assert capfd.readouterr() == ("", "")
    with pytest.raises(LookupError):
        current()


def test_the_signatures_of_a_modules_tasks_are_built_before_any_fork() -> None:
    def double(number: int) -> Any:
        return 2 * number

    module = ModuleType("user_module")
    module.task = longshore.task(double)
    assert "_signature" not in vars(module.task)

    prebuild_functions(module)

    assert "_signature" in vars(module.task)


def test_a_module_with_plain_annotations_makes_forks_no_dearer_by_large_libraries() -> None:
    program = (
        "import sys, longshore, longshore.execution.forkserver.server\n"
        "from longshore.execution.forkserver.__main__ import prebuild_functions\n"
        "@longshore.task\n"
        "def double(numbers: list[int], factor: float = 2.0) -> list[float] | None:\n"
        "    return [factor * number for number in numbers]\n"
        "prebuild_functions(sys.modules['__main__'])\n"
        "assert double.run_with({'numbers': [1, 2]}) == [2.0, 4.0]\n"
        "assert sys.modules.keys().isdisjoint({'asyncio', 'hashlib', 'pydantic'})\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_reaper_calls_no_locks_of_logging_around_its_forks() -> None:
    locks = "_acquireLock", "_releaseLock", "_after_at_fork_child_reinit_locks"
    before = [getattr(logging, name).__code__ for name in locks]

    set_thread_reset(enabled=False)
    without = {getattr(logging, name).__code__ for name in locks}
    set_thread_reset(enabled=True)

    assert len(without) == 1
    assert without.isdisjoint(before)
    assert [getattr(logging, name).__code__ for name in locks] == before
