"""Which errors a call may meet: those that its contract names, read from it, and those of any call.

Every call of a backend may be out of reach, and may be carried out or not without an answer. Every
call of anything may be refused for good, or break by an unforeseen fault in its adapter.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from longshore import errors
from tests.errors_everywhere.sites import PORTS, methods_of

# Those that speak to a store; the others are on the machine, and fail by their contracts only.
_STORES = frozenset(
    {
        *(
            "ledger",
            "queue",
            "queue_controls",
            "events",
            "bus",
            "output",
            "blobs",
            "definitions",
            "keys",
        ),
        "budgets",
    }
)
_LISTED_RAISES = re.compile(r"^\s*(?P<name>[A-Z]\w+): ", re.MULTILINE)
_INLINE_RAISES = re.compile(r"Raises (?P<name>[A-Z]\w+) ")
# Errors of a caller that breaks the contract, which the services do not.
_MISUSE = frozenset({("ledger.commit", "UsageError"), ("events.query", "CursorLost")})
_FACTORIES: dict[str, Callable[[], Exception]] = {
    "VersionConflict": lambda: errors.VersionConflict("a row", 1),
    "ReceiptExpired": lambda: errors.ReceiptExpired("a receipt"),
    "AlreadyExists": lambda: errors.AlreadyExists("an event", "a place"),
    "NotFound": lambda: errors.NotFound("blob", "a key"),
    "UsageError": lambda: errors.UsageError("this can never be"),
    "CursorLost": errors.CursorLost,
    "AlertFailed": lambda: errors.AlertFailed("people", "they do not listen"),
    "BackendUnavailable": lambda: errors.BackendUnavailable("out of reach"),
    "OutcomeUnknown": lambda: errors.OutcomeUnknown("no answer came"),
    "BackendRejected": lambda: errors.BackendRejected("denied"),
    "RuntimeError": lambda: RuntimeError("a fault in an adapter"),
}


@dataclass(frozen=True, slots=True, order=True)
class ErrorKind:
    """One way for a call to go wrong."""

    name: str  # of the error
    applied: bool = False  # it was carried out all the same

    def error(self) -> Exception:
        """A fresh one."""
        return _FACTORIES[self.name]()

    @property
    def transient(self) -> bool:
        """Whether it must not cost a task: another try is all it takes."""
        passing = ("BackendUnavailable", "OutcomeUnknown", "VersionConflict", "AlertFailed")
        return self.name in passing

    @property
    def unexpected(self) -> bool:
        """Whether no contract names it: it has to be reported with all its details."""
        return self.name in ("BackendRejected", "RuntimeError")

    def __str__(self) -> str:
        return f"{self.name}, carried out" if self.applied else self.name


@cache
def kinds_of(method: str) -> tuple[ErrorKind, ...]:
    """All ways for a method of a port ("ledger.commit") to go wrong."""
    port, name = method.split(".")
    kinds = {ErrorKind("RuntimeError"), *map(ErrorKind, errors_in_contract(port, name))}
    if port in _STORES:
        kinds |= {
            ErrorKind("BackendUnavailable"),
            ErrorKind("OutcomeUnknown"),
            ErrorKind("BackendRejected"),
        }
        # A stream has no single answer that could be lost.
        if inspect.iscoroutinefunction(methods_of(port)[name]):
            kinds.add(ErrorKind("OutcomeUnknown", applied=True))
    kinds = {kind for kind in kinds if (method, kind.name) not in _MISUSE}
    return tuple(sorted(kinds))


def errors_in_contract(port: str, name: str) -> Iterator[str]:
    """Errors that the docstrings of a method and of its port name."""
    for text in (PORTS[port].__doc__ or "", methods_of(port)[name].__doc__ or ""):
        _, _, raises = text.partition("Raises")
        yield from (result["name"] for result in _LISTED_RAISES.finditer(raises))
        yield from (result["name"] for result in _INLINE_RAISES.finditer(text))
