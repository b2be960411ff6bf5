"""The task source: leases tasks to workers and takes their outcomes, in batches.

A worker says how much it has room for and hands back commands about the tasks that it holds. How
tasks are found is the source's business: an index of ready tasks, or messages of a queue. The
worker knows no message, receipt or visibility.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple, Protocol

from longshore.core.claims import DefinitionVersion, Room
from longshore.core.documents import Document
from longshore.core.queues import QueueDepth
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.commands import FencedCommand
from longshore.core.tasks.rows import TaskRow
from longshore.errors import BackendRejected, BackendUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInstance:
    """A worker that joins the source, and what its leases look like."""

    worker_id: str
    queues: tuple[str, ...]
    process_id: int
    lease_duration: timedelta
    local: bool = True  # on the machine of the store
    number: int = 0  # grows each time a worker of this id joins; 0: it has not joined


class ClaimedTask:
    """A task that was leased to the worker.

    What a worker needs of most tasks costs little: a source whose rows have another form has a
    subclass that finds it without decoding the row.
    """

    def __init__(self, row: TaskRow, due_at: datetime) -> None:
        self._row = row
        self._due_at = due_at

    @cached_property
    def row(self) -> TaskRow:
        """The row with the lease."""
        return self._row

    @cached_property
    def due_at(self) -> datetime:
        """Its place in the queue before the claim; a release before it has begun restores it."""
        return self._due_at

    @cached_property
    def task_id(self) -> str:
        """The task's global id."""
        return self.row.id

    @cached_property
    def job_id(self) -> str:
        """The id of its job."""
        return self.row.spec.job_id

    @cached_property
    def definition(self) -> DefinitionVersion:
        """The tenant, name and version of its definition."""
        spec = self.row.spec
        return spec.tenant, spec.definition, spec.definition_version

    @cached_property
    def fence(self) -> int:
        """The fence of the lease."""
        return self.row.fence

    @cached_property
    def attempt(self) -> int:
        """The number of the attempt."""
        return self.row.attempt

    @cached_property
    def leased_at(self) -> datetime:
        """When the lease began, by the clock of the source."""
        return self.row.lease.acquired_at if self.row.lease else self.row.updated_at

    @cached_property
    def plain_input(self) -> str | None:
        """The JSON text of its input, if the row has it and an attempt needs nothing else but the
        results of its parents: no saved steps, no feedback, and it is not cancelled."""
        row = self.row
        if row.checkpoint is not None or row.feedback is not None or row.cancel is not None:
            return None
        return "null" if row.spec.input is None else row.spec.input.text

    @cached_property
    def parents(self) -> Document | None:
        """The keys of its parents; None if it has none."""
        return self.row.spec.parents

    @cached_property
    def has_dependents(self) -> bool:
        """Whether tasks that were submitted with it wait for its result."""
        return self.row.spec.dependents is not None


class LeaseCommand(NamedTuple):
    """A command under a lease: an outcome, a release, a renewal or a checkpoint."""

    task_id: str
    command: FencedCommand
    change_id: str  # the same for every try


@dataclass(frozen=True, slots=True)
class Applied:
    """The command was committed, now or by an earlier try. What was promised is durable."""

    row: TaskRow


Answer = Applied | Refusal | BackendUnavailable | BackendRejected
"""The answer to one command.

A refusal changed nothing; the reason of a stale fence is ``RefusalReason.LEASE_LOST``, that of a
missing task ``RefusalReason.UNKNOWN``. ``BackendUnavailable``: send the command again;
``OutcomeUnknown``, which is one: it may have happened. ``BackendRejected``: the command cannot be
carried out, and nothing happened; the same command would fail again.
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """The answers to the commands of a turn, in their order, and the tasks that it claimed."""

    answers: tuple[Answer, ...]
    claimed: tuple[ClaimedTask, ...] = ()


class TaskSource(Protocol):
    """Leases tasks to workers.

    A *turn* is one exchange with the source: commands about held tasks, then a claim. The commands
    of a turn are independent: each has its own answer, and one that fails does not affect the
    others. No atomicity across commands, or between commands and claim, is promised; a source that
    can makes one transaction of a turn. A turn that is repeated with its id is carried out once and
    answered alike. The ids of an instance grow, as text; its last turn and its last claim are
    remembered, because a claim may wait while turns come and go. A claim or turn that arrives after
    a later one is not carried out.

    A call raises only ``BackendUnavailable`` (nothing happened), ``OutcomeUnknown`` (repeat the
    call with the same arguments), and ``WorkerGone``.
    """

    @property
    def claims_with_commands(self) -> bool:
        """Whether ``turn`` can claim; otherwise only ``claim`` does."""
        ...

    async def join(self, worker: WorkerInstance) -> WorkerInstance:
        """Join as a new instance. Claims and renewals of an earlier instance are refused.

        Returns the instance with its number.
        """
        ...

    async def leave(self, worker: WorkerInstance) -> None:
        """The worker holds nothing any more and ends."""
        ...

    async def claim(
        self, worker: WorkerInstance, room: Room, *, turn_id: str, wait: timedelta
    ) -> tuple[ClaimedTask, ...]:
        """Lease tasks of the worker's queues, waiting up to ``wait`` for the first.

        At most as many as there is room for, in the order in which they should begin: never one
        that is not due, or of a paused or held queue. Urgent lanes come first, but a share of each
        batch is for the others; tenants of a lane take turns. If the call is cancelled, nothing
        stays claimed.

        Raises:
            WorkerGone: another process has ended this instance.
        """
        ...

    async def turn(
        self,
        worker: WorkerInstance,
        commands: Sequence[LeaseCommand],
        *,
        turn_id: str,
        room: Room | None = None,
    ) -> Turn:
        """Carry out commands about held tasks, then claim what is ready now, without waiting.

        Documents and output that a command refers to are stored before. Where the source can, the
        commit of a completed task also makes its dependents ready and ends its job.

        Raises:
            WorkerGone: another process has ended this instance, and ``room`` was given or a
                command does not end its attempt; nothing happened. Commands that end attempts are
                decided by their fence.
        """
        ...

    async def end_worker(
        self, worker_id: str, *, unbegun: Collection[tuple[str, int]] = ()
    ) -> list[TaskRow]:
        """End the leases of a worker of this machine whose processes are gone.

        Args:
            unbegun: The tasks, with their fences, that had certainly not begun: they use no
                attempt.

        Returns:
            The rows of the tasks whose lease was ended.
        """
        ...

    async def wait_for_ends(self, seen: int, *, timeout: timedelta) -> int:
        """Wait until a task may have ended whose job has not recorded it, or for ``timeout``.

        The dispatcher of a backend without a bus waits here, then asks the ledger for
        ``unrecorded_ends``.

        Args:
            seen: The number that the last call returned; 0 at first. Ends since then count.

        Returns:
            A number that grows with such ends.

        Raises:
            UsageError: the backend has a bus.
        """
        ...

    async def depth(self, queue: str) -> QueueDepth:
        """Returns the approximate number of tasks that are ready, and of those held or delayed."""
        ...
