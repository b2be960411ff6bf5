"""The task source in memory: the reference for sources that lease tasks without messages.

Ready tasks are found by their place in an index of the store. A turn awaits nothing, so that on the
one event loop it is atomic: commands, then what follows from ended tasks, then the claim.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import ClassVar

from longshore.core.claims import ClaimLines, ClaimPosition, DefinitionVersion, Room, choose
from longshore.core.jobs.settle import settle
from longshore.core.queues import QueueDepth
from longshore.core.tasks import commands as c
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal, RefusalReason
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import Priority, TaskState
from longshore.errors import BackendRejected, OutcomeUnknown, WorkerGone
from longshore.ports.task_source import (
    Answer,
    Applied,
    ClaimedTask,
    LeaseCommand,
    Turn,
    WorkerInstance,
)
from longshore.testing.memory.ledger import MemoryStore
from longshore.testing.memory.queues import MemoryQueueControls

logger = logging.getLogger(__name__)

_NO_MARGIN = timedelta(0)


@dataclass(slots=True)
class _Instance:
    """A worker that has joined, with its last turn and its last claim."""

    number: int
    last_turn: tuple[str, Turn] | None = None
    last_claim: tuple[str, tuple[ClaimedTask, ...]] | None = None


@dataclass(slots=True)
class MemoryTaskSource:
    """See ``ports.task_source.TaskSource``."""

    store: MemoryStore
    controls: MemoryQueueControls
    _instances: dict[str, _Instance] = field(default_factory=dict)  # by worker
    _numbers: dict[str, int] = field(default_factory=dict)  # the last of each worker
    _position: ClaimPosition = field(default_factory=ClaimPosition)

    claims_with_commands: ClassVar[bool] = True

    async def join(self, worker: WorkerInstance) -> WorkerInstance:
        worker_id = worker.worker_id
        number = self._numbers[worker_id] = self._numbers.get(worker_id, 0) + 1
        self._instances[worker_id] = _Instance(number)
        self.store.ended_workers.pop(worker_id, None)
        self.store.row_waiters.wake()
        return replace(worker, number=number)

    async def leave(self, worker: WorkerInstance) -> None:
        instance = self._instances.get(worker.worker_id)
        if instance is not None and instance.number == worker.number:
            del self._instances[worker.worker_id]

    def _instance(self, worker: WorkerInstance) -> _Instance:
        """Returns the instance.

        Raises:
            WorkerGone: another process has ended it, or a later one has joined.
        """
        if worker.worker_id in self.store.ended_workers:
            self._instances.pop(worker.worker_id, None)
        instance = self._instances.get(worker.worker_id)
        if instance is None or instance.number != worker.number:
            raise WorkerGone(worker.worker_id)
        return instance

    # Claims -------------------------------------------------------------------------------------

    async def claim(
        self, worker: WorkerInstance, room: Room, *, turn_id: str, wait: timedelta
    ) -> tuple[ClaimedTask, ...]:
        def look() -> tuple[ClaimedTask, ...] | None:
            instance = self._instance(worker)
            last_id, last = instance.last_claim or ("", ())
            if turn_id <= last_id:
                return last if turn_id == last_id else ()
            if claimed := self._claim(worker, room, turn_id):
                instance.last_claim = (turn_id, claimed)
            return claimed or None

        claimed = await self.store.row_waiters.wait_until(
            look, wait=wait, next_change=lambda: self._next_change(worker.queues)
        )
        return claimed or ()

    def _next_change(self, queues: Collection[str]) -> timedelta | None:
        """Returns the time until a task is due or a hold ends."""
        now = self.store.clock.now()
        times = (self.store.ready.next_due(queues, now), self.controls.next_hold_end(queues))
        return min((time for time in times if time is not None), default=None)

    def _claim(self, worker: WorkerInstance, room: Room, turn_id: str) -> tuple[ClaimedTask, ...]:
        now = self.store.clock.now()
        queues = frozenset(worker.queues) - self.controls.paused_now(worker.queues)
        ready = self.store.ready.due(queues, now, limit=room.total)
        lines = lines_of([self.store.tasks[task_id] for task_id in ready])
        chosen, self._position = choose(lines, room, self._position, definition_of)
        command = c.Claim(
            worker_id=worker.worker_id,
            process_id=worker.process_id,
            lease_duration=worker.lease_duration,
            epoch=self.store.epoch,
            local=worker.local,
        )
        claimed = []
        for row in chosen:
            change_id = f"{worker.worker_id}.{turn_id}.claim"
            change = tasks.apply(row, command, now=now, change_id=change_id)
            if not isinstance(change, Refusal):
                self.store.commit([change])
                claimed.append(ClaimedTask(change.row, row.due_at or row.updated_at))
        return tuple(claimed)

    # Turns --------------------------------------------------------------------------------------

    async def turn(
        self,
        worker: WorkerInstance,
        commands: Sequence[LeaseCommand],
        *,
        turn_id: str,
        room: Room | None = None,
    ) -> Turn:
        instance = self._instances.get(worker.worker_id)
        ends_only = all(isinstance(command.command, c.AttemptCommand) for command in commands)
        if room is not None or not ends_only:
            instance = self._instance(worker)
        if instance is None or instance.number != worker.number:
            return Turn(self._carry_out(worker, commands, turn_id))
        last_id, last = instance.last_turn or ("", Turn(()))
        if turn_id == last_id:
            return last
        if turn_id < last_id:
            # A late copy. Its checkpoint would replace a later one, and no worker would run what it
            # claims.
            message = f"turn {turn_id} arrived after turn {last_id}"
            raise OutcomeUnknown(message)
        answers = self._carry_out(worker, commands, turn_id)
        claimed = () if room is None else self._claim(worker, room, turn_id)
        turn = Turn(answers, claimed)
        instance.last_turn = (turn_id, turn)
        return turn

    def _carry_out(
        self, worker: WorkerInstance, commands: Sequence[LeaseCommand], turn_id: str
    ) -> tuple[Answer, ...]:
        answers = tuple(self._answer(command) for command in commands)
        ended: dict[str, list[TaskRow]] = {}
        for answer in answers:
            if isinstance(answer, Applied) and answer.row.state.terminal:
                ended.setdefault(answer.row.spec.job_id, []).append(answer.row)
        for job_id, rows in ended.items():
            settled = False
            try:
                settled = self._settle(job_id, rows, f"{worker.worker_id}.{turn_id}.settle")
            except Exception:  # the outcomes stay
                logger.exception("job.settle_failed", extra={"job_id": job_id})
            if not settled:  # the dispatcher does it
                self.store.ends += 1
                self.store.row_waiters.wake()
        return answers

    def _answer(self, command: LeaseCommand) -> Answer:
        row = self.store.tasks.get(command.task_id)
        if row is None:
            return Refusal(RefusalReason.UNKNOWN, "there is no such task")
        if row.change_id == command.change_id:
            return Applied(row)
        try:
            now = self.store.clock.now()
            change = tasks.apply(row, command.command, now=now, change_id=command.change_id)
            if isinstance(change, Refusal):
                return change
            self.store.commit([change], settles=True)
        except Exception as error:  # one command must not affect the others
            logger.exception("command.failed", extra={"task_id": command.task_id})
            return BackendRejected(f"{type(error).__name__}: {error}")
        return Applied(change.row)

    def _settle(self, job_id: str, ended: Sequence[TaskRow], change_id: str) -> bool:
        """Commit what follows from ends. Returns False if something needed is not at hand."""
        job = self.store.jobs.get(job_id)
        if job is None:
            return False
        changes = settle(
            job, ended, _Reader(self.store), now=self.store.clock.now(), change_id=change_id
        )
        if changes is None:
            return False
        self.store.commit(changes)
        return True

    # Other processes ----------------------------------------------------------------------------

    async def wait_for_ends(self, seen: int, *, timeout: timedelta) -> int:
        store = self.store
        await store.row_waiters.wait_until(
            lambda: store.ends if store.ends > seen else None, wait=timeout
        )
        return store.ends

    async def end_worker(
        self, worker_id: str, *, unbegun: Collection[tuple[str, int]] = ()
    ) -> list[TaskRow]:
        ended = []
        for row in list(self.store.tasks.values()):
            lease = row.lease
            if lease is None or lease.worker_id != worker_id:
                continue
            command = c.LeaseEnded(
                fence=lease.fence,
                margin=_NO_MARGIN,
                holder_dead=True,
                begun=(row.id, lease.fence) not in unbegun,
            )
            now, change_id = self.store.clock.now(), f"{worker_id}.{lease.fence}.ended"
            change = tasks.apply(row, command, now=now, change_id=change_id)
            if not isinstance(change, Refusal):
                self.store.commit([change])
                ended.append(change.row)
        self._instances.pop(worker_id, None)
        self.store.row_waiters.wake()
        return ended

    async def depth(self, queue: str) -> QueueDepth:
        due, later = self.store.ready.count(queue, self.store.clock.now())
        leased = sum(
            row.spec.queue == queue and row.state is TaskState.PROCESSING
            for row in self.store.tasks.values()
        )
        return QueueDepth(ready=due, hidden=later + leased, dead_letters=0)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads rows for ``settle``."""

    store: MemoryStore

    def task(self, task_id: str) -> TaskRow | None:
        return self.store.tasks.get(task_id)

    def task_states(self, job_id: str) -> Mapping[str, TaskState]:
        rows = self.store.tasks.values()
        return {row.spec.key: row.state for row in rows if row.spec.job_id == job_id}


def lines_of(rows: Iterable[TaskRow]) -> ClaimLines[TaskRow]:
    """Returns tasks, in the order in which they should begin, by their lines."""
    lines: dict[tuple[Priority, str, str], list[TaskRow]] = {}
    for row in rows:
        key = (row.spec.priority, row.spec.queue, row.spec.tenant)
        lines.setdefault(key, []).append(row)
    return lines


def definition_of(row: TaskRow) -> DefinitionVersion:
    """Returns the version of the definition of a task."""
    return row.spec.tenant, row.spec.definition, row.spec.definition_version
