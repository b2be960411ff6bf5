"""Monitors of what processes read and write: they compare it with the true state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from longshore.core.documents import Document
from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.queues import parse_message
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from longshore.ports.events import Delivery
from longshore.ports.ledger import AnyChange
from longshore.ports.task_queue import Message, OutgoingMessage
from longshore.ports.task_source import Applied, LeaseCommand, Turn, WorkerInstance

if TYPE_CHECKING:
    from verification.simulation.simulation import Simulation


_HOLDER_EVENTS = frozenset(
    event.TYPE
    for event in (
        *(e.TaskHeartbeat, e.TaskProcessingFailed, e.TaskReleased, e.TaskCompleted, e.TaskFailed),
        *(e.TaskTimeout, e.TaskSubmittedForReview),
    )
)
# Workers learn of a pause within about a second; one more, because a call may have failed before.
_NOTICE_LIMIT_S = 2.5
# A hold ends by the clock of the process that reads it.
_MAX_SKEW_S = 2.0


@dataclass(frozen=True, slots=True)
class _ReceivedMessage:
    task_id: str
    round: int
    attempt: int  # the last attempt when the message was received
    at: datetime


# The monitor of the process whose call of the task source is being carried out.
_CALLER: ContextVar[Monitor | None] = ContextVar("_CALLER", default=None)


def observe_commits(backend: Backend) -> None:
    """Let the monitors see what a task source of its own commits."""
    if backend.source is None:
        return
    store: Any = backend.source.store  # type: ignore[attr-defined]
    commit = store.commit

    def observed(changes: Sequence[AnyChange], **how: Any) -> Any:
        monitor = _CALLER.get()
        if monitor is None:
            return commit(changes, **how)
        before = {
            change.row.id: store.tasks.get(change.row.id) or store.jobs.get(change.row.id)
            for change in changes
        }
        effects = commit(changes, **how)
        monitor.on_commit(changes, before)
        return effects

    store.commit = observed


class Monitor:
    """Observes what one process reads and writes."""

    def __init__(self, process: QueueProcess, simulation: Simulation) -> None:
        self._process = process
        self._simulation = simulation
        self._received: dict[str, _ReceivedMessage] = {}  # by receipt
        self._latest_receipts: dict[str, str] = {}  # by task
        self._recreated: set[str] = set()  # tasks that existed when this process created them
        self._received_events: dict[str, tuple[float, tuple[Event, ...]]] = {}  # by receipt

    @contextmanager
    def observed_commits(self) -> Iterator[None]:
        """What the task source commits meanwhile is committed for this process."""
        token = _CALLER.set(self)
        try:
            yield
        finally:
            _CALLER.reset(token)

    async def on_turn(
        self, worker: WorkerInstance, commands: Sequence[LeaseCommand], turn: Turn
    ) -> None:
        """A turn was carried out, now or before: each command has its answer."""
        if len(turn.answers) != len(commands):
            text = f"{len(commands)} commands got {len(turn.answers)} answers"
            self._simulation.report_violation(0, worker.worker_id, text)
        for command, answer in zip(commands, turn.answers, strict=False):
            if isinstance(answer, Applied) and answer.row.id != command.task_id:
                text = f"the answer to a command about {command.task_id} is {answer.row.id}"
                self._simulation.report_violation(0, worker.worker_id, text)
            elif isinstance(answer, Applied):
                await self._check_applied(worker, answer.row, turn)

    async def _check_applied(self, worker: WorkerInstance, row: TaskRow, turn: Turn) -> None:
        """What a turn has answered as applied is committed, with all that follows from it.

        What follows may come later if it depends on a document in the blob store. The check of the
        system at rest finds it if it never comes.
        """
        stored = await self._simulation.backend.ledger.get_task(row.id)
        if stored is None or stored.version < row.version:
            text = f"{worker.worker_id} was answered a version that is not stored"
            self._simulation.report_violation(5, row.id, text)
        elif stored == row and row.state.terminal:
            left = await self._simulation.history.missing_effect(row, self._simulation.time())
            if left is not None and not await self._needs_blob(row.spec.job_id, turn):
                self._simulation.report_violation(6, row.id, f"a turn has ended it, but {left}")

    async def _needs_blob(self, job_id: str, turn: Turn) -> bool:
        """Whether what follows from the turn's ends of this job is in the blob store.

        The ends of one job are settled together, so one of them is enough.
        """
        job = await self._simulation.backend.ledger.get_job(job_id)
        applied = [answer.row for answer in turn.answers if isinstance(answer, Applied)]
        ended = [row for row in applied if row.spec.job_id == job_id and row.state.terminal]
        for row in ended:
            dependents = row.spec.dependents
            if isinstance(dependents, Document) and dependents.key is not None:
                return True
            added = job is not None and row.spec.number in job.with_added_dependents
            blocks = row.state is not TaskState.COMPLETED and dependents is not None
            if job is not None and job.graph.key is not None and (added or blocks):
                return True
        return False

    def on_removed(self, job: JobRow | None, tasks: Sequence[TaskRow]) -> None:
        """The process has removed a job; these were its rows."""
        simulation = self._simulation
        if job is None:
            return
        simulation.removed_tasks.update({row.id: row for row in tasks})
        simulation.record(self._process.name, "removes", job.id)
        slack = 2 * simulation.settings.worker.skew_margin
        age = simulation.clock.now() - job.updated_at
        open_ = [row.id for row in tasks if not row.state.terminal]
        blocked = {row.id for row in tasks if row.spec.number in job.blocked}
        if age < simulation.settings.retention.jobs - slack:
            simulation.report_violation(15, job.id, f"was removed {age} after its last change")
        if job.intents or job.end_unreported or not blocked.issuperset(open_):
            simulation.report_violation(15, job.id, f"was removed, but had not ended: {open_}")

    async def rows_before(self, changes: Sequence[AnyChange]) -> dict[str, TaskRow | JobRow | None]:
        """The rows before a commit."""
        ledger = self._simulation.backend.ledger
        rows: dict[str, TaskRow | JobRow | None] = {}
        for change in changes:
            row = change.row
            read = ledger.get_task if isinstance(row, TaskRow) else ledger.get_job
            rows[row.id] = await read(row.id)
        return rows

    def on_commit(
        self, changes: Sequence[AnyChange], before: Mapping[str, TaskRow | JobRow | None]
    ) -> None:
        """The process has changed rows."""
        history = self._simulation.history
        for change in changes:
            new, old = change.row, before[change.row.id]
            if old is not None and old.change_id == new.change_id:
                # Its answer was lost. Or two processes create the same task: the second may know
                # that its parents have completed and send a message, while the task still waits.
                self._recreated.add(new.id)
                continue
            if isinstance(new, JobRow):
                if isinstance(old, JobRow):
                    history.on_job_commit(old, new)
            elif not isinstance(old, JobRow):
                history.on_task_commit(old, new)
                if old is not None:
                    self._check_holder(old, new, change.events)

    def _check_holder(self, old: TaskRow, new: TaskRow, events: Sequence[Event]) -> None:
        """Only the lease's holder may report, also if the fence is right."""
        who = self._process.name
        if new.attempt > old.attempt:
            self._simulation.pause_monitor.on_claimed(who, new.id, new.spec.queue)
        holder = old.lease.worker_id if old.lease else None
        if holder == who:
            return
        early = old.lease is not None and self._simulation.clock.now() < old.lease.expires_at
        if early and new.lease is None and holder in self._simulation.running_processes:
            text = f"{who} ends the lease of {holder}, which is alive and may use it"
            self._simulation.report_violation(2, new.id, text)
        reports = [event.type for event in events if event.type in _HOLDER_EVENTS]
        by_a_worker = [event.type for event in events if event.context.origin == "worker"]
        reported = [name for name in reports if name in by_a_worker]
        if new.checkpoint not in (old.checkpoint, None):
            reported.append("a checkpoint")
        for what in reported:
            text = f"{who} commits {what}, but the task is leased by {holder or 'no worker'}"
            self._simulation.report_violation(3, new.id, text)

    async def on_send(self, messages: Sequence[OutgoingMessage]) -> None:
        """A message must be sent after the commit that makes its task ready."""
        for message in messages:
            task_id = parse_message(message.body)
            if not isinstance(task_id, str):
                continue
            row = await self._simulation.backend.ledger.get_task(task_id)
            if row is None and task_id in self._simulation.removed_tasks:
                continue  # a call that timed out is carried out after the job was removed
            early = row is not None and row.state is TaskState.WAITING
            if row is None or (early and task_id not in self._recreated):
                state = row.state.value if row else "missing"
                text = f"{self._process.name} sends a message for it, but it is {state}"
                self._simulation.report_violation(6, task_id, text)

    async def on_receive(self, messages: Sequence[Message]) -> None:
        """Messages are being delivered to the process."""
        for message in messages:
            task_id = parse_message(message.body)
            row = isinstance(task_id, str) and await self._simulation.backend.ledger.get_task(
                task_id
            )
            if row:
                now = self._simulation.clock.now()
                delivered = _ReceivedMessage(row.id, row.round, row.attempt, now)
                self._received[message.receipt] = delivered
                self._latest_receipts[row.id] = message.receipt

    def on_handed_over(self, messages: Sequence[Message]) -> None:
        """The process has received the messages."""
        for message in messages:
            if (delivered := self._received.get(message.receipt)) is not None:
                self._simulation.pause_monitor.on_received(
                    self._process, delivered.task_id, message.queue
                )

    async def on_delete(self, receipts: Sequence[str]) -> None:
        """The process deletes messages."""
        for receipt in receipts:
            delivered = self._received.get(receipt)
            # It may have claimed the task by a later message.
            if delivered and self._latest_receipts[delivered.task_id] == receipt:
                await self._check_delete(delivered)

    async def _check_delete(self, delivered: _ReceivedMessage) -> None:
        """A message may be deleted when the outcome is committed or nothing is left to do."""
        row = await self._simulation.backend.ledger.get_task(delivered.task_id)
        # A resume sends a new message: that of the previous round is not needed.
        if row is None or row.round != delivered.round:
            return
        who, margin = self._process.name, self._simulation.settings.worker.skew_margin
        not_enqueued = row.enqueued_at is None or row.enqueued_at < delivered.at - margin
        ours = row.lease is not None and row.lease.worker_id == who
        is_running = ours and row.attempt == delivered.attempt + 1
        if is_running or (row.state is TaskState.PENDING and not_enqueued):
            text = f"{who} deletes its message while the task is {row.state.value}"
            self._simulation.report_violation(1, row.id, text)

    def on_events(self, delivery: Delivery) -> None:
        """The bus delivers events to the process."""
        self._received_events[delivery.receipt] = (self._simulation.time(), delivery.events)

    async def on_acknowledge(self, receipt: str) -> None:
        """The process acknowledges events."""
        received_at, events = self._received_events[receipt]
        await self._simulation.history.on_acknowledged(self._process.name, events, received_at)


