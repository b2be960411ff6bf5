"""The warm-up before any fork leaves nothing behind for children."""

import os
import sys
from types import ModuleType

import pytest

import longshore
from longshore.execution.forkserver.__main__ import prebuild_functions
from longshore.execution.forkserver.slot_child import WARMUP_RUNS, warm_up_slots
from longshore.execution.runners.context import current


def test_a_warm_up_leaves_nothing_behind(capfd: pytest.CaptureFixture[str]) -> None:
    paths, files = list(sys.path), sorted(os.listdir("/proc/self/fd"))

    warm_up_slots(WARMUP_RUNS)

    assert (sys.path, sorted(os.listdir("/proc/self/fd"))) == (paths, files)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(LookupError):
        current()


def test_the_signatures_of_a_modules_tasks_are_built_before_any_fork() -> None:
    def double(number: int) -> int:
        return 2 * number

    module = ModuleType("user_module")
    module.task = longshore.task(double)
    assert "_signature" not in vars(module.task)

    prebuild_functions(module)

    assert "_signature" in vars(module.task)
