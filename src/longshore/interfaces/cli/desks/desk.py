"""What the command line asks of Longshore, wherever that is.

Answers are the documents of ``views``: what ``-o json`` prints and what the API sends. So a command
prints the same whether the work is in a folder of this machine or behind a server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from longshore.core.budgets import Budget
from longshore.core.dead_letters import DeadFilter
from longshore.core.states import JobState, TaskState
from longshore.interfaces.cli.naming import Named
from longshore.services.crew import Crew
from longshore.services.following import Piece

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that was accepted, and whether that happened just now."""

    document: Document
    created: bool

    @property
    def job_id(self) -> str:
        """Its id."""
        return str(self.document["jobId"])


class Desk(Protocol):
    """Answers questions about one tenant's work and passes its wishes on."""

    def now(self) -> datetime:
        """The time by which ages are told."""
        ...

    async def find(self, text: str) -> Named:
        """The job or task that a text means.

        Raises:
            Missing: none does.
            UsageError: several do; the message lists them.
        """
        ...

    # Looking ------------------------------------------------------------------------------------

    async def jobs(self, *, state: JobState | None, limit: int, cursor: str | None) -> Document:
        """A page of jobs, the newest first: ``jobs`` and ``cursor``."""
        ...

    async def job(self, job_id: str) -> Document:
        """A job with ``states``, how many of its tasks are in which, and all ``tasks``."""
        ...

    async def tasks(
        self, *, job_id: str | None, state: TaskState | None, limit: int, cursor: str | None
    ) -> Document:
        """A page of tasks: ``tasks`` and ``cursor``."""
        ...

    async def task(self, task_id: str) -> Document:
        """One task."""
        ...

    async def keys(self, job_id: str) -> list[str]:
        """The names of a job's tasks."""
        ...

    def events(self, named: Named, *, every: bool, follow: bool) -> AsyncIterator[Document]:
        """The events of a job or task as they travel; with ``every`` those of a job's tasks too."""
        ...

    def output(self, named: Named, *, follow: bool, attempt: int | None) -> AsyncIterator[Piece]:
        """What a job or task printed."""
        ...

    async def artifact(self, task_id: str, attempt: int, name: str) -> bytes:
        """A file that an attempt left, such as ``artifacts/report.csv``.

        Raises:
            NotFound: there is none.
        """
        ...

    async def why(self, named: Named) -> Document:
        """``reasons`` why it does not run."""
        ...

    async def health(self, task_id: str) -> Document:
        """How one task looks now; nobody else is told."""
        ...

    async def check_health(self) -> Document:
        """Check all that runs: ``summary`` and ``tasks``; history and people are told."""
        ...

    # Wishes -------------------------------------------------------------------------------------

    async def submit(self, document: Any, request_id: str) -> Submitted:
        """Accept a job file: its definitions and its job."""
        ...

    async def add(self, job_id: str, document: Any, request_id: str) -> Document:
        """Add tasks to a job."""
        ...

    async def cancel(self, named: Named, *, reason: str | None) -> Document:
        """End a job or a task; what it is now."""
        ...

    async def resume(self, named: Named) -> Document:
        """Run again what failed or was cancelled."""
        ...

    async def approve(self, task_id: str) -> Document:
        """A result in review is right."""
        ...

    async def revise(self, task_id: str, feedback: str) -> Document:
        """A result in review is to be bettered."""
        ...

    async def budget(self, named: Named | None) -> Document:
        """What may be spent on a job or task, None: today; and what is spent."""
        ...

    async def add_budget(self, named: Named | None, more: Budget, *, request_id: str) -> Document:
        """Allow more; the same request once. What may be spent then."""
        ...

    def crew(self, queues: tuple[str, ...]) -> Crew | None:
        """Who would work on these queues in this process; None: others are there to do it."""
        ...

    # Dead letters -------------------------------------------------------------------------------

    async def dead_page(self, wanted: DeadFilter, *, limit: int, cursor: str | None) -> Document:
        """A page of them: ``deadLetters``, ``count`` of all that fit, ``cursor``."""
        ...

    def dead_matching(self, wanted: DeadFilter) -> AsyncIterator[Document]:
        """All that fit."""
        ...

    async def dead(self, letter_id: str) -> Document:
        """All that is known of one.

        Raises:
            NotFound: there is none.
        """
        ...

    async def replay(self, task_ids: Sequence[str]) -> Document:
        """Give tasks another round: ``replayed`` and ``movedOn``."""
        ...

    async def discard(self, letter_id: str) -> None:
        """Forget a message."""
        ...

    def who_works(self, queues: Sequence[str]) -> str | None:
        """The command that brings a worker to these queues, if one is missing.

        Without queues: to any.
        """
        ...

    # The house ----------------------------------------------------------------------------------

    async def paused(self) -> list[Document]:
        """The queues that are paused or held; a hold has an ``until``."""
        ...

    async def pause(self, queue: str, *, reason: str | None) -> Document:
        """Let no task of a queue begin."""
        ...

    async def unpause(self, queue: str) -> Document | None:
        """Let them begin again; how it was paused, None if it was not."""
        ...

    async def definitions(self) -> list[Document]:
        """The newest version of each."""
        ...

    async def definition(self, name: str, version: int | None) -> Document:
        """One of them.

        Raises:
            NotFound: there is none.
        """
        ...

    async def define(self, document: Mapping[str, Any]) -> Document:
        """Store the next version of a definition, unless it is as it was."""
        ...

    async def undefine(self, name: str) -> None:
        """Let no new job name it.

        Raises:
            NotFound: there is none.
        """
        ...

    async def access_keys(self) -> list[Document]:
        """The tenant's keys, never the keys themselves."""
        ...

    async def new_key(self, name: str, scopes: Sequence[str]) -> Document:
        """Make a key; ``key`` has its text, this once."""
        ...

    async def revoke_key(self, key_id: str) -> Document:
        """Let a key allow nothing any more.

        Raises:
            NotFound: there is none.
        """
        ...
