"""The rehearsal before any fork: children are to find nothing of it."""

import os
import sys

import pytest

from longshore.runners.context import current
from longshore.runners.keeper.rehearsal import OFTEN, rehearse


def test_a_rehearsal_leaves_nothing_behind(capfd: pytest.CaptureFixture[str]) -> None:
    paths, files = list(sys.path), sorted(os.listdir("/proc/self/fd"))

    rehearse(OFTEN)

    assert (sys.path, sorted(os.listdir("/proc/self/fd"))) == (paths, files)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(LookupError):
        current()
