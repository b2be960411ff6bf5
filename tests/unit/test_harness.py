"""The test harness itself: what each test process starts with."""

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PROGRAM = """
import signal
import tests.conftest
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)
"""


def _ignore_both() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_signals_ignored_by_the_caller_are_reset() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        preexec_fn=_ignore_both,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stdout.split() == ["True", "True"]
