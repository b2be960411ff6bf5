"""A planted fault: a small change of the code that a clause of a contract must notice.

A suite that stays green whatever the adapter does proves nothing, so each fault names the test that
has to go red. One that nobody notices means that a clause is missing.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


class Port(StrEnum):
    """Whose contract must notice."""

    LEDGER = "ledger"
    QUEUE = "queue"
    EVENTS = "events"
    BUS = "bus"
    OUTPUT = "output"
    BLOBS = "blobs"
    DEFINITIONS = "definitions"
    KEYS = "keys"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One text in one file, and what is put in its place."""

    name: str
    port: Port
    file: str  # below src/longshore
    old: str  # stands in the file exactly once
    new: str
    caught_by: str  # the test, as pytest knows it, below tests

    def planted(self, text: str) -> str:
        """The file's text with the fault in it.

        Raises:
            ValueError: the old text is gone, or is not the only one.
        """
        if (found := text.count(self.old)) != 1:
            message = f"{self.name}: {self.old!r} stands {found} times in {self.file}, not once"
            raise ValueError(message)
        return text.replace(self.old, self.new)
