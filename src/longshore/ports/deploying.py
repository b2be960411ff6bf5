"""What brings an installation to a cloud and takes it away again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whose installation it is, and where."""

    id: str
    region: str
    caller: str  # who asks


class StepKind(StrEnum):
    """What can be told while it is under way."""

    BEGUN = "begun"
    WAITING = "waiting"  # for something that was begun before
    RESOURCE = "resource"
    UNCHANGED = "unchanged"
    DONE = "done"
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something that has happened on the way."""

    stack: str
    kind: StepKind
    text: str = ""
    resource: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """One stack as it is now."""

    name: str
    full_name: str
    status: str | None  # None: it is not there
    changed_at: datetime | None = None
    protected: bool = False
    outputs: Mapping[str, str]


Tell = Callable[[Step], None]


class Deployment(Protocol):
    """One stage."""

    async def account(self) -> Account:
        """Whose it is; asks before anything else is done."""
        ...

    async def deploy(self, tell: Tell) -> Mapping[str, str]:
        """Bring everything to what is wanted; what others need to know of it, by name.

        Whatever an earlier call has left unfinished is finished or mended. Where nothing is to be
        changed, nothing is.

        Raises:
            StackFailed: with the first reason; what was changed of that stack is put back.
        """
        ...

    async def destroy(self, tell: Tell, *, with_data: bool) -> None:
        """Take everything away; tables and blobs only ``with_data``.

        Raises:
            Protected: a stack must not be deleted; nothing was.
        """
        ...

    async def status(self) -> Sequence[StackState]:
        """Every stack, in the order of deployment."""
        ...
