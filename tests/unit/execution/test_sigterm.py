"""The SIGTERM handler is installed when a task needs it, and restored afterwards."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from longshore.execution.runners.context import SigtermHandler


@pytest.fixture(autouse=True)
def before() -> Iterator[Any]:
    handler = signal.getsignal(signal.SIGTERM)
    yield handler
    signal.signal(signal.SIGTERM, handler)


def test_nothing_is_touched_before_the_first_look(before: Any) -> None:
    SigtermHandler()

    assert signal.getsignal(signal.SIGTERM) is before


def test_after_the_first_look_it_is_only_noted() -> None:
    sigterm = SigtermHandler()
    looks = [sigterm.received()]

    os.kill(os.getpid(), signal.SIGTERM)
    looks += [sigterm.received(), sigterm.received()]

    assert looks == [False, True, True]


def test_it_means_again_what_it_did_when_it_is_put_back(before: Any) -> None:
    sigterm = SigtermHandler()
    sigterm.received()

    sigterm.restore()
    sigterm.restore()

    assert signal.getsignal(signal.SIGTERM) is before


def test_the_first_look_in_another_thread_says_where_to_look_first() -> None:
    sigterm = SigtermHandler()
    raised: list[str] = []

    def look() -> None:
        with pytest.raises(RuntimeError, match="main thread") as caught:
            sigterm.received()
        raised.append(str(caught.value))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert len(raised) == 1


def test_a_later_look_may_be_in_another_thread() -> None:
    sigterm = SigtermHandler()
    sigterm.received()
    os.kill(os.getpid(), signal.SIGTERM)
    seen: list[bool] = []

    thread = threading.Thread(target=lambda: seen.append(sigterm.received()))
    thread.start()
    thread.join()

    assert seen == [True]


# In a process of its own: this one has threads, and forking it would be a gamble.
_FORK_PROGRAM = """
import os, select, signal
from longshore.execution.runners.context import SigtermHandler

sigterm = SigtermHandler()
sigterm.received()
ready, say_ready = os.pipe()
process_id = os.fork()
if process_id == 0:
    os.write(say_ready, b"x")
    while True:
        select.select([], [], [], 0.01)
os.read(ready, 1)  # a signal that comes while Python is still busy with the fork is lost
os.kill(process_id, signal.SIGTERM)
_, status = os.waitpid(process_id, 0)
print(os.waitstatus_to_exitcode(status), sigterm.received())
"""


def test_sigterm_ends_a_fork_of_the_task() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORK_PROGRAM],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.stdout, done.stderr) == (f"-{signal.SIGTERM.value} False\n", "")
