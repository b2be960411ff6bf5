"""Clients: they submit, add, cancel, resume, replay, review, pause, and send malformed messages."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from random import Random
from typing import assert_never

from longshore.core.budgets import Budget
from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.queues import message_body
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendUnavailable, CommandRefused, Conflict, NotFound
from longshore.ports.task_queue import OutgoingMessage
from verification.simulation.faults import Fault
from verification.simulation.oracle import Answers, CancelAnswer
from verification.simulation.processes import Process
from verification.simulation.simulation import TENANT, Simulation
from verification.simulation.workload import (
    DEFINITIONS,
    MAX_JOBS,
    MAX_TASKS,
    QUEUES,
    Action,
    ActionKind,
    Add,
    OperatorCommand,
    QueueSwitch,
    Submit,
)

_MAX_TRIES = 8
_MAX_POLLS = 6
_POLL_INTERVAL_S = 5.0
_EXHAUSTED_QUEUE = "exhausted"

ClientCall = Callable[[Process], Awaitable[None]]
_MAX_REVIEW_S = 20.0


class Clients:
    """Carry out the drawn actions, each in a process of its own that may crash."""

    def __init__(self, simulation: Simulation, process: Callable[[str], Process]) -> None:
        self.answers = Answers()
        self._reviews = Reviewers(simulation, self.answers)
        self._submit_counts: Counter[str] = Counter()  # by request id
        self._simulation = simulation
        self._process = process

    async def store_definitions(self) -> None:
        """Store the definitions, before the faults begin."""
        for definition in DEFINITIONS:
            await self._simulation.backend.definitions.put(TENANT, definition)

    def start(self, actions: Sequence[Action]) -> list[asyncio.Task[None]]:
        """Start all actions, each at its time. Returns their tasks."""
        return [
            self._simulation.start_task(self._run_action(action, f"client-{number}.{copy}"))
            for number, action in enumerate(actions)
            for copy in range(2 if action.twice else 1)
        ]

    async def _run_action(self, action: Action, name: str) -> None:
        await asyncio.sleep(action.at)
        call = self._call_for(action)
        for number in range(_MAX_TRIES):
            process = self._process(f"{name}.{number}")
            answered = self._simulation.start_task(self._try_call(call, process))
            await process.finished.wait()
            if not process.dead and await answered:
                return
            await asyncio.sleep(2.0)

    async def _try_call(self, call: ClientCall, process: Process) -> bool:
        """Returns whether the call was answered, also with a refusal."""
        try:
            await call(process)
        except BackendUnavailable as error:
            self._simulation.record(process.name, "no answer", str(error))
            return False
        except (Conflict, NotFound) as error:
            self._simulation.record(process.name, "refused", str(error))
            if isinstance(error, CommandRefused):
                self.answers.refused[process.name, error.row_id] = error.reason
        except Exception as error:  # noqa: BLE001 - any other error is a violation
            if not process.dead:
                self._simulation.report_violation(
                    0, process.name, f"a client was answered with {error!r}"
                )
        finally:
            if not process.dead:
                process.end()
        return True

    def _call_for(self, action: Action) -> ClientCall:
        match action:
            case Submit():
                return self._submit(action)
            case Add():
                return self._add(action)
            case OperatorCommand():
                return self._command(action)
            case QueueSwitch():
                return self._switch_queue(action)
            case _:
                assert_never(action)

    def _submit(self, action: Submit) -> ClientCall:
        async def submit(process: Process) -> None:
            self._submit_counts[action.request_id] += 1
            accepted = await process.services.producer.submit(
                TENANT, action.request_id, action.document
            )
            self._simulation.record_action(process.name, ActionKind.SUBMIT, action.request_id)
            if accepted.job.id != job_id_of(TENANT, action.request_id):
                self._simulation.report_violation(
                    9, action.request_id, f"became job {accepted.job.id}"
                )
            alone = self._submit_counts[action.request_id] == 1 and not accepted.created
            if alone and await self._is_unchanged(accepted.job.id):
                self._simulation.report_violation(
                    9, action.request_id, "was new, but was answered as an existing job"
                )
            self.answers.accepted[action.request_id] = action.document

        return submit

    async def _is_unchanged(self, job_id: str) -> bool:
        """Whether the job was not changed since its creation."""
        ledger = self._simulation.backend.ledger
        job = await ledger.get_job(job_id)
        tasks = await ledger.list_tasks(TENANT, job_id=job_id, limit=MAX_TASKS)
        first = job is not None and job.version == 1
        return first and all(row.version == 1 for row in tasks.items)

    def _add(self, action: Add) -> ClientCall:
        job_id, addition = (
            job_id_of(TENANT, action.request_id),
            (action.request_id, action.addition_id),
        )
        self.answers.added.setdefault(addition, (action.document, False))

        async def add(process: Process) -> None:
            producer = process.services.producer
            added = await producer.add_tasks(TENANT, job_id, action.addition_id, action.document)
            self._simulation.record_action(process.name, ActionKind.ADD_TASKS, action.addition_id)
            expected = tuple(task["taskId"] for task in action.document["tasks"])
            if added.keys != expected:
                self._simulation.report_violation(
                    9, job_id, f"{action.addition_id} has added {added.keys}"
                )
            self.answers.added[addition] = (action.document, True)

        return add

    def _command(self, command: OperatorCommand) -> ClientCall:
        job_id = job_id_of(TENANT, command.request_id)

        async def run_command(process: Process) -> None:
            self._simulation.record(process.name, f"requests {command.kind}", command.request_id)
            match command.kind:
                case "cancel":
                    await self._cancel(process, job_id)
                case "cancel task":
                    await self._cancel_task(
                        process, job_id, self._simulation.random_for(command.seed)
                    )
                case "replay":
                    await process.services.dead_letters.replay(
                        TENANT, DeadLetterFilter(), by=process.name
                    )
                    self._simulation.record_action(process.name, ActionKind.REPLAY, "everything")
                case "resume":
                    await self._resume(process, job_id)
                case "allow":
                    await self._add_budget(process, job_id, command.seed)
                case _:
                    # Two concurrent reviewers may decide differently.
                    rng = self._simulation.random_for(f"{command.seed} by {process.name}")
                    await self._review(process, job_id, rng)

        return run_command

    async def _cancel(self, process: Process, job_id: str) -> None:
        requested_at = self._simulation.time()
        await process.services.operator_commands.cancel_job(job_id, by=process.name)
        self._simulation.record_action(process.name, ActionKind.CANCEL, job_id)
        self.answers.cancelled.append(CancelAnswer(requested_at, self._simulation.time(), job_id))

    async def _cancel_task(self, process: Process, job_id: str, rng: Random) -> None:
        open_ = [state for state in TaskState if not state.terminal]
        tasks = await _tasks_in(process, job_id, *open_) or await _tasks_in(
            process, job_id, *TaskState
        )
        if not tasks:
            return
        task_id, requested_at = rng.choice(tasks), self._simulation.time()
        try:
            row = await process.services.operator_commands.cancel_task(
                TENANT, task_id, by=process.name
            )
        except CommandRefused:
            # The task may have been cancelled with a lost answer, and resumed since.
            if not self._simulation.history.was_resumed(
                job_id, requested_at, self._simulation.time()
            ):
                raise
            return
        now = self._simulation.time()
        self._simulation.record_action(process.name, ActionKind.CANCEL_TASK, task_id)
        self.answers.cancelled.append(CancelAnswer(requested_at, now, job_id, task_id, row.round))
        await self._simulation.history.on_answered(row, requested_at)

    async def _resume(self, process: Process, job_id: str) -> None:
        ended = await _tasks_in(process, job_id, TaskState.FAILED, TaskState.CANCELLED)
        if ended:
            resumed = await process.services.operator_commands.resume(
                job_id, ended, by=process.name
            )
            if resumed.tasks:
                self._simulation.record_action(process.name, ActionKind.RESUME, job_id)
            else:
                why = "; ".join(resumed.refused.values())
                self.answers.refused[process.name, job_id] = why

    async def _add_budget(self, process: Process, job_id: str, seed: str) -> None:
        """Raise a budget; two calls with one request id raise it once."""
        budgets, more = process.services.budget_operations, Budget(usd=2.0)
        row: JobRow | TaskRow | None = await process.services.backend.ledger.get_job(job_id)
        if isinstance(row, JobRow) and row.spec.budget:
            await budgets.add(TENANT, job_id, more, by=process.name, request_id=seed)
            row = await process.services.backend.ledger.get_job(job_id)
        else:
            parked = await _tasks_in(process, job_id, TaskState.PARKED)
            if not parked:
                return
            await budgets.add(TENANT, parked[0], more, by=process.name, request_id=seed)
            row = await process.services.backend.ledger.get_task(parked[0])
        allowance = None if row is None else row.allowance
        if allowance is None or allowance.requests.count(seed) != 1:
            self._simulation.report_violation(
                11, job_id, f"request {seed} is not exactly once in {allowance}"
            )
        self._simulation.record_action(process.name, ActionKind.ADD_BUDGET, job_id)

    async def _review(self, process: Process, job_id: str, rng: Random) -> None:
        """Wait for a task in review, up to a limit."""
        for _ in range(_MAX_POLLS):
            if in_review := await _tasks_in(process, job_id, TaskState.IN_REVIEW):
                await self._reviews.review(process, in_review, rng)
                return
            await asyncio.sleep(_POLL_INTERVAL_S)
            await process.wait_until_running()

    def _switch_queue(self, action: QueueSwitch) -> ClientCall:
        async def switch(process: Process) -> None:
            operators, requested_at = process.services.operator_commands, self._simulation.time()
            if action.pause:
                pause = await operators.pause_queue(
                    action.queue, by=process.name, reason="inspection"
                )
                self._simulation.record_action(
                    process.name, ActionKind.PAUSE_QUEUE, f"{action.queue}, by {pause.by}"
                )
                self._simulation.pause_monitor.on_answered(action.queue, requested_at)
                return
            ended = await operators.resume_queue(action.queue, by=process.name)
            if ended is not None and ended.until is None:
                self._simulation.record_action(
                    process.name, ActionKind.RESUME_QUEUE, f"{action.queue}, by {ended.by}"
                )
                self._check_resumed_once(ended.name, ended.by, process.name)

        return switch

    def _check_resumed_once(self, queue: str, paused_by: str, by: str) -> None:
        earlier = self.answers.pauses_ended.setdefault((queue, paused_by), by)
        if earlier != by:
            text = f"the pause by {paused_by} was ended by {earlier} and again by {by}"
            self._simulation.report_violation(0, queue, text)

    async def resume_queues(self, process: Process) -> None:
        """Resume all paused queues. Holds end by themselves."""
        for paused in await process.services.backend.queue_controls.list_pauses():
            if paused.until is not None:
                continue
            await process.services.operator_commands.resume_queue(paused.name, by=process.name)
            self._simulation.record(process.name, "resumes queue", paused.name)

    def send_poison(self, rng: Random) -> None:
        """Send a malformed message, or one for a task that does not exist."""
        if self._simulation.backend.queue is None:
            return
        unknown = task_id_of(job_id_of(TENANT, "missing"), "missing")
        body = rng.choice(("not JSON", "{}", json.dumps({"requestId": unknown})))
        self._simulation.faults.count(Fault.POISON)
        self._simulation.record("client", "poison", body)
        message = OutgoingMessage(queue=rng.choice(QUEUES), body=body)
        self._simulation.start_task(self._simulation.backend.require_queue().send([message]))

    def exhaust_message(self, rng: Random) -> None:
        """Turn a message of a random task into a dead letter."""
        if self._simulation.backend.queue is None:
            return
        self._simulation.start_task(self._exhaust_message(rng))

    async def _exhaust_message(self, rng: Random) -> None:
        page = await self._simulation.backend.ledger.list_tasks(TENANT, limit=MAX_JOBS * MAX_TASKS)
        open_ = [row for row in page.items if not row.state.terminal]
        if not open_:
            return
        task_id = rng.choice(open_).id
        self._simulation.faults.count(Fault.MESSAGE_EXHAUSTED)
        self._simulation.record("client", "message exhausted", task_id)
        # On a queue of its own, so that other messages are not exhausted too.
        queue, at_once = self._simulation.backend.require_queue(), timedelta(0)
        await queue.send([OutgoingMessage(queue=_EXHAUSTED_QUEUE, body=message_body(task_id))])
        for _ in range(RECEIVE_LIMIT + 1):
            await queue.receive([_EXHAUSTED_QUEUE], limit=1, hidden_for=at_once, wait=at_once)


async def _tasks_in(process: Process, job_id: str, *states: TaskState) -> list[str]:
    states_by_key = await process.services.backend.ledger.task_states(job_id)
    return [task_id_of(job_id, key) for key, state in states_by_key.items() if state in states]


class Reviewers:
    """Review decisions, and checks of their answers."""

    def __init__(self, simulation: Simulation, answers: Answers) -> None:
        self._simulation = simulation
        self._answers = answers

    async def review(self, process: Process, task_ids: Sequence[str], rng: Random) -> None:
        """Review these tasks one after the other."""
        for task_id in task_ids:
            try:
                await self._decide(process, task_id, rng)
            except CommandRefused as refused:
                self._simulation.record(process.name, "refused", str(refused))
                self._answers.refused[process.name, task_id] = refused.reason

    async def _decide(self, process: Process, task_id: str, rng: Random) -> None:
        approves, says_which, thinks = rng.random() < 0.6, rng.random() < 0.7, rng.random()
        row = await process.services.backend.ledger.get_task(task_id)
        if row is None or row.state is not TaskState.IN_REVIEW:
            return
        if thinks < 0.5:
            await asyncio.sleep(2 * thinks * _MAX_REVIEW_S)
            await process.wait_until_running()
        seen = row.attempt if says_which else None
        if approves:
            await self._approve(process, task_id, seen)
        else:
            await self._request_revision(process, task_id, seen)

    async def _approve(self, process: Process, task_id: str, seen: int | None) -> None:
        requested_at, who = self._simulation.time(), process.name
        row = await process.services.operator_commands.approve(
            TENANT, task_id, by=who, attempt=seen
        )
        self._simulation.record_action(who, ActionKind.APPROVE, f"{task_id}/{row.attempt}")
        self._check_reviewed_attempt(row, seen)
        self._answers.approved[task_id] = row.attempt
        await self._simulation.history.on_answered(row, requested_at)

    async def _request_revision(self, process: Process, task_id: str, seen: int | None) -> None:
        who, words = process.name, f"once more, please ({process.name})"
        row = await process.services.operator_commands.revise(
            TENANT, task_id, by=who, feedback=words, attempt=seen
        )
        self._simulation.record_action(who, ActionKind.REQUEST_REVISION, task_id)
        if seen is not None:
            self._answers.revisions_requested[task_id] = max(
                seen, self._answers.revisions_requested.get(task_id, 0)
            )
        if row.feedback != words:
            self._simulation.report_violation(
                1, task_id, f"was sent back with the words {words!r}, which it lost"
            )

    def _check_reviewed_attempt(self, row: TaskRow, seen: int | None) -> None:
        if seen is not None and row.attempt != seen:
            text = f"attempt {seen} was to be approved, and attempt {row.attempt} is"
            self._simulation.report_violation(4, row.id, text)
