"""Faults in the turns that processes take at writing to one database."""

from functools import partial

from tests.mutants.fault import Fault, Part

_in_turnstile = partial(
    Fault,
    part=Part.LEDGER,
    file="adapters/sqlite/turnstile.py",
    caught_by="adapters/sqlite/test_turnstile.py::"
    "test_one_that_comes_back_at_once_does_not_overtake_the_one_that_waits",
)

TURN_FAULTS = (
    _in_turnstile(
        name="nobody is next",
        old="        fcntl.flock(self._next, fcntl.LOCK_EX)\n",
        new="",
    ),
    _in_turnstile(
        name="whoever is next does not stay so until its turn",
        old="            fcntl.flock(self._now, fcntl.LOCK_EX)\n        finally:\n"
        "            fcntl.flock(self._next, fcntl.LOCK_UN)\n",
        new="            fcntl.flock(self._next, fcntl.LOCK_UN)\n        finally:\n"
        "            fcntl.flock(self._now, fcntl.LOCK_EX)\n",
    ),
)
