"""Faults in the turns that processes take at writing to one database."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import Drop, Swap

_fault = partial(
    Fault,
    part=Part.LEDGER,
    caught_by="adapters/sqlite/test_write_lock.py::"
    "test_one_that_comes_back_at_once_does_not_overtake_the_one_that_waits",
)

WRITE_LOCK_FAULTS = (
    _fault(
        name="no process is next in the election",
        at="adapters.sqlite.write_lock:WriteLock._acquire",
        do=Drop("flock() _next_fd operation"),
    ),
    _fault(
        name="the next process in the election does not stay next",
        at="adapters.sqlite.write_lock:WriteLock._acquire",
        do=Swap("flock() _owner_fd", "flock() LOCK_UN"),
    ),
)
