"""The warm-up before any fork leaves nothing behind for children."""

import os
import sys

import pytest

from longshore.execution.forkserver.child import WARMUP_RUNS, warm_up
from longshore.execution.runners.context import current


def test_a_warm_up_leaves_nothing_behind(capfd: pytest.CaptureFixture[str]) -> None:
    paths, files = list(sys.path), sorted(os.listdir("/proc/self/fd"))

    warm_up(WARMUP_RUNS)

    assert (sys.path, sorted(os.listdir("/proc/self/fd"))) == (paths, files)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(LookupError):
        current()
