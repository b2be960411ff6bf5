"""The write lock: a waiting process gets it before the process that had it last."""

import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# At each line that it gets it ends the turn that it has, and asks for the next at once.
_WRITER = """
import sys
from pathlib import Path
from longshore.adapters.sqlite.write_lock import WriteLock

write_lock = WriteLock(Path(sys.argv[1]))
going = sys.stdin.readline()
while going:
    with write_lock:
        print("my turn", flush=True)
        going = sys.stdin.readline()
"""


class Writer:
    """A process that takes the write lock on request."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def asks_for_a_turn(self) -> None:
        """Having ended the one that it has."""
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def has_its_turn(self) -> bool:
        """Return when it says so; False if it has ended."""
        return self.process.stdout.readline() == "my turn\n"

    def ends_its_last_turn(self) -> None:
        self.process.stdin.close()

    def has_to_wait(self) -> bool:
        """Return when it waits for a lock, or has its turn and does not."""
        while not self._waits_for_a_lock():
            if select.select([self.process.stdout], [], [], 0)[0]:
                return False
        return True

    def _waits_for_a_lock(self) -> bool:
        lines = Path("/proc/locks").read_text().splitlines()
        waiting = [line.split() for line in lines if " -> " in line]
        return any(fields[5] == str(self.process.pid) for fields in waiting)

    def stops(self) -> None:
        """Stop the process; returns when it is stopped. It keeps its locks."""
        self.process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(") ")[2][0] != "T":
            pass

    def goes_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def a_writer(tmp_path: Path) -> Iterator[Callable[[], Writer]]:
    writers: list[Writer] = []

    def start() -> Writer:
        writers.append(Writer(tmp_path))
        return writers[-1]

    yield start
    for writer in writers:
        with writer.process:
            writer.process.kill()


def test_one_that_comes_back_at_once_does_not_overtake_the_one_that_waits(
    a_writer: Callable[[], Writer],
) -> None:
    quick, slow = a_writer(), a_writer()
    quick.asks_for_a_turn()
    assert quick.has_its_turn()
    slow.asks_for_a_turn()
    assert slow.has_to_wait()
    # A stopped process is the slowest possible waiter.
    slow.stops()

    quick.asks_for_a_turn()
    assert quick.has_to_wait()
    slow.goes_on()
    assert slow.has_its_turn()
    assert quick.has_to_wait()
    slow.ends_its_last_turn()
    assert quick.has_its_turn()