class QueueProcess(Protocol):
    """What the monitors need to know about a process that serves queues."""

    @property
    def name(self) -> str: ...
    def was_paused(self, since: float) -> bool:
        """Whether its machine was paused at some time since then."""
        ...


@dataclass(frozen=True, slots=True)
class _SeenPauses:
    paused: frozenset[str]
    at: float


class PauseMonitor:
    """The pauses of all queues, and what each process knows about them.

    What counts is what a worker knew when it received a message, because handling it may take long.
    A worker that learns of a pause late is excused only by faults of its own calls.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._paused_since: dict[str, float] = {}
        self._resumed_at: dict[str, float] = {}  # by queue
        self._holds: dict[str, tuple[float, float]] = {}  # by queue: start and end
        self._seen_pauses: dict[str, _SeenPauses] = {}  # by process
        self._delayed_until: dict[str, float] = {}  # by process
        self._received: dict[
            tuple[str, str], str | None
        ] = {}  # by process and task: the problem, if any

    def on_switched(self, queue: str, *, paused: bool) -> None:
        """A queue was paused or resumed."""
        if not paused:
            self._paused_since.pop(queue, None)
            self._holds.pop(queue, None)
            self._resumed_at[queue] = self._simulation.time()
        elif queue not in self._paused_since:
            self._paused_since[queue] = self._simulation.time()

    def on_hold(self, queue: str, duration_s: float) -> None:
        """A queue is held from now on, or its hold is extended."""
        now = self._simulation.time()
        since, until = self._holds.get(queue, (now, now))
        self._holds[queue] = (since if until > now else now, now + duration_s)

    def on_answered(self, queue: str, requested_at: float) -> None:
        """A client was answered that the queue is paused: it is, or was resumed since."""
        if queue not in self._paused_since and self._resumed_at.get(queue, -1.0) < requested_at:
            self._simulation.report_violation(
                0, queue, "a client was answered that it is paused, but it is not"
            )

    def on_informed(self, who: str, paused: Collection[str]) -> None:
        """A process has read which queues are paused."""
        self._seen_pauses[who] = _SeenPauses(frozenset(paused), self._simulation.time())

    def on_delay(self, who: str, duration_s: float = 0.0) -> None:
        """A call of a process fails, or is answered that much later."""
        until = self._simulation.time() + duration_s
        self._delayed_until[who] = max(until, self._delayed_until.get(who, 0.0))

    def on_received(self, who: QueueProcess, task_id: str, queue: str) -> None:
        """A process has received a message. The first one for a task counts."""
        self._received.setdefault((who.name, task_id), self._violation_text(who, queue))

    def _violation_text(self, who: QueueProcess, queue: str) -> str | None:
        now, since = self._simulation.time(), self._stopped_since(queue)
        seen = self._seen_pauses.get(who.name)
        if seen is not None and queue in seen.paused:
            return f"knows that {queue!r} is paused" if seen.at < now else None
        if since is None or who.was_paused(since):
            return None
        late = now - max(since, self._delayed_until.get(who.name, 0.0))
        if late <= _NOTICE_LIMIT_S:
            return None
        return f"has not known for {late:.1f} s that {queue!r} is paused"

    def _stopped_since(self, queue: str) -> float | None:
        if queue in self._paused_since:
            return self._paused_since[queue]
        since, until = self._holds.get(queue, (0.0, 0.0))
        return since if self._simulation.time() < until - _MAX_SKEW_S else None

    def on_claimed(self, who: str, task_id: str, queue: str) -> None:
        """A process starts an attempt."""
        # A source of its own reads the pauses in the transaction that claims.
        direct = self._simulation.backend.source is not None
        if direct and self._stopped_since(queue) is not None:
            text = f"{who} starts it, but {queue!r} is paused"
            self._simulation.report_violation(0, task_id, text)
        if (problem := self._received.pop((who, task_id), None)) is not None:
            self._simulation.report_violation(0, task_id, f"{who} starts it and {problem}")
