"""Which errors a call may meet: those that its contract names, read from it, and those of any call.

Every call of a backend may be out of reach, and may be carried out or not without an answer. Every
call of anything may be refused for good, or break by a fault in its adapter that nobody thought of.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from longshore import errors
from tests.errors_everywhere.sites import PORTS, methods_of

# Those that speak to a store; the others are on the machine, and fail by their contracts only.
_STORES = frozenset(
    {
        *("ledger", "queue", "queues", "events", "bus", "output", "blobs", "definitions", "keys"),
        "accounts",
    }
)
_NAMED = re.compile(r"^\s*(?P<name>[A-Z]\w+): ", re.MULTILINE)
_IN_PASSING = re.compile(r"Raises (?P<name>[A-Z]\w+) ")
# What only a caller that breaks the rules is told, which the services do not.
_MISUSE = frozenset({("ledger.commit", "UsageError")})
_MADE: dict[str, Callable[[], Exception]] = {
    "VersionConflict": lambda: errors.VersionConflict("a row", 1),
    "ReceiptExpired": lambda: errors.ReceiptExpired("a receipt"),
    "AlreadyExists": lambda: errors.AlreadyExists("an event", "a place"),
    "NotFound": lambda: errors.NotFound("blob", "a key"),
    "UsageError": lambda: errors.UsageError("this can never be"),
    "AlertFailed": lambda: errors.AlertFailed("people", "they do not listen"),
    "BackendUnavailable": lambda: errors.BackendUnavailable("out of reach"),
    "OutcomeUnknown": lambda: errors.OutcomeUnknown("no answer came"),
    "BackendRejected": lambda: errors.BackendRejected("denied"),
    "RuntimeError": lambda: RuntimeError("a fault in an adapter"),
}


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """One way for a call to go wrong."""

    name: str  # of the error
    done: bool = False  # it was carried out all the same

    def error(self) -> Exception:
        """A fresh one."""
        return _MADE[self.name]()

    @property
    def passing(self) -> bool:
        """Whether nobody may have to suffer for it: another try is all it takes."""
        passing = ("BackendUnavailable", "OutcomeUnknown", "VersionConflict", "AlertFailed")
        return self.name in passing

    @property
    def unforeseen(self) -> bool:
        """Whether no contract names it: somebody has to be told of it with all that is known."""
        return self.name in ("BackendRejected", "RuntimeError")

    def __str__(self) -> str:
        return f"{self.name}, carried out" if self.done else self.name


@cache
def kinds_of(method: str) -> tuple[Kind, ...]:
    """All ways for a method of a port ("ledger.commit") to go wrong."""
    port, name = method.split(".")
    kinds = {Kind("RuntimeError"), *map(Kind, named_in_contract(port, name))}
    if port in _STORES:
        kinds |= {Kind("BackendUnavailable"), Kind("OutcomeUnknown"), Kind("BackendRejected")}
        kinds.add(Kind("OutcomeUnknown", done=True))
    kinds = {kind for kind in kinds if (method, kind.name) not in _MISUSE}
    return tuple(sorted(kinds))


def named_in_contract(port: str, name: str) -> Iterator[str]:
    """Errors that the docstrings of a method and of its port name."""
    for text in (PORTS[port].__doc__ or "", methods_of(port)[name].__doc__ or ""):
        _, _, raises = text.partition("Raises")
        yield from (found["name"] for found in _NAMED.finditer(raises))
        yield from (found["name"] for found in _IN_PASSING.finditer(text))
